"""During an upgrade, brokers of two releases write the same records. The older one keeps what the newer one added.

Each story is a generator. It makes a record with this release's own code, and yields its key. The test then adds fields
to the record, as a later release would. The story goes on as another broker: it reads the record and changes it.
"""

from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from trio.testing import wait_all_tasks_blocked

from broker.deduplication.deduplication import Deduplication
from broker.deduplication.snapshot import sequences_key
from broker.front_ends import ENTRY_CODECS
from broker.layouts.autoscale_policy import AutoScaleOverride
from broker.layouts.layout import Layout, create
from broker.layouts.parts import LayoutSubscription, StartPosition, SubscriptionKind
from broker.layouts.registrations import GroupId, Registrations, registration_key
from broker.layouts.store import Layouts, layout_key
from broker.schemas.registry import Schemas
from broker.schemas.schema import Schema, SchemaType
from storage.cursor import cursor_key
from storage.journal_records import JOURNALS, JournalRecords
from storage.ledger_record import LedgerInfo, ManagedLedgerRecord
from storage.managed_ledger_record import RecordKeeper, record_key
from storage.metadata.memory import MemoryStore
from storage.metadata.store import ABSENT, Check, MetadataStore, starting_with
from storage.writer import Writer
from tests.support.disk import SimulatedFiles
from tests.support.pending_acks import owned, stream_of
from tests.support.rooms import TOPIC, now_ms, publish, rooms, subscribe
from tests.support.segments import SEGMENT, segment_host
from txn.aborted_transactions import AbortedTransactions, aborted_records
from txn.coordinator import Coordinator
from txn.group_record import group_key
from txn.headers import TransactionGroup, header_key
from txn.states import EndAction
from txn.transactions import Transactions, TransactionSettings

Story = AsyncGenerator[str, None]

NO_CLAIM = Check("/owners/nobody", ABSENT)
LATER = {"since": [1, {"a": None}]}


def another_coordinator(store: MetadataStore) -> Coordinator:
    settings = TransactionSettings(coordinators=1, timeout_ms_max=10_000_000, retention_ms=0)
    return Transactions(store, settings, now_ms).coordinator


async def journal(store: MetadataStore) -> Story:
    await JournalRecords(store, Path("/data")).advance(None, Writer("folder", "broker", 1, 1), None)
    yield f"{JOURNALS}broker"
    records = JournalRecords(store, Path("/data"))
    await records.advance(await records.read("broker"), Writer("folder", "broker", 2, 2), None)


async def ids(store: MetadataStore) -> Story:
    await another_coordinator(store).new_transaction(0, 60_000)
    yield "/txn/tc-seq/0"
    await another_coordinator(store).new_transaction(0, 60_000)


async def header(store: MetadataStore) -> Story:
    txn = await another_coordinator(store).new_transaction(0, 60_000)
    yield header_key(txn)
    await another_coordinator(store).end(txn, EndAction.COMMIT)


async def header_in_a_group(store: MetadataStore) -> Story:
    group = TransactionGroup("a", 0)
    txn = await another_coordinator(store).new_in_group(0, 60_000, group, once=False)
    assert txn is not None
    yield header_key(txn)
    other = another_coordinator(store)
    await other.groups.commit(group, [txn], once=False)
    await other.groups.settle("a")


async def group_that_commits(store: MetadataStore) -> Story:
    group = TransactionGroup("a", 0)
    txn = await another_coordinator(store).new_in_group(0, 60_000, group, once=False)
    assert txn is not None
    yield group_key("a")
    await another_coordinator(store).groups.commit(group, [txn], once=False)


async def group_that_goes_on(store: MetadataStore) -> Story:
    await another_coordinator(store).groups.commit(TransactionGroup("a", 0), [], once=False)
    yield group_key("a")
    await another_coordinator(store).new_in_group(0, 60_000, TransactionGroup("a", 1), once=False)


async def group_that_aborts(store: MetadataStore) -> Story:
    await another_coordinator(store).new_in_group(0, 60_000, TransactionGroup("a", 0), once=True)
    yield group_key("a")
    await another_coordinator(store).groups.abort(TransactionGroup("a", 0), once=True)


async def managed_ledger(store: MetadataStore) -> Story:
    writer = Writer("folder", "broker", 1, 1)
    keeper = RecordKeeper("x", store, None)
    await keeper.read()
    await keeper.write(ManagedLedgerRecord("id", (LedgerInfo(3, 0, writer=writer),), 3))
    yield record_key("x")
    keeper = RecordKeeper("x", store, None)
    read = await keeper.read()
    assert read is not None
    ended = LedgerInfo(3, 0, 7, 7, 70, 1, closed=True, writer=writer)
    for newest in (4, 5):
        await keeper.write(replace(read, ledgers=(ended, LedgerInfo(newest, 7, writer=writer)), newest_id=newest))


async def cursor(store: MemoryStore) -> Story:
    stream = stream_of(3)
    async with owned(store, stream) as rig:
        key = cursor_key(stream.name, rig.cursor.name)
    yield key
    async with owned(store, stream) as rig:
        rig.cursor.acknowledge_cumulative(stream.positions[0])
        await rig.cursor.synced(stream.positions[0])
        rig.cursor.move(stream.positions[1])
        rig.cursor.acknowledge_cumulative(stream.positions[2])
        await rig.cursor.synced(stream.positions[2])


async def abort_record(store: MemoryStore) -> Story:
    async with segment_host(store, SimulatedFiles(seed=1)) as host:
        segment = await host.own()
        txn = await host.begin()
        await segment.publish(b"a", txn)
        await host.abort(txn)
        await wait_all_tasks_blocked()
        (key,) = await host.abort_keys()
        yield key
        aborted = AbortedTransactions(segment.ledger)
        await aborted.load(store)
        await store.commit([aborted.to_put(txn)])
        assert [record.key for record in await store.scan(*aborted_records(SEGMENT))] == [key]


async def layout(store: MetadataStore) -> Story:
    policy = AutoScaleOverride(max_segments=9)
    made = create(2, 1, creation_id="c").with_auto_scale(policy).begin_split(0)
    subscription = LayoutSubscription(SubscriptionKind.STREAM, "s", StartPosition.EARLIEST, 1)
    await Layouts(store).create(TOPIC, made.add_subscription("s", subscription))
    yield layout_key(TOPIC)

    def replace_segments(found: Layout) -> Layout:
        assert found.intent is not None, "it was begun"
        return found.replace_segments(found.intent, 2)

    await Layouts(store).change(TOPIC, replace_segments)


async def registration(store: MetadataStore) -> Story:
    group = GroupId(TOPIC, "s")
    await Registrations(store).write(group, NO_CLAIM, {"c": frozenset({1})})
    yield registration_key(group, "c")
    registrations = Registrations(store)
    await registrations.load(TOPIC)
    await registrations.write(group, NO_CLAIM, {"c": frozenset({1, 2})})


async def schemas(store: MetadataStore) -> Story:
    def schema(*fields: str) -> Schema:
        listed = [{"name": name, "type": ["null", "int"], "default": None} for name in fields]
        return Schema(SchemaType.AVRO, orjson.dumps({"type": "record", "name": "R", "fields": listed}), {})

    await Schemas(store, now_ms).add(TOPIC, schema(), NO_CLAIM)
    yield next(record.key for record in await store.scan(*starting_with("/schemas/")))
    await Schemas(store, now_ms).add(TOPIC, schema("a"), NO_CLAIM)


async def producers(store: MemoryStore) -> Story:
    async with segment_host(store, SimulatedFiles(seed=1)) as host:
        segment = await host.own()

        async def memory() -> Deduplication:
            made = Deduplication(
                segment.ledger, store, NO_CLAIM, buffer=segment.buffer, headers=host.headers, codecs=ENTRY_CODECS
            )
            await made.recover()
            return made

        await (await memory()).write_down()
        yield sequences_key(SEGMENT)
        await (await memory()).write_down()


STORIES: dict[str, list[Callable[[MemoryStore], Story]]] = {
    "/journals/": [journal],
    "/txn/tc-seq/": [ids],
    "/txn/id/": [header, header_in_a_group],
    "/txn/group/": [group_that_commits, group_that_goes_on, group_that_aborts],
    "/txn/segment-state/": [abort_record],
    "/managed-ledgers/": [managed_ledger],
    "/cursors/": [cursor],
    "/topics/": [layout],
    "/consumers/": [registration],
    "/schemas/": [schemas],
    "/producers/": [producers],
}

WRITTEN_WHOLE = (
    "/assignments/",
    "/broker-load/",
    "/brokers/",
    "/cluster",
    "/draining/",
    "/ids/",
    "/owners/",
    "/pruned-segments/",
    "/retention/",
    "/segment-load/",
    "/txn/op/",
)
"""Records that nobody changes, that hold a number alone, or that their writer replaces by its own: claims, samples."""


def grow(fields: dict[str, Any]) -> dict[str, Any]:
    """What a later release might have written: a field more in each part that may grow, and longer rows."""
    grown = {**fields, "later": LATER}
    for part in ("segments", "subscriptions"):
        if isinstance(fields.get(part), dict):
            grown[part] = {name: {**inner, "later": LATER} for name, inner in fields[part].items()}
    for part in ("intent", "autoScalePolicy"):
        if isinstance(fields.get(part), dict):
            grown[part] = {**fields[part], "later": LATER}
    if "writers" in fields:
        for part in ("writers", "ledgers"):
            grown[part] = [[*row, LATER] for row in fields[part]]
    return grown


def parts_that_grew(fields: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Where a record has fields of the later release."""
    for name, value in fields.items():
        if name == "later":
            assert value == LATER
            yield (name,)
        elif isinstance(value, dict):
            yield from ((name, *rest) for rest in parts_that_grew(value))
        elif name in ("writers", "ledgers"):
            yield from ((name, row[0]) for row in value if row[-1] == LATER)


@pytest.mark.parametrize("tell", [pytest.param(tell, id=tell.__name__) for made in STORIES.values() for tell in made])
async def test_a_record_keeps_fields_of_a_later_release(tell: Callable[[MemoryStore], Story]) -> None:
    """C22: through reading, changing and writing, and another change after that."""
    store = MemoryStore()
    story = tell(store)
    key = await anext(story)
    assert key.startswith(tuple(prefix for prefix, made in STORIES.items() if tell in made))
    before = await store.get(key)
    assert before is not None
    grown = grow(orjson.loads(before.value))
    version = await store.put(
        key, orjson.dumps(grown), expected=before.version, indexes=before.indexes, partition_key=before.partition_key
    )
    with pytest.raises(StopAsyncIteration):
        await anext(story)
    after = await store.get(key)
    assert after is not None
    assert after.version > version, "the story changes it"
    assert set(parts_that_grew(orjson.loads(after.value))) >= set(parts_that_grew(grown))


async def test_every_kind_of_record_has_a_story() -> None:
    """C22: whoever adds a kind of record decides here whether it is changed or written whole."""
    store = MemoryStore()
    async with rooms(store, SimulatedFiles(seed=1)) as broker:
        await broker.controller.create_topic(TOPIC, 1, {})
        await subscribe(broker, "s")
        topic = await broker.topics.get(await broker.segment(TOPIC, 0))
        await publish(topic, b"a", await broker.coordinator.new_transaction(0, 60_000))
        for record in await store.scan("", "\U0010ffff"):
            assert record.key.startswith((*STORIES, *WRITTEN_WHOLE)), record.key
    assert not set(STORIES) & set(WRITTEN_WHOLE)
