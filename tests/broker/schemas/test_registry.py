"""Versions in the metadata store."""

import json
from collections.abc import Sequence
from urllib.parse import quote

import pytest
import trio

from broker.errors import IncompatibleSchema, SchemaNotFound
from broker.names import TopicName
from broker.schemas.registry import VERSIONS_AT_ONCE, Schemas, owner_of, removal_of, taking_over
from broker.schemas.schema import Schema, SchemaType
from storage.metadata.memory import MemoryStore
from storage.metadata.store import ABSENT, Check, IndexEntry, MetadataStore, Op, Put, starting_with
from tests.support.rooms import now_ms
from tests.support.steered_store import SteeredStore
from txn.errors import OwnershipLost

OWNER = TopicName.parse("topic://public/default/orders")
NO_CLAIM = Check("/owners/nobody", ABSENT)


def version_of(*optional: str, kind: SchemaType = SchemaType.AVRO) -> Schema:
    fields = [{"name": name, "type": ["null", "int"], "default": None} for name in ("always", *optional)]
    return Schema(kind, json.dumps({"type": "record", "name": "R", "fields": fields}).encode(), {"k": "v"})


@pytest.fixture
def store() -> MetadataStore:
    return MemoryStore()


@pytest.fixture
def schemas(store: MetadataStore) -> Schemas:
    return Schemas(store, now_ms)


async def test_versions_count_up_and_stay(schemas: Schemas) -> None:
    made = [version_of(), version_of("a"), version_of("a", "b")]
    assert await schemas.latest(OWNER) is None
    assert [await schemas.add(OWNER, schema, NO_CLAIM) for schema in made] == [0, 1, 2]
    assert [await schemas.add(OWNER, schema, NO_CLAIM) for schema in reversed(made)] == [2, 1, 0]
    latest = await schemas.latest(OWNER)
    assert latest is not None
    assert (latest.version, latest.schema) == (2, made[2])
    first = await schemas.version(OWNER, 0)
    assert first is not None
    assert first.schema == made[0]
    assert await schemas.version(OWNER, 3) is None


async def test_the_same_in_other_words_is_the_same_version(schemas: Schemas) -> None:
    schema = version_of("a")
    again = Schema(schema.type, json.dumps(json.loads(schema.data) | {"doc": "said"}, indent=2).encode())
    assert await schemas.add(OWNER, schema, NO_CLAIM) == 0
    assert await schemas.add(OWNER, again, NO_CLAIM) == 0


async def test_topics_do_not_share_versions(schemas: Schemas) -> None:
    other = TopicName.parse("persistent://public/default/orders")
    assert await schemas.add(OWNER, version_of(), NO_CLAIM) == 0
    assert await schemas.latest(other) is None
    assert await schemas.add(other, Schema(SchemaType.INT32), NO_CLAIM) == 0


async def test_what_does_not_follow_changes_nothing(store: MetadataStore, schemas: Schemas) -> None:
    await schemas.add(OWNER, version_of(), NO_CLAIM)
    before = store.statistics().revision
    for refused in (Schema(SchemaType.STRING), version_of(kind=SchemaType.JSON), Schema(SchemaType.AVRO, b"no json")):
        with pytest.raises(IncompatibleSchema):
            await schemas.add(OWNER, refused, NO_CLAIM)
    assert store.statistics().revision == before


def typed(kind: str | None) -> Schema:
    """A version with a field of this type, or without the field."""
    fields = [] if kind is None else [{"name": "a", "type": ["null", kind], "default": None}]
    return Schema(SchemaType.JSON, json.dumps({"type": "record", "name": "R", "fields": fields}).encode())


async def test_a_field_does_not_come_back_with_another_type(schemas: Schemas) -> None:
    """Each version reads the one before it, but the third could not read the first."""
    assert [await schemas.add(OWNER, schema, NO_CLAIM) for schema in (typed("int"), typed(None))] == [0, 1]
    with pytest.raises(IncompatibleSchema, match=rf"version 0 of the schema of {OWNER} cannot read .* at field a: "):
        await schemas.add(OWNER, typed("string"), NO_CLAIM)
    assert await schemas.version(OWNER, 2) is None
    # It comes back with the type that it had, and that is a version which is there.
    assert await schemas.add(OWNER, typed("int"), NO_CLAIM) == 0


async def test_versions_of_a_migrated_topic_count_too(store: MetadataStore, schemas: Schemas) -> None:
    """Its older messages have the regular topic's versions, of which only the latest was taken over."""
    regular = OWNER.as_regular
    assert [await schemas.add(regular, schema, NO_CLAIM) for schema in (typed("int"), typed(None))] == [0, 1]
    await store.commit(await taking_over(regular, OWNER, store))
    with pytest.raises(IncompatibleSchema, match=rf"version 0 of the schema of {OWNER} cannot read .* at field a: "):
        await schemas.add(OWNER, typed("string"), NO_CLAIM)
    assert await schemas.add(OWNER, version_of("b", kind=SchemaType.JSON), NO_CLAIM) == 2
    # Without a migration, a regular topic of the same name is another one.
    other = TopicName.parse("topic://public/default/other")
    for owner, kind in ((other.as_regular, "int"), (other, "string")):
        assert await schemas.add(owner, typed(kind), NO_CLAIM) == 0
    assert await schemas.add(other, typed(None), NO_CLAIM) == 1


async def test_all_versions_count_however_many_there_are(schemas: Schemas) -> None:
    """The first page is full, and the version that does not fit is on the second one."""
    bad = VERSIONS_AT_ONCE + 2
    for number in range(2 * VERSIONS_AT_ONCE + 3):
        added = version_of(*(["odd"] if number == bad else []), f"n{number}")
        assert await schemas.add(OWNER, added, NO_CLAIM) == number
    odd = json.loads(version_of("odd").data)
    odd["fields"][1]["type"] = ["null", "string"]
    with pytest.raises(IncompatibleSchema, match=f"and version {bad} of"):
        await schemas.add(OWNER, Schema(SchemaType.AVRO, json.dumps(odd).encode()), NO_CLAIM)
    assert await schemas.add(OWNER, version_of("even"), NO_CLAIM) == 2 * VERSIONS_AT_ONCE + 3


async def test_versions_of_an_earlier_release_that_do_not_fit_stay_usable(
    store: MetadataStore, schemas: Schemas
) -> None:
    """Their producers and consumers go on. A new version must fit all of them."""
    versions = [typed("int"), typed(None), typed("string")]
    for schema in versions[:2]:
        await schemas.add(OWNER, schema, NO_CLAIM)
    other = TopicName.parse("topic://public/default/other")
    await schemas.add(other, versions[2], NO_CLAIM)
    # What a release without this rule has written.
    (hit,) = await store.query("schema-by-fingerprint", *starting_with(quote(str(other), safe="")), limit=1)
    content = json.loads(hit.record.value) | {"version": 2}
    key = f"/schemas/{quote(str(OWNER), safe='')}"
    index = IndexEntry("schema-by-fingerprint", f"{quote(str(OWNER), safe='')}:{content['fingerprint']}")
    await store.commit(
        [Put(key, b'{"latest": 2}'), Put(f"{key}/{2:020}", json.dumps(content).encode(), indexes=(index,))]
    )
    assert [await schemas.add(OWNER, schema, NO_CLAIM) for schema in versions] == [0, 1, 2]
    assert await schemas.require_reader(OWNER, versions[2])
    with pytest.raises(IncompatibleSchema, match="version 0 of"):
        await schemas.add(
            OWNER, Schema(SchemaType.JSON, version_of("a", "b").data.replace(b'"int"', b'"string"')), NO_CLAIM
        )


async def test_a_broker_that_lost_the_topic_adds_nothing(store: MetadataStore, schemas: Schemas) -> None:
    claim = Check("/owners/it", await store.put("/owners/it", b"me"))
    assert await schemas.add(OWNER, version_of(), claim) == 0
    await store.put("/owners/it", b"another")
    with pytest.raises(OwnershipLost):
        await schemas.add(OWNER, version_of("a"), claim)
    assert await schemas.version(OWNER, 1) is None


async def test_two_that_add_at_once_agree() -> None:
    """The slower one is compared with the faster one's result; two equal ones become one version."""
    store = SteeredStore()
    schemas = Schemas(store, now_ms)
    held: list[trio.Event] = []

    async def hold(ops: object) -> None:
        held.append(trio.Event())
        if len(held) <= 3:
            await held[-1].wait()

    store.before = hold
    outcomes: dict[str, int | str] = {}

    async def add(name: str, schema: Schema) -> None:
        try:
            outcomes[name] = await schemas.add(OWNER, schema, NO_CLAIM)
        except IncompatibleSchema:
            outcomes[name] = "refused"

    async with trio.open_nursery() as nursery:
        for name, schema in (("first", version_of()), ("same", version_of()), ("other", Schema(SchemaType.INT8))):
            nursery.start_soon(add, name, schema)
            count = len(held)
            while len(held) == count:
                await trio.lowlevel.checkpoint()
        for count, event in enumerate(tuple(held)):
            event.set()
            while len(outcomes) <= count:
                await trio.lowlevel.checkpoint()
    assert outcomes == {"first": 0, "same": 0, "other": "refused"}
    assert await schemas.version(OWNER, 1) is None


async def test_removal_leaves_nothing(store: MetadataStore, schemas: Schemas) -> None:
    for schema in (version_of(), version_of("a")):
        await schemas.add(OWNER, schema, NO_CLAIM)
    ops: list[Op] = [*removal_of(OWNER)]
    await store.commit(ops)
    assert store.statistics().records == 0
    assert await schemas.latest(OWNER) is None
    assert await schemas.add(OWNER, Schema(SchemaType.STRING), NO_CLAIM) == 0


async def test_a_consumer_needs_to_read_the_latest_alone(schemas: Schemas) -> None:
    assert not await schemas.require_reader(OWNER, Schema(SchemaType.STRING))
    with pytest.raises(IncompatibleSchema):
        await schemas.require_reader(OWNER, Schema(SchemaType.AVRO, b"no json"))
    await schemas.add(OWNER, version_of(), NO_CLAIM)
    assert await schemas.require_reader(OWNER, version_of("its_own"))
    with pytest.raises(IncompatibleSchema):
        await schemas.require_reader(OWNER, Schema(SchemaType.STRING))
    assert await schemas.version(OWNER, 1) is None


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("segment://t/n/x/8000-ffff-1", "topic://t/n/x"),
        ("topic://t/n/x", "topic://t/n/x"),
        ("persistent://t/n/x", "persistent://t/n/x"),
        ("persistent://t/n/x-partition-3", "persistent://t/n/x"),
    ],
)
def test_whose_schemas_apply(name: str, owner: str) -> None:
    assert str(owner_of(TopicName.parse(name))) == owner


async def test_deleted_versions_stay_readable_and_count_no_more(schemas: Schemas) -> None:
    """Stored messages name them. Whatever comes next is checked against none of them."""
    with pytest.raises(SchemaNotFound):
        await schemas.delete(OWNER)
    made = [version_of(), version_of("a")]
    for schema in made:
        await schemas.add(OWNER, schema, NO_CLAIM)
    assert await schemas.delete(OWNER) == 1
    with pytest.raises(SchemaNotFound):
        await schemas.delete(OWNER)
    assert await schemas.latest(OWNER) is None
    assert await schemas.all(OWNER) == []
    assert await schemas.version_of(OWNER, made[1]) is None
    assert not await schemas.require_reader(OWNER, made[0])
    old = await schemas.version(OWNER, 1)
    assert old is not None
    assert old.schema == made[1]
    other = Schema(SchemaType.STRING)
    await schemas.require_next(OWNER, other)
    assert await schemas.add(OWNER, other, NO_CLAIM) == 2
    with pytest.raises(IncompatibleSchema):
        await schemas.require_next(OWNER, made[0])
    with pytest.raises(IncompatibleSchema):
        await schemas.add(OWNER, made[0], NO_CLAIM)
    assert [stored.version for stored in await schemas.all(OWNER)] == [2]
    assert await schemas.delete(OWNER) == 2
    # An equal schema from before the deletion is another version.
    assert await schemas.add(OWNER, made[1], NO_CLAIM) == 3
    assert await schemas.version_of(OWNER, made[1]) == 3
    assert await schemas.add(OWNER, made[1], NO_CLAIM) == 3


async def test_a_schema_that_is_added_during_a_deletion_is_deleted_too() -> None:
    store = SteeredStore()
    schemas = Schemas(store, now_ms)
    await schemas.add(OWNER, version_of(), NO_CLAIM)
    commit = store.commit

    async def add_first(ops: Sequence[Op]) -> object:
        store.commit = commit  # type: ignore[method-assign]
        await schemas.add(OWNER, version_of("a"), NO_CLAIM)
        return await commit(ops)

    store.commit = add_first  # type: ignore[method-assign,assignment]
    assert await schemas.delete(OWNER) == 1
    assert await schemas.latest(OWNER) is None
