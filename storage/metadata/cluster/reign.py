"""The committer of one reign: this process decides the writes of the store, from its take-over to its end.

One task commits. It takes every waiting proposal and decides them one after another against a delta. It writes the
decisions with one write and one sync in a worker thread, applies them, and answers. Proposals that arrive meanwhile are
the next group. So a thousand writers cost one sync, and a lone writer waits only for its own (docs/design.md#metadata).
Refused proposals are answered with the rest of their group, because their state may not be durable yet (D13). A change
set that no caller waits for is held back for a moment, so that it can share a group (`ProposalQueue.wait_for_company`).

Another process may take over at any moment. What it found in the log is counted, and the rest is cut off. So nothing is
shown, pushed or answered before a look at the fence that follows its sync (C3), or, without a write, its arrival (C4):

| what                                        | follows                                               |
|---------------------------------------------|-------------------------------------------------------|
| a change set is shown, pushed and answered  | the check behind its sync, in the same worker call    |
| a refusal, or a change set without changes  | the same, if its group has one; else a check          |
| a read, a barrier, a repeated answer        | a check (`require_reigning`)                          |

A check that fails ends the reign with `Deposed`. The image is on the chain all the same, because a successor reads the
log after it makes the fence. So this process can follow it.

A change set that is too large for one batch is a transaction (KIP-868). It is the last of its group and is written
behind the others, so nothing was decided on top of it if it is aborted. It is written piece by piece, while readers see
the state before it. If its caller is cancelled before the end, or the disk is full, it is aborted: the delta is
dropped, and the state stays as it was (R15). Every other reason to refuse it was checked before its begin.

Writes of other processes are numbered, because they are sent again after a lost answer, here or to a successor
(`outcomes`). The outcome is part of the change set. Cancelling the call of a numbered write stops nothing.

A failed write or sync ends the reign. The contents of the disk are then unknown, and only opening the store again
tells. A full disk is refused before that: the whole group gets `StoreFull`, because members may depend on each other,
and the state stays as it was.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import trio

from storage.errors import fresh
from storage.files import DiskFull, Files
from storage.group_commit import let_others_join
from storage.metadata import snapshots, transactions
from storage.metadata.batches import BATCH_BYTES_MAX, Body, Point, pack
from storage.metadata.cluster.messages import Place
from storage.metadata.cluster.numbered_writes import NumberedWrites
from storage.metadata.cluster.proposals import Proposal, ProposalQueue, Told, no_space
from storage.metadata.cluster.publication import LinkFeed, Publication, Show
from storage.metadata.cluster.reign_snapshots import SNAPSHOT_LOG_BYTES, ReignSnapshots
from storage.metadata.delta import Delta
from storage.metadata.epochs import Deposed
from storage.metadata.log import Appended
from storage.metadata.outcomes import Made, WriteId
from storage.metadata.pacing import paced
from storage.metadata.proposed import NameSnapshot, Proposed
from storage.metadata.record_codec import encode
from storage.metadata.records import DataRecord
from storage.metadata.store import Committed, SnapshotTaken, StoreEnded, StoreFull, StoreUnavailable
from storage.metadata.take_over import Started
from storage.signal import Signal

GROUP_BYTES_MAX: Final = 256 * 1024
"""No proposal joins a group of this size or more. So deciding, encoding and writing a group stay short."""

CLOSED: Final = trio.ClosedResourceError("it was closed")

_ABANDONED: Final = "its caller was cancelled before its end"
_FULL: Final = "the disk was full before its end"

log = structlog.get_logger(__name__)


class Reign:
    """See the module's docstring. It goes on from `started`, and shows what it makes by `show`.

    `recent_bytes_max` bounds what `log_behind` can give. A process without followers needs none.
    """

    def __init__(
        self,
        show: Show,
        files: Files,
        directory: Path,
        started: Started,
        *,
        snapshot_log_bytes: int = SNAPSHOT_LOG_BYTES,
        recent_bytes_max: int = 0,
    ) -> None:
        self.epoch = started.epoch.epoch
        self.image = started.image
        self._files = files
        self._fence = started.epoch
        self._log = started.log
        self._public = Publication(show, started, recent_bytes_max)
        self._wake = Signal()
        self.queue = ProposalQueue(self._wake)
        """What waits for the committer."""
        self._deciding = trio.Lock()
        """Held by the committer for each group, and by whoever needs a moment without decisions."""
        self._group: list[Proposal] = []
        self._numbered = NumberedWrites(started.image, self.queue)
        self._snapshots = ReignSnapshots(
            files, directory, started, self._public, self.propose, self._wake, snapshot_log_bytes
        )
        self._cause: BaseException | None = None
        """Why it answers nothing more. While it closes, what waits is still committed."""
        self._is_closing = False
        self._is_full = False
        """Whether the disk refused the last group."""
        self._groups = 0
        self._transactions = 0
        self._aborted = 0

    @property
    def point(self) -> Point:
        """See `Publication.point`."""
        return self._public.point

    async def run(self, nursery: trio.Nursery) -> None:
        """Commit until `close`, then what waits, and return. Snapshots run in `nursery`. Not cancelled.

        Whoever waits for an answer when this ends gets `Deposed` or `StoreEnded`.

        Raises:
            Deposed: another process took over.
            OSError: the disk failed.
        """
        # Shielded, because while its owner is cancelled, the owner's last writes must still be made and answered.
        with trio.CancelScope(shield=True):
            try:
                await self._commit_groups(nursery)
            except OSError as failed:
                cause = self._cause_of(failed)
                self._end(cause)
                raise cause from failed
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

    async def propose(self, proposed: Proposed | NameSnapshot) -> Committed:
        """Decide it. Return the result, or raise the refusal, once the state behind the answer is durable and shown.

        If the call is cancelled, the outcome is unknown.

        Raises:
            Conflict, SessionLost: it is refused.
            StoreFull: there is no space, and nothing was done.
            Deposed, StoreEnded: the reign has ended, and the outcome is unknown.
        """
        await self.queue.wait_for_room()
        self._require_going_on()
        proposal = Proposal(proposed)
        self.queue.put(proposal)
        return await proposal.answered()

    async def propose_once(self, proposed: Proposed, write: WriteId, *, along: bool = False) -> Made | None:
        """As `propose`, for a numbered write, which is decided once however often it arrives.

        Concurrent calls get one answer. Cancelling a call stops nothing: the write's outcome is on record when it is
        made. `along` is for a write that no caller waits for (`wait_for_company`).

        Returns:
            None if the writer has its answer, so that nobody waits for this one.

        Raises:
            WriterLost: the session of the writer has ended, so the outcome is unknown.
            LinkError: its number does not fit what the writer has said.
        """
        if along:
            await self.queue.wait_for_company()
        arrived = await self._take(proposed, write)
        if not isinstance(arrived, Proposal):
            return arrived
        await arrived.answered()
        return arrived.made

    async def submit(self, proposed: Proposed, write: WriteId, told: Told) -> None:
        """As `propose_once`, but return when it is in the queue, and tell `told` the outcome.

        Nobody is told if the writer has its answer. `StoreUnavailable` says that the outcome is unknown.
        """
        arrived = await self._take(proposed, write)
        if isinstance(arrived, Proposal):
            arrived.attach(told)
        elif arrived is not None:
            told(arrived)

    async def _take(self, proposed: Proposed, write: WriteId) -> Made | Proposal | None:
        """See `NumberedWrites.take`."""
        await self.queue.wait_for_room()
        self._require_going_on()
        arrived = self._numbered.take(proposed, write)
        if isinstance(arrived, Made):
            self.require_reigning()
        return arrived

    def require_reigning(self) -> None:
        """Return if this process may answer from its image what was asked before this call (C4).

        It looks at the fence once, on the event loop (docs/performance.md#the-metadata-store).

        Raises:
            Deposed, StoreEnded: the reign has ended.
        """
        self._require_going_on()
        try:
            self._fence.check()
        except (Deposed, OSError) as ended:
            self._cause = ended
            self._wake.set()
            raise self._ended() from ended

    async def attach(self, link: LinkFeed) -> Place:
        """Begin to tell a link what is appended. Returns the place behind which that begins.

        In the step in which this returns, the image is at that place, and `log_behind` and `view` belong to it.

        Raises:
            Deposed, StoreEnded: the reign has ended.
        """
        await self._public.wait_between()
        self.require_reigning()
        self._public.attach(link)
        return Place(self.epoch, self.point, self.image.revision)

    def detach(self, link: LinkFeed) -> None:
        """Tell the link no more. Idempotent."""
        self._public.detach(link)

    def log_behind(self, place: Place) -> list[Appended] | None:
        """What is appended behind a follower's place, up to the place of `attach`; None if the image must go instead.

        Raises:
            OffChain: the log does not contain that place.
        """
        return self._public.log_behind(place.point)

    @contextmanager
    def view(self) -> Iterator[snapshots.View]:
        """The image at the place of `attach`, to be read while the image goes on."""
        view = self._public.open_view()
        try:
            yield view
        finally:
            self._public.close_view(view)

    @asynccontextmanager
    async def at_one_moment(
        self, note: Callable[[], Awaitable[None]], *, feature_level: int
    ) -> AsyncIterator[snapshots.View]:
        """The state of one moment, to be read while it goes on. Nothing is decided while `note` runs.

        `feature_level` is that of the release that reads the state.

        Raises:
            Deposed, StoreEnded: the reign has ended. Another process may have decided meanwhile.
        """
        async with self._deciding:
            self.require_reigning()
            view = self._public.open_view(feature_level=feature_level)
            try:
                await note()
                self.require_reigning()
            except BaseException:
                self._public.close_view(view)
                raise
        try:
            yield view
        finally:
            self._public.close_view(view)

    async def take_snapshot(self) -> SnapshotTaken:
        """See `TakesSnapshots.take_snapshot`. If a snapshot is being written, another one follows it."""
        self._require_going_on()
        wanted = self._snapshots.want()
        await wanted.settled.wait()
        if wanted.taken is None:
            raise wanted.refused or self._ended()
        return wanted.taken

    def statistics(self) -> dict[str, float]:
        """What the log and snapshots did, for `StoreStatistics.extra`."""
        return {
            "groups": self._groups,
            "log_batches": self.point.sequence,
            "log_tail_bytes": self._log.tail_bytes,
            "feature_level": self.image.feature_level,
            "epoch": self.epoch,
            "transactions": self._transactions,
            "transactions_aborted": self._aborted,
            "snapshots": self._snapshots.taken,
            "snapshot_bytes": self._snapshots.newest_bytes,
        }

    async def _commit_groups(self, nursery: trio.Nursery) -> None:
        while not self._is_closing or self.queue:
            if self._cause is not None and self._cause is not CLOSED:
                # A look at the fence outside this task.
                raise fresh(self._cause)
            if self._snapshots.failure is not None:
                raise self._snapshots.failure
            if self.queue:
                await let_others_join()
                await self._decide_alone()
                try:
                    self._public.change_begins()
                    await self._commit_group()
                    self._public.change_ends()
                finally:
                    self._deciding.release()
            if self._is_closing:
                continue
            if self._snapshots.is_due:
                await self._snapshots.begin(nursery)
            elif not self.queue:
                await self._wake.wait()

    async def _decide_alone(self) -> None:
        try:
            # Usually nobody has it. Then this is no pause, which every group would feel.
            self._deciding.acquire_nowait()
        except trio.WouldBlock:
            await self._deciding.acquire()

    async def _commit_group(self) -> None:
        delta = Delta(self.image)
        size = 0
        transaction = False
        while self.queue and size < GROUP_BYTES_MAX and not transaction:
            proposal = self.queue.take()
            self._group.append(proposal)
            size += proposal.size
            decided = len(delta.change_sets)
            await paced(proposal.judge(delta))
            if proposal.size > BATCH_BYTES_MAX and len(delta.change_sets) > decided:
                transaction = not transactions.fits_one_batch(delta.change_sets[-1])
        self.queue.taken()
        large = delta.change_sets.pop() if transaction else None
        if delta.change_sets:
            bodies = pack([encode(record) for record in change_set] for change_set in delta.change_sets)
            try:
                appended = await self._append(bodies)
            except DiskFull as full:
                self._refuse(full)
                await self._snapshots.let_go_on()
                return
            self._groups += 1
            await self._public.publish(delta.change_sets, appended)
        else:
            # Nothing was written, so these answers rest on the image alone.
            self._fence.check()
        answered, self._group = (self._group, []) if large is None else (self._group[:-1], self._group[-1:])
        for proposal in answered:
            self._settle(proposal)
        await self._snapshots.let_go_on()
        if large is not None:
            await self._commit_transaction(self._group[0], large, delta.revision)
            self._group.clear()
            # Its last append may have been the record of its abort.
            await self._snapshots.let_go_on()

    async def _commit_transaction(self, proposal: Proposal, change_set: list[DataRecord], revision: int) -> None:
        appended: Appended | None = None
        for bodies in transactions.pieces(f"revision {revision}: {len(change_set)} records", change_set):
            if appended is not None:
                self._public.push(appended)
            if not proposal.is_awaited:
                if appended is not None:
                    await self._abort(_ABANDONED)
                return
            try:
                appended = await self._append(bodies)
            except DiskFull as full:
                if appended is not None:
                    await self._abort(_FULL)
                self._refuse(full)
                return
            await self._snapshots.let_go_on()
        assert appended is not None, "it has a begin and an end"
        self._transactions += 1
        await self._public.publish([change_set], appended)
        self._settle(proposal)

    async def _abort(self, reason: str) -> None:
        appended = await self._append(transactions.abort(reason), is_abort=True)
        self._aborted += 1
        await self._public.publish([], appended)

    async def _append(self, bodies: list[Body], *, is_abort: bool = False) -> Appended:
        """Write, sync, check the fence."""
        self._snapshots.is_appending = True
        try:
            appended = await self._files.run_urgent(partial(self._log.append, bodies, is_abort=is_abort))
        finally:
            self._snapshots.is_appending = False
        if self._is_full and not is_abort:
            log.info("there is space for the metadata log again")
            self._is_full = False
        return appended

    def _refuse(self, full: DiskFull) -> None:
        """Tell the whole group that nothing was done."""
        self._fence.check()
        if not self._is_full:
            log.error("the disk is full: the metadata log accepts no writes until there is space", file=full.filename)
        self._is_full = True
        refused, self._group = self._group, []
        for proposal in refused:
            self._settle(proposal, no_space(full))

    def _settle(self, proposal: Proposal, refusal: StoreFull | None = None) -> None:
        """Answer it. What the answer says is durable, checked and shown."""
        self._numbered.decided(proposal)
        proposal.answer(refusal)

    def _end(self, cause: BaseException) -> None:
        self._cause = cause
        while self.queue:
            self._group.append(self.queue.take())
        for proposal in self._group:
            proposal.answer(self._ended())
        self._group.clear()
        self.queue.close()
        self._public.change_ends()
        self._snapshots.end()

    def _cause_of(self, failed: OSError) -> OSError | Deposed:
        """Why the reign ends. A deposed controller may find that its successor has removed its files."""
        try:
            self._fence.check()
        except Deposed as deposed:
            return deposed
        except OSError:
            return failed
        return failed

    def _ended(self) -> StoreUnavailable:
        assert self._cause is not None, "it has ended, or closes"
        return fresh(self._cause) if isinstance(self._cause, Deposed) else StoreEnded(self._cause)

    def _require_going_on(self) -> None:
        if self._cause is not None:
            raise self._ended()
