"""The task that removes the records of ended transactions on a segment.

Decisions are applied in memory first (`metadata_buffer.py`). This task then removes the records, of many transactions
at a time. Op records go in one change set with the abort record. Abort records go once the aborted-transaction index of
their ledger covers them. Only then may the header be deleted. Every step can be repeated after a crash (T25, T26).
"""

from collections.abc import Callable
from typing import Final

import structlog
import trio

from storage.errors import SPACE_RETRY_SECONDS
from storage.managed_ledger import ManagedLedger
from storage.metadata.store import Check, Conflict, Delete, MetadataStore, Op, StoreFull
from storage.signal import Signal
from storage.watermark import Watermark
from txn.aborted_transactions import AbortedTransactions
from txn.counters import OpCounters
from txn.errors import OwnershipLost, TxnError
from txn.ops import WRITES_BY_SEGMENT, writes_of_segment
from txn.segment_write import SegmentWrite
from txn.states import TxnState

log = structlog.get_logger(__name__)

SETTLE_BATCH_MAX: Final = 50
"""The most transactions that are settled together."""

SETTLE_OPERATIONS_MAX: Final = 100
"""The most operations in one of their change sets, which keeps it below etcd's 128."""


class Settlement:
    """See the module's docstring."""

    def __init__(
        self,
        ledger: ManagedLedger,
        aborted: AbortedTransactions,
        *,
        metadata: MetadataStore,
        claim: Check | None,
        counters: OpCounters,
        removed: Callable[[SegmentWrite], None],
    ) -> None:
        """Set up. `run` does the work, and calls `removed` when a write's records are gone."""
        self._ledger = ledger
        self._segment = ledger.name
        self._aborted = aborted
        self._metadata = metadata
        self._claim: tuple[Check, ...] = () if claim is None else (claim,)
        self._counters = counters
        self._removed = removed
        self._waiting: list[SegmentWrite] = []
        self._due = Signal()
        self._ended: TxnError | None = None
        """Why this owner has lost the segment, once a publish has met that."""
        self._is_discarded = False

    def add(self, write: SegmentWrite) -> None:
        """The write's decision is applied in memory, so its records can go."""
        self._waiting.append(write)
        self._due.set()

    def wake(self) -> None:
        """Abort records may be ready to move to the indexes of their ledgers."""
        self._due.set()

    def end(self, error: TxnError) -> TxnError:
        """Let `run` end with this error, or the first one given. Returns the error for the caller to raise."""
        self._ended = self._ended or error
        self._due.set()
        return error.anew()

    def require_owned(self) -> None:
        """Raise the error with which `run` is about to end.

        Another try would wait as long for the same error, and delay the closing of the segment.
        """
        if self._ended is not None:
            raise self._ended.anew()

    async def run(self, readable: Watermark) -> None:
        """Remove the records of decided transactions, until cancelled.

        Raises:
            OwnershipLost, OutcomeUnknown: the caller must close the segment.
        """
        while True:
            await self._due.wait()
            self.require_owned()
            try:
                await self._settle_all(readable)
            except StoreFull as full:
                # The decisions are applied in memory, so reading goes on. Every removal may be repeated.
                log.warning("records of transactions cannot be removed yet", segment=self._segment, reason=str(full))
                await trio.sleep(SPACE_RETRY_SECONDS)
                self._due.set()

    async def discard(self) -> None:
        """Remove every record of the segment before it is deleted with its data. Durable on return."""
        # Later decisions are not recorded, because nobody would remove the records.
        self._is_discarded = True
        hits = await self._counters.query(self._metadata, WRITES_BY_SEGMENT, *writes_of_segment(self._segment))
        keys = [hit.record.key for hit in hits]
        while keys:
            await self.commit([Delete(key) for key in keys[:SETTLE_OPERATIONS_MAX]])
            del keys[:SETTLE_OPERATIONS_MAX]
        await self.commit([self._aborted.to_delete()])

    async def commit(self, ops: list[Op], *, along: bool = False) -> None:
        """Commit a change set on the condition of the claim. With `along`, it shares the sync of another one.

        Raises:
            OwnershipLost: the claim is gone. Nothing was changed.
        """
        ops = [*self._claim, *ops]
        try:
            await (self._metadata.commit_along if along else self._metadata.commit)(ops)
        except Conflict as conflict:
            raise OwnershipLost(self._segment) from conflict

    async def _settle_all(self, readable: Watermark) -> None:
        if self._is_discarded:
            self._waiting.clear()
            return
        while self._waiting:
            batch = self._waiting[:SETTLE_BATCH_MAX]
            await self._remove_records(batch)
            del self._waiting[: len(batch)]
        if self._aborted.has_passed(readable.value):
            for ops in await self._aborted.move_to_indexes(readable.value):
                await self.commit(ops)
                self._aborted.forget(ops)

    async def _remove_records(self, writes: list[SegmentWrite]) -> None:
        ops: list[Op] = []
        for write in writes:
            if write.span is not None:
                # Entries appended before the decision are durable before their op record goes.
                await self._ledger.confirmed.wait_for(write.span.last)
                if write.decided is TxnState.ABORTED:
                    # First, so that no op record goes before it if they need several change sets.
                    ops.append(self._aborted.to_put(write.txn))
            if self._is_discarded:
                return
            ops.extend(Delete(key) for key in write.op_keys)
        for start in range(0, len(ops), SETTLE_OPERATIONS_MAX):
            some = ops[start : start + SETTLE_OPERATIONS_MAX]
            # Nobody waits for a removal. Abort records must keep their order with `discard`, so they are not held back.
            await self.commit(some, along=all(isinstance(op, Delete) for op in some))
        for write in writes:
            self._removed(write)
