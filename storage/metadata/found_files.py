"""Reads the folder of a metadata log that several controllers wrote, and finds its chain (`chain`).

Only the headers of the batches are read here, because recovery reads the batches themselves. A batch whose header is
whole is named by it, and whoever reads the file finds out whether the batch is whole.

Everything here blocks. A controller may change the folder meanwhile.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Final

from storage.files import File, Files
from storage.metadata.batches import HEADER_BYTES, Point, link_at
from storage.metadata.chain import Chain, Fences, FoundFile, LogName, NoChain, OffChain, chain_of
from storage.metadata.epochs import FoundEpoch, MetadataEpochs

READ_BYTES: Final = 8 * 1024 * 1024
"""A log file is read in windows of this size."""


def find_chain(files: Files, directory: Path, epochs: MetadataEpochs, below: Point, epoch: int) -> Chain:
    """The chain behind `below`, a batch that was written in `epoch`.

    Raises:
        NoChain, OffChain: see `chain_of`. Two equal readings of the folder said so, as one may meet a change half done.
        CorruptMetadata: a fence is damaged.
    """
    before = None
    while True:
        read = found_files(files, directory, below), fences_of(epochs.found())
        try:
            return chain_of(read[0], below, epoch, read[1])
        except (NoChain, OffChain):
            if read == before:
                raise
            before = read


def found_files(files: Files, directory: Path, below: Point) -> list[FoundFile]:
    """The log files, by epoch and number. Each says whether it holds `below`, and the batches that others follow."""
    while True:
        names = _names(files, directory)
        try:
            befores = {name: _first(files, directory / str(name)) for name in names}
            asked = {below, *(before for before in befores.values() if before is not None)}
            return [_read(files, directory, name, asked) for name in names]
        except FileNotFoundError:
            # Its controller has closed or trimmed a file since the names were listed.
            continue


def fences_of(found: Collection[FoundEpoch]) -> Fences:
    """What these fences say, in short."""
    newest = max((each.epoch for each in found), default=0)
    begun = max((each for each in found if each.first), default=None, key=lambda each: each.epoch)
    return Fences(newest) if begun is None else Fences(newest, begun.epoch, begun.first)


def _names(files: Files, directory: Path) -> list[LogName]:
    parsed = filter(None, map(LogName.parse, files.names(directory)))
    # A listing may show both names of a file that is being closed. The second one is the last.
    names = {(name.epoch, name.number): name for name in sorted(parsed, key=lambda each: each.is_closed)}
    return [name for _place, name in sorted(names.items())]


def _first(files: Files, path: Path) -> Point | None:
    file = files.open(path)
    try:
        link = link_at(file.read_at(0, HEADER_BYTES))
    finally:
        file.close()
    return None if link is None else link.before


def _read(files: Files, directory: Path, name: LogName, asked: Collection[Point]) -> FoundFile:
    file = files.open(directory / str(name))
    try:
        return _read_headers(file, name, asked)
    finally:
        file.close()


def _read_headers(file: File, name: LogName, asked: Collection[Point]) -> FoundFile:
    window, begin = b"", 0
    before = last = None
    held: list[Point] = []
    offset = 0
    while True:
        if offset + HEADER_BYTES > begin + len(window):
            window, begin = file.read_at(offset, READ_BYTES), offset
        link = link_at(window, offset - begin)
        if link is None or (last is not None and link.before != last):
            return FoundFile(name, before, last, frozenset(held))
        if last is None:
            before = link.before
        last = link.after
        if last in asked:
            held.append(last)
        offset += link.size
