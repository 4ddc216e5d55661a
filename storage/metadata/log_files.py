"""Reads log files: hands the batches of one file, or of a whole chain of files, to a reader.

| where a file's batches end                 | meaning                                                                |
|--------------------------------------------|------------------------------------------------------------------------|
| at the cut where the next file goes on     | whatever is behind it is not on the chain                              |
| before that cut                            | corruption: batches are missing                                        |
| in prepared space, in the last file        | the end of the log                                                     |
| in a torn tail, in the last file           | the end of the log: that write was interrupted, or is being made now   |
| the length is 0 or no number of sectors    | corruption: the file was cut                                           |

Nothing is changed here. Everything blocks.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from storage.files import File, Files
from storage.metadata.batches import BODY_BYTES_MAX, HEADER_BYTES, Batch, Damage, Point, read_batches
from storage.metadata.chain import LogName, Part
from storage.metadata.corruption import CorruptMetadata
from storage.sector import SECTOR

READ_BYTES: Final = 8 * 1024 * 1024
"""A log file is read in windows of this size; every batch fits in one."""

assert READ_BYTES > 2 * (BODY_BYTES_MAX + HEADER_BYTES)


class Reader(Protocol):
    """Takes the batches."""

    @property
    def trusts_length(self) -> bool:
        """False while files may have any length: an earlier release cut torn tails off instead of overwriting them."""

    def batch(self, body: bytes) -> None:
        """Take the records of the next batch. Raises ValueError if they make no sense."""

    def end_file(self) -> None:
        """The same controller's log continues in another file. Raises ValueError if it must not."""


class FileRead(NamedTuple):
    """The result of reading one file."""

    end: int
    """Where its whole batches end, up to the cut."""
    point: Point
    """The place in the log there."""
    unproven: int
    """Where the batches begin that no later batch of this file confirms."""
    torn: Damage | None
    """What follows them, if it is not prepared space and the file is the last."""


class PartRead(NamedTuple):
    """The result of reading one part of a chain."""

    name: LogName
    read: FileRead


def read_chain(
    files: Files, directory: Path, chain: Iterable[Part], behind: Point, reader: Reader
) -> Iterator[PartRead]:
    """Hand the batches behind `behind` to `reader`, part by part. The chain is the one behind `behind`.

    Raises:
        CorruptMetadata: a file is damaged, or `reader` raised ValueError.
        FileNotFoundError: its controller has closed or trimmed a file since the chain was found.
    """
    before: PartRead | None = None
    for file, cut in chain:
        path = directory / str(file.name)
        if before is not None and before.name.epoch == file.name.epoch:
            # A later epoch begins with the abort of an open transaction.
            try:
                reader.end_file()
            except ValueError as unfinished:
                raise CorruptMetadata(directory / str(before.name), before.read.end, str(unfinished)) from unfinished
        opened = files.open(path)
        try:
            after = file.before or (behind if before is None else before.read.point)
            before = PartRead(file.name, read_file(opened, after, reader, behind=behind, cut=cut))
        finally:
            opened.close()
        yield before


def read_file(
    file: File, after: Point, reader: Reader, *, behind: Point | None = None, cut: Point | None = None
) -> FileRead:
    """Hand the batches of one file to the reader, a window at a time: those behind `behind`, up to `cut`.

    Raises:
        CorruptMetadata: see the module's docstring.
    """
    size = file.size()
    # Sequence and offset of each batch that no later batch confirms.
    unproven: list[tuple[int, int]] = []
    point = after
    end = 0
    torn: Damage | None = None
    if point != cut:
        for batch in _batches(file, after):
            if isinstance(batch, Damage):
                torn = batch
                break
            if behind is None or batch.point.sequence > behind.sequence:
                try:
                    reader.batch(batch.body)
                except ValueError as unreadable:
                    raise CorruptMetadata(file.path, batch.offset, str(unreadable)) from unreadable
            point = batch.point
            while unproven and unproven[0][0] <= batch.confirmed:
                del unproven[0]
            unproven.append((point.sequence, batch.offset))
            end = batch.end
            if point == cut:
                break
    if torn is not None and (cut is not None or not torn.is_torn_tail):
        raise CorruptMetadata(file.path, torn.offset, torn.reason)
    if cut is not None and point != cut:
        raise CorruptMetadata(
            file.path, end, f"it ends with batch {point.sequence}, but batch {cut.sequence} is missing"
        )
    if reader.trusts_length and (not size or size % SECTOR):
        raise CorruptMetadata(file.path, size, "the file was cut there: its length is no number of whole sectors")
    return FileRead(end, point, unproven[0][1] if unproven else end, torn)


def _batches(file: File, after: Point) -> Iterator[Batch | Damage]:
    """As `read_batches`, a window at a time."""
    size = file.size()
    point = after
    begin = end = 0
    while True:
        data = file.read_at(begin, READ_BYTES)
        is_rest = begin + len(data) >= size
        damage: Damage | None = None
        for batch in read_batches(data, point, begin=begin):
            if isinstance(batch, Damage):
                damage = batch
                break
            yield batch
            point = batch.point
            end = batch.end
        if is_rest:
            break
        if end > begin:
            # A batch may look damaged only because this window ends.
            begin = end
            continue
        # No batch is larger than a window, so it is damaged or the end. The proof may be anywhere behind it.
        damage = None
        for rest in read_batches(file.read_at(begin, size - begin), point, begin=begin):
            assert isinstance(rest, Damage), "a whole batch would have been found in the window"
            damage = rest
        break
    if damage is not None:
        yield damage
