"""A segment's next owner: what it shows of undecided transactions, and when."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from storage.entry import Entry, TxnId
from storage.errors import LedgerCorrupt
from storage.ledger_chain import ManagedLedgerConfig
from storage.ledger_store import LedgerStore
from storage.managed_ledger import ManagedLedger
from storage.managed_ledger_opening import open_managed_ledger
from storage.metadata.memory import MemoryStore
from storage.metadata.store import ABSENT
from storage.position import Position
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import ledger_store
from tests.support.segments import append
from txn.buffer import TransactionBuffer
from txn.counters import OpCounters
from txn.header_watch import HeaderWatch
from txn.headers import Header, header_key, v5_id
from txn.metadata_buffer import MetadataTransactionBuffer
from txn.states import TxnState

SEGMENT = "segment://public/default/x/0000-ffff-0"
TXN = v5_id(3, 7)


@dataclass
class World:
    """A broker's stores and its watch of headers. Each `open` is another owner of the segment."""

    metadata: MemoryStore
    ledgers: LedgerStore
    headers: HeaderWatch

    async def open(self) -> tuple[ManagedLedger, TransactionBuffer]:
        """Open the next owner, which has not recovered yet."""
        ledger = await open_managed_ledger(
            SEGMENT,
            metadata=self.metadata,
            ledgers=self.ledgers,
            claim=None,
            config=ManagedLedgerConfig(),
            now_ms=lambda: 1_000,
        )
        buffer = MetadataTransactionBuffer(
            ledger, metadata=self.metadata, headers=self.headers, claim=None, counters=OpCounters()
        )
        return ledger, buffer

    async def begin(self, txn: TxnId) -> None:
        await self.metadata.commit([Header(TxnState.OPEN, 60_000, 1_000).to_put(txn, ABSENT)])

    async def end(self, txn: TxnId, state: TxnState) -> None:
        record = await self.metadata.get(header_key(txn))
        assert record is not None
        await self.metadata.commit([Header.from_value(record.value).ended(state, 2_000).to_put(txn, record.version)])

    async def leave_open(self, payloads: list[bytes]) -> Position:
        """Leave an open transaction, as an owner that dies. Return the position of its first entry."""
        ledger, buffer = await self.open()
        await buffer.recover()
        await append(buffer, b"before", None)
        await self.begin(TXN)
        positions = [await append(buffer, payload, TXN) for payload in payloads]
        await ledger.confirmed.wait_for(positions[-1])
        return positions[0]


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    metadata = MemoryStore()
    headers = HeaderWatch(metadata)
    async with ledger_store(SimulatedFiles(seed=1)) as ledgers, trio.open_nursery() as nursery:
        await nursery.start(headers.run)
        yield World(metadata, ledgers, headers)
        nursery.cancel_scope.cancel()


async def visible(ledger: ManagedLedger, buffer: TransactionBuffer) -> list[bytes]:
    """Return what a reader gets."""
    start = ledger.next_after(Position(-1, -1))
    entries = await ledger.read(start, upto=buffer.readable.value, entries_max=100, bytes_max=1 << 20)
    await buffer.prepare(entries)
    return [entry.payload for entry in entries if buffer.is_visible(entry)]


@pytest.mark.parametrize(("state", "shown"), [(TxnState.COMMITTED, [b"1", b"2"]), (TxnState.ABORTED, [])])
async def test_the_next_owner_shows_nothing_undecided(state: TxnState, shown: list[bytes]) -> None:
    """D1, D8: this holds before it has recovered; afterwards it shows everything before the open transaction."""
    async with world() as broker:
        first = await broker.leave_open([b"1", b"2"])
        ledger, buffer = await broker.open()
        assert buffer.readable.value < first
        await buffer.recover()
        assert await visible(ledger, buffer) == [b"before"]
        await broker.end(TXN, state)
        await wait_all_tasks_blocked()
        assert await visible(ledger, buffer) == [b"before", *shown]


@pytest.mark.parametrize(("state", "shown"), [(TxnState.COMMITTED, [b"1", b"2"]), (TxnState.ABORTED, [])])
async def test_a_decision_during_the_takeover_is_applied(
    state: TxnState, shown: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """T25, D7: the decision arrives while the next owner searches the transaction's entries; it hides or shows them."""
    async with world() as broker:
        await broker.leave_open([b"1", b"2"])
        ledger, buffer = await broker.open()
        plain = ledger.read

        async def decided_meanwhile(
            start: Position, *, upto: Position, entries_max: int, bytes_max: int
        ) -> list[Entry]:
            monkeypatch.setattr(ledger, "read", plain)
            await broker.end(TXN, state)
            await wait_all_tasks_blocked()
            return await plain(start, upto=upto, entries_max=entries_max, bytes_max=bytes_max)

        monkeypatch.setattr(ledger, "read", decided_meanwhile)
        await buffer.recover()
        assert await visible(ledger, buffer) == [b"before", *shown]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(buffer.run)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        # Its records are gone, and an owner after this one still knows.
        ledger, buffer = await broker.open()
        await buffer.recover()
        assert await visible(ledger, buffer) == [b"before", *shown]


async def test_a_takeover_that_fails_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """T25: damage ends it, however often clients ask again; nobody gets decisions for it."""
    async with world() as broker:
        await broker.leave_open([b"1", b"2"])
        ledger, _ = await broker.open()
        headers, counters = HeaderWatch(broker.metadata), OpCounters()
        buffer = MetadataTransactionBuffer(
            ledger, metadata=broker.metadata, headers=headers, claim=None, counters=counters
        )

        async def damaged(start: Position, *, upto: Position, entries_max: int, bytes_max: int) -> list[Entry]:
            raise LedgerCorrupt(Path("ledger"), 0, "a flipped bit")

        monkeypatch.setattr(ledger, "read", damaged)
        with pytest.raises(LedgerCorrupt):
            await buffer.recover()
        assert headers.transactions_joined == counters.op_records_outstanding == 0
