"""The metadata log of one epoch, open for appending.

Its files are named by the first batch that each is for, and by the epoch: `.log`, and `.closed-log` once another file
of the epoch follows. Only the controller of the epoch makes, writes, renames and closes them, so a deposed one that
goes on for a moment changes no file of another epoch (C1). `chain` says which files are the log, `take_over` how an
epoch begins.

A log file is filled with zeros ahead of its writer, so that a sync need not also make new blocks durable. The file gets
its name when its first zeros are durable, so a file whose length is not a number of whole pieces was cut by something
else. A log file ends where a snapshot begins: the log rolls, the snapshot takes the state at that place, and once it is
durable and named in the log the older files are removed. So no size limit of its own bounds a file.

A file gets its second name before the first batch goes to the next file. So if the last file has the second name, the
newest file is missing. Its confirmed batches do not pass for batches that were never written (E3).

All methods block. The store runs them in a worker thread, one at a time. Nothing is ever retried: after an error the
state of the file is unknown, and only a take-over tells. A full disk is no such error, because it refuses the zeros
ahead of the writer, before anything is written (C24).
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from storage.files import DiskFull, File, Files
from storage.metadata.batches import Body, Point, encode_batches
from storage.metadata.chain import LogName
from storage.metadata.epochs import MetadataEpoch

PREALLOCATION_BYTES: Final = 1024 * 1024
"""How far ahead of its writer a log file is filled with zeros. Each such piece costs a pause of a millisecond or two.
"""

RESERVE_PIECES: Final = 2
"""How many such pieces are reserved beyond the next one. On a full disk, they serve what frees space or ends work:
deletions, ends of transactions, acknowledgements."""

ABORT_BYTES: Final = 4096
"""More than the size of the record that aborts a transaction that met the full disk. Reserved for that alone."""

_UNFINISHED: Final = ".log-unfinished"
"""How the name of a log file ends until its first zeros are durable."""


class Appended(NamedTuple):
    """Batches that were appended together. They are durable and count, whatever happens to their writer."""

    data: bytes
    """The batches with their headers, as in the file."""
    offset: int
    """Where they are in the file. Their count of empty sectors depends on it."""
    after: Point
    """The place that the first of them follows."""
    last: Point
    """The last of them."""


class OlderFiles(NamedTuple):
    """The files that recovery would read before the newest one."""

    files: int
    size_bytes: int
    """Of their batches."""


class MetadataLog:
    """The log of an epoch that this process has taken."""

    __slots__ = (
        "_allocated",
        "_directory",
        "_epoch",
        "_file",
        "_files",
        "_offset",
        "_older",
        "_refused_at",
        "point",
    )

    def __init__(
        self, files: Files, directory: Path, epoch: MetadataEpoch, file: File, first: Appended, older: OlderFiles
    ) -> None:
        """The log that begins with `first`, which is durable in `file`."""
        self._files = files
        self._directory = directory
        self._epoch = epoch
        self._file = file
        self._offset = len(first.data)
        self._older = older
        self._allocated = file.size()
        self._refused_at: int | None = None
        """Where the log ended when the disk last refused to make it longer; None if it has not refused since."""
        self.point = first.last
        """The last batch. It is durable and counts."""

    @property
    def epoch(self) -> MetadataEpoch:
        """The epoch. Its checks say whether it is the newest."""
        return self._epoch

    @property
    def tail_bytes(self) -> int:
        """Bytes of batches that recovery would replay."""
        return self._older.size_bytes + self._offset

    @property
    def tail_files(self) -> int:
        """Files that recovery would replay."""
        return self._older.files + 1

    def append(self, bodies: Sequence[Body], *, is_abort: bool = False) -> Appended:
        """Write batches, with one write and one sync, and check the epoch. On return they are durable and count (C3).

        Raises:
            DiskFull: nothing was written, and the log is as it was. Never for an abort that follows a begin.
            Deposed: a later epoch was taken. Whether the batches count, only its log says.
        """
        after, offset = self.point, self._offset
        data, last = encode_batches(after, bodies, confirmed=after.sequence, offset=offset)
        end = offset + len(data)
        self._prepare(end + (0 if is_abort else ABORT_BYTES))
        try:
            self._file.write_at(offset, data)
        except DiskFull as full:
            # The file system writes to a new place each time. The contents there are now unknown.
            raise OSError(full.errno, full.strerror, full.filename) from full
        self._file.sync()
        self._epoch.check()
        self._offset = end
        self.point = last
        return Appended(data, offset, after, last)

    def _prepare(self, end: int) -> None:
        """Have zeros up to `end`, and the reserve behind it if the disk has space."""
        if end + RESERVE_PIECES * PREALLOCATION_BYTES <= self._allocated:
            return
        if (
            end <= self._allocated
            and self._refused_at is not None
            and self._offset - self._refused_at < PREALLOCATION_BYTES // 16
        ):
            # Asked a moment ago. Each attempt may make the file system search for space to free.
            return
        wanted = (end // PREALLOCATION_BYTES + 1 + RESERVE_PIECES) * PREALLOCATION_BYTES
        try:
            self._file.preallocate(wanted)
        except DiskFull:
            self._refused_at = self._offset
            if end > self._allocated:
                raise
        else:
            self._allocated = wanted
            self._refused_at = None

    def roll(self) -> None:
        """Continue in a new file. The new file is durable on return, and everything before it is durable already.

        Raises:
            DiskFull: the log continues in the current file.
        """
        if not self._offset:
            return
        name = LogName(self.point.sequence + 1, self._epoch.epoch)
        prepared = prepare_file(self._files, self._directory, str(name))
        prepared.close()
        self._files.rename(prepared.path, self._directory / str(name))
        file = self._files.open(self._directory / str(name))
        self._files.sync_dir(self._directory)
        closed, self._file = self._file, file
        closed.close()
        close_file(self._files, closed.path)
        self._older = OlderFiles(self._older.files + 1, self._older.size_bytes + self._offset)
        self._offset = 0
        self._allocated = file.size()
        self._refused_at = None

    def trim(self, sequence: int) -> None:
        """Remove the files whose every batch is at or below `sequence`, where the log rolled.

        A snapshot of that place has its name, so the log names it. Then it does no harm if this happens late.
        """
        remove_covered(self._files, self._directory, sequence)
        self._older = OlderFiles(0, 0)

    def close(self) -> None:
        """Release the file. Everything appended is durable."""
        self._file.close()


def prepare_file(files: Files, directory: Path, stem: str) -> File:
    """Make a file with the first zeros of a log file, under an unfinished name. Durable on return, without its name.

    Raises:
        DiskFull: nothing is left of it.
    """
    path = directory / (stem.removesuffix(".log") + _UNFINISHED)
    file = files.open(path, create=True, exclusive=True)
    try:
        file.preallocate((1 + RESERVE_PIECES) * PREALLOCATION_BYTES)
    except BaseException as error:
        file.close()
        if isinstance(error, DiskFull):
            files.remove(path)
        raise
    return file


def close_file(files: Files, path: Path) -> None:
    """Note durably that another file follows this one."""
    files.rename(path, path.with_suffix(".closed-log"))
    files.sync_dir(path.parent)


def log_names(names: Iterable[str]) -> list[LogName]:
    """The log files among these names, by epoch and number."""
    found = filter(None, map(LogName.parse, names))
    return sorted(found, key=lambda name: (name.epoch, name.number))


def remove_covered(files: Files, directory: Path, sequence: int) -> None:
    """Remove the log files, of any epoch, that begin at or below `sequence`. A durable snapshot there replaces them."""
    covered = [name for name in log_names(files.names(directory)) if name.number <= sequence]
    for name in covered:
        # A controller that was stopped may wake and remove the same files.
        with suppress(FileNotFoundError):
            files.remove(directory / str(name))
    if covered:
        files.sync_dir(directory)
