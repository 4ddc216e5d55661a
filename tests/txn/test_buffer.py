"""What every transaction buffer promises to its topic: one suite for all of them.

A line in `MAKERS` adds a buffer. Other files test what is specific to one design.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from storage.entry import Entry, EntryFormat, TxnId
from storage.errors import LedgerSealed
from storage.ledger_chain import ManagedLedgerConfig
from storage.managed_ledger import ManagedLedger
from storage.managed_ledger_opening import open_managed_ledger
from storage.metadata.memory import MemoryStore
from storage.metadata.store import ABSENT, Check
from storage.position import EARLIEST, Position
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import ledger_store
from tests.support.markers import open_marker_buffer
from tests.support.rooms import now_ms
from txn.buffer import TransactionBuffer
from txn.counters import OpCounters
from txn.errors import WrongDomain
from txn.header_watch import HeaderWatch
from txn.headers import v5_id
from txn.metadata_buffer import MetadataTransactionBuffer
from txn.states import TxnState

NAME: Final = "segment://public/default/orders/0000-ffff-0"
V4: Final = TxnId(1, 2)


def metadata_driven(ledger: ManagedLedger, metadata: MemoryStore) -> TransactionBuffer:
    return MetadataTransactionBuffer(
        ledger, metadata=metadata, headers=HeaderWatch(metadata), claim=None, counters=OpCounters()
    )


def with_markers(ledger: ManagedLedger, metadata: MemoryStore) -> TransactionBuffer:
    return open_marker_buffer(ledger, metadata, Check("/owners/nobody", ABSENT))


Make = Callable[[ManagedLedger, MemoryStore], TransactionBuffer]
MAKERS: Final[tuple[Make, ...]] = (metadata_driven, with_markers)


class Machine:
    """A disk and a metadata store with one owner after another."""

    def __init__(self, make: Make) -> None:
        self.files = SimulatedFiles(seed=1)
        self.metadata = MemoryStore()
        self._make = make

    @asynccontextmanager
    async def owner(self) -> AsyncIterator[tuple[ManagedLedger, TransactionBuffer]]:
        """Run an owner that has recovered, until its process is killed."""
        async with ledger_store(self.files) as ledgers, trio.open_nursery() as nursery:
            ledger = await open_managed_ledger(
                NAME,
                metadata=self.metadata,
                ledgers=ledgers,
                claim=None,
                config=ManagedLedgerConfig(ledger_bytes_max=300),
                now_ms=now_ms,
            )
            buffer = self._make(ledger, self.metadata)
            await buffer.recover()
            await nursery.start(ledger.run)
            nursery.start_soon(buffer.run)
            yield ledger, buffer
            nursery.cancel_scope.cancel()
        self.files = self.files.crash()


@pytest.fixture(params=MAKERS, ids=lambda make: make.__name__)
def machine(request: pytest.FixtureRequest) -> Machine:
    return Machine(request.param)


async def entries_of(ledger: ManagedLedger, buffer: TransactionBuffer) -> list[Entry]:
    """Return everything readable, prepared."""
    found: list[Entry] = []
    at = EARLIEST
    while entries := await ledger.read(at, upto=buffer.readable.value, entries_max=10, bytes_max=10_000):
        await buffer.prepare(entries)
        found += entries
        at = ledger.next_after(entries[-1].position)
    return found


async def append(buffer: TransactionBuffer, ledger: ManagedLedger, payload: bytes) -> Position:
    """Append outside transactions, and wait until the entry is durable."""
    position = buffer.append(payload, 1, None, EntryFormat.PULSAR)
    await ledger.confirmed.wait_for(position)
    return position


async def test_what_is_in_no_transaction_is_readable_and_visible_once_it_is_durable(machine: Machine) -> None:
    """T14, T17: this holds for readers, and for requests for its fate."""
    async with machine.owner() as (ledger, buffer):
        position = buffer.append(b"a", 1, None, EntryFormat.PULSAR)
        assert buffer.readable.value <= ledger.confirmed.value
        await buffer.readable.wait_for(position)
        await buffer.caught_up()
        (entry,) = await entries_of(ledger, buffer)
        assert (entry.payload, entry.message_count, buffer.is_visible(entry)) == (b"a", 1, True)
        assert await buffer.fates([(None, position)]) == [TxnState.COMMITTED]


async def test_an_entry_keeps_the_format_in_which_it_was_sent(machine: Machine) -> None:
    async with machine.owner() as (ledger, buffer):
        for entry_format in EntryFormat:
            await buffer.readable.wait_for(buffer.append(b"a", 2, None, entry_format))
        assert [entry.format for entry in await entries_of(ledger, buffer)] == list(EntryFormat)


async def test_a_control_entry_is_readable_and_never_visible(machine: Machine) -> None:
    """K35: with a transaction's id or without, it only takes a position."""
    async with machine.owner() as (ledger, buffer):
        first = await append(buffer, ledger, b"a")
        for txn in (None, v5_id(0, 1)):
            position = ledger.append(b"marker", txn=txn, is_control=True)
            await buffer.readable.wait_for(position)
        last = await append(buffer, ledger, b"b")
        entries = await entries_of(ledger, buffer)
        assert [entry.position for entry in entries if buffer.is_visible(entry)] == [first, last]
        assert len(entries) == 4


async def test_a_new_owner_reads_all_that_was_durable_and_it_never_goes_back(machine: Machine) -> None:
    """T25, K10: there are several ledgers, and a control entry at the end."""
    async with machine.owner() as (ledger, buffer):
        for number in range(20):
            await append(buffer, ledger, b"%d" % number)
            await wait_all_tasks_blocked()
        await ledger.confirmed.wait_for(ledger.append(b"marker", is_control=True))
        assert ledger.closed
        end = buffer.readable.value
    async with machine.owner() as (ledger, buffer):
        assert buffer.readable.value == end
        shown = [entry.payload for entry in await entries_of(ledger, buffer) if buffer.is_visible(entry)]
        assert shown == [b"%d" % number for number in range(20)]


async def test_transactions_of_another_kind_are_refused_before_anything_is_written(machine: Machine) -> None:
    """D6: this holds for writes and acknowledgements."""
    async with machine.owner() as (ledger, buffer):
        revision = machine.metadata.statistics().revision
        assert not buffer.would_join(V4)
        for txn in (V4,) if buffer.takes_transactions else (V4, v5_id(0, 1)):
            with pytest.raises(WrongDomain):
                buffer.require_taking(txn)
            with pytest.raises(WrongDomain):
                await buffer.join(txn)
            with pytest.raises(WrongDomain):
                await buffer.admit(txn, buffer.moment())
        assert ledger.last_position == EARLIEST
        assert machine.metadata.statistics().revision == revision


async def test_a_sealed_topic_takes_nothing_more(machine: Machine) -> None:
    """Entries stored before stay readable."""
    async with machine.owner() as (ledger, buffer):
        position = await append(buffer, ledger, b"a")
        await ledger.seal()
        buffer.sealed()
        with pytest.raises(LedgerSealed):
            buffer.append(b"b", 1, None, EntryFormat.PULSAR)
        await wait_all_tasks_blocked()
        assert buffer.readable.value == position


async def test_a_buffer_may_be_left_and_discarded(machine: Machine) -> None:
    """Open transactions belong to the next owner, or end with the topic."""
    async with machine.owner() as (ledger, buffer):
        await append(buffer, ledger, b"a")
        await buffer.discard()
        buffer.leave()
        buffer.leave()
        assert len(await entries_of(ledger, buffer)) == 1
