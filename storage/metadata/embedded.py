"""The metadata store inside the broker: the image, a log that makes it last, and snapshots that keep the log short.

One task commits. It takes every proposal that waits, decides them one after another against a delta, writes what they
decided with one write and one sync in a worker thread, applies it, and answers; what arrives meanwhile is the next
group. So a thousand writers cost one sync, and a lone writer waits for nothing but its own (DESIGN section 5). Answers
to refused proposals wait with the rest of their group, since what they rest on may be undurable (D13).

A write or sync that fails ends the store: what is on the disk is then unknown, and only opening it again can tell.

    async with EmbeddedStore.open(DiskFiles(), data_dir) as store:
        ...

A context manager, not a task to be started by the owner: it goes on committing while what runs inside is cancelled
and tidies up after itself, and ends only when all of that has ended.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Generic, Protocol, Self, TypeVar

import trio

from storage.files import Files, Lock
from storage.metadata import snapshots
from storage.metadata.batches import BODY_BYTES_MAX, pack
from storage.metadata.delta import Delta
from storage.metadata.image import Image
from storage.metadata.image_store import ImageStore
from storage.metadata.log import MetadataLog
from storage.metadata.records import FEATURE_LEVEL, CorruptRecord, DataRecord, decode, encode
from storage.metadata.store import ChangeSetTooLarge, MetadataError, StoreStatistics
from storage.signal import Signal

PROPOSALS_WAITING_MAX: Final = 4096
"""Proposals that wait for the committer; more writers wait until it has taken some."""

GROUP_BYTES_MAX: Final = 4 * 1024 * 1024
"""No proposal joins a group that has reached this size, so one write stays short."""

SNAPSHOT_LOG_BYTES: Final = 16 * 1024 * 1024
"""A snapshot is taken when the log has grown by this much since the last, or by the last one's size if that is more:
so recovery replays no more than it loads, and snapshots write no more than the log does."""

_CLOSED: Final = trio.ClosedResourceError("it was closed")

T = TypeVar("T")


class EmbeddedStore(ImageStore):
    """See the module; made by `open`."""

    def __init__(self, files: Files, directory: Path, opened: "_Opened", snapshot_log_bytes: int) -> None:
        super().__init__(opened.image)
        self._files = files
        self._directory = directory
        self._log = opened.log
        self._waiting: deque[_AnyProposal] = deque()
        self._group: list[_AnyProposal] = []
        self._room = trio.lowlevel.ParkingLot()
        self._wake = Signal()
        self._closing = False
        self._snapshot_log_bytes = snapshot_log_bytes
        self._snapshot_bytes = opened.snapshot_bytes
        self._snapshot_running = False
        self._snapshot_failure: OSError | None = None
        self._groups = 0
        self._snapshots = 0

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
        directory = data_dir / "metadata"
        opened = await files.run(_open, files, directory)
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
            opened.log.close()
            opened.lock.close()

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
                "snapshots": self._snapshots,
                "snapshot_bytes": self._snapshot_bytes,
            },
        )

    async def _decide(self, decide: Callable[[Delta], T], size: int) -> T:
        if size > BODY_BYTES_MAX:
            raise ChangeSetTooLarge(f"a change set of about {size} bytes is above the limit of {BODY_BYTES_MAX}")
        while len(self._waiting) >= PROPOSALS_WAITING_MAX and self._failure is None:
            await self._room.park()
        self._raise_failure()
        proposal = _Proposal(decide, size)
        self._waiting.append(proposal)
        self._wake.set()
        return await proposal.answered()

    async def _commit_groups(self, nursery: trio.Nursery) -> None:
        # Shielded: while its owner is cancelled, the owner's last writes are still to be made and answered.
        with trio.CancelScope(shield=True):
            try:
                while not self._closing or self._waiting:
                    if self._snapshot_failure is not None:
                        raise self._snapshot_failure
                    if self._waiting:
                        await self._commit_group()
                        await self._snapshot_if_due(nursery)
                    else:
                        await self._wake.wait()
            except OSError as error:
                self._end(error)
            except BaseException as error:
                self._end(error)
                raise
            else:
                self._end(_CLOSED)

    async def _commit_group(self) -> None:
        delta = Delta(self._image)
        size = 0
        while self._waiting and size < GROUP_BYTES_MAX:
            proposal = self._waiting.popleft()
            self._group.append(proposal)
            size += proposal.size
            proposal.judge(delta)
        self._room.unpark_all()
        if delta.change_sets:
            bodies = pack([encode(record) for record in change_set] for change_set in delta.change_sets)
            await self._files.run_urgent(self._log.append, bodies)
            self._groups += 1
            for change_set in delta.change_sets:
                self._show(change_set)
        for proposal in self._group:
            proposal.answer()
        self._group.clear()

    async def _snapshot_if_due(self, nursery: trio.Nursery) -> None:
        due = max(self._snapshot_log_bytes, self._snapshot_bytes)
        if self._log.tail_bytes < due or self._snapshot_running or self._closing:
            return
        # Between two groups the image is exactly the state after the log's last batch.
        await self._files.run_urgent(self._log.roll)
        self._snapshot_running = True
        nursery.start_soon(self._take_snapshot, snapshots.freeze(self._image, self._log.point))

    async def _take_snapshot(self, state: snapshots.FrozenState) -> None:
        try:
            self._snapshot_bytes = await snapshots.write(self._files, self._directory, state)
            await self._files.run(self._log.trim, state.point.sequence)
        except OSError as error:
            self._snapshot_failure = error
            self._wake.set()
        else:
            self._snapshots += 1
            self._snapshot_running = False

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


class _Proposal(Generic[T]):
    """What a writer asks, and what it is told when that is durable."""

    __slots__ = ("_decide", "_error", "_result", "_task", "size")

    def __init__(self, decide: Callable[[Delta], T], size: int) -> None:
        self._decide = decide
        self._result: T
        self._error: MetadataError | None = None
        self._task: trio.lowlevel.Task | None = None
        self.size = size

    def judge(self, delta: Delta) -> None:
        """Decide it; nobody is told yet."""
        try:
            self._result = self._decide(delta)
        except MetadataError as refusal:
            self._error = refusal

    async def answered(self) -> T:
        """Wait for the answer, once. If that is cancelled the proposal still stands: its outcome is unknown."""
        self._task = trio.lowlevel.current_task()

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        if self._error is not None:
            raise self._error
        return self._result

    def answer(self) -> None:
        """Tell who asked, if anybody still waits."""
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    def fail(self, error: MetadataError) -> None:
        """Tell who asked that the outcome is unknown."""
        self._error = error
        self.answer()


class _AnyProposal(Protocol):
    """A proposal to the committer, which does not care what the answer is."""

    size: int

    def judge(self, delta: Delta) -> None: ...

    def answer(self) -> None: ...

    def fail(self, error: MetadataError) -> None: ...


class _Opened:
    """What opening the folder yields."""

    def __init__(self, lock: Lock, image: Image, log: MetadataLog, snapshot_bytes: int) -> None:
        self.lock = lock
        self.image = image
        self.log = log
        self.snapshot_bytes = snapshot_bytes


def _open(files: Files, directory: Path) -> _Opened:
    files.make_dir(directory)
    lock = files.lock(directory / "lock")
    try:
        # A process that died between naming a file and syncing the folder leaves names that are not yet durable.
        files.sync_dir(directory)
        image, point, snapshot_bytes = snapshots.load_newest(files, directory)
        log = MetadataLog.recover(files, directory, point, lambda body: _replay(image, body))
        try:
            _begin(image, log)
        except BaseException:
            log.close()
            raise
    except BaseException:
        lock.close()
        raise
    return _Opened(lock, image, log, snapshot_bytes)


def _replay(image: Image, body: bytes) -> None:
    for record in decode(body):
        if not isinstance(record, DataRecord):
            raise CorruptRecord(f"a {type(record).__name__} needs feature level 2, the log has {image.feature_level}")
        try:
            image.apply((record,))
        except KeyError as absent:
            raise CorruptRecord(f"{record} changes {absent}, which is not there") from absent


def _begin(image: Image, log: MetadataLog) -> None:
    """Write what an opening writes: the feature level if it is new, and the end of an earlier process's sessions."""
    delta = Delta(image)
    if image.feature_level < FEATURE_LEVEL:
        delta.set_feature_level(FEATURE_LEVEL)
    if image.sessions:
        delta.end_sessions(list(image.sessions))
    if delta.change_sets:
        log.append(pack([encode(record) for record in change_set] for change_set in delta.change_sets))
        for change_set in delta.change_sets:
            image.apply(change_set)
