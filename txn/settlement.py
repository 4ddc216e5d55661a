"""The task that removes the records of ended transactions on a segment.

Decisions are applied in memory first (`metadata_buffer.py`). This task then removes the records, of many transactions
at a time. Op records go in one change set with the abort record. Abort records go once the aborted-transaction index of
their ledger covers them. Only then may the header be deleted. Every step can be repeated after a crash (T25, T26).
"""

from collections.abc import Callable
from typing import Final

import trio

from storage.managed_ledger import ManagedLedger
from storage.metadata.store import Check, Conflict, Delete, MetadataStore, Op, RecordVersion
from storage.watermark import Watermark
from txn.aborted_transactions import AbortedTransactions
from txn.counters import OpCounters
from txn.errors import OwnershipLost
from txn.hidden_log import HiddenLog
from txn.op_removal import RECORDS_AT_ONCE_MAX, commit_with_removals, remove_ops
from txn.ops import WRITES_BY_SEGMENT, writes_of_segment
from txn.segment_write import SegmentWrite
from txn.states import TxnState
from txn.tenure import Tenure

SETTLE_BATCH_MAX: Final = 50
"""The most transactions that are settled together."""


class Settlement:
    """See the module's docstring."""

    def __init__(
        self,
        ledger: ManagedLedger,
        aborted: AbortedTransactions,
        hidden: HiddenLog,
        tenure: Tenure,
        *,
        metadata: MetadataStore,
        claim: Check | None,
        counters: OpCounters,
    ) -> None:
        """Set up. `run` does the work."""
        self._ledger = ledger
        self._segment = ledger.name
        self._aborted = aborted
        self._hidden = hidden
        self._tenure = tenure
        self._metadata = metadata
        self._claim: tuple[Check, ...] = () if claim is None else (claim,)
        self._counters = counters
        self._waiting: list[SegmentWrite] = []
        self._is_discarded = False
        self._recording = trio.Lock()
        """Held while abort records are written or discarded. A refused change set is committed again, which must not
        happen after `discard`."""

    def add(self, write: SegmentWrite) -> None:
        """The write's decision is applied in memory, so its records can go."""
        self._waiting.append(write)
        self._tenure.due.set()

    def wake(self) -> None:
        """Abort records may be ready to move to the indexes of their ledgers."""
        self._tenure.due.set()

    async def run(self, readable: Watermark, removed: Callable[[SegmentWrite], None]) -> None:
        """Remove the records of decided transactions until cancelled, and call `removed` when a write's are gone.

        `removed` is not kept after the run. It may refer to the owner of this object, and a cycle would keep both in
        memory.

        Raises:
            OwnershipLost, OutcomeUnknown: the caller must close the segment.
        """
        self._ledger.attach_rolls(self._tenure.due)
        try:
            await self._tenure.repeat(lambda: self._settle_all(readable, removed), self._tenure.due.wait)
        finally:
            self._ledger.detach_rolls(self._tenure.due)

    async def discard(self) -> None:
        """Remove every record of the segment before it is deleted with its data. Durable on return."""
        # Later decisions are not recorded, because nobody would remove the records.
        self._is_discarded = True
        async with self._recording:
            hits = self._counters.each_hit(self._metadata, WRITES_BY_SEGMENT, *writes_of_segment(self._segment))
            ops = [RecordVersion.of(hit.record) async for hit in hits]
            try:
                await remove_ops(ops, metadata=self._metadata, claim=self._claim)
            except Conflict as conflict:
                raise OwnershipLost(self._segment) from conflict
            await self.commit([self._aborted.to_delete()])

    async def commit(self, ops: list[Op], *, along: bool = False) -> int | None:
        """Commit a change set on the condition of the claim. With `along`, it shares the sync of another one.

        Removals whose record was changed are left out. Returns the revision; None if nothing was left to do.

        Raises:
            OwnershipLost: the claim is gone. Nothing was changed.
        """
        try:
            return await commit_with_removals(ops, metadata=self._metadata, claim=self._claim, along=along)
        except Conflict as conflict:
            raise OwnershipLost(self._segment) from conflict

    async def _settle_all(self, readable: Watermark, removed: Callable[[SegmentWrite], None]) -> None:
        if self._is_discarded:
            self._waiting.clear()
            return
        while self._waiting:
            batch = self._waiting[:SETTLE_BATCH_MAX]
            await self._remove_records(batch, removed)
            del self._waiting[: len(batch)]
        if self._aborted.has_passed(readable.value):
            for ops in await self._aborted.move_to_indexes(readable.value):
                await self.commit(ops)
                self._aborted.forget(ops)
        # A ledger that waits for the readable position waits for a transaction, which is settled here.
        await self._hidden.work(readable.value)

    async def _remove_records(self, writes: list[SegmentWrite], removed: Callable[[SegmentWrite], None]) -> None:
        ops: list[Op] = []
        for write in writes:
            if write.span is not None:
                # Entries appended before the decision are durable before their op record goes.
                await self._ledger.confirmed.wait_for(write.span.last)
                if write.decided is TxnState.ABORTED:
                    # First, so that no op record goes before it if they need several change sets.
                    ops.append(self._aborted.to_put(write.txn))
            ops.extend(op.to_delete() for op in write.ops)
        for start in range(0, len(ops), RECORDS_AT_ONCE_MAX):
            some = ops[start : start + RECORDS_AT_ONCE_MAX]
            if all(isinstance(op, Delete) for op in some):
                # Nobody waits for a removal.
                await self.commit(some, along=True)
                continue
            async with self._recording:
                if self._is_discarded:
                    return
                revision = await self.commit(some)
            if revision is not None:
                self._aborted.recorded(some, revision)
        for write in writes:
            removed(write)
