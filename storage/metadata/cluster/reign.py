"""The committer of one reign: this process decides the writes of the store, from its take-over to its end.

One task commits. It takes every waiting proposal and decides them one after another against a delta. It writes the
decisions with one write and one sync in a worker thread, applies them, and answers. Proposals that arrive meanwhile are
the next group. So a thousand writers cost one sync, and a lone writer waits only for its own (docs/design.md#metadata).
Refused proposals are answered with the rest of their group, because their state may not be durable yet (D13). A change
set that no caller waits for is held back for a moment, so that it can share a group (`wait_for_company`).

A change set that is too large for one batch is a transaction (KIP-868). It is the last of its group and is written
behind the others, so nothing was decided on top of it if it is aborted. It is written piece by piece, while readers see
the state before it. It is shown when its end is durable. If its caller is cancelled before that, or the disk is full,
it is aborted: the delta is dropped, and values, versions, indexes, counters and sessions stay as they were (R15). Every
other reason to refuse it was checked before its begin.

A failed write or sync ends the reign. The contents of the disk are then unknown, and only opening the store again
tells. A full disk is refused before that: the whole group gets `StoreFull`, because members may depend on each other,
and the state stays as it was.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import trio

from storage.files import DiskFull, Files
from storage.group_commit import let_others_join
from storage.metadata import transactions
from storage.metadata.batches import BATCH_BYTES_MAX, Body, pack
from storage.metadata.cluster.reign_snapshots import ReignSnapshots
from storage.metadata.delta import Delta
from storage.metadata.image import Written
from storage.metadata.opening import Opened
from storage.metadata.pacing import paced
from storage.metadata.proposals import Proposal, SnapshotNaming, no_space
from storage.metadata.proposed import Proposed
from storage.metadata.record_codec import encode
from storage.metadata.records import DataRecord, SnapshotNamed
from storage.metadata.steps import KEYS_AT_ONCE
from storage.metadata.store import Committed, SnapshotTaken, StoreEnded
from storage.signal import Signal

ALONG_SECONDS_MAX: Final = 0.02
"""How long a change set that no caller waits for is held back until it can share a group with another one."""

PROPOSALS_WAITING_MAX: Final = 4096
"""Proposals that wait for the committer. Further writers wait until it has taken some."""

GROUP_BYTES_MAX: Final = 256 * 1024
"""No proposal joins a group of this size or more. So deciding, encoding and writing a group stay short."""

CLOSED: Final = trio.ClosedResourceError("it was closed")

_ABANDONED: Final = "its caller was cancelled before its end"

_FULL: Final = "the disk was full before its end"

Show = Callable[[Sequence[DataRecord], Callable[[list[Written]], None]], Awaitable[None]]
"""`ImageStore.show`: makes a durable change set visible."""

log = structlog.get_logger(__name__)


class Reign:
    """See the module's docstring. It writes what `opened` has, and shows it by `show`."""

    def __init__(self, show: Show, files: Files, directory: Path, opened: Opened, snapshot_log_bytes: int) -> None:
        self._show = show
        self._files = files
        self._image = opened.image
        self._log = opened.log
        self._waiting: deque[Proposal] = deque()
        self._group: list[Proposal] = []
        self._room = trio.lowlevel.ParkingLot()
        self._company = trio.lowlevel.ParkingLot()
        """Change sets that wait to share the group of the next proposal."""
        self._wake = Signal()
        self._cause: BaseException | None = None
        """Why it answers nothing more. While it closes, what waits is still committed."""
        self._is_closing = False
        self._snapshots = ReignSnapshots(
            files,
            directory,
            opened.image,
            opened.log,
            self._wake,
            log_bytes=snapshot_log_bytes,
            newest_bytes=opened.snapshot_bytes,
        )
        self._is_full = False
        """Whether the disk refused the last group."""
        self._groups = 0
        self._transactions = 0
        self._aborted = 0

    async def run(self, nursery: trio.Nursery) -> None:
        """Commit until `close`, then what waits, and return. Snapshots run in `nursery`. Not cancelled.

        Whoever waits for an answer when this ends gets `StoreEnded`.

        Raises:
            OSError: the disk failed.
        """
        # Shielded, because while its owner is cancelled, the owner's last writes must still be made and answered.
        with trio.CancelScope(shield=True):
            try:
                await self._commit_groups(nursery)
            except BaseException as error:
                self._end(error)
                raise
            self._end(CLOSED)

    def close(self) -> None:
        """Let `run` end once it has committed what waits. New proposals are refused."""
        self._is_closing = True
        if self._cause is None:
            self._cause = CLOSED
        self._wake.set()

    async def propose(self, proposed: Proposed) -> Committed:
        """Decide it. Return the result, or raise the refusal, once the state behind the answer is durable and shown.

        If the call is cancelled, the outcome is unknown.

        Raises:
            Conflict, SessionLost: it is refused.
            StoreFull: there is no space, and nothing was done.
            StoreEnded: the reign has ended, and the outcome is unknown.
        """
        while len(self._waiting) >= PROPOSALS_WAITING_MAX and self._cause is None:
            await self._room.park()
        self._require_going_on()
        proposal = Proposal(proposed)
        self._waiting.append(proposal)
        self._wake.set()
        if self._company:
            self._company.unpark_all()
        return await proposal.answered()

    async def wait_for_company(self) -> None:
        """Hold back a change set that no caller waits for, up to ALONG_SECONDS_MAX, until another proposal waits."""
        if not self._waiting and self._cause is None:
            with trio.move_on_after(ALONG_SECONDS_MAX):
                await self._company.park()

    async def take_snapshot(self) -> SnapshotTaken:
        """See `TakesSnapshots.take_snapshot`. If a snapshot is being written, another one follows it."""
        self._require_going_on()
        wanted = self._snapshots.want()
        await wanted.settled.wait()
        if wanted.taken is None:
            raise wanted.refused or self._ended()
        return wanted.taken

    @property
    def proposals_waiting(self) -> int:
        """How many proposals wait for the committer."""
        return len(self._waiting)

    def statistics(self) -> dict[str, float]:
        """What the log and snapshots did, for `StoreStatistics.extra`."""
        return {
            "groups": self._groups,
            "log_batches": self._log.point.sequence,
            "log_tail_bytes": self._log.tail_bytes,
            "feature_level": self._image.feature_level,
            "transactions": self._transactions,
            "transactions_aborted": self._aborted,
            "snapshots": self._snapshots.taken,
            "snapshot_bytes": self._snapshots.newest_bytes,
        }

    async def _commit_groups(self, nursery: trio.Nursery) -> None:
        while not self._is_closing or self._waiting:
            if self._snapshots.failure is not None:
                raise self._snapshots.failure
            if (naming := self._snapshots.to_name()) is not None:
                await self._name_snapshot(naming)
            elif self._waiting:
                await self._commit_group()
            elif not self._is_snapshot_due:
                await self._wake.wait()
            if self._is_snapshot_due:
                await self._snapshots.begin(nursery)

    async def _name_snapshot(self, naming: SnapshotNaming) -> None:
        """Name it in the log. So whoever gives it its name was the controller then (C2)."""
        named = SnapshotNamed(self._image.revision, *naming.point, self._log.epoch.epoch)
        try:
            await self._append([Body(encode(named), 1)])
        except DiskFull as full:
            naming.refused = full
        naming.settled.set()

    @property
    def _is_snapshot_due(self) -> bool:
        return not self._is_closing and self._snapshots.is_due

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
                transaction = not transactions.fits_one_batch(delta.change_sets[-1])
        self._room.unpark_all()
        large = delta.change_sets.pop() if transaction else None
        if delta.change_sets:
            bodies = pack([encode(record) for record in change_set] for change_set in delta.change_sets)
            try:
                await self._append(bodies)
            except DiskFull as full:
                self._refuse(full)
                await self._snapshots.let_go_on()
                return
            self._groups += 1
            await self._publish(delta.change_sets)
        answered, self._group = (self._group, []) if large is None else (self._group[:-1], self._group[-1:])
        for proposal in answered:
            proposal.answer()
        await self._snapshots.let_go_on()
        if large is not None:
            await self._commit_transaction(self._group[0], large, delta.revision)
            self._group.clear()
            # Its last append may have been the record of its abort.
            await self._snapshots.let_go_on()

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
            await self._snapshots.let_go_on()
            is_begun = True
        self._transactions += 1
        await self._publish([change_set])
        proposal.answer()

    async def _append(self, bodies: list[Body], *, is_abort: bool = False) -> None:
        with self._snapshots.appending():
            await self._files.run_urgent(partial(self._log.append, bodies, is_abort=is_abort))
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
            proposal.fail(no_space(full))

    async def _publish(self, change_sets: list[list[DataRecord]]) -> None:
        shown = 0
        for change_set in change_sets:
            if shown >= KEYS_AT_ONCE:
                # Readers may read between two change sets.
                await trio.lowlevel.checkpoint()
                shown = 0
            await self._show(change_set, self._snapshots.note)
            shown += len(change_set)

    def _end(self, cause: BaseException) -> None:
        self._cause = cause
        for proposal in (*self._group, *self._waiting):
            proposal.fail(self._ended())
        self._group.clear()
        self._waiting.clear()
        self._room.unpark_all()
        self._company.unpark_all()
        self._snapshots.end()

    def _ended(self) -> StoreEnded:
        assert self._cause is not None, "it has ended, or closes"
        return StoreEnded(self._cause)

    def _require_going_on(self) -> None:
        if self._cause is not None:
            raise self._ended()
