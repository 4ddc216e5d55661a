"""Loading, unloading and deleting topics. A failure of one topic affects no other."""

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.cluster.ownership import KEY_PREFIX as OWNERS
from broker.cluster.ownership import OwnedElsewhere
from broker.errors import TopicClosed, TopicDamaged, TopicNotFound
from broker.names import TopicName
from broker.topic import Topic
from dispatch.consumer import Consumer
from storage.entry import Entry, EntryFormat
from storage.errors import CursorCorrupt, JournalMissing, LedgerCorrupt, NoSpace, StorageError
from storage.metadata.store import ChangeSetTooLarge, Check, Delete, Op, Put, StoreUnavailable, starting_with
from storage.position import EARLIEST, Position
from storage.writer import Writer
from tests.support.disk import SimulatedFiles
from tests.support.outlet import recording_consumer
from tests.support.rooms import TOPIC, Rooms, publish, rooms, visible
from tests.support.schedules import every_schedule
from tests.support.steered_store import SteeredStore
from txn.aborted_transactions import KEY_PREFIX as SEGMENT_STATE
from txn.errors import OwnershipLost
from txn.ops import KEY_PREFIX as OPS
from txn.states import EndAction

PLAIN = TopicName.parse("persistent://public/default/plain")
OTHER = TopicName.parse("persistent://public/default/other")


class Client:
    """A producer or consumer that records what it is told."""

    follows_layout = True

    def __init__(self, name: str = "p") -> None:
        self.name = name
        self.closed = 0
        self.replaced = 0

    def topic_closed(self, assigned_url: str | None = None) -> None:
        self.closed += 1

    def topic_replaced(self) -> None:
        self.replaced += 1


async def claims(broker: Rooms) -> list[str]:
    return [record.key for record in await broker.metadata.scan(*starting_with(OWNERS))]


@every_schedule()
async def test_callers_at_once_get_the_one_topic_that_is_loaded() -> None:
    """The topic is claimed and taken over once, however the callers are scheduled."""
    async with rooms(SteeredStore(), SimulatedFiles(seed=5)) as broker:
        got: list[Topic] = []

        async def ask() -> None:
            got.append(await broker.topics.get(PLAIN))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask)
        assert len(set(map(id, got))) == 1
        assert broker.opened == [PLAIN]
        assert len(await claims(broker)) == 1


async def test_each_of_those_who_wait_for_a_topic_is_told_by_an_error_of_its_own(broker: Rooms) -> None:
    """E16: one shared error object would keep the frames of all tasks that raised it."""
    missing = TopicName.parse("segment://public/default/none/0000-ffff-0")
    told: list[TopicNotFound] = []

    async def ask() -> None:
        with pytest.raises(TopicNotFound) as refused:
            await broker.topics.get(missing)
        told.append(refused.value)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        nursery.start_soon(ask)
    first, second = told
    assert first is not second
    assert str(first) == str(second)


async def test_a_topic_that_is_lost_to_another_owner_closes_alone(broker: Rooms, store: SteeredStore) -> None:
    """D4: its clients are disconnected, and the broker continues with the other topics."""
    await broker.controller.create_topic(TOPIC, 1, {})
    name = await broker.segment(TOPIC, 0)
    topic = await broker.topics.get(name)
    other = await broker.topics.get(OTHER)
    producer = Client()
    topic.add_producer(producer)
    (key,) = [key for key in await claims(broker) if "orders" in key]
    await store.put(key, b'{"broker": "broker-2", "service_url": "pulsar://two:6650"}')
    txn = await broker.coordinator.new_transaction(0, 1_000)
    with pytest.raises(OwnershipLost):
        await topic.publish(b"a", message_count=1, txn=txn, entry_format=EntryFormat.PULSAR)
    await wait_all_tasks_blocked()
    assert producer.closed == 1
    assert list(broker.topics) == [other]
    await publish(other, b"goes on")
    with pytest.raises(OwnedElsewhere, match="broker-2"):
        await broker.topics.get(name)
    record = await store.get(key)
    assert record is not None, "the new owner's claim is left alone"


@pytest.mark.parametrize(
    ("error", "retriable"),
    [
        (OwnershipLost("gone"), True),
        (NoSpace("the disk is full"), True),
        (ChangeSetTooLarge("a record of 2 MiB"), False),
        (KeyError("defect"), True),
        (ExceptionGroup("several", [ValueError("defect")]), True),
    ],
    ids=["lost", "no-space", "too-large", "defect", "defects"],
)
async def test_a_topic_that_cannot_be_opened_fails_alone(broker: Rooms, error: Exception, retriable: bool) -> None:
    """E11, E13: the caller learns why; the claim is released; others are served, and so is this topic later."""
    real = broker.topics._open_topic

    async def broken(name: TopicName, claim: Check) -> Topic:
        await trio.lowlevel.checkpoint()
        raise error

    broker.topics._open_topic = broken
    with pytest.raises(
        TopicClosed, match="defect" if isinstance(error, KeyError | ExceptionGroup) else str(error)
    ) as told:
        await broker.topics.get(PLAIN)
    assert told.value.retriable is retriable
    assert await claims(broker) == []
    broker.topics._open_topic = real
    await publish(await broker.topics.get(PLAIN), b"a")


@pytest.mark.parametrize(
    "damage",
    [
        LedgerCorrupt(Path("/l"), 7, "flipped bit"),
        CursorCorrupt("/cursors/s cannot be read"),
        JournalMissing(Writer("folder", "broker-1", 1, 7), Path("/journal")),
    ],
    ids=["ledger", "cursor", "journal"],
)
async def test_whoever_asks_for_a_damaged_topic_is_told_and_need_not_ask_again(
    broker: Rooms, damage: StorageError
) -> None:
    """E10: until it is repaired, the broker would refuse it again and again."""
    real = broker.topics._open_topic

    async def broken(name: TopicName, claim: Check) -> Topic:
        await trio.lowlevel.checkpoint()
        raise damage

    broker.topics._open_topic = broken
    with pytest.raises(TopicDamaged, match=str(damage)) as told:
        await broker.topics.get(PLAIN)
    assert not told.value.retriable
    assert await claims(broker) == []
    broker.topics._open_topic = real
    await publish(await broker.topics.get(PLAIN), b"a")


async def test_what_finished_transactions_left_is_another_brokers_to_apply(broker: Rooms) -> None:
    """T28, T29: the sweep continues and keeps the header; it learns if a segment is gone."""
    await broker.controller.create_topic(TOPIC, 1, {})
    name = await broker.segment(TOPIC, 0)
    await broker.topics.unload(name)
    await broker.metadata.put(OWNERS + quote(str(name), safe=""), b'{"broker": "broker-2"}')
    with pytest.raises(OwnedElsewhere):
        await broker.topics.get(name)
    assert await broker.leftovers.redrive(str(name)) is True
    assert await broker.leftovers.redrive("segment://public/default/orders/0000-ffff-9") is False


async def test_a_topic_whose_task_fails_closes_alone(broker: Rooms, store: SteeredStore) -> None:
    """D4: here a cursor's write meets another owner."""
    topic = await broker.topics.get(PLAIN)
    other = await broker.topics.get(OTHER)
    await publish(topic, b"a")
    subscription = await topic.subscribe("s", EARLIEST)
    producer = Client()
    topic.add_producer(producer)
    (key,) = [key for key in await claims(broker) if "plain" in key]
    await store.put(key, b'{"broker": "broker-2"}')
    subscription.cursor.acknowledge_cumulative(topic.ledger.last_position)
    with pytest.raises(Exception, match="another owner"):
        await subscription.synced()
    await wait_all_tasks_blocked()
    assert producer.closed == 1
    assert list(broker.topics) == [other]


@pytest.mark.parametrize("what", ["a transaction's records", "the claim", "the ledgers"])
async def test_a_topic_for_which_the_metadata_store_does_not_answer_closes_alone(
    broker: Rooms, store: SteeredStore, what: str
) -> None:
    """M22, T26: the outcome is unknown, so the next load finds out; other topics are served meanwhile."""
    await broker.controller.create_topic(TOPIC, 1, {})
    name = await broker.segment(TOPIC, 0)
    other = await broker.topics.get(OTHER)
    txn = await broker.coordinator.new_transaction(0, 60_000)
    if what == "a transaction's records":
        await publish(await broker.topics.get(name), b"a", txn)
    else:
        await broker.topics.unload(name)
    prefix = {"a transaction's records": OPS, "the claim": OWNERS, "the ledgers": "/managed-ledgers/"}[what]

    async def no_answer(ops: Sequence[Op]) -> None:
        if any(isinstance(op, Put | Delete) and op.key.startswith(prefix) for op in ops):
            store.after = None
            raise StoreUnavailable("etcd gave no answer")

    store.after = no_answer
    if what == "a transaction's records":
        await broker.coordinator.end(txn, EndAction.COMMIT)
        await wait_all_tasks_blocked()
    else:
        with pytest.raises((TopicClosed, StoreUnavailable)):
            await broker.topics.get(name)
    assert list(broker.topics) == [other]
    await publish(await broker.topics.get(name), b"b")
    await wait_all_tasks_blocked()
    assert await store.scan(*starting_with(OPS)) == []


async def test_producer_names_are_never_given_twice(broker: Rooms) -> None:
    names = {broker.topics.new_producer_name() for _ in range(100)}
    assert len(names) == 100
    prefix = f"tidewire-{broker.session.id}-"
    assert all(name.startswith(prefix) for name in names)


async def test_the_last_visible_entry_is_found_behind_aborted_ones(broker: Rooms) -> None:
    """T14, T17: transactions that were decided before the call count."""
    await broker.controller.create_topic(TOPIC, 1, {})
    topic = await broker.topics.get(await broker.segment(TOPIC, 0))
    assert await topic.last_visible() is None
    await publish(topic, b"seen")
    for action in (EndAction.ABORT, EndAction.ABORT):
        txn = await broker.coordinator.new_transaction(0, 1_000)
        await publish(topic, b"aborted", txn)
        await broker.coordinator.end(txn, action)
    found = await topic.last_visible()
    assert found is not None
    assert found.payload == b"seen"
    txn = await broker.coordinator.new_transaction(0, 1_000)
    await publish(topic, b"committed", txn)
    await broker.coordinator.end(txn, EndAction.COMMIT)
    found = await topic.last_visible()
    assert found is not None
    assert found.payload == b"committed"


async def test_many_aborted_entries_at_the_end_are_looked_at_in_few_reads(
    broker: Rooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T17: a request for the last message is cheap with any number of aborted entries, and delays nobody else."""
    await broker.controller.create_topic(TOPIC, 1, {})
    topic = await broker.topics.get(await broker.segment(TOPIC, 0))
    await publish(topic, b"seen")
    txn = await broker.coordinator.new_transaction(0, 1_000)
    for _ in range(1_000):
        await topic.publish(b"aborted", message_count=1, txn=txn, entry_format=EntryFormat.PULSAR)
    await publish(topic, b"aborted", txn)
    await broker.coordinator.end(txn, EndAction.ABORT)
    reads, plain = 0, topic.ledger.read

    async def counted(start: Position, *, upto: Position, entries_max: int, bytes_max: int) -> list[Entry]:
        nonlocal reads
        reads += 1
        return await plain(start, upto=upto, entries_max=entries_max, bytes_max=bytes_max)

    monkeypatch.setattr(topic.ledger, "read", counted)
    found = await topic.last_visible()
    assert found is not None
    assert found.payload == b"seen"
    assert reads < 20


async def test_a_sealed_segment_keeps_no_abort_records(broker: Rooms) -> None:
    """T19, T20: its last ledger is closed, too; a topic that is split often leaves nothing in the metadata store."""
    await broker.controller.create_topic(TOPIC, 1, {})
    parent = await broker.topics.get(await broker.segment(TOPIC, 0))
    await publish(parent, b"seen")
    txn = await broker.coordinator.new_transaction(0, 1_000)
    await publish(parent, b"aborted", txn)
    await broker.coordinator.end(txn, EndAction.ABORT)
    await wait_all_tasks_blocked()
    assert len(await broker.metadata.scan(*starting_with(SEGMENT_STATE))) == 1
    await broker.controller.split(TOPIC, 0)
    await wait_all_tasks_blocked()
    assert await broker.metadata.scan(*starting_with(SEGMENT_STATE)) == []
    assert [entry.payload for entry in await visible(parent)] == [b"seen"]


async def test_a_reader_of_its_own_leaves_nothing_behind(broker: Rooms) -> None:
    topic = await broker.topics.get(PLAIN)
    await publish(topic, b"a")
    subscription = topic.subscribe_reader("r", EARLIEST)
    consumer, outlet = recording_consumer()
    subscription.add_consumer(consumer)
    subscription.flow(consumer, 5)
    await wait_all_tasks_blocked()
    assert outlet.positions == [topic.ledger.last_position]
    topic.end_reader(subscription)
    await wait_all_tasks_blocked()
    assert not outlet.is_attached
    assert topic.subscriptions == {}
    assert isinstance(consumer, Consumer)
    assert topic.ledger.last_position >= Position(0, 0)
