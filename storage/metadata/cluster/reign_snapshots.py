"""The snapshots that a controller takes beside its commits: when one is due, who waits for it, and whose turn it is.

A snapshot begins between two groups of the committer, where the image is exactly the state after the log's last batch.
It is then written slice by slice by its own task. When it is durable, the log names it, and it gets its name
(`snapshots`). Slices and appends take turns: an appending thread and the encoding
of a slice would take the interpreter from each other several times for every group.

A snapshot that does not fit the disk is tried again when the log has grown by another part.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import structlog
import trio

from storage.files import DiskFull, Files
from storage.metadata import snapshots
from storage.metadata.cluster.proposals import WantedSnapshot, no_space
from storage.metadata.cluster.publication import Publication
from storage.metadata.epochs import Deposed
from storage.metadata.proposed import NameSnapshot
from storage.metadata.store import SnapshotTaken, StoreEnded, StoreFull
from storage.metadata.take_over import Started
from storage.signal import Signal

SNAPSHOT_LOG_BYTES: Final = 16 * 1024 * 1024
"""A snapshot is taken when the log has grown by this much since the last one, or by the last one's size if that is
larger. So recovery replays no more than it loads, and snapshots write no more than the log does."""

SNAPSHOT_LOG_FILES: Final = 8
"""A snapshot is also taken when the log has this many files. Each take-over begins a new one."""

log = structlog.get_logger(__name__)


class ReignSnapshots:
    """The snapshots of one reign."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        started: Started,
        public: Publication,
        name: Callable[[NameSnapshot], Awaitable[object]],
        wake: Signal,
        log_bytes: int,
    ) -> None:
        """Set up.

        Args:
            files: the disk.
            directory: where the snapshots go.
            started: what the reign began with.
            public: what the reign has made visible.
            name: proposes that the log names a snapshot.
            wake: wakes the committer, because a snapshot is wanted or has failed.
            log_bytes: how much the log grows between two snapshots, at least.
        """
        self._files = files
        self._directory = directory
        self._log = started.log
        self._public = public
        self._name = name
        self._wake = wake
        self._log_bytes = log_bytes
        self._not_below = 0
        """The log length for the next try at a snapshot that did not fit the disk."""
        self._is_taking = False
        self._wanted: list[WantedSnapshot] = []
        """Callers that wait for a snapshot that has not begun."""
        self._served: list[WantedSnapshot] = []
        """Callers that wait for the snapshot being written."""
        self.is_appending = False
        """Whether an append is under way. Meanwhile, no slice begins."""
        self._turns = trio.lowlevel.ParkingLot()
        self._turn_taken = Signal()
        self.failure: OSError | Deposed | None = None
        """What ended a snapshot, and so ends the reign."""
        self.newest_bytes = started.snapshot_bytes
        """The size of the newest snapshot; 0 if there is none."""
        self.taken = 0
        """How many snapshots this reign has taken."""

    def want(self) -> WantedSnapshot:
        """Ask for a snapshot that begins after this call. It settles when that snapshot is durable or refused."""
        wanted = WantedSnapshot()
        self._wanted.append(wanted)
        self._wake.set()
        return wanted

    @property
    def is_due(self) -> bool:
        """Whether the committer should begin one before its next group."""
        if self._is_taking:
            return False
        size = self._log.tail_bytes
        is_long = size >= max(self._log_bytes, self.newest_bytes) or self._log.tail_files >= SNAPSHOT_LOG_FILES
        return bool(self._wanted) or (is_long and size >= self._not_below)

    async def begin(self, nursery: trio.Nursery) -> None:
        """Begin one, between two groups. Its task runs in `nursery`.

        Raises:
            OSError: the log failed.
        """
        try:
            await self._files.run_urgent(self._log.roll)
        except DiskFull as full:
            self._put_off(no_space(full))
            return
        self._served, self._wanted = self._wanted, []
        self._is_taking = True
        nursery.start_soon(self._take, self._public.open_view())

    async def let_go_on(self) -> None:
        """Let one slice be encoded, if one waits for its turn."""
        if self._turns:
            self._turns.unpark()
            await self._turn_taken.wait()

    def end(self) -> None:
        """The reign has ended. Whoever waits for a snapshot gets none."""
        for wanted in (*self._served, *self._wanted):
            wanted.settled.set()

    async def _turn(self) -> None:
        """Return when a slice may be encoded: while no append is under way, and once after each append."""
        await trio.lowlevel.checkpoint()
        if self.is_appending:
            await self._turns.park()
            # The task that gave the turn goes on when this task pauses next, which is after the slice.
            self._turn_taken.set()

    async def _take(self, view: snapshots.View) -> None:
        name = snapshots.SnapshotName(view.point.sequence, self._log.epoch.epoch)
        try:
            try:
                size = await snapshots.write(self._files, self._directory, view, name.epoch, turn=self._turn)
            finally:
                self._public.close_view(view)
            # Then whoever gives it its name was the controller when it was whole (C2).
            await self._name(NameSnapshot(view.point, name.epoch))
            await self._files.run(snapshots.finish, self._files, self._directory, name)
            await self._files.run(self._log.trim, view.point.sequence)
        except DiskFull as full:
            self._put_off(no_space(full))
        except StoreFull as refused:
            await self._files.run(self._files.remove, self._directory / name.unfinished)
            self._put_off(refused)
        except (OSError, Deposed) as error:
            self.failure = error
            self._wake.set()
        except StoreEnded:
            # The reign has ended, and with it whoever waits for this.
            return
        else:
            self.newest_bytes = size
            self.taken += 1
            self._is_taking = False
            self._not_below = 0
            for wanted in self._served:
                wanted.taken = SnapshotTaken(view.point.sequence, view.revision, size)
                wanted.settled.set()
            self._served = []
            if self._wanted:
                self._wake.set()

    def _put_off(self, refused: StoreFull) -> None:
        log.warning("there is no space for a snapshot of the metadata", reason=str(refused))
        self._is_taking = False
        self._not_below = self._log.tail_bytes + self._log_bytes // 4
        for wanted in (*self._served, *self._wanted):
            wanted.refused = refused
            wanted.settled.set()
        self._served, self._wanted = [], []
