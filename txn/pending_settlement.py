"""Removes the op records of decided acknowledgements, once the cursor is durable past them.

After a commit, the records go when the cursor's own record covers their acknowledgements. After an abort, they go at
once. What the cursor had no room for is tried again whenever its record was written. Every removal may be repeated,
even by the next owner.
"""

from collections.abc import Callable, Iterable, Sequence

import trio

from storage.cursor import Cursor
from storage.metadata.store import Check, Conflict, MetadataStore, RecordVersion, StoreUnavailable
from storage.position import EARLIEST
from txn.errors import OutcomeUnknown, OwnershipLost
from txn.op_removal import remove_ops
from txn.open_header import OP_PUT_SECONDS_MAX
from txn.pending_steps import PendingSteps
from txn.pending_transaction import PendingTransaction
from txn.tenure import Tenure


class PendingSettlement:
    """The removals of one subscription, for `PendingAcks`."""

    def __init__(
        self,
        segment: str,
        cursor: Cursor,
        tenure: Tenure,
        metadata: MetadataStore,
        claim: tuple[Check, ...],
    ) -> None:
        """Set up.

        Args:
            segment: the segment's name.
            cursor: the subscription's progress.
            tenure: ends when this owner loses the segment.
            metadata: holds the records.
            claim: the owner's claim, a condition of each removal.
        """
        self._segment = segment
        self._cursor = cursor
        self._tenure = tenure
        self._metadata = metadata
        self._claim = claim
        self._applied: list[PendingTransaction] = []
        """Decided transactions, applied in memory as far as the cursor has room."""
        self._orphans: dict[RecordVersion, None] = {}
        """Op records from before the cursor was moved. They go once the move is durable."""

    def add(self, pending: PendingTransaction) -> None:
        """A decision is applied in memory, so the transaction's records can go."""
        self._applied.append(pending)
        self._tenure.due.set()

    def discard(self, pending: PendingTransaction) -> None:
        """The transaction is forgotten."""
        if pending in self._applied:
            self._applied.remove(pending)

    def add_orphans(self, ops: Iterable[RecordVersion]) -> None:
        """These records no longer count once the current cursor is durable."""
        self._orphans.update(dict.fromkeys(ops))
        self._tenure.due.set()

    async def run(self, steps: PendingSteps, removed: Callable[[PendingTransaction], None]) -> None:
        """Remove records until cancelled, and call `removed` when a transaction has nothing left here.

        `removed` is not kept after the run. It may refer to the owner of this object, and a cycle would keep both in
        memory.

        Raises:
            OwnershipLost, OutcomeUnknown: the caller must close the segment.
            CursorError: the cursor has ended.
        """
        await self._tenure.repeat(lambda: self._settle_all(steps, removed), lambda: self._wait_for_work(steps))

    async def remove(self, ops: Sequence[RecordVersion], *, along: bool = False) -> None:
        """Remove these records. With `along`, they share the sync of other change sets, if no caller waits.

        Raises:
            OwnershipLost: another broker owns the segment.
        """
        try:
            await remove_ops(ops, metadata=self._metadata, claim=self._claim, along=along)
        except Conflict as conflict:
            raise self._tenure.end(OwnershipLost(self._segment)) from conflict

    async def remove_orphans(self) -> None:
        """Remove the orphaned records, because the cursor is durably gone. Not cancelled half-way.

        Raises:
            OwnershipLost: another broker owns the segment.
            OutcomeUnknown: the metadata store did not confirm the removal.
        """
        try:
            with trio.fail_after(OP_PUT_SECONDS_MAX, shield=True):
                await self._remove_orphans(tuple(self._orphans))
        except (trio.TooSlowError, StoreUnavailable) as unknown:
            raise self._tenure.end(OutcomeUnknown(self._segment, "the removal of op records")) from unknown

    async def _settle_all(self, steps: PendingSteps, removed: Callable[[PendingTransaction], None]) -> None:
        if self._orphans:
            orphans = tuple(self._orphans)
            await self._cursor.synced(EARLIEST)
            await self._remove_orphans(orphans)
        while settled := await self._settled(steps):
            await self._finish(settled)
            for pending in settled:
                removed(pending)

    async def _wait_for_work(self, steps: PendingSteps) -> None:
        """Wait until something was decided, or until the cursor may have room again."""
        if not any(pending.left for pending in self._applied):
            await self._tenure.due.wait()
            return
        durable = self._cursor.durable
        durable.attach(self._tenure.due)
        try:
            # This try finds room that was made before the signal was attached.
            if not await self._settled(steps):
                await self._tenure.due.wait()
        finally:
            durable.detach(self._tenure.due)

    async def _settled(self, steps: PendingSteps) -> list[PendingTransaction]:
        """The wholly applied transactions, after another try at what the cursor had no room for."""
        for pending in tuple(self._applied):
            if pending.left:
                for _pause in steps.take_left(pending):
                    await trio.lowlevel.checkpoint()
        return [pending for pending in self._applied if not pending.left]

    async def _finish(self, settled: list[PendingTransaction]) -> None:
        """Remove the records of applied transactions."""
        upto = max(pending.upto for pending in settled)
        if upto > EARLIEST:
            await self._cursor.synced(upto)
        await self.remove([op for pending in settled if not pending.is_discarded for op in pending.ops], along=True)

    async def _remove_orphans(self, ops: Sequence[RecordVersion]) -> None:
        await self.remove(ops)
        for op in ops:
            self._orphans.pop(op, None)
