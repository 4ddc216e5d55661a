"""The snapshots that a controller takes beside its commits: when one is due, who waits for it, and whose turn it is.

A snapshot begins between two groups of the committer, where the image is exactly the state after the log's last batch.
It is then written slice by slice by its own task. Slices and appends take turns: an appending thread and the encoding
of a slice would take the interpreter from each other several times for every group.

A snapshot that is written waits until the committer has named it in the log. Only then it gets its name.

A snapshot that does not fit the disk is tried again when the log has grown by another part.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import structlog
import trio

from storage.files import DiskFull, Files
from storage.metadata import snapshots
from storage.metadata.image import Image, Written
from storage.metadata.log import MetadataLog
from storage.metadata.proposals import SnapshotNaming, WantedSnapshot, no_space
from storage.metadata.snapshots import SnapshotName
from storage.metadata.store import SnapshotTaken
from storage.signal import Signal

SNAPSHOT_LOG_BYTES: Final = 16 * 1024 * 1024
"""A snapshot is taken when the log has grown by this much since the last one, or by the last one's size if that is
larger. So recovery replays no more than it loads, and snapshots write no more than the log does."""

SNAPSHOT_LOG_FILES: Final = 8
"""A snapshot is taken when the log has this many files. Each start of a broker begins a new one."""

log = structlog.get_logger(__name__)


class ReignSnapshots:
    """The snapshots of one reign. `wake` wakes its committer."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        image: Image,
        metadata_log: MetadataLog,
        wake: Signal,
        *,
        log_bytes: int,
        newest_bytes: int,
    ) -> None:
        self._files = files
        self._directory = directory
        self._image = image
        self._log = metadata_log
        self._wake = wake
        self._log_bytes = log_bytes
        self._not_below = 0
        """The log length for the next try at a snapshot that did not fit the disk."""
        self._view: snapshots.View | None = None
        """The state that is being written down; None if no snapshot is."""
        self._naming: SnapshotNaming | None = None
        self._wanted: list[WantedSnapshot] = []
        """Callers that wait for a snapshot that has not begun."""
        self._served: list[WantedSnapshot] = []
        """Callers that wait for the snapshot being written."""
        self._is_appending = False
        self._turns = trio.lowlevel.ParkingLot()
        self._turn_taken = Signal()
        self.failure: OSError | None = None
        """What ended a snapshot, and so ends the reign."""
        self.newest_bytes = newest_bytes
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
        if self._view is not None:
            return False
        due = max(self._log_bytes, self.newest_bytes)
        is_long = self._log.tail_bytes >= due or self._log.tail_files >= SNAPSHOT_LOG_FILES
        return bool(self._wanted) or (is_long and self._log.tail_bytes >= self._not_below)

    def to_name(self) -> SnapshotNaming | None:
        """A snapshot that waits until the log names it. The caller does that next, and then settles it."""
        naming, self._naming = self._naming, None
        return naming

    async def begin(self, nursery: trio.Nursery) -> None:
        """Begin one, between two groups. Its task runs in `nursery`.

        Raises:
            OSError: the log failed.
        """
        try:
            await self._files.run_urgent(self._log.roll)
        except DiskFull as full:
            self._put_off(full)
            return
        self._served, self._wanted = self._wanted, []
        self._view = snapshots.View(self._image, self._log.point)
        nursery.start_soon(self._take, self._view)

    def note(self, written: list[Written]) -> None:
        """The image has changed."""
        if self._view is not None:
            self._view.note(written)

    @contextmanager
    def appending(self) -> Iterator[None]:
        """While this is open, no slice begins."""
        self._is_appending = True
        try:
            yield
        finally:
            self._is_appending = False

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
        if self._is_appending:
            await self._turns.park()
            # The task that gave the turn goes on when this task pauses next, which is after the slice.
            self._turn_taken.set()

    async def _take(self, view: snapshots.View) -> None:
        name = SnapshotName(view.point.sequence, self._log.epoch.epoch)
        try:
            size = await snapshots.write(self._files, self._directory, view, name.epoch, turn=self._turn)
            self._naming = naming = SnapshotNaming(view.point)
            self._wake.set()
            await naming.settled.wait()
            if naming.refused is not None:
                await self._files.run(self._files.remove, self._directory / name.unfinished)
                self._view = None
                self._put_off(naming.refused)
                return
            await self._files.run(snapshots.finish, self._files, self._directory, name)
            await self._files.run(self._log.trim, name.sequence)
            self.newest_bytes = size
        except DiskFull as full:
            self._view = None
            self._put_off(full)
        except OSError as error:
            self.failure = error
            self._wake.set()
        else:
            self.taken += 1
            self._view = None
            self._not_below = 0
            for wanted in self._served:
                wanted.taken = SnapshotTaken(view.point.sequence, view.revision, self.newest_bytes)
                wanted.settled.set()
            self._served = []
            if self._wanted:
                self._wake.set()

    def _put_off(self, full: DiskFull) -> None:
        log.warning("there is no space for a snapshot of the metadata", file=full.filename)
        self._not_below = self._log.tail_bytes + self._log_bytes // 4
        for wanted in (*self._served, *self._wanted):
            wanted.refused = no_space(full)
            wanted.settled.set()
        self._served, self._wanted = [], []
