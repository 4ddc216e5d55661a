"""A segment's transaction buffer, driven by metadata: it holds back the readable position and filters aborted entries.

The buffer writes no markers into the segment (PIP-473). It is the only way to publish to a segment, because three
things must happen in one order:

1. Before its first write here, a transaction holds back the readable position.
2. The buffer writes an op record, on the condition that the header is open and the owner's claim holds.
3. Once the op record is durable, the buffer appends the entry. Once the transaction is decided, it accepts nothing
   more.

When a header changes, `decided` is called. The buffer releases the position, so that the watermark rises and
dispatchers wake. After an abort, it first remembers the abort. Then its `run` task removes the op record, in one change
set with the abort record. Only then may the header be deleted. Every step can be repeated after a crash (T25, T26).
"""

from collections.abc import Sequence
from contextlib import aclosing

import trio

from storage.entry import Entry, EntryFormat, TxnId
from storage.errors import NoSpace
from storage.managed_ledger import ManagedLedger
from storage.metadata.store import Check, Conflict, MetadataStore, RecordVersion, StoreFull, StoreUnavailable
from storage.position import EARLIEST, LATEST, Position
from storage.watermark import Watermark
from txn.aborted_transactions import AbortedTransactions, Span
from txn.counters import OpCounters, OutstandingOps
from txn.errors import OutcomeUnknown, OwnershipLost, WrongDomain
from txn.header_watch import HeaderWatch
from txn.headers import is_v5
from txn.hidden_log import HiddenLog
from txn.open_header import OP_PUT_SECONDS_MAX, put_op, require_open, require_open_anywhere
from txn.ops import WRITES_BY_SEGMENT, WriteOp, writes_of_segment
from txn.read_barriers import ReadBarriers
from txn.segment_write import SegmentWrite, find_spans, found_op
from txn.settlement import Settlement
from txn.stable_offset import Place
from txn.states import TxnState
from txn.tenure import Tenure
from txn.visibility import HeldPlaces


class MetadataTransactionBuffer:
    """See `TransactionBuffer`."""

    def __init__(
        self,
        ledger: ManagedLedger,
        *,
        metadata: MetadataStore,
        headers: HeaderWatch,
        claim: Check | None,
        counters: OpCounters,
    ) -> None:
        """Set up around an open managed ledger. Call `recover` before anything else.

        Args:
            ledger: the segment's entries. This buffer is its only writer.
            metadata: holds headers and op records.
            headers: tells when a transaction ends.
            claim: the owner's claim, a condition of every write of the buffer (D4).
            counters: the broker's counters.
        """
        self._ledger = ledger
        self._segment = ledger.name
        self._metadata = metadata
        self._headers = headers
        self._claim: tuple[Check, ...] = () if claim is None else (claim,)
        self._barriers = ReadBarriers(metadata)
        self._writes: dict[TxnId, SegmentWrite] = {}
        self._held = HeldPlaces()
        self._owner = None if claim is None else claim.expected
        self._aborted = AbortedTransactions(ledger, self._owner)
        self._counters = counters
        self._outstanding = OutstandingOps(counters)
        self._is_recovered = False
        self._tenure = Tenure(self._segment)
        self.hidden = HiddenLog(ledger, self._aborted, self._tenure.due)
        """See `TransactionBuffer`."""
        self._settlement = Settlement(
            ledger, self._aborted, self.hidden, self._tenure, metadata=metadata, claim=claim, counters=counters
        )
        self.readable: Watermark = ledger.confirmed.derive(self._readable_at)

    @property
    def readable_end(self) -> int:
        """See `TransactionBuffer`."""
        return self._held.readable_end(self._ledger.confirmed_index)

    @property
    def takes_transactions(self) -> bool:
        """See `TransactionBuffer`."""
        return True

    def require_taking(self, txn: TxnId) -> None:
        """See `TransactionBuffer`."""
        if not is_v5(txn):
            raise WrongDomain(f"{txn.shown} is not a v5 transaction. {self._segment} accepts only those")

    def is_visible(self, entry: Entry) -> bool:
        """See `TransactionBuffer`."""
        if entry.is_control:
            return False
        return entry.txn is None or not self._aborted.has(entry.txn, entry.position.ledger)

    async def prepare(self, entries: Sequence[Entry]) -> None:
        """See `TransactionBuffer`."""
        await self._aborted.prepare(entries)

    def state_of(self, entry: Entry) -> TxnState:
        """See `TransactionBuffer`."""
        return self._fate(entry.txn, entry.position)

    async def fates(self, places: Sequence[tuple[TxnId | None, Position]]) -> list[TxnState]:
        """See `TransactionBuffer`."""
        await self._aborted.prepare_ledgers({position.ledger for txn, position in places if txn is not None})
        return [self._fate(txn, position) for txn, position in places]

    def _fate(self, txn: TxnId | None, position: Position) -> TxnState:
        if txn is None:
            return TxnState.COMMITTED
        write = self._writes.get(txn)
        if write is not None and write.decided is None:
            return TxnState.OPEN
        return TxnState.ABORTED if self._aborted.has(txn, position.ledger) else TxnState.COMMITTED

    def would_join(self, txn: TxnId) -> bool:
        """See `TransactionBuffer`: whether `admit` would write the transaction's op record."""
        return is_v5(txn) and txn not in self._writes

    async def join(self, txn: TxnId) -> None:
        """See `TransactionBuffer`. The transaction's op record is durable on return.

        From here on, the transaction holds back the readable position, at or below its first entry, however many others
        join or append meanwhile.
        """
        self.require_taking(txn)
        if txn not in self._writes:
            await self._join(txn)

    def moment(self) -> int:
        """See `TransactionBuffer`."""
        return self._barriers.next()

    async def admit(self, txn: TxnId, arrived_at: int | None = None) -> None:
        """See `TransactionBuffer`. The transaction's op record is durable on return (T11)."""
        self.require_taking(txn)
        if arrived_at is None:
            arrived_at = self.moment()
        write = self._writes.get(txn)
        if write is None or write.joining is not None:
            await self._join(txn)
        await self._barriers.wait_passed(arrived_at)

    def append(self, payload: bytes, message_count: int, txn: TxnId | None, entry_format: EntryFormat) -> Position:
        """See `TransactionBuffer`."""
        if txn is None:
            return self._ledger.append(payload, message_count=message_count, entry_format=entry_format)
        require_open(self._metadata.peek, txn)
        write, index = self._writes[txn], self._ledger.next_index
        position = self._ledger.append(payload, message_count=message_count, txn=txn, entry_format=entry_format)
        if write.span is None:
            self._held.hold(txn, Place(index, position))
            write.span = Span(position, position)
        else:
            write.span = Span(write.span.first, position)
        self.hidden.took(txn, position, message_count)
        return position

    def decided(self, txn: TxnId, state: TxnState) -> None:
        """See `Participant`: the header of a transaction that writes here has changed."""
        write = self._writes.get(txn)
        if write is None or write.decided is not None:
            return
        write.decided = state
        if write.joining is None:
            self._let_go(write)

    def sealed(self) -> None:
        """See `TransactionBuffer`: the abort records of the last ledger move to that ledger's index."""
        self._settlement.wake()

    async def caught_up(self) -> None:
        """See `TransactionBuffer`."""
        try:
            await self._headers.catch_up(list(self._writes), *self._claim)
        except Conflict as conflict:
            raise self._tenure.end(OwnershipLost(self._segment)) from conflict
        for write in tuple(self._writes.values()):
            # Its decision is applied when it is known whether it joined.
            if write.decided is not None and write.joining is not None:
                await write.joining.wait()

    async def write_down(self, upto: Position) -> Position:
        """See `TransactionBuffer`. The metadata store has what the next owner must know."""
        return upto

    async def recover(self) -> None:
        """See `TransactionBuffer`."""
        try:
            await self._take_over()
        except BaseException:
            self.leave()
            raise

    async def _take_over(self) -> None:
        await self._aborted.load(self._metadata)
        bounds: dict[TxnId, Position] = {}
        own = self._counters.each_hit(self._metadata, WRITES_BY_SEGMENT, *writes_of_segment(self._segment))
        async with aclosing(own) as hits:
            async for hit in hits:
                op = found_op(hit.record, self._segment, self._ledger.creation_id)
                if op.creation_id != self._ledger.creation_id:
                    # It belongs to a deleted segment of the same name and holds nothing here (D16).
                    await self._settlement.commit([RecordVersion.of(hit.record).to_delete()])
                    continue
                # A decision that comes during the search for entries is applied once their place is known.
                write = self._writes.setdefault(op.txn, SegmentWrite(op.txn, joining=trio.Event()))
                write.ops.append(RecordVersion.of(hit.record))
                self._outstanding.add(1)
                self._headers.join(op.txn, self)
                bounds[op.txn] = min(op.lower_bound, bounds.get(op.txn, LATEST))
        for txn, (index, span) in (await find_spans(self._ledger, bounds)).items():
            self._writes[txn].span = span
            self._held.hold(txn, Place(index, span.first))
        for write in self._writes.values():
            write.joining = None
            if write.decided is not None:
                self._let_go(write)
        await self._headers.catch_up(list(self._writes))
        # Abort records of earlier owners may be ready to move to the ledgers' indexes.
        self._settlement.wake()
        self._is_recovered = True
        self._raise_readable()

    async def run(self) -> None:
        """See `TransactionBuffer`: removes the records of decided transactions."""
        try:
            await self._settlement.run(self.readable, self._removed)
        finally:
            self.leave()

    def leave(self) -> None:
        """See `TransactionBuffer`."""
        for write in self._writes.values():
            self._headers.leave(write.txn, self)
        self._outstanding.leave()
        self._ledger.confirmed.release(self.readable)

    async def discard(self) -> None:
        """See `TransactionBuffer`."""
        await self._settlement.discard()

    async def _join(self, txn: TxnId) -> SegmentWrite:
        """The transaction's entry in `_writes`, with its op record durable."""
        self._tenure.require()
        write = self._writes.get(txn)
        if write is not None:
            if write.joining is not None:
                await write.joining.wait()
            if self._writes.get(txn) is write and write.ops:
                return write
            # The other publish's op record was refused. Another try finds out why.
            return await self._join(txn)
        await require_open_anywhere(self._metadata, txn)
        if txn in self._writes:
            return await self._join(txn)
        write = self._writes[txn] = SegmentWrite(txn, joining=trio.Event())
        bound = self._ledger.next_position
        # Holding the bound before the put starts hides every later entry of this transaction (T13).
        self._held.hold(txn, Place(self._ledger.next_index, bound))
        self._headers.join(txn, self)
        op = WriteOp(txn, self._segment, self._ledger.creation_id, bound, self._owner)
        try:
            # Not cancelled half-way, because this broker must know whether the record exists to remove it later.
            with trio.fail_after(OP_PUT_SECONDS_MAX, shield=True):
                write.ops.append(await put_op(self._metadata, txn, self._claim, op.to_put()))
            self._counters.op_writes += 1
            self._outstanding.add(1)
        except Conflict as conflict:
            raise self._tenure.end(OwnershipLost(self._segment)) from conflict
        except StoreFull as full:
            raise NoSpace(f"The transaction cannot be recorded on {self._segment}: {full}") from full
        except (trio.TooSlowError, StoreUnavailable) as unknown:
            # This buffer no longer knows its segment's state.
            raise self._tenure.end(OutcomeUnknown(self._segment, "an op record")) from unknown
        finally:
            assert write.joining is not None, "only this task ends the joining"
            write.joining.set()
            write.joining = None
            if not write.ops:
                self._forget(write)
            elif write.decided is not None:
                self._let_go(write)
        return write

    def _readable_at(self, confirmed: Position) -> Position:
        # Before recovery ends, the held positions are incomplete, and a watermark never goes back.
        return self._held.readable(confirmed) if self._is_recovered else EARLIEST

    def _raise_readable(self) -> None:
        self.readable.raise_to(self._readable_at(self._ledger.confirmed.value))

    def _let_go(self, write: SegmentWrite) -> None:
        """Apply the decision in memory. `run` removes the records later."""
        if write.decided is TxnState.ABORTED and write.span is not None:
            self._aborted.remember(write.txn, write.span)
        self.hidden.ended(write.txn, is_abort=write.decided is TxnState.ABORTED)
        self._held.release(write.txn)
        self._raise_readable()
        self._settlement.add(write)

    def _forget(self, write: SegmentWrite) -> None:
        self._headers.leave(write.txn, self)
        self._held.release(write.txn)
        del self._writes[write.txn]
        self._raise_readable()

    def _removed(self, write: SegmentWrite) -> None:
        """Its records are gone."""
        self._headers.leave(write.txn, self)
        self._outstanding.add(-len(write.ops))
        del self._writes[write.txn]
