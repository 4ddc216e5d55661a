"""A segment with the parts that its owner has: managed ledger, transaction buffer, claim and a shared header watch.

    async with segment_host(metadata, files) as host:                 # coordinator, header watch, ledger store
        segment = await host.own("segment://public/default/x/0000-ffff-0")
        txn = await host.begin()
        await segment.publish(b"a", txn)
        await host.commit(txn)
        await segment.visible()                                   # [b"a"]

`publish` waits until the entry is durable, as a producer does for its receipt; `append` does not.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio

from storage.directory_ledger_store import DirectoryLedgerStore
from storage.entry import Entry, EntryFormat, TxnId
from storage.ledger_chain import ManagedLedgerConfig
from storage.managed_ledger import ManagedLedger
from storage.managed_ledger_opening import open_managed_ledger
from storage.metadata.store import Check, MetadataStore, Op, PutSequential, starting_with
from storage.position import EARLIEST, Position
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import ledger_store
from txn.buffer import TransactionBuffer
from txn.headers import header_key
from txn.metadata_buffer import MetadataTransactionBuffer
from txn.ops import KEY_PREFIX as OPS
from txn.states import EndAction
from txn.transactions import Transactions, TransactionSettings

SEGMENT = "segment://public/default/orders/0000-ffff-0"


def _now_ms() -> int:
    return 1_000_000


async def append(buffer: TransactionBuffer, payload: bytes, txn: TxnId | None) -> Position:
    """Append one message as a topic does. It is durable once the ledger has confirmed the position."""
    if txn is not None:
        await buffer.admit(txn)
    return buffer.append(payload, 1, txn, EntryFormat.PULSAR)


def puts_an_op(ops: Sequence[Op]) -> bool:
    """Return whether a change set creates an op record."""
    return any(isinstance(op, PutSequential) for op in ops)


class Segment:
    """One owner's view of a segment, running."""

    def __init__(self, ledger: ManagedLedger, buffer: MetadataTransactionBuffer) -> None:
        self.ledger = ledger
        self.buffer = buffer
        self.scope = trio.CancelScope()
        self.ended: BaseException | None = None
        """Why its tasks ended by themselves."""
        self.has_ended = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run ledger and buffer until the scope is cancelled; an error is kept in `ended`."""
        try:
            with self.scope:
                async with trio.open_nursery() as nursery:
                    await nursery.start(self.ledger.run)
                    nursery.start_soon(self.buffer.run)
                    task_status.started()
        except* Exception as group:
            self.ended = group.exceptions[0]
        finally:
            self.has_ended.set()

    async def leave(self) -> None:
        """Cancel its tasks, as when its claim is lost."""
        self.scope.cancel()
        await self.has_ended.wait()

    async def publish(self, payload: bytes, txn: TxnId | None = None) -> Position:
        """Publish one message and wait until it is durable."""
        position = await append(self.buffer, payload, txn)
        await self.ledger.confirmed.wait_for(position)
        return position

    async def readable_entries(self) -> list[Entry]:
        """Return all entries at or below the readable position."""
        entries: list[Entry] = []
        at = EARLIEST
        while found := await self.ledger.read(
            at, upto=self.buffer.readable.value, entries_max=100, bytes_max=1_000_000
        ):
            entries += found
            at = self.ledger.next_after(found[-1].position)
        return entries

    async def visible(self) -> list[bytes]:
        """Return the payloads that a consumer would get now."""
        entries = await self.readable_entries()
        await self.buffer.prepare(entries)
        return [entry.payload for entry in entries if self.buffer.is_visible(entry)]


class SegmentHost:
    """The parts that the segments of one broker share."""

    def __init__(self, metadata: MetadataStore, ledgers: DirectoryLedgerStore, nursery: trio.Nursery) -> None:
        self.metadata = metadata
        self.ledgers = ledgers
        settings = TransactionSettings(coordinators=4, timeout_ms_max=10_000_000, retention_ms=0)
        transactions = Transactions(metadata, settings, _now_ms)
        self.headers = transactions.headers
        self.counters = transactions.counters
        self.coordinator = transactions.coordinator
        self._group_settlement = transactions.group_settlement
        self._nursery = nursery

    async def claim(self, name: str = SEGMENT) -> Check:
        """Take the claim of a segment from its owner."""
        key = f"/owners/{name}"
        return Check(key, await self.metadata.put(key, b"{}"))

    async def own(self, name: str = SEGMENT, *, claim: Check | None = None, ledger_bytes_max: int = 1 << 30) -> Segment:
        """Claim a segment, take it over and run it."""
        claim = claim or await self.claim(name)
        ledger = await open_managed_ledger(
            name,
            metadata=self.metadata,
            ledgers=self.ledgers,
            claim=claim,
            config=ManagedLedgerConfig(ledger_bytes_max=ledger_bytes_max),
            now_ms=_now_ms,
        )
        buffer = MetadataTransactionBuffer(
            ledger, metadata=self.metadata, headers=self.headers, claim=claim, counters=self.counters
        )
        await buffer.recover()
        segment = Segment(ledger, buffer)
        await self._nursery.start(segment.run)
        return segment

    async def start_groups(self) -> None:
        """Run the groups' part of the headers. Tests that inspect open transactions leave it out."""
        await self._nursery.start(self._group_settlement.run)

    async def begin(self) -> TxnId:
        """Begin a transaction."""
        return await self.coordinator.new_transaction(0, 60_000)

    async def commit(self, txn: TxnId) -> None:
        """Commit. Participants may not know it yet on return."""
        await self.coordinator.end(txn, EndAction.COMMIT)

    async def abort(self, txn: TxnId) -> None:
        """Abort. Participants may not know it yet on return."""
        await self.coordinator.end(txn, EndAction.ABORT)

    async def forget_header(self, txn: TxnId) -> None:
        """Delete the header, as garbage collection does at the end of the retention."""
        assert await self.op_keys() == [], "a header outlives its op records"
        await self.metadata.delete(header_key(txn))

    async def op_keys(self) -> list[str]:
        """Return the keys of all op records."""
        return [record.key for record in await self.metadata.scan(*starting_with(OPS))]

    async def abort_keys(self) -> list[str]:
        """Return the keys of all abort records."""
        return [record.key for record in await self.metadata.scan(*starting_with("/txn/segment-state/"))]


@asynccontextmanager
async def segment_host(metadata: MetadataStore, files: SimulatedFiles) -> AsyncIterator[SegmentHost]:
    """Run one broker's transactional rooms. Leaving the block is like killing it, but writes in progress end."""
    async with ledger_store(files) as ledgers, trio.open_nursery() as nursery:
        made = SegmentHost(metadata, ledgers, nursery)
        await nursery.start(made.headers.run)
        yield made
        nursery.cancel_scope.cancel()
