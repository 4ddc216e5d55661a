"""Whether a sealed segment is drained, by two records, whoever owns the segment."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.cluster.ownership import claim_key
from broker.layouts.parts import StartPosition, SubscriptionKind
from broker.names import TopicName
from broker.scalable.draining import follow_drained, is_drained, sealed_ledgers
from storage.cursor_record import Identity, cursor_key, encode
from storage.ledger_list import LedgerList
from storage.ledger_record import LedgerInfo, ManagedLedgerRecord, Trimmed
from storage.managed_ledger_record import record_key
from storage.metadata.store import Record
from storage.position import EARLIEST, Position
from storage.ranges import Acknowledged
from tests.support.rooms import TOPIC, Rooms, publish
from tests.support.steered_store import SteeredStore

NAME = "s"
LEDGERS = (LedgerInfo(3, 0, 2, 2, 10, 0, closed=True), LedgerInfo(5, 2, 1, 1, 10, 0, closed=True))


class Follower:
    def __init__(self, broker: Rooms, segment: TopicName, nursery: trio.Nursery) -> None:
        self.told: list[bool] = []
        nursery.start_soon(self._run, broker, segment)

    async def _run(self, broker: Rooms, segment: TopicName) -> None:
        await follow_drained(segment, NAME, self.told.append, metadata=broker.metadata)


async def a_segment(broker: Rooms, *payloads: bytes) -> TopicName:
    await broker.controller.create_topic(TOPIC, 1, {})
    await broker.controller.subscriptions.add(TOPIC, NAME, SubscriptionKind.STREAM, StartPosition.EARLIEST)
    name = await broker.segment(TOPIC, 0)
    for payload in payloads:
        await publish(await broker.topics.get(name), payload)
    return name


async def drain(broker: Rooms, segment: TopicName) -> None:
    topic = await broker.topics.get(segment)
    cursor = topic.subscriptions[NAME].cursor
    cursor.acknowledge_cumulative(topic.ledger.last_position)
    await cursor.synced()
    await wait_all_tasks_blocked()


def managed_ledger(record: ManagedLedgerRecord) -> Record:
    return Record("m", record.encode(), 1)


def cursor_at(position: Position) -> Record:
    acknowledged = Acknowledged(position, LedgerList(LEDGERS).next_after)
    return Record("c", encode(Identity("i"), acknowledged).value, 1)


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (EARLIEST, False),
        (Position(3, 1), False),
        (Position(4, 7), False),
        (Position(5, -1), False),
        (Position(5, 0), True),
        (Position(9, 0), True),
    ],
)
def test_a_cursor_at_the_sealed_end_has_drained_the_segment(position: Position, expected: bool) -> None:
    """D11: a position between two ledgers counts as the end of the first."""
    sealed = sealed_ledgers(managed_ledger(ManagedLedgerRecord("c", LEDGERS, 5, sealed=True)))
    assert sealed is not None
    assert is_drained(sealed, cursor_at(position)) is expected


@pytest.mark.parametrize(
    "record",
    [
        ManagedLedgerRecord("c", (), -1, sealed=True),
        ManagedLedgerRecord("c", (), 5, sealed=True, trimmed=Trimmed(Position(5, 0), 3)),
    ],
    ids=["never had entries", "trimmed"],
)
def test_a_sealed_segment_without_entries(record: ManagedLedgerRecord) -> None:
    """D11, E18: it is drained once its cursor is behind what was trimmed; an empty one is drained from the start."""
    sealed = sealed_ledgers(managed_ledger(record))
    assert sealed is not None
    assert is_drained(sealed, cursor_at(record.trimmed.position))
    assert not is_drained(sealed, None), "every subscription has a cursor"
    assert not is_drained(sealed, Record("c", b"{}", 1))


@pytest.mark.parametrize(
    "record",
    [
        None,
        managed_ledger(ManagedLedgerRecord("c", LEDGERS, 5)),
        managed_ledger(ManagedLedgerRecord("c", LEDGERS, 5, sealed=True, is_deleting=True)),
        Record("m", b"", 1),
        Record("m", b"[]", 1),
        Record("m", b'{"sealed": true}', 1),
    ],
    ids=["missing", "not sealed", "being deleted", "empty", "a list", "without ledgers"],
)
def test_a_segment_that_is_not_known_to_be_sealed_is_not_drained(record: Record | None) -> None:
    """E11: damage holds back the children of this segment, and nothing else."""
    assert sealed_ledgers(record) is None


async def test_no_broker_has_to_load_the_segment(broker: Rooms, store: SteeredStore) -> None:
    """C14, C16: its owner may be another broker, or nobody."""
    segment = await a_segment(broker, b"a")
    await broker.controller.split(TOPIC, 0)
    await drain(broker, segment)
    await broker.topics.unload(segment)
    await store.put(claim_key(str(segment)), b'{"broker": "broker-2", "service_url": "pulsar://two"}')
    opened = len(broker.opened)
    async with trio.open_nursery() as nursery:
        follower = Follower(broker, segment, nursery)
        await wait_all_tasks_blocked()
        assert follower.told == [True]
        assert len(broker.opened) == opened
        nursery.cancel_scope.cancel()


async def test_a_segment_counts_from_its_seal_on(broker: Rooms) -> None:
    """D11: also if it was unloaded and loaded again before it was sealed."""
    segment = await a_segment(broker, b"a")
    await drain(broker, segment)
    async with trio.open_nursery() as nursery:
        follower = Follower(broker, segment, nursery)
        await wait_all_tasks_blocked()
        await broker.topics.unload(segment)
        topic = await broker.topics.get(segment)
        await publish(topic, b"b")
        assert follower.told == [False], "producers are still moving to the children"
        await topic.seal()
        await wait_all_tasks_blocked()
        assert follower.told == [False, False]
        await drain(broker, segment)
        await topic.seek(topic.subscriptions[NAME], EARLIEST)
        await wait_all_tasks_blocked()
        assert follower.told[-2:] == [True, False], "a seek went back into the segment"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("key", [record_key, lambda name: cursor_key(name, NAME)], ids=["ledger", "cursor"])
async def test_a_repaired_record_counts(broker: Rooms, store: SteeredStore, key: object) -> None:
    """E11, D11: until then the segment is not drained, and its children wait."""
    segment = await a_segment(broker)
    await broker.controller.split(TOPIC, 0)
    await broker.topics.unload(segment)
    assert callable(key)
    record = await store.get(key(str(segment)))
    assert record is not None
    await store.put(record.key, b"damaged")
    async with trio.open_nursery() as nursery:
        follower = Follower(broker, segment, nursery)
        await wait_all_tasks_blocked()
        assert follower.told == [False]
        await store.put(record.key, record.value)
        await wait_all_tasks_blocked()
        assert follower.told[-1]
        nursery.cancel_scope.cancel()


async def test_a_segment_that_was_deleted_is_not_drained(broker: Rooms) -> None:
    segment = await a_segment(broker)
    await broker.controller.delete_topic(TOPIC, force=True)
    async with trio.open_nursery() as nursery:
        follower = Follower(broker, segment, nursery)
        await wait_all_tasks_blocked()
        assert follower.told == [False]
        nursery.cancel_scope.cancel()
