"""The files of a journal: zeros on the disk before anything is written to them.

    <10-digit epoch>-<10-digit number>-<16 hex digits of the stream>.journal

In a file of zeros, a write needs no new blocks and syncs several times faster, and an empty sector proves that it was
not written. The next file is made while the current one is written to. Files are not reused, because zeroing a used
file costs as much as making a new one. A file gets its name once it is whole. Its label repeats the name
(`journal_block`), so that a file under another name is found.
"""

import re
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from storage.fence import Fence
from storage.files import DiskFull, File, Files
from storage.journal_block import encode_label

_NAME: Final = re.compile(r"(\d{10})-(\d{10})-([0-9a-f]{16})\.journal")
_MAKING: Final = "-new"
"""The suffix of a file that is not whole yet."""


class JournalName(NamedTuple):
    """The parts of a journal file's name. They compare in the order in which files were written."""

    epoch: int
    number: int
    stream: int

    def __str__(self) -> str:
        return f"{self.epoch:010d}-{self.number:010d}-{self.stream:016x}.journal"


class FullFiles(NamedTuple):
    """Full journal files. Nobody needs them once the ledger files are synced."""

    paths: tuple[Path, ...]
    fence: Fence
    following: int
    """Number of the file behind them."""
    following_sequence: int
    """Sequence of that file's first block."""

    def remove(self, files: Files) -> None:
        """Note that they are freed, then remove them. Blocks.

        Raises:
            Fenced: a later writer has removed the fence.
        """
        self.fence.note_freed(self.following, self.following_sequence)
        for path in self.paths:
            # The writer that fenced this one may have removed it already.
            with suppress(FileNotFoundError):
                files.remove(path)


def journal_names(files: Files, directory: Path) -> list[JournalName]:
    """The journal files of a folder, in order. Blocks."""
    matches = (_NAME.fullmatch(name) for name in files.names(directory))
    return sorted(JournalName(int(match[1]), int(match[2]), int(match[3], 16)) for match in matches if match)


def unfinished_files(files: Files, directory: Path, *, before_epoch: int) -> list[Path]:
    """Files that writers of lower epochs began to make and did not finish. Blocks."""
    names = [name for name in files.names(directory) if name.endswith(_MAKING)]
    return [directory / name for name in names if (match := _NAME.match(name)) and int(match[1]) < before_epoch]


def make_journal_file(files: Files, directory: Path, name: JournalName, size: int) -> File:
    """A new journal file of `size` bytes, zeros behind its label. The file and its name are durable. Blocks.

    Raises:
        DiskFull: nothing is left of it.
    """
    making = directory / f"{name}{_MAKING}"
    file = files.open(making, create=True)
    try:
        file.preallocate(size)
        file.write_at(0, encode_label(str(name)))
        file.sync()
    except DiskFull:
        files.remove(making)
        raise
    finally:
        file.close()
    path = directory / str(name)
    files.rename(making, path)
    files.sync_dir(directory)
    return files.open(path)
