"""The metadata log's files: `<20 digits>.log`, named by the first batch each is for.

A log file is filled with zeros ahead of its writer, so that a sync need not make new blocks durable as well. It ends
where a snapshot begins: the log rolls, the snapshot takes the state at that place, and when it is durable the files
before it are removed. So at most two files are of interest at any time, and no size of its own bounds a file.

All methods block; the store runs them in a worker thread, one at a time. Nothing is ever retried: after an error the
state of the file is unknown, and only opening it again tells.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Self

from storage.files import File, Files
from storage.metadata.batches import BEGINNING, Batch, Body, Damage, Point, encode_batches, read_batches
from storage.metadata.store import MetadataError

PREALLOCATION_BYTES: Final = 1024 * 1024
"""How far ahead of its writer a log file is filled with zeros: a pause of a millisecond or two for each such piece."""

_SUFFIX: Final = ".log"


class CorruptMetadata(MetadataError):
    """A file of the store is not what was written, or not for this release; the store does not open."""

    def __init__(self, path: Path, offset: int, reason: str) -> None:
        super().__init__(f"{path}: damaged at byte {offset}: {reason}")
        self.path = path
        self.offset = offset


def numbered(directory: Path, number: int, suffix: str) -> Path:
    """The path of a log file or snapshot."""
    return directory / f"{number:020}{suffix}"


def numbers(files: Files, directory: Path, suffix: str) -> list[int]:
    """The numbers of the log files or snapshots in the directory, rising. Files of other names are not ours."""
    stems = [name.removesuffix(suffix) for name in files.names(directory) if name.endswith(suffix)]
    return sorted(int(stem) for stem in stems if stem.isdecimal() and len(stem) == 20)


def log_paths(files: Files, directory: Path) -> dict[int, Path]:
    """The log files in the directory, by the first batch each is for, rising."""
    return {number: numbered(directory, number, _SUFFIX) for number in numbers(files, directory, _SUFFIX)}


class MetadataLog:
    """The log, open for appending."""

    __slots__ = ("_allocated", "_directory", "_file", "_files", "_offset", "_older_bytes", "point")

    def __init__(self, files: Files, directory: Path, file: File, offset: int, older_bytes: int, point: Point) -> None:
        self._files = files
        self._directory = directory
        self._file = file
        self._offset = offset
        self._older_bytes = older_bytes
        self._allocated = file.size()
        self.point = point
        """The last batch, which is durable."""

    @classmethod
    def recover(cls, files: Files, directory: Path, after: Point, replay: Callable[[bytes], None]) -> Self:
        """Open the log, making it if there is none, and hand every batch after `after` to `replay`, in order.

        A torn tail is cut. What is handed over is made durable before this returns, so nobody sees what could still
        be lost. Files whose every batch `after` includes are removed.

        | file                                      | meaning                                                 |
        |-------------------------------------------|---------------------------------------------------------|
        | named at or below `after`                 | left over from trimming: removed, once all else is read |
        | the first after it is not `after` + 1     | corruption: a file is missing (none at all: a new log)  |
        | not the last, ends in a torn tail         | corruption: the log rolls only when all is durable      |
        | the next is not named by where this ends  | corruption: batches or a file are missing               |
        | the last, ends in a torn tail             | cut there                                               |

        Raises:
            CorruptMetadata: damage to what was confirmed; also if `replay` raises ValueError.
        """
        point = after
        older_bytes = 0
        remaining = [number for number in numbers(files, directory, _SUFFIX) if number > after.sequence]
        if not remaining and after != BEGINNING:
            raise CorruptMetadata(numbered(directory, after.sequence + 1, _SUFFIX), 0, "the file is missing")
        for position, number in enumerate(remaining, 1):
            path = numbered(directory, number, _SUFFIX)
            if number != point.sequence + 1:
                raise CorruptMetadata(path, 0, f"it should begin with batch {point.sequence + 1}: a file is missing")
            file = files.open(path)
            try:
                end, point = cls._replay_file(file, point, replay, is_last=position == len(remaining))
                if position == len(remaining):
                    file.sync()
                    cls._remove_covered(files, directory, after.sequence)
                    return cls(files, directory, file, end, older_bytes, point)
            except BaseException:
                file.close()
                raise
            file.close()
            older_bytes += end
        return cls(files, directory, cls._create(files, directory, point), 0, 0, point)

    @property
    def tail_bytes(self) -> int:
        """Bytes of batches that recovery would replay."""
        return self._older_bytes + self._offset

    def append(self, bodies: Sequence[Body]) -> None:
        """Write batches; durable on return. One write, one sync."""
        data, point = encode_batches(self.point, bodies, confirmed=self.point.sequence)
        end = self._offset + len(data)
        if end > self._allocated:
            self._allocated = (end // PREALLOCATION_BYTES + 1) * PREALLOCATION_BYTES
            self._file.preallocate(self._allocated)
        self._file.write_at(self._offset, data)
        self._file.sync()
        self._offset = end
        self.point = point

    def roll(self) -> None:
        """Go on in a new file, durably made. Everything before it is durable already."""
        if not self._offset:
            return
        file = self._create(self._files, self._directory, self.point)
        self._file.close()
        self._file = file
        self._older_bytes += self._offset
        self._offset = 0
        self._allocated = file.size()

    def trim(self, sequence: int) -> None:
        """Remove the files whose every batch is at or below `sequence`, where the log rolled."""
        self._remove_covered(self._files, self._directory, sequence)
        self._older_bytes = 0

    def close(self) -> None:
        """Let go of the file; all that was appended is durable."""
        self._file.close()

    @staticmethod
    def _create(files: Files, directory: Path, after: Point) -> File:
        file = files.open(numbered(directory, after.sequence + 1, _SUFFIX), create=True, exclusive=True)
        try:
            file.preallocate(PREALLOCATION_BYTES)
            files.sync_dir(directory)
        except BaseException:
            file.close()
            raise
        return file

    @staticmethod
    def _remove_covered(files: Files, directory: Path, sequence: int) -> None:
        covered = [number for number in numbers(files, directory, _SUFFIX) if number <= sequence]
        for number in covered:
            files.remove(numbered(directory, number, _SUFFIX))
        if covered:
            files.sync_dir(directory)

    @staticmethod
    def _replay_file(file: File, after: Point, replay: Callable[[bytes], None], *, is_last: bool) -> tuple[int, Point]:
        """Replay one file; where its batches end, and the place in the log there."""
        data = file.read_at(0, file.size())
        end = 0
        point = after
        # Batches of which no later one says that they were durable.
        unproven: list[Batch] = []
        for batch in read_batches(data, after):
            if isinstance(batch, Damage):
                if not (batch.is_torn_tail and is_last):
                    raise CorruptMetadata(file.path, batch.offset, batch.reason)
                # Cut, not only overwritten later: what is left of it must never stand behind new batches.
                file.truncate(batch.offset)
                break
            try:
                replay(batch.body)
            except ValueError as unreadable:
                raise CorruptMetadata(file.path, batch.offset, str(unreadable)) from unreadable
            point = batch.point
            end = batch.end
            unproven = [earlier for earlier in unproven if earlier.point.sequence > batch.confirmed]
            unproven.append(batch)
        if is_last and unproven:
            # A sync that failed before the restart may have left these in memory alone and marked as written, so that
            # syncing again would do nothing for them; writing them again makes the next sync mean what it says.
            file.write_at(unproven[0].offset, data[unproven[0].offset : end])
        return end, point
