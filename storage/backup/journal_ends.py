"""Where a journal ends that its writer goes on writing: the blocks whose headers are there.

Only headers are read, so this takes microseconds for each block. A block with a header may still be on its way to the
disk. It is complete a moment later, unless its writer dies. Then it is a torn tail, as after any death.

Everything here blocks.
"""

from pathlib import Path
from typing import NamedTuple

from storage.errors import JournalFileDamaged
from storage.fence import EpochRecord
from storage.files import File, Files
from storage.journal_block import HEADER_SIZE, LABEL_SIZE, BlockHeader, DamagedBlock, decode_header, is_unwritten
from storage.journal_files import JournalName


class JournalEnd(NamedTuple):
    """A place in a journal."""

    number: int
    """The file's number."""
    offset: int
    """Behind its last block."""
    due: int
    """The sequence of the block that comes next."""


def beginning_of(record: EpochRecord) -> JournalEnd:
    """The place before the first block that is not freed."""
    return JournalEnd(record.first, LABEL_SIZE, record.first_sequence)


def advance(files: Files, folder: Path, life: JournalName, end: JournalEnd) -> tuple[JournalEnd, dict[int, int]]:
    """Go on from `end` over all blocks, in the files of this folder. `life` has the epoch and the stream.

    Returns the new end, and where the blocks of each file passed end.

    Raises:
        JournalFileDamaged: a header is damaged, or blocks are missing.
    """
    passed: dict[int, int] = {}
    while True:
        path = folder / str(life._replace(number=end.number))
        try:
            file = files.open(path)
        except FileNotFoundError:
            return end, passed
        try:
            end = _advance_in(file, life.stream, end)
        finally:
            file.close()
        passed[end.number] = end.offset
        following = JournalEnd(end.number + 1, LABEL_SIZE, end.due)
        if not _has_begun(files, folder / str(life._replace(number=following.number)), life.stream, end.due):
            return end, passed
        end = following


def _advance_in(file: File, stream: int, end: JournalEnd) -> JournalEnd:
    size = file.size()
    while end.offset + HEADER_SIZE <= size:
        header = _header_at(file, end.offset)
        if header is None:
            return end
        if (header.stream, header.sequence) != (stream, end.due):
            raise JournalFileDamaged(file.path, end.offset, "blocks before this one are missing")
        end = end._replace(offset=end.offset + header.size, due=end.due + 1)
    return end


def _has_begun(files: Files, path: Path, stream: int, due: int) -> bool:
    try:
        file = files.open(path)
    except FileNotFoundError:
        return False
    try:
        header = _header_at(file, LABEL_SIZE)
    finally:
        file.close()
    if header is not None and (header.stream, header.sequence) != (stream, due):
        raise JournalFileDamaged(path, LABEL_SIZE, "blocks before this one are missing")
    return header is not None


def _header_at(file: File, offset: int) -> BlockHeader | None:
    """The header there; None if there is none yet. One reading may meet a write half done, so two equal ones count."""
    before = None
    while True:
        data = file.read_at(offset, HEADER_SIZE)
        try:
            return decode_header(data, 0)
        except DamagedBlock as damaged:
            if is_unwritten(data, 0):
                return None
            if data == before:
                raise JournalFileDamaged(file.path, offset, str(damaged)) from damaged
            before = data
