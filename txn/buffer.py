"""A segment's transaction buffer, driven by metadata: who holds back the readable position, and what is filtered.

The buffer writes nothing into the segment (PIP-473). It is the only way to publish to a segment, because three things
must happen in one order: a transaction's first write here puts an op record, conditioned on the open header and on the
owner's claim, and only when that is durable is the entry appended; from before that put the transaction holds back the
readable position; and once it is decided nothing of it is accepted any more.

When a header changes, the buffer is told (`decided`) and materialises: it lets go of the position, so that the
watermark rises and dispatchers wake, or remembers the abort first. Then its `run` task removes the op record, in one
change set with the abort record, and only then may the header be forgotten. Every step can be repeated after a crash
(T25, T26).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog
import trio

from storage.entry import Entry, TxnId
from storage.errors import SPACE_RETRY_SECONDS, EntriesUnreadable, NoSpace
from storage.managed_ledger import ManagedLedger
from storage.metadata.store import Check, Conflict, Delete, MetadataStore, Op, StoreFull, StoreUnavailable
from storage.position import EARLIEST, Position
from storage.signal import Signal
from storage.watermark import Watermark
from txn.aborted_transactions import AbortedTransactions, Span
from txn.counters import OpCounters, OutstandingOps
from txn.errors import OutcomeUnknown, OwnershipLost, TxnError
from txn.header_watch import HeaderWatch
from txn.open_header import OP_PUT_SECONDS_MAX, put_op, require_open, require_open_anywhere
from txn.ops import WRITES_BY_SEGMENT, WriteOp, writes_of_segment
from txn.read_barriers import ReadBarriers
from txn.states import TxnState
from txn.visibility import HeldPositions

log = structlog.get_logger(__name__)

SETTLE_BATCH_MAX = 50
"""Transactions that are settled together."""

SETTLE_OPERATIONS_MAX = 100
"""Operations in one of their change sets, which keeps it below etcd's 128."""

SCAN_ENTRIES_MAX = 500
SCAN_BYTES_MAX = 4 * 1024 * 1024


@dataclass(eq=False, slots=True)
class _Write:
    """What one unresolved transaction has on this segment.

    It joins, appends, is decided, and is removed with its records. The decision may come in each of these phases, and
    is applied once: when it comes, or when the joining ends if that is later.
    """

    txn: TxnId
    op_keys: list[str] = field(default_factory=list)
    """Its op records that are durable. Empty only while it joins, or if the record was refused."""
    span: Span | None = None
    """From its first append here to its last one; None while there is none. The start never moves, the end rises."""
    decided: TxnState | None = None
    """Final, and set once. Nothing is appended from then on."""
    joining: trio.Event | None = None
    """Fires when its op record is durable or was refused; None once that is settled, and then it stays None."""


class TransactionBuffer:
    """The transactional side of one segment that this broker owns."""

    def __init__(
        self,
        ledger: ManagedLedger,
        *,
        metadata: MetadataStore,
        headers: HeaderWatch,
        claim: Check | None,
        counters: OpCounters,
    ) -> None:
        """Set up around an open managed ledger; call `recover` before anything else.

        Args:
            ledger: the segment's entries; this buffer is its only writer.
            metadata: where headers and op records stand.
            headers: tells when a transaction ends.
            claim: the owner's claim, a condition of everything the buffer writes (D4).
            counters: the broker's, to which this buffer adds.
        """
        self._ledger = ledger
        self._segment = ledger.name
        self._metadata = metadata
        self._headers = headers
        self._claim: tuple[Check, ...] = () if claim is None else (claim,)
        self._barriers = ReadBarriers(metadata)
        self._writes: dict[TxnId, _Write] = {}
        self._held = HeldPositions()
        self._aborted = AbortedTransactions(ledger)
        self._settling: list[_Write] = []
        self._settle = Signal()
        self._ended: TxnError | None = None
        """Why the segment is not this owner's any more, once a publish has met that."""
        self._is_discarded = False
        self._counters = counters
        self._outstanding = OutstandingOps(counters)
        self._is_recovered = False
        self.readable: Watermark = ledger.confirmed.derive(self._readable_at)
        """Everything at or below it is decided: committed, aborted, or not transactional (T14)."""

    def is_visible(self, entry: Entry) -> bool:
        """Whether an entry at or below `readable` may be seen: all but those of aborted transactions (T17).

        The entry was passed to `prepare` since it was read.
        """
        return not self._aborted.hides(entry)

    async def prepare(self, entries: Sequence[Entry]) -> None:
        """Have at hand what `is_visible` needs for these entries; does not wait for what was written lately.

        Raises:
            LedgerCorrupt: nobody can tell which of them may be seen.
        """
        await self._aborted.prepare(entries)

    async def fates(self, places: Sequence[tuple[TxnId | None, Position]]) -> list[TxnState]:
        """What became of entries here, each given by its transaction and position, as far as this owner was told.

        Those in no transaction count as committed. True as long as the caller does not wait.

        Raises:
            LedgerCorrupt: nobody can tell which of them were aborted.
            LedgerNotFound: a ledger was trimmed.
        """
        await self._aborted.prepare_ledgers({position.ledger for txn, position in places if txn is not None})
        return [self._fate(txn, position) for txn, position in places]

    def _fate(self, txn: TxnId | None, position: Position) -> TxnState:
        if txn is None:
            return TxnState.COMMITTED
        write = self._writes.get(txn)
        if write is not None and write.decided is None:
            return TxnState.OPEN
        return TxnState.ABORTED if self._aborted.has(txn, position.ledger) else TxnState.COMMITTED

    async def publish(self, payload: bytes, message_count: int, txn: TxnId | None) -> Position:
        """`admit`, then `append`.

        Raises:
            TransactionNotFound, TransactionEnded: nothing was appended.
            OwnershipLost: another broker owns the segment; nothing was appended.
            OutcomeUnknown: as `admit`; nothing was appended.
            LedgerSealed, LedgerFailed: nothing was appended.
        """
        await self.admit(txn)
        return self.append(payload, message_count, txn)

    def has_joined(self, txn: TxnId) -> bool:
        """Whether the transaction writes here, or is about to."""
        return txn in self._writes

    async def join(self, txn: TxnId) -> None:
        """Have the transaction's op record durable before a publish in it has its turn, so that joins share syncs.

        The transaction holds back the readable position from here on: at most where its first entry will be, however
        many others join or append meanwhile. `admit` looks again, so whatever is raised here meets the publish, too.

        Raises:
            TransactionNotFound, TransactionEnded, OwnershipLost, OutcomeUnknown, NoSpace: as `admit`.
        """
        if txn not in self._writes:
            await self._join(txn)

    def moment(self) -> int:
        """This moment, as `admit` takes it."""
        return self._barriers.next()

    async def admit(self, txn: TxnId | None, arrived_at: int | None = None) -> None:
        """Do what has to wait before `append`, which follows in the same step.

        The transaction's op record is durable on return (T11). What was decided before the publish arrived is known
        on return; it arrived at the `moment` given, or now.

        Raises:
            TransactionNotFound, TransactionEnded: the transaction takes no more.
            OwnershipLost: another broker owns the segment.
            OutcomeUnknown: nobody knows whether the op record is there; the segment is closed here.
            NoSpace: the metadata store has no space for the op record.
        """
        if txn is None:
            return
        if arrived_at is None:
            arrived_at = self.moment()
        write = self._writes.get(txn)
        if write is None or write.joining is not None:
            await self._join(txn)
        await self._barriers.wait_passed(arrived_at)

    def append(self, payload: bytes, message_count: int, txn: TxnId | None) -> Position:
        """Append an entry, for a transaction or for none, and return its position, not yet durable.

        Durable once the ledger's `confirmed` has reached the position. `admit` came before, and nothing was waited for
        since, so no decision can come in between (T12).

        Raises:
            TransactionNotFound, TransactionEnded: nothing was appended.
            LedgerSealed, LedgerFailed: nothing was appended.
        """
        if txn is None:
            return self._ledger.append(payload, message_count=message_count)
        require_open(self._metadata, txn)
        write = self._writes[txn]
        position = self._ledger.append(payload, message_count=message_count, txn=txn)
        if write.span is None:
            self._held.hold(txn, position)
            write.span = Span(position, position)
        else:
            write.span = Span(write.span.first, position)
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
        """The segment takes no more entries, so what is remembered of its last ledger moves to that ledger's index."""
        self._settle.set()

    async def caught_up(self) -> None:
        """Return once every decision made before the call is in `readable` (docs/design.md#read-your-commit)."""
        await self._headers.catch_up(list(self._writes))

    async def recover(self) -> None:
        """Take over what earlier owners left unresolved; to be called once, after the ledger was fenced and opened.

        Work is proportional to what was open (T25, docs/design.md#invariants, 6).
        """
        try:
            await self._take_over()
        except BaseException:
            self.leave()
            raise

    async def _take_over(self) -> None:
        await self._metadata.barrier()
        await self._aborted.load(self._metadata)
        hits = await self._counters.query(self._metadata, WRITES_BY_SEGMENT, *writes_of_segment(self._segment))
        for hit in hits:
            op = WriteOp.from_record(hit.record)
            if op.creation_id != self._ledger.creation_id:
                # It belongs to a segment of the same name that was deleted; it holds nothing of this one (D16).
                await self._commit([*self._claim, Delete(hit.record.key)])
                continue
            # A decision that comes while the entries are looked for is applied when it is known where they stand.
            write = self._writes.setdefault(op.txn, _Write(op.txn, joining=trio.Event()))
            write.op_keys.append(hit.record.key)
            self._outstanding.add(1)
            self._headers.join(op.txn, self)
            if write.span is None:
                await self._find_entries(write, op.lower_bound)
        for write in self._writes.values():
            write.joining = None
            if write.decided is not None:
                self._let_go(write)
        await self._headers.catch_up(list(self._writes))
        # What earlier owners remembered may be ready to move to the ledgers' indexes.
        self._settle.set()
        self._is_recovered = True
        self._raise_readable()

    async def run(self) -> None:
        """Remove the records of what was decided, until cancelled.

        Raises:
            OwnershipLost, OutcomeUnknown: whoever runs this closes the segment.
        """
        try:
            while True:
                await self._settle.wait()
                if self._ended is not None:
                    raise self._ended.anew()
                try:
                    await self._settle_all()
                except StoreFull as full:
                    # The decisions are applied in memory, so reading goes on. Every removal may be repeated.
                    log.warning("records of transactions stay for now", segment=self._segment, reason=str(full))
                    await trio.sleep(SPACE_RETRY_SECONDS)
                    self._settle.set()
        finally:
            self.leave()

    async def _settle_all(self) -> None:
        if self._is_discarded:
            self._settling.clear()
            return
        while self._settling:
            batch = self._settling[:SETTLE_BATCH_MAX]
            await self._remove_records(batch)
            del self._settling[: len(batch)]
        if self._aborted.has_passed(self.readable.value):
            for ops in await self._aborted.move_to_indexes(self.readable.value):
                await self._commit([*self._claim, *ops])
                self._aborted.forget(ops)

    async def discard(self) -> None:
        """Remove every record of the segment, which is about to be deleted with its data; durable on return."""
        # What is decided from now on is not recorded: nobody would remove that.
        self._is_discarded = True
        hits = await self._counters.query(self._metadata, WRITES_BY_SEGMENT, *writes_of_segment(self._segment))
        keys = [hit.record.key for hit in hits]
        while keys:
            await self._commit([*self._claim, *(Delete(key) for key in keys[:SETTLE_OPERATIONS_MAX])])
            del keys[:SETTLE_OPERATIONS_MAX]
        await self._commit([*self._claim, self._aborted.to_delete()])

    async def _join(self, txn: TxnId) -> _Write:
        """The transaction's entry in `_writes`, with its op record durable."""
        if self._ended is not None:
            # Another try would have to wait as long for the same, and keep the segment from closing.
            raise self._ended.anew()
        write = self._writes.get(txn)
        if write is not None:
            if write.joining is not None:
                await write.joining.wait()
            if self._writes.get(txn) is write and write.op_keys:
                return write
            # The other publish's op record was refused; the header says why, and so does a try of our own.
            require_open(self._metadata, txn)
            return await self._join(txn)
        await require_open_anywhere(self._metadata, txn)
        if txn in self._writes:
            return await self._join(txn)
        write = self._writes[txn] = _Write(txn, joining=trio.Event())
        bound = self._ledger.next_position
        # Holding the bound before the put starts keeps every later entry of this transaction out of sight (T13).
        self._held.hold(txn, bound)
        self._headers.join(txn, self)
        op = WriteOp(txn, self._segment, self._ledger.creation_id, bound)
        try:
            # Not cancelled half-way: this broker must know whether the record is there, or it could not remove it.
            with trio.fail_after(OP_PUT_SECONDS_MAX, shield=True):
                write.op_keys.append(await put_op(self._metadata, txn, self._claim, op.to_put()))
            self._counters.op_writes += 1
            self._outstanding.add(1)
        except Conflict as conflict:
            raise self._end(OwnershipLost(self._segment)) from conflict
        except StoreFull as full:
            raise NoSpace(f"the transaction cannot be recorded on {self._segment}: {full}") from full
        except (trio.TooSlowError, StoreUnavailable) as unknown:
            # This buffer no longer knows its segment's state.
            raise self._end(OutcomeUnknown(self._segment, "an op record")) from unknown
        finally:
            assert write.joining is not None, "only this task ends the joining"
            write.joining.set()
            write.joining = None
            if not write.op_keys:
                self._forget(write)
            elif write.decided is not None:
                self._let_go(write)
        return write

    async def _find_entries(self, write: _Write, lower_bound: Position) -> None:
        """Find the transaction's first entry, which it holds; none: it holds nothing back (T18)."""
        end = self._ledger.confirmed.value
        start = lower_bound
        while start <= end:
            try:
                entries = await self._ledger.read(
                    start, upto=end, entries_max=SCAN_ENTRIES_MAX, bytes_max=SCAN_BYTES_MAX
                )
            except EntriesUnreadable as damage:
                # Its first entry may be one of these.
                self._held.hold(write.txn, damage.first)
                write.span = Span(damage.first, end)
                return
            if not entries:
                return
            for entry in entries:
                if entry.txn == write.txn:
                    self._held.hold(write.txn, entry.position)
                    # Where its last entry stands is not known without reading on; the recovered end is not below it.
                    write.span = Span(entry.position, end)
                    return
            start = self._ledger.next_after(entries[-1].position)

    def _readable_at(self, confirmed: Position) -> Position:
        # What is held is not known before everything that earlier owners left open is, and no watermark goes back.
        return self._held.readable(confirmed) if self._is_recovered else EARLIEST

    def _raise_readable(self) -> None:
        self.readable.raise_to(self._readable_at(self._ledger.confirmed.value))

    def _let_go(self, write: _Write) -> None:
        """Apply the decision in memory; the records follow in `run`."""
        if write.decided is TxnState.ABORTED and write.span is not None:
            self._aborted.remember(write.txn, write.span)
        self._held.release(write.txn)
        self._raise_readable()
        self._settling.append(write)
        self._settle.set()

    def leave(self) -> None:
        """The segment is served here no more; its next owner recovers what is left."""
        for write in self._writes.values():
            self._headers.leave(write.txn, self)
        self._outstanding.leave()

    def _forget(self, write: _Write) -> None:
        self._headers.leave(write.txn, self)
        self._held.release(write.txn)
        del self._writes[write.txn]
        self._raise_readable()

    async def _remove_records(self, writes: list[_Write]) -> None:
        ops: list[Op] = []
        for write in writes:
            if write.span is not None:
                # What was handed to the ledger before the decision is durable before the record of it goes.
                await self._ledger.confirmed.wait_for(write.span.last)
                if write.decided is TxnState.ABORTED:
                    # First, so that no op record goes before it where they do not fit one change set.
                    ops.append(self._aborted.to_put(write.txn))
            if self._is_discarded:
                return
            ops.extend(Delete(key) for key in write.op_keys)
        for start in range(0, len(ops), SETTLE_OPERATIONS_MAX):
            await self._settle_records(ops[start : start + SETTLE_OPERATIONS_MAX])
        for write in writes:
            self._headers.leave(write.txn, self)
            self._outstanding.add(-len(write.op_keys))
            del self._writes[write.txn]

    def _end(self, error: TxnError) -> TxnError:
        """The error to tell the publisher. `run` ends with the first one."""
        self._ended = self._ended or error
        self._settle.set()
        return error.anew()

    async def _settle_records(self, ops: list[Op]) -> None:
        # Nobody waits for a removal. What holds an abort record is in order with `discard`, so it is not held back.
        only_removes = all(isinstance(op, Delete) for op in ops)
        await self._commit([*self._claim, *ops], along=only_removes)

    async def _commit(self, ops: list[Op], *, along: bool = False) -> None:
        try:
            await (self._metadata.commit_along if along else self._metadata.commit)(ops)
        except Conflict as conflict:
            raise OwnershipLost(self._segment) from conflict
