"""Versions in the metadata store."""

import json

import pytest
import trio

from broker.errors import IncompatibleSchema
from broker.names import TopicName
from broker.schemas.registry import Schemas, owner_of, removal_of
from broker.schemas.schema import Schema, SchemaType
from storage.metadata.memory import MemoryStore
from storage.metadata.store import ABSENT, Check, MetadataStore, Op
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
