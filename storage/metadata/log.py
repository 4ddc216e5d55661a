"""The metadata log's files, named by the first batch each is for: `.log`, and `.closed-log` once another follows.

A log file is filled with zeros ahead of its writer, so that a sync need not also make new blocks durable. The file gets
its name when its first zeros are durable, and a torn tail is overwritten with zeros. So a file whose length is not a
number of whole pieces was cut by something else. A log file ends where a snapshot begins: the log rolls, the snapshot
takes the state at that place, and once it is durable the older files are removed. So at most two files matter at any
time, and no size limit of its own bounds a file.

A file gets its second name before the first batch goes to the next file. So if the last file has the second name, the
newest file is missing. Its confirmed batches do not pass for batches that were never written (E3).

All methods block. The store runs them in a worker thread, one at a time. Nothing is ever retried: after an error the
state of the file is unknown, and only opening it again tells. A full disk is no such error, because it refuses the
zeros ahead of the writer, before anything is written (C24).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol, Self

from storage.files import DiskFull, File, Files
from storage.metadata.batches import (
    BEGINNING,
    BODY_BYTES_MAX,
    HEADER_BYTES,
    Body,
    Damage,
    Point,
    encode_batches,
    read_batches,
)
from storage.metadata.corruption import CorruptMetadata
from storage.sector import SECTOR

PREALLOCATION_BYTES: Final = 1024 * 1024
"""How far ahead of its writer a log file is filled with zeros. Each such piece costs a pause of a millisecond or two.
"""

RESERVE_PIECES: Final = 2
"""How many such pieces are reserved beyond the next one. On a full disk, they serve what frees space or ends work:
deletions, ends of transactions, acknowledgements."""

ABORT_BYTES: Final = 4096
"""More than the size of the record that aborts a transaction that met the full disk. Reserved for that alone."""

READ_BYTES: Final = 8 * 1024 * 1024
"""Recovery reads a log file in windows of this size; every batch fits in one."""

_SUFFIX: Final = ".log"
_CLOSED: Final = ".closed-log"
_UNFINISHED: Final = ".log-unfinished"

assert READ_BYTES > 2 * (BODY_BYTES_MAX + HEADER_BYTES)


def numbered(directory: Path, number: int, suffix: str) -> Path:
    """The path of a log file or snapshot."""
    return directory / f"{number:020}{suffix}"


def numbers(files: Files, directory: Path, suffix: str) -> list[int]:
    """The numbers of the log files or snapshots in the directory, rising. Files with other names are ignored."""
    stems = [name.removesuffix(suffix) for name in files.names(directory) if name.endswith(suffix)]
    return sorted(int(stem) for stem in stems if stem.isdecimal() and len(stem) == 20)


def log_paths(files: Files, directory: Path) -> dict[int, Path]:
    """The log files in the directory, by the first batch that each is for, rising."""
    found = {
        number: numbered(directory, number, suffix)
        for suffix in (_SUFFIX, _CLOSED)
        for number in numbers(files, directory, suffix)
    }
    return dict(sorted(found.items()))


def is_closed(path: Path) -> bool:
    """Whether another log file follows this one."""
    return path.name.endswith(_CLOSED)


def missing_after(directory: Path, point: Point) -> CorruptMetadata:
    """The error for a log that must continue behind `point`, without a file that does."""
    return CorruptMetadata(numbered(directory, point.sequence + 1, _SUFFIX), 0, "the file is missing")


class MetadataLog:
    """The log, open for appending."""

    __slots__ = ("_allocated", "_directory", "_file", "_files", "_offset", "_older_bytes", "_refused_at", "point")

    def __init__(self, files: Files, directory: Path, file: File, offset: int, older_bytes: int, point: Point) -> None:
        self._files = files
        self._directory = directory
        self._file = file
        self._offset = offset
        self._older_bytes = older_bytes
        self._allocated = file.size()
        self._refused_at: int | None = None
        """Where the log ended when the disk last refused to make it longer; None if it has not refused since."""
        self.point = point
        """The last batch. It is durable."""

    @classmethod
    def recover(cls, files: Files, directory: Path, after: Point, reader: "Reader") -> Self:
        """Open the log, and hand every batch behind `after` to `reader`, in order. Makes the log if there is none.

        A torn tail is cut (see `batches.read_batches`). The batches handed over are durable on return, so nobody sees
        what could still be lost. Files whose every batch `after` includes are removed.

        | file                                      | meaning                                                 |
        |-------------------------------------------|---------------------------------------------------------|
        | not yet named as a log file               | left over from making it: removed                       |
        | named at or below `after`                 | left over from trimming: removed, once all else is read |
        | the first after it is not `after` + 1     | corruption: a file is missing (none at all: a new log)  |
        | not the last, ends in a torn tail         | corruption: the log rolls only when all is durable      |
        | not the last, not closed                  | the log was rolling: closed                             |
        | the last, closed                          | corruption: the newest file is missing                  |
        | the next is not named by where this ends  | corruption: batches or a file are missing               |
        | the length is 0 or no number of sectors   | corruption: it was cut                                  |
        | the last, ends in a torn tail             | zeros from there on                                     |

        Raises:
            CorruptMetadata: damage to what was confirmed; also if `reader` raises ValueError.
        """
        _remove_unfinished(files, directory)
        point = after
        older_bytes = 0
        remaining = {number: path for number, path in log_paths(files, directory).items() if number > after.sequence}
        if not remaining and after != BEGINNING:
            raise missing_after(directory, after)
        for position, (number, path) in enumerate(remaining.items(), 1):
            if number != point.sequence + 1:
                raise CorruptMetadata(path, 0, f"it should begin with batch {point.sequence + 1}: a file is missing")
            is_last = position == len(remaining)
            file = files.open(path)
            try:
                read = read_file(file, point, reader)
                point = read.point
                if is_last:
                    if is_closed(path):
                        raise missing_after(directory, point)
                    _settle(file, read)
                    _close_all(files, directory, [*remaining.values()][:-1])
                    _remove_covered(files, directory, after.sequence)
                    return cls(files, directory, file, read.end, older_bytes, point)
                if read.torn is not None:
                    raise CorruptMetadata(path, read.end, read.torn.reason)
                try:
                    reader.end_file()
                except ValueError as unfinished:
                    raise CorruptMetadata(path, read.end, str(unfinished)) from unfinished
            except BaseException:
                file.close()
                raise
            file.close()
            older_bytes += read.end
        return cls(files, directory, _create(files, directory, point), 0, 0, point)

    @property
    def tail_bytes(self) -> int:
        """Bytes of batches that recovery would replay."""
        return self._older_bytes + self._offset

    def append(self, bodies: Sequence[Body], *, is_abort: bool = False) -> None:
        """Write batches, with one write and one sync. Durable on return.

        Raises:
            DiskFull: nothing was written, and the log is as it was. Never for an abort that follows a begin.
        """
        data, point = encode_batches(self.point, bodies, confirmed=self.point.sequence, offset=self._offset)
        end = self._offset + len(data)
        self._prepare(end + (0 if is_abort else ABORT_BYTES))
        try:
            self._file.write_at(self._offset, data)
        except DiskFull as full:
            # The file system writes to a new place each time. The contents there are now unknown.
            raise OSError(full.errno, full.strerror, full.filename) from full
        self._file.sync()
        self._offset = end
        self.point = point

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
        file = _create(self._files, self._directory, self.point)
        closed, self._file = self._file, file
        closed.close()
        _close_all(self._files, self._directory, [closed.path])
        self._older_bytes += self._offset
        self._offset = 0
        self._allocated = file.size()
        self._refused_at = None

    def trim(self, sequence: int) -> None:
        """Remove the files whose every batch is at or below `sequence`, where the log rolled."""
        _remove_covered(self._files, self._directory, sequence)
        self._older_bytes = 0

    def close(self) -> None:
        """Release the file. Everything appended is durable."""
        self._file.close()


class Reader(Protocol):
    """Recovery hands the batches to a reader."""

    @property
    def trusts_length(self) -> bool:
        """False while files may have any length: an earlier release cut torn tails off instead of overwriting them."""

    def batch(self, body: bytes) -> None:
        """Take the records of the next batch. Raises ValueError if they make no sense."""

    def end_file(self) -> None:
        """The log continues in another file. Raises ValueError if it must not."""


class FileRead(NamedTuple):
    """The result of reading one file."""

    end: int
    """Where its whole batches end."""
    point: Point
    """The place in the log there."""
    unproven: int
    """Where the batches begin that no later batch confirms."""
    torn: Damage | None
    """What follows them, if it is not prepared space."""


def read_file(file: File, after: Point, reader: Reader) -> FileRead:
    """Hand the batches of one file to the reader, a window at a time."""
    size = file.size()
    # Sequence and offset of each batch that no later batch confirms.
    unproven: list[tuple[int, int]] = []
    point = after
    torn: Damage | None = None
    begin = end = 0
    while True:
        data = file.read_at(begin, READ_BYTES)
        is_rest = begin + len(data) >= size
        for batch in read_batches(data, point, begin=begin):
            if isinstance(batch, Damage):
                torn = batch
                break
            try:
                reader.batch(batch.body)
            except ValueError as unreadable:
                raise CorruptMetadata(file.path, batch.offset, str(unreadable)) from unreadable
            point = batch.point
            while unproven and unproven[0][0] <= batch.confirmed:
                del unproven[0]
            unproven.append((point.sequence, batch.offset))
            end = batch.end
        if is_rest:
            break
        if end > begin:
            # A batch may look damaged only because this window ends.
            torn = None
            begin = end
            continue
        # No batch is larger than a window, so it is damaged or the end. The proof may be anywhere behind it.
        for rest in read_batches(file.read_at(begin, size - begin), point, begin=begin):
            assert isinstance(rest, Damage), "a whole batch would have been found in the window"
            torn = rest
        break
    if torn is not None and not torn.is_torn_tail:
        raise CorruptMetadata(file.path, torn.offset, torn.reason)
    if reader.trusts_length and (not size or size % SECTOR):
        raise CorruptMetadata(file.path, size, "the file was cut there: its length is no number of whole sectors")
    return FileRead(end, point, unproven[0][1] if unproven else end, torn)


def _settle(file: File, read: FileRead) -> None:
    """Make what was read durable, and overwrite the rest with zeros."""
    if read.unproven < read.end:
        # After a failed sync, these batches may be only in memory, and marked as written. Another sync would then do
        # nothing for them. Writing them again makes the next sync count.
        file.write_at(read.unproven, file.read_at(read.unproven, read.end - read.unproven))
    if read.torn is not None:
        # The rest of a torn tail must never follow new batches. Zeros, not a cut: if the power fails meanwhile, a torn
        # tail with more empty sectors is still a torn tail.
        for begin in range(read.end, file.size(), PREALLOCATION_BYTES):
            file.write_at(begin, bytes(min(PREALLOCATION_BYTES, file.size() - begin)))
    file.sync()
    # From an earlier release, which left files of any length.
    file.preallocate(max(1, -(-file.size() // SECTOR)) * SECTOR)


def _create(files: Files, directory: Path, after: Point) -> File:
    # The name comes last, so a log file is never shorter than its first piece.
    path = numbered(directory, after.sequence + 1, _SUFFIX)
    unfinished = numbered(directory, after.sequence + 1, _UNFINISHED)
    file = files.open(unfinished, create=True, exclusive=True)
    try:
        file.preallocate((1 + RESERVE_PIECES) * PREALLOCATION_BYTES)
        files.rename(unfinished, path)
    except DiskFull:
        files.remove(unfinished)
        raise
    finally:
        file.close()
    file = files.open(path)
    try:
        files.sync_dir(directory)
    except BaseException:
        file.close()
        raise
    return file


def _remove_unfinished(files: Files, directory: Path) -> None:
    for name in files.names(directory):
        if name.endswith(_UNFINISHED):
            files.remove(directory / name)


def _close_all(files: Files, directory: Path, paths: Sequence[Path]) -> None:
    """Note durably that each of these files is followed by another one."""
    open_ones = [path for path in paths if not is_closed(path)]
    for path in open_ones:
        files.rename(path, path.with_suffix(_CLOSED))
    if open_ones:
        files.sync_dir(directory)


def _remove_covered(files: Files, directory: Path, sequence: int) -> None:
    covered = [path for number, path in log_paths(files, directory).items() if number <= sequence]
    for path in covered:
        files.remove(path)
    if covered:
        files.sync_dir(directory)
