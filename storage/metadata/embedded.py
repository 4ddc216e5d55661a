"""The metadata store inside the broker: the image, a log that makes it last, and snapshots that keep the log short.

One task commits. It takes every proposal that waits, decides them one after another against a delta, writes what they
decided with one write and one sync in a worker thread, applies it, and answers; what arrives meanwhile is the next
group. So a thousand writers cost one sync, and a lone writer waits for nothing but its own (docs/design.md#metadata).
Answers to refused proposals wait with the rest of their group, since what they rest on may be undurable (D13).
What nobody waits for is held back for a moment, to go along with what somebody does (`commit_along`).

A change set that is too large for one batch is a transaction (KIP-868). It is the last of those that were decided
together and is written behind them, so that nothing was decided on top of it should it be aborted. It is written piece
by piece while readers are served the state before it, and shown when its end is durable. If nobody waits
for it any more it is aborted: the delta is dropped, which leaves values, versions, indexes, counters and sessions as
they were (R15). Nothing else but a failing disk can happen to it: what could refuse it was looked at before its begin.

A write or sync that fails ends the store: what is on the disk is then unknown, and only opening it again can tell. A
full disk is refused before that: all of the group get `StoreFull`, since some may rest on others, and the state stays
as it was. A snapshot that does not fit is tried again when the log has grown by another part.

    async with EmbeddedStore.open(DiskFiles(), data_dir) as store:
        ...

A context manager, not a task to be started by the owner: it goes on committing while what runs inside is cancelled
and tidies up after itself, and ends only when all of that has ended.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, Self, TypeVar

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
from storage.metadata.proposals import AnyProposal, Proposal, WantedSnapshot
from storage.metadata.records import TRANSACTIONS_LEVEL, DataRecord, encode
from storage.metadata.steps import KEYS_AT_ONCE, Steps
from storage.metadata.store import ChangeSetTooLarge, Committed, Op, SnapshotTaken, StoreFull, StoreStatistics
from storage.signal import Signal

ALONG_SECONDS_MAX: Final = 0.02
"""How long a change set that nobody waits for is held back until another one comes that it can go along with."""

PROPOSALS_WAITING_MAX: Final = 4096
"""Proposals that wait for the committer; more writers wait until it has taken some."""

GROUP_BYTES_MAX: Final = 256 * 1024
"""No proposal joins a group that has reached this size, so deciding, encoding and writing one stay short."""

SNAPSHOT_LOG_BYTES: Final = 16 * 1024 * 1024
"""A snapshot is taken when the log has grown by this much since the last, or by the last one's size if that is more:
so recovery replays no more than it loads, and snapshots write no more than the log does."""

_ABANDONED: Final = "whoever proposed it was cancelled before its end"

_FULL: Final = "the disk was full before its end"

log = structlog.get_logger(__name__)

_CLOSED: Final = trio.ClosedResourceError("it was closed")

T = TypeVar("T")


class EmbeddedStore(ImageStore):
    """See the module; made by `open`."""

    def __init__(self, files: Files, directory: Path, opened: Opened, snapshot_log_bytes: int) -> None:
        super().__init__(opened.image)
        self._files = files
        self._directory = directory
        self._log = opened.log
        self._waiting: deque[AnyProposal] = deque()
        self._group: list[AnyProposal] = []
        self._room = trio.lowlevel.ParkingLot()
        self._company = trio.lowlevel.ParkingLot()
        """Change sets that go along with the next proposal."""
        self._wake = Signal()
        self._closing = False
        self._snapshot_log_bytes = snapshot_log_bytes
        self._snapshot_bytes = opened.snapshot_bytes
        self._snapshot: snapshots.View | None = None
        self._snapshot_failure: OSError | None = None
        self._snapshot_not_below = 0
        """How long the log must be for another try at a snapshot that did not fit the disk."""
        self._wanted: list[WantedSnapshot] = []
        """Who waits for a snapshot that is not yet begun."""
        self._served: list[WantedSnapshot] = []
        """Who waits for the one being written."""
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
        """The store of `<data_dir>/metadata`, made if absent, for as long as the context is open.

        Sessions of an earlier process have ended by then, and their records are gone. If the disk fails meanwhile, the
        store answers StoreUnavailable and its sessions are lost; the context itself goes on until its body ends. What
        the body raises comes out in an exception group, as from any nursery.

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
                    # A snapshot is given up half-way; the committer is shielded and ends by itself.
                    nursery.cancel_scope.cancel()
        finally:
            opened.close()

    async def take_snapshot(self) -> SnapshotTaken:
        """See `TakesSnapshots.take_snapshot`. If one is being written already, the next is taken behind it."""
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

    async def _decide(self, decide: Callable[[Delta], Steps[T]], size: int) -> T:
        if size > BODY_BYTES_MAX and self._image.feature_level < TRANSACTIONS_LEVEL:
            raise ChangeSetTooLarge(
                f"a change set of about {size} bytes is above the {BODY_BYTES_MAX} of a store at feature level "
                f"{self._image.feature_level}; from level {TRANSACTIONS_LEVEL} on it may have any size: stop the "
                f"broker and run `tidewire metadata snapshot --feature-level {TRANSACTIONS_LEVEL}`"
            )
        while len(self._waiting) >= PROPOSALS_WAITING_MAX and self._failure is None:
            await self._room.park()
        self._raise_failure()
        proposal = Proposal(decide, size)
        self._waiting.append(proposal)
        self._wake.set()
        if self._company:
            self._company.unpark_all()
        return await proposal.answered()

    async def commit_along(self, ops: Sequence[Op]) -> Committed:
        """See `MetadataStore.commit_along`: waits up to ALONG_SECONDS_MAX for somebody else's proposal."""
        if not self._waiting and self._failure is None:
            with trio.move_on_after(ALONG_SECONDS_MAX):
                await self._company.park()
        return await self.commit(ops)

    async def _commit_groups(self, nursery: trio.Nursery) -> None:
        # Shielded: while its owner is cancelled, the owner's last writes are still to be made and answered.
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

    def _needs_transaction(self, change_set: list[DataRecord]) -> bool:
        return self._image.feature_level >= TRANSACTIONS_LEVEL and not transactions.fits_one_batch(change_set)

    async def _commit_transaction(self, proposal: "AnyProposal", change_set: list[DataRecord], revision: int) -> None:
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
                await self._let_snapshot_go_on()
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
        """Tell all of the group that nothing was done."""
        if not self._is_full:
            log.error("the disk is full: the metadata log takes nothing until there is space", file=full.filename)
        self._is_full = True
        refused, self._group = self._group, []
        for proposal in refused:
            proposal.fail(_full(full))

    async def _publish(self, change_sets: list[list[DataRecord]]) -> None:
        shown = 0
        for change_set in change_sets:
            if shown >= KEYS_AT_ONCE:
                # Between two change sets everybody may read.
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
        # Between two groups the image is exactly the state after the log's last batch, and no transaction is open.
        try:
            await self._files.run_urgent(self._log.roll)
        except DiskFull as full:
            self._put_off_snapshot(full)
            return
        self._served, self._wanted = self._wanted, []
        self._snapshot = snapshots.View(self._image, self._log.point)
        nursery.start_soon(self._take_snapshot, self._snapshot)

    async def _snapshot_turn(self) -> None:
        """Return when a slice of a snapshot may be encoded: while no append is under way, and after each that was.

        Otherwise the thread that appends and the encoding would take the interpreter from each other several times for
        every group.
        """
        await trio.lowlevel.checkpoint()
        if self._is_appending:
            await self._turns.park()
            # Whoever gave the turn goes on when this task pauses next, which is behind the slice.
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
        """Let the committer end once it has committed what waits; nothing new is taken."""
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
