"""Topics while the metadata store's disk is full: they stay loaded and readable, and continue when there is space."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.names import TopicName
from broker.retention import Retention
from broker.retention_policies import topic_key
from broker.topic import Topic
from storage.errors import SPACE_RETRY_SECONDS, NoSpace
from storage.ledger_chain import ManagedLedgerConfig
from storage.metadata.store import Op, StoreFull, starting_with
from storage.position import EARLIEST
from storage.ranges import EntryAck
from tests.support.disk import SimulatedFiles
from tests.support.rooms import TOPIC, Rooms, moving_clock, publish, rooms
from tests.support.steered_store import SteeredStore
from txn.ops import KEY_PREFIX as OPS
from txn.states import EndAction

PLAIN = TopicName.parse("persistent://public/default/plain")


class FillingStore(SteeredStore):
    """Refuses every change set once it is full. `fill_behind` fills it after the next change set with this key."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = self._refuse, self._fill
        self.is_full = False
        self.fill_behind: str | None = None

    async def _refuse(self, _ops: Sequence[Op]) -> None:
        if self.is_full:
            raise StoreFull("the disk is full")

    async def _fill(self, ops: Sequence[Op]) -> None:
        if self.fill_behind is not None and any(getattr(op, "key", "").startswith(self.fill_behind) for op in ops):
            self.is_full = True


@asynccontextmanager
async def filling() -> AsyncIterator[tuple[FillingStore, Rooms]]:
    """Run a broker whose ledgers take one or two messages."""
    metadata = FillingStore()
    async with rooms(metadata, SimulatedFiles(seed=1), clock=moving_clock()) as broker:
        broker.services = replace(broker.services, ledger_config=ManagedLedgerConfig(ledger_bytes_max=60))
        yield metadata, broker


async def segment_of(broker: Rooms) -> Topic:
    await broker.controller.create_topic(TOPIC, 1, {})
    return await broker.topics.get(await broker.segment(TOPIC, 0))


async def kept(topic: Topic) -> list[bytes]:
    entries = await topic.read(EARLIEST, entries_max=100, bytes_max=100_000)
    return [entry.payload for entry in entries if topic.is_visible(entry)]


async def records(metadata: FillingStore) -> int:
    return len(await metadata.scan(*starting_with(OPS)))


async def test_a_trim_waits(autojump_clock: MockClock) -> None:
    """E13, E18: a topic that cannot be trimmed stays readable."""
    async with filling() as (metadata, broker):
        topic = await broker.topics.get(PLAIN)
        for number in range(8):
            await publish(topic, b"%d" % number)
            await wait_all_tasks_blocked()
        await broker.retention.store(topic_key(PLAIN), Retention(1, -1))
        metadata.is_full = True
        await trio.sleep(90)
        assert len(await kept(topic)) == 8
        metadata.is_full = False
        await trio.sleep(2 * SPACE_RETRY_SECONDS)
        assert len(await kept(topic)) <= 2
        assert list(broker.topics) == [topic]


@pytest.mark.parametrize("action", [EndAction.COMMIT, EndAction.ABORT])
async def test_records_of_a_decided_transaction_stay_until_there_is_space(
    autojump_clock: MockClock, action: EndAction
) -> None:
    """E13: the decision counts at once, for writes and for acknowledgements."""
    async with filling() as (metadata, broker), topic_held(broker) as topic:
        subscription = await topic.subscribe("s", EARLIEST)
        await publish(topic, b"first")
        txn = await broker.coordinator.new_transaction(0, 60_000)
        await topic.acknowledge_in_transaction(subscription, txn, [EntryAck(topic.ledger.last_position)])
        await publish(topic, b"in", txn)
        metadata.fill_behind = "/txn/id/"
        await broker.coordinator.end(txn, action)
        await trio.sleep(10 * SPACE_RETRY_SECONDS)
        assert metadata.is_full
        assert list(broker.topics) == [topic]
        expected = [b"first", b"in"] if action is EndAction.COMMIT else [b"first"]
        assert await kept(topic) == expected
        assert await records(metadata) == 2
        metadata.is_full, metadata.fill_behind = False, None
        await trio.sleep(2 * SPACE_RETRY_SECONDS)
        assert await records(metadata) == 0
        assert subscription.cursor.is_acknowledged(topic.ledger.next_after(EARLIEST)) is (action is EndAction.COMMIT)
        assert await kept(topic) == expected


async def test_what_a_transaction_asks_is_refused_alone(autojump_clock: MockClock) -> None:
    """E13: nothing was written, so the topic continues, and the same request is accepted when there is space."""
    async with filling() as (metadata, broker), topic_held(broker) as topic:
        subscription = await topic.subscribe("s", EARLIEST)
        await publish(topic, b"first")
        acks = [EntryAck(topic.ledger.last_position)]
        txn = await broker.coordinator.new_transaction(0, 60_000)
        metadata.is_full = True
        with pytest.raises(NoSpace):
            await publish(topic, b"in", txn)
        with pytest.raises(StoreFull):
            await topic.acknowledge_in_transaction(subscription, txn, acks)
        await trio.sleep(10 * SPACE_RETRY_SECONDS)
        assert list(broker.topics) == [topic]
        assert await kept(topic) == [b"first"]
        metadata.is_full = False
        await publish(topic, b"in", txn)
        await topic.acknowledge_in_transaction(subscription, txn, acks)
        await broker.coordinator.end(txn, EndAction.COMMIT)
        await trio.sleep(2 * SPACE_RETRY_SECONDS)
        assert await kept(topic) == [b"first", b"in"]
        assert await records(metadata) == 0


@asynccontextmanager
async def topic_held(broker: Rooms) -> AsyncIterator[Topic]:
    topic = await segment_of(broker)
    with topic.clients.held():
        yield topic
