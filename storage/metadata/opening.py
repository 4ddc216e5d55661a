"""Opening the folder of an embedded store for one broker: its lock, a new epoch, and the end of earlier sessions.

Every start is a take-over (`take_over`). A transaction that is open at the log's end is aborted in the first batch of
the new epoch, before any other record (R17). Then the sessions of an earlier process end. Nobody sees the store before
all of that is done, and each step is durable before the next.

Each start begins a log file, and a snapshot replaces them while the store is open. But a process that dies soon after
each start never ends its snapshot. So a start that finds many files replaces them itself. Otherwise they would fill the
disk, and each start would take longer than the one before.

Everything here blocks. The store runs it in a worker thread.
"""

import secrets
from pathlib import Path
from typing import Final, NamedTuple

from storage.files import DiskFull, Files, Lock
from storage.metadata import snapshots
from storage.metadata.batches import Body, pack
from storage.metadata.collector import collector_paused
from storage.metadata.delta import Delta
from storage.metadata.epochs import MetadataEpochs
from storage.metadata.image import Image
from storage.metadata.log import MetadataLog
from storage.metadata.record_codec import encode
from storage.metadata.records import SnapshotNamed
from storage.metadata.snapshots import SnapshotName, View
from storage.metadata.take_over import Started, take_over

SESSIONS_AT_ONCE: Final = 256
"""The most sessions of an earlier process that end in one change set, so that it fits a batch."""

LOG_FILES_MAX: Final = 32
"""With this many log files, a start takes a snapshot before anybody sees the store. A store that stays open takes one
much earlier (`cluster.reign_snapshots`)."""


class Opened(NamedTuple):
    """The result of opening the folder."""

    lock: Lock
    started: Started

    @property
    def image(self) -> Image:
        """The state."""
        return self.started.image

    @property
    def log(self) -> MetadataLog:
        """The log of the new epoch."""
        return self.started.log

    @property
    def snapshot_bytes(self) -> int:
        """The size of the newest snapshot; 0 if there is none."""
        return self.started.snapshot_bytes

    def close(self) -> None:
        """Release the folder. Everything written is durable."""
        self.started.close()
        self.lock.close()


def metadata_directory(data_dir: Path) -> Path:
    """The metadata store's folder in a broker's data folder."""
    return data_dir / "metadata"


def open_folder(files: Files, directory: Path, *, broker: str = "") -> Opened:
    """Recover the store of this folder, and make it if it is absent. The state is durable, and the log accepts writes.

    `broker` is who opens it; "" for a tool.

    Raises:
        AlreadyLocked: it is open elsewhere.
        DiskFull: there is no space for a new log file.
        CorruptMetadata: a file is damaged, or of a later release.
    """
    files.make_dir(directory)
    # Nobody else has the folder open, so whoever took the epoch before has ended.
    lock = files.lock(directory / "lock")
    try:
        epochs = MetadataEpochs(files, directory, secrets.randbits)
        with collector_paused():
            started = take_over(files, directory, epochs, broker=broker, address=None, is_alone=True)
            try:
                _end_sessions(started)
                if started.log.tail_files >= LOG_FILES_MAX:
                    started = _shorten(files, directory, started)
                # Sorting a million keys here blocks this thread. At the first read, it would block the event loop.
                started.image.settle()
            except BaseException:
                started.close()
                raise
    except BaseException:
        lock.close()
        raise
    return Opened(lock, started)


def _end_sessions(started: Started) -> None:
    image = started.image
    delta = Delta(image)
    sessions = list(image.sessions)
    for begin in range(0, len(sessions), SESSIONS_AT_ONCE):
        delta.end_sessions(sessions[begin : begin + SESSIONS_AT_ONCE])
    if delta.change_sets:
        started.log.append(pack([encode(record) for record in change_set] for change_set in delta.change_sets))
        for change_set in delta.change_sets:
            image.apply(change_set)


def take_snapshot(files: Files, directory: Path, started: Started) -> tuple[SnapshotName, int]:
    """Replace the log by a snapshot, while nobody uses the store. Durable on return. Returns its name and its size.

    Raises:
        DiskFull: the log goes on without it.
    """
    log, image = started.log, started.image
    log.roll()
    view = View(image, log.point)
    name = SnapshotName(log.point.sequence, log.epoch.epoch)
    size = snapshots.write_at_once(files, directory, view, name.epoch)
    try:
        log.append([Body(encode(SnapshotNamed(view.revision, *view.point, name.epoch)), 1)])
    except DiskFull:
        files.remove(directory / name.unfinished)
        raise
    snapshots.finish(files, directory, name)
    log.trim(name.sequence)
    return name, size


def _shorten(files: Files, directory: Path, started: Started) -> Started:
    try:
        _name, size = take_snapshot(files, directory, started)
    except DiskFull:
        # One is due as soon as the store is open. It says so if the disk is still full.
        return started
    return started._replace(snapshot_bytes=size)
