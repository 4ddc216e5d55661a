"""Cursor, subscription and dispatcher on a real managed ledger with short ledgers, on a simulated disk."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio
import trio.testing

from dispatch.subscription import Acknowledgement, Subscription
from dispatch.subscription_types import SubscriptionType
from storage.cursor import Cursor
from storage.entry import Entry
from storage.ledger_chain import ManagedLedgerConfig
from storage.managed_ledger import ManagedLedger
from storage.managed_ledger_opening import open_managed_ledger
from storage.metadata.memory import MemoryStore
from storage.position import EARLIEST, Position
from storage.signal import Signal
from storage.watermark import Watermark
from tests.support.disk import SimulatedFiles
from tests.support.draining import drained
from tests.support.ledgers import ledger_store
from tests.support.outlet import recording_consumer

NAME = "segment://public/default/orders/0000-ffff-0"


class LedgerSource:
    """A managed ledger as a source; every third entry is invisible."""

    def __init__(self, ledger: ManagedLedger) -> None:
        self.ledger = ledger
        self.signals: list[Signal] = []

    @property
    def readable(self) -> Watermark:
        return self.ledger.confirmed

    @property
    def sealed_end(self) -> Position | None:
        return self.ledger.last_position if self.ledger.is_sealed else None

    async def read(self, start: Position, *, entries_max: int, bytes_max: int) -> list[Entry]:
        return await self.ledger.read(start, upto=self.readable.value, entries_max=entries_max, bytes_max=bytes_max)

    def is_visible(self, entry: Entry) -> bool:
        return entry.first_index % 3 != 2

    def chunk_of(self, entry: Entry) -> None:
        return None

    def key_of(self, entry: Entry) -> None:
        return None

    def next_after(self, position: Position) -> Position:
        return self.ledger.next_after(position)

    def entries_between(self, low: Position, high: Position) -> int:
        return self.ledger.entries_between(low, high)

    def hidden_between(self, low: Position, high: Position) -> int:
        return 0

    async def count_hidden(self, ranges: Sequence[tuple[Position, Position]]) -> int:
        return 0

    def attach_sealed(self, signal: Signal) -> None:
        self.signals.append(signal)

    def detach_sealed(self, signal: Signal) -> None:
        self.signals.remove(signal)

    async def seal(self) -> None:
        await self.ledger.seal()
        for signal in self.signals:
            signal.set()


@asynccontextmanager
async def serving(
    files: SimulatedFiles, metadata: MemoryStore, kind: SubscriptionType
) -> AsyncIterator[tuple[LedgerSource, Subscription]]:
    """Run all layers from the disk up, and kill the process at the end of the context."""
    async with ledger_store(files) as store, trio.open_nursery() as nursery:
        ledger = await open_managed_ledger(
            NAME,
            metadata=metadata,
            ledgers=store,
            claim=None,
            config=ManagedLedgerConfig(ledger_bytes_max=400),
            now_ms=lambda: 1_000,
        )
        await nursery.start(ledger.run)
        source = LedgerSource(ledger)
        cursor = await Cursor.open("s", ledger=ledger, metadata=metadata, claim=None, start=EARLIEST)
        subscription = Subscription("s", source=source, cursor=cursor, kind=kind)
        await nursery.start(subscription.run)
        yield source, subscription
        nursery.cancel_scope.cancel()


async def publish(source: LedgerSource, count: int) -> list[Position]:
    """Publish, and return the positions of the visible entries."""
    visible = []
    for _ in range(count):
        index = source.ledger.next_index
        position = source.ledger.append(b"x" * 50)
        await source.ledger.confirmed.wait_for(position)
        await trio.testing.wait_all_tasks_blocked()
        if index % 3 != 2:
            visible.append(position)
    return visible


async def test_a_story_over_rolls_restart_and_seal(autojump_clock: trio.testing.MockClock) -> None:
    """D3, D11: acknowledgements survive a crash, the rest is delivered, and the end is reached once."""
    files, metadata = SimulatedFiles(seed=3), MemoryStore()
    async with serving(files, metadata, SubscriptionType.SHARED) as (source, subscription):
        visible = await publish(source, 30)
        assert len({position.ledger for position in visible}) > 3
        consumer, outlet = recording_consumer()
        subscription.add_consumer(consumer)
        subscription.flow(consumer, 1000)
        await trio.testing.wait_all_tasks_blocked()
        assert outlet.positions == visible
        acknowledged = visible[::2]
        subscription.acknowledge([Acknowledgement(position) for position in acknowledged])
        await subscription.synced()
        assert subscription.backlog_entries == len(visible) - len(acknowledged)
    files.crash()
    async with serving(files, metadata, SubscriptionType.EXCLUSIVE) as (source, subscription):
        consumer, outlet = recording_consumer()
        subscription.add_consumer(consumer)
        subscription.flow(consumer, 1000)
        later = await publish(source, 5)
        await source.seal()
        await trio.testing.wait_all_tasks_blocked()
        assert outlet.positions == [*visible[1::2], *later]
        assert outlet.ends == 0
        subscription.acknowledge([Acknowledgement(outlet.positions[-1])], cumulative=True)
        await drained(subscription)
        await trio.testing.wait_all_tasks_blocked()
        assert outlet.ends == 1
        assert subscription.backlog_entries == 0
        assert subscription.cursor.durable.value == source.sealed_end
    files.crash()
    async with serving(files, metadata, SubscriptionType.EXCLUSIVE) as (source, subscription):
        assert subscription.is_drained
        consumer, outlet = recording_consumer()
        subscription.add_consumer(consumer)
        await trio.testing.wait_all_tasks_blocked()
        assert outlet.ends == 1


async def test_trimming_below_the_mark_delete_and_seeking_behind_it(autojump_clock: trio.testing.MockClock) -> None:
    """A seek to the start of a trimmed ledger begins with the remaining entries, and drains."""
    files, metadata = SimulatedFiles(seed=4), MemoryStore()
    async with serving(files, metadata, SubscriptionType.EXCLUSIVE) as (source, subscription):
        visible = await publish(source, 30)
        subscription.acknowledge([Acknowledgement(visible[10])], cumulative=True)
        await subscription.synced()
        await source.ledger.trim(subscription.cursor.durable.value)
        first = source.ledger.next_after(EARLIEST)
        assert first > visible[0]
        await subscription.seek(EARLIEST)
        assert subscription.backlog_entries == source.ledger.entries_between(EARLIEST, source.ledger.last_position)
        consumer, outlet = recording_consumer()
        subscription.add_consumer(consumer)
        subscription.flow(consumer, 1000)
        await trio.testing.wait_all_tasks_blocked()
        assert outlet.positions == [position for position in visible if position >= first]
        for position in outlet.positions:
            subscription.acknowledge([Acknowledgement(position)])
        await source.seal()
        await drained(subscription)
        assert subscription.cursor.entries_above == 0
