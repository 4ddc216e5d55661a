"""The metadata store inside the broker: the image, a log that makes it last, and snapshots that keep the log short.

One task commits. It takes every waiting proposal and decides them one after another against a delta. It writes the
decisions with one write and one sync in a worker thread, applies them, and answers. Proposals that arrive meanwhile are
the next group. So a thousand writers cost one sync, and a lone writer waits only for its own (docs/design.md#metadata).
Refused proposals are answered with the rest of their group, because their state may not be durable yet (D13). A change
set that no caller waits for is held back for a moment, so that it can share a group (`commit_along`).

A change set that is too large for one batch is a transaction (KIP-868). It is the last of its group and is written
behind the others, so nothing was decided on top of it if it is aborted. It is written piece by piece, while readers see
the state before it. It is shown when its end is durable. If its caller is cancelled before that, or the disk is full,
it is aborted: the delta is dropped, and values, versions, indexes, counters and sessions stay as they were (R15). Every
other reason to refuse it was checked before its begin.

A failed write or sync ends the store. The contents of the disk are then unknown, and only opening the store again
tells. A full disk is refused before that: the whole group gets `StoreFull`, because members may depend on each other,
and the state stays as it was. A snapshot that does not fit is tried again when the log has grown by another part.

    async with EmbeddedStore.open(DiskFiles(), data_dir) as store:
        ...

The store is a context manager, not a task that its owner starts. It goes on committing while the tasks in its body are
cancelled and clean up, and ends only when all of them have ended.
"""

from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, Self

import structlog
import trio

from storage.files import DiskFull, Files
from storage.group_commit import let_others_join
from storage.metadata import snapshots, transactions
from storage.metadata.batches import BATCH_BYTES_MAX, BODY_BYTES_MAX, Body, pack
from storage.metadata.delta import Delta
from storage.metadata.image import Written
from storage.metadata.image_store import ImageStore
from storage.metadata.opening import Opened, metadata_directory, open_folder
from storage.metadata.pacing import paced
from storage.metadata.proposals import Proposal, WantedSnapshot
from storage.metadata.proposed import Proposed
from storage.metadata.record_codec import encode
from storage.metadata.records import TRANSACTIONS_LEVEL, DataRecord
from storage.metadata.steps import KEYS_AT_ONCE
from storage.metadata.store import ChangeSetTooLarge, Committed, Op, SnapshotTaken, StoreFull, StoreStatistics
from storage.signal import Signal

ALONG_SECONDS_MAX: Final = 0.02
"""How long a change set that no caller waits for is held back until it can share a group with another one."""

PROPOSALS_WAITING_MAX: Final = 4096
"""Proposals that wait for the committer. Further writers wait until it has taken some."""

GROUP_BYTES_MAX: Final = 256 * 1024
"""No proposal joins a group of this size or more. So deciding, encoding and writing a group stay short."""

SNAPSHOT_LOG_BYTES: Final = 16 * 1024 * 1024
"""A snapshot is taken when the log has grown by this much since the last one, or by the last one's size if that is
larger. So recovery replays no more than it loads, and snapshots write no more than the log does."""

_ABANDONED: Final = "its caller was cancelled before its end"

_FULL: Final = "the disk was full before its end"

log = structlog.get_logger(__name__)

_CLOSED: Final = trio.ClosedResourceError("it was closed")


class EmbeddedStore(ImageStore):
    """See the module's docstring. Made by `open`."""

    def __init__(self, files: Files, directory: Path, opened: Opened, snapshot_log_bytes: int) -> None:
        super().__init__(opened.image)
        self._files = files
        self._directory = directory
        self._log = opened.log
        self._waiting: deque[Proposal] = deque()
        self._group: list[Proposal] = []
        self._room = trio.lowlevel.ParkingLot()
        self._company = trio.lowlevel.ParkingLot()
        """Change sets that wait to share the group of the next proposal."""
        self._wake = Signal()
        self._closing = False
        self._snapshot_log_bytes = snapshot_log_bytes
        self._snapshot_bytes = opened.snapshot_bytes
        self._snapshot: snapshots.View | None = None
        self._snapshot_failure: OSError | None = None
        self._snapshot_not_below = 0
        """The log length for the next try at a snapshot that did not fit the disk."""
        self._wanted: list[WantedSnapshot] = []
        """Callers that wait for a snapshot that has not begun."""
        self._served: list[WantedSnapshot] = []
        """Callers that wait for the snapshot being written."""
        self._is_appending = False
        self._is_full = False
        """Whether the disk refused the last group."""
        self._turns = trio.lowlevel.ParkingLot()
        self._turn_taken = Signal()
        self._groups = 0
        self._snapshots = 0
        self._transactions = 0
        self._aborted = 0

    @classmethod
    @asynccontextmanager
    async def open(
        cls, files: Files, data_dir: Path, *, snapshot_log_bytes: int = SNAPSHOT_LOG_BYTES
    ) -> AsyncIterator[Self]:
        """The store of `<data_dir>/metadata`, for as long as the context is open. It is made if it is absent.

        Sessions of an earlier process have ended, and their records are gone. If the disk fails later, the store
        answers StoreUnavailable and its sessions are lost; the context itself continues until its body ends. Exceptions
        of the body come out in an exception group, as from any nursery.

        Raises:
            AlreadyLocked: it is open elsewhere.
            CorruptMetadata: a file is damaged, or of a later release.
        """
        directory = metadata_directory(data_dir)
        opened = await files.run(open_folder, files, directory)
        try:
            store = cls(files, directory, opened, snapshot_log_bytes)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(store._commit_groups, nursery)
                try:
                    yield store
                finally:
                    store._close()
                    # A snapshot is abandoned half-way. The committer is shielded and ends by itself.
                    nursery.cancel_scope.cancel()
        finally:
            opened.close()

    async def take_snapshot(self) -> SnapshotTaken:
        """See `TakesSnapshots.take_snapshot`. If a snapshot is being written, another one follows it."""
        self._raise_failure()
        wanted = WantedSnapshot()
        self._wanted.append(wanted)
        self._wake.set()
        await wanted.settled.wait()
        if wanted.taken is None:
            raise wanted.refused or self._unavailable()
        return wanted.taken

    def statistics(self) -> StoreStatistics:
        """See `MetadataStore.statistics`; `extra` says what the log and snapshots did."""
        return StoreStatistics(
            self._image.revision,
            len(self._image.records),
            len(self._watches),
            len(self._waiting),
            {
                "groups": self._groups,
                "log_batches": self._log.point.sequence,
                "log_tail_bytes": self._log.tail_bytes,
                "feature_level": self._image.feature_level,
                "transactions": self._transactions,
                "transactions_aborted": self._aborted,
                "snapshots": self._snapshots,
                "snapshot_bytes": self._snapshot_bytes,
            },
        )

    async def _decide(self, proposed: Proposed) -> Committed:
        size = proposed.size
        if size > BODY_BYTES_MAX and self._image.feature_level < TRANSACTIONS_LEVEL:
            raise ChangeSetTooLarge(
                f"a change set of about {size} bytes is above the {BODY_BYTES_MAX} of a store at feature level "
                f"{self._image.feature_level}; from level {TRANSACTIONS_LEVEL} on it may have any size: stop the "
                f"broker and run `tidewire metadata snapshot --feature-level {TRANSACTIONS_LEVEL}`"
            )
        while len(self._waiting) >= PROPOSALS_WAITING_MAX and self._failure is None:
            await self._room.park()
        self._raise_failure()
        proposal = Proposal(proposed)
        self._waiting.append(proposal)
        self._wake.set()
        if self._company:
            self._company.unpark_all()
        return await proposal.answered()

    async def commit_along(self, ops: Sequence[Op]) -> Committed:
        """See `MetadataStore.commit_along`. Waits up to ALONG_SECONDS_MAX for another caller's proposal."""
        if not self._waiting and self._failure is None:
            with trio.move_on_after(ALONG_SECONDS_MAX):
                await self._company.park()
        return await self.commit(ops)

    async def _commit_groups(self, nursery: trio.Nursery) -> None:
        # Shielded, because while its owner is cancelled, the owner's last writes must still be made and answered.
        with trio.CancelScope(shield=True):
            try:
                while not self._closing or self._waiting:
                    if self._snapshot_failure is not None:
                        raise self._snapshot_failure
                    if self._waiting:
                        await self._commit_group()
                    elif not self._is_snapshot_due:
                        await self._wake.wait()
                    if self._is_snapshot_due:
                        await self._begin_snapshot(nursery)
            except OSError as error:
                self._end(error)
            except BaseException as error:
                self._end(error)
                raise
            else:
                self._end(_CLOSED)

    async def _commit_group(self) -> None:
        await let_others_join()
        delta = Delta(self._image)
        size = 0
        transaction = False
        while self._waiting and size < GROUP_BYTES_MAX and not transaction:
            proposal = self._waiting.popleft()
            self._group.append(proposal)
            size += proposal.size
            decided = len(delta.change_sets)
            await paced(proposal.judge(delta))
            if proposal.size > BATCH_BYTES_MAX and len(delta.change_sets) > decided:
                transaction = self._needs_transaction(delta.change_sets[-1])
        self._room.unpark_all()
        large = delta.change_sets.pop() if transaction else None
        if delta.change_sets:
            bodies = pack([encode(record) for record in change_set] for change_set in delta.change_sets)
            try:
                await self._append(bodies)
            except DiskFull as full:
                self._refuse(full)
                await self._let_snapshot_go_on()
                return
            self._groups += 1
            await self._publish(delta.change_sets)
        answered, self._group = (self._group, []) if large is None else (self._group[:-1], self._group[-1:])
        for proposal in answered:
            proposal.answer()
        await self._let_snapshot_go_on()
        if large is not None:
            await self._commit_transaction(self._group[0], large, delta.revision)
            self._group.clear()
            # Its last append may have been the record of its abort.
            await self._let_snapshot_go_on()

    def _needs_transaction(self, change_set: list[DataRecord]) -> bool:
        return self._image.feature_level >= TRANSACTIONS_LEVEL and not transactions.fits_one_batch(change_set)

    async def _commit_transaction(self, proposal: Proposal, change_set: list[DataRecord], revision: int) -> None:
        name = f"revision {revision}: {len(change_set)} records"
        is_begun = False
        for bodies in transactions.pieces(name, change_set):
            if not proposal.is_awaited:
                if is_begun:
                    await self._append(transactions.abort(_ABANDONED), is_abort=True)
                    self._aborted += 1
                return
            try:
                await self._append(bodies)
            except DiskFull as full:
                if is_begun:
                    await self._append(transactions.abort(_FULL), is_abort=True)
                    self._aborted += 1
                self._refuse(full)
                return
            await self._let_snapshot_go_on()
            is_begun = True
        self._transactions += 1
        await self._publish([change_set])
        proposal.answer()

    async def _append(self, bodies: list[Body], *, is_abort: bool = False) -> None:
        self._is_appending = True
        try:
            await self._files.run_urgent(partial(self._log.append, bodies, is_abort=is_abort))
        finally:
            self._is_appending = False
        if self._is_full and not is_abort:
            log.info("there is space for the metadata log again")
            self._is_full = False

    def _refuse(self, full: DiskFull) -> None:
        """Tell the whole group that nothing was done."""
        if not self._is_full:
            log.error("the disk is full: the metadata log accepts no writes until there is space", file=full.filename)
        self._is_full = True
        refused, self._group = self._group, []
        for proposal in refused:
            proposal.fail(_full(full))

    async def _publish(self, change_sets: list[list[DataRecord]]) -> None:
        shown = 0
        for change_set in change_sets:
            if shown >= KEYS_AT_ONCE:
                # Readers may read between two change sets.
                await trio.lowlevel.checkpoint()
                shown = 0
            await self._show(change_set, self._note_for_snapshot)
            shown += len(change_set)

    def _note_for_snapshot(self, written: list[Written]) -> None:
        if self._snapshot is not None:
            self._snapshot.note(written)

    @property
    def _is_snapshot_due(self) -> bool:
        if self._snapshot is not None or self._closing:
            return False
        due = max(self._snapshot_log_bytes, self._snapshot_bytes, self._snapshot_not_below)
        return bool(self._wanted) or self._log.tail_bytes >= due

    def _put_off_snapshot(self, full: DiskFull) -> None:
        log.warning("there is no space for a snapshot of the metadata", file=full.filename)
        self._snapshot_not_below = self._log.tail_bytes + self._snapshot_log_bytes // 4
        for wanted in (*self._served, *self._wanted):
            wanted.refused = _full(full)
            wanted.settled.set()
        self._served, self._wanted = [], []

    async def _begin_snapshot(self, nursery: trio.Nursery) -> None:
        # Between two groups, the image is exactly the state after the log's last batch, and no transaction is open.
        try:
            await self._files.run_urgent(self._log.roll)
        except DiskFull as full:
            self._put_off_snapshot(full)
            return
        self._served, self._wanted = self._wanted, []
        self._snapshot = snapshots.View(self._image, self._log.point)
        nursery.start_soon(self._take_snapshot, self._snapshot)

    async def _snapshot_turn(self) -> None:
        """Return when a slice of a snapshot may be encoded: while no append is under way, and once after each append.

        Otherwise the appending thread and the encoding would take the interpreter from each other several times for
        every group.
        """
        await trio.lowlevel.checkpoint()
        if self._is_appending:
            await self._turns.park()
            # The task that gave the turn goes on when this task pauses next, which is after the slice.
            self._turn_taken.set()

    async def _let_snapshot_go_on(self) -> None:
        if self._turns:
            self._turns.unpark()
            await self._turn_taken.wait()

    async def _take_snapshot(self, view: snapshots.View) -> None:
        try:
            self._snapshot_bytes = await snapshots.write(self._files, self._directory, view, turn=self._snapshot_turn)
            await self._files.run(self._log.trim, view.point.sequence)
        except DiskFull as full:
            self._snapshot = None
            self._put_off_snapshot(full)
        except OSError as error:
            self._snapshot_failure = error
            self._wake.set()
        else:
            self._snapshots += 1
            self._snapshot = None
            self._snapshot_not_below = 0
            for wanted in self._served:
                wanted.taken = SnapshotTaken(view.point.sequence, view.revision, self._snapshot_bytes)
                wanted.settled.set()
            self._served = []
            if self._wanted:
                self._wake.set()

    def _close(self) -> None:
        """Let the committer end once it has committed what waits. New proposals are refused."""
        if self._failure is None:
            self._failure = _CLOSED
        self._closing = True
        self._wake.set()

    def _end(self, cause: BaseException) -> None:
        super()._end(cause)
        for proposal in (*self._group, *self._waiting):
            proposal.fail(self._unavailable())
        self._group.clear()
        self._waiting.clear()
        self._room.unpark_all()
        self._company.unpark_all()
        for wanted in (*self._served, *self._wanted):
            wanted.settled.set()


def _full(full: DiskFull) -> StoreFull:
    error = StoreFull(f"the disk is full: {full.filename} cannot grow")
    error.__cause__ = full
    return error
