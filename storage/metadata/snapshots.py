"""Snapshots: the whole state at one place in the log, so that the log before it need not be replayed.

`<20 digits>-<10 digits>.snapshot` is named by the last log batch that it includes and by the epoch of its writer. It is
a file of batches as in the log, numbered from 1, and holds plain state: a header, the records, a footer. It never has
transaction markers (R21). It is written under another name. When it is whole and durable, the log names it
(`SnapshotNamed`), and only then it gets its name. So:

- A damaged snapshot was damaged later. Then the store refuses to open, rather than answer from an incomplete state.
- A snapshot that has its name includes only batches of the log. A deposed controller cannot name its snapshot in the
  log, so nobody ever loads it, and it removes nothing (C2).

The state is read from the image in slices, while the image goes on changing. A view keeps what a key held when the
snapshot began, until that key has been read. So nothing stops for longer than a slice, however large the state is, and
the state is never copied.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

import trio
from sortedcontainers import SortedDict

from storage.files import DiskFull, File, Files
from storage.metadata.batches import BEGINNING, Body, Damage, Point, encode_batches, read_batches
from storage.metadata.corruption import CorruptMetadata
from storage.metadata.image import Image, Written
from storage.metadata.older_releases import NOTICE
from storage.metadata.record_codec import CorruptRecord, decode, encode
from storage.metadata.records import (
    EPOCHS_LEVEL,
    AbortTransaction,
    Answered,
    BeginTransaction,
    DataRecord,
    EndTransaction,
    FeatureLevel,
    LogRecord,
    SequenceAdvance,
    SessionStart,
    SnapshotFooter,
    SnapshotHeader,
    SnapshotNamed,
)
from storage.metadata.slices import slices
from storage.metadata.store import Record

SLICE_BYTES_MAX: Final = 64 * 1024
SLICE_RECORDS_MAX: Final = 128
"""The most bytes and records in a slice of a snapshot, which takes half a millisecond. A larger record is a slice by
itself."""

WRITE_BYTES: Final = 512 * 1024
"""A snapshot is written and synced in parts of this size, so that no sync of the log waits behind a large one."""

_NAME: Final = re.compile(r"(\d{20})(?:-(\d{10}))?\.snapshot")

_END: Final = "\U0010ffff\U0010ffff"
"""Above every key."""


class View:
    """An image as it was at one place in the log. It is read once, slice by slice, while the image goes on.

    Code that applies a change set to the image meanwhile must pass the changes to `note`.
    """

    __slots__ = ("_before", "_image", "_read", "head", "point", "revision")

    def __init__(self, image: Image, point: Point, *, feature_level: int | None = None) -> None:
        self.point = point
        """The place in the log. The image is now the state after it."""
        self.revision = image.revision
        level = image.feature_level if feature_level is None else feature_level
        self.head: list[DataRecord] = [FeatureLevel(image.revision, level)]
        """All of the state except its records. Sessions come before the records that are bound to them."""
        if level >= EPOCHS_LEVEL:
            if image.taken_over is not None:
                self.head.append(image.taken_over)
            self.head += (
                SessionStart(session, state.timeout_ms, state.owner, state.nonce)
                for session, state in image.sessions.items()
            )
            self.head += (Answered(write, made) for write, made in image.outcomes.each())
        else:
            self.head += (SessionStart(session, state.timeout_ms) for session, state in image.sessions.items())
        if image.sequence:
            self.head.append(SequenceAdvance(image.revision, image.sequence))
        self._image = image
        self._read = ""
        # The earlier records of keys at or above `_read` that were written since; None if there was none.
        self._before: SortedDict[str, Record | None] = SortedDict()

    def note(self, written: Iterable[Written]) -> None:
        """Keep the earlier records of these keys, if they were not read yet."""
        for key, old, _new in written:
            if key >= self._read and key not in self._before:
                self._before[key] = old

    def next(self, records_max: int) -> list[Record]:
        """The next records, in key order; none once all were read."""
        while self._read < _END:
            found = self._image.scan(self._read, _END, records_max)
            # A slice that is not full reaches to the end. A full slice reaches to its last key, inclusive.
            end = found[-1].key + "\0" if len(found) == records_max else _END
            before = list(self._before.irange(self._read, end, (True, False)))
            self._read = end
            if before:
                state: dict[str, Record | None] = {record.key: record for record in found}
                state.update((key, self._before.pop(key)) for key in before)
                found = [record for _key, record in sorted(state.items()) if record is not None]
            if found:
                return found
        return []


class SnapshotName(NamedTuple):
    """The name of a snapshot."""

    sequence: int
    """The last log batch that it includes."""
    epoch: int
    """The epoch of its writer; 0 for a snapshot that one broker wrote before there were epochs."""

    def __str__(self) -> str:
        epoch = f"-{self.epoch:010}" if self.epoch else ""
        return f"{self.sequence:020}{epoch}.snapshot"

    @property
    def unfinished(self) -> str:
        """What it is called before the log names it."""
        return f"{self}-unfinished"

    @classmethod
    def parse(cls, name: str) -> "SnapshotName | None":
        """The name of a snapshot; None for the name of anything else."""
        if name == NOTICE:
            return None
        found = _NAME.fullmatch(name)
        return None if found is None else cls(int(found[1]), int(found[2] or 0))


class Loaded(NamedTuple):
    """A snapshot that was read."""

    image: Image
    point: Point
    """Its place in the log."""
    name: SnapshotName | None
    """None if there is none: the empty image."""
    size_bytes: int


async def write(
    files: Files,
    directory: Path,
    view: View,
    epoch: int,
    *,
    turn: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
) -> int:
    """Write a snapshot under its unfinished name. Durable on return. Returns its size in bytes.

    The records are encoded here, slice by slice, each when `turn` returns, and are written in a worker thread. Encoding
    in the thread too would hold the interpreter for milliseconds whenever another task wants to run.

    Raises:
        DiskFull: nothing is left of it.
    """
    unfinished = directory / SnapshotName(view.point.sequence, epoch).unfinished
    file = await files.run(_create, files, unfinished)
    try:
        written = offset = 0
        waiting: list[bytes] = []
        encoded = _encoded(view)
        await turn()
        while (data := next(encoded, None)) is not None:
            waiting.append(data)
            offset += len(data)
            if offset - written >= WRITE_BYTES:
                await files.run(_write, file, written, b"".join(waiting))
                written = offset
                waiting.clear()
            await turn()
        await files.run(_write, file, written, b"".join(waiting))
    except DiskFull:
        await files.run(files.remove, unfinished)
        raise
    finally:
        file.close()
    return offset


def write_at_once(files: Files, directory: Path, view: View, epoch: int) -> int:
    """As `write`, in this thread, while nobody uses the store. Blocks.

    Raises:
        DiskFull: nothing is left of it.
    """
    unfinished = directory / SnapshotName(view.point.sequence, epoch).unfinished
    file = _create(files, unfinished)
    try:
        offset = 0
        for data in _encoded(view):
            file.write_at(offset, data)
            offset += len(data)
        file.sync()
    except DiskFull:
        files.remove(unfinished)
        raise
    finally:
        file.close()
    return offset


def finish(files: Files, directory: Path, name: SnapshotName) -> None:
    """Give a snapshot its name, which the log has named, and remove those before it. Durable on return. Blocks.

    Raises:
        FileNotFoundError: a later controller has removed the unfinished file.
    """
    files.rename(directory / name.unfinished, directory / str(name))
    files.sync_dir(directory)
    remove_older(files, directory, name.sequence)


def newest(files: Files, directory: Path) -> SnapshotName | None:
    """The newest snapshot; None if there is none. Blocks."""
    return max(snapshot_names(files, directory), default=None)


def load_newest(files: Files, directory: Path) -> Loaded:
    """The newest snapshot, or the empty image. Blocks. A controller may take another one meanwhile.

    Raises:
        CorruptMetadata: it is damaged, or holds records that do not belong in a snapshot.
    """
    while True:
        name = newest(files, directory)
        if name is None:
            return Loaded(Image(), BEGINNING, None, 0)
        path = directory / str(name)
        try:
            file = files.open(path)
        except FileNotFoundError:
            # There is a newer one now.
            continue
        try:
            data = file.read_at(0, file.size())
        finally:
            file.close()
        image, point = load(path, data)
        if point.sequence != name.sequence:
            raise CorruptMetadata(path, 0, f"it holds the state after batch {point.sequence}")
        return Loaded(image, point, name, len(data))


def _content(view: View) -> Iterator[LogRecord]:
    yield SnapshotHeader(view.revision, *view.point)
    yield from view.head
    count = len(view.head)
    while records := view.next(SLICE_RECORDS_MAX):
        yield from records
        count += len(records)
    yield SnapshotFooter(count)


def _encoded(view: View) -> Iterator[bytes]:
    """The bytes of the snapshot, slice by slice."""
    offset = 0
    point = BEGINNING
    encoded = map(encode, _content(view))
    for records in slices(encoded, bytes_max=SLICE_BYTES_MAX, count_max=SLICE_RECORDS_MAX):
        body = Body(b"".join(records), len(records))
        data, point = encode_batches(point, [body], confirmed=point.sequence, offset=offset)
        offset += len(data)
        yield data


def _create(files: Files, path: Path) -> File:
    return files.open(path, create=True, exclusive=True)


def _write(file: File, offset: int, data: bytes) -> None:
    file.write_at(offset, data)
    file.sync()


def remove_older(files: Files, directory: Path, sequence: int) -> None:
    """Remove the snapshots of places before `sequence`, where a durable one is. Blocks."""
    older = [name for name in snapshot_names(files, directory) if name.sequence < sequence]
    for name in older:
        # A controller that was stopped may wake and remove the same ones.
        with suppress(FileNotFoundError):
            files.remove(directory / str(name))
    if older:
        files.sync_dir(directory)


def snapshot_names(files: Files, directory: Path) -> list[SnapshotName]:
    """The snapshots in the directory, rising. Blocks."""
    return sorted(filter(None, map(SnapshotName.parse, files.names(directory))))


def load(path: Path, data: bytes) -> tuple[Image, Point]:
    """The image in the bytes of the snapshot at `path`, and its place in the log.

    Raises:
        CorruptMetadata: it is damaged, or holds records that do not belong in a snapshot.
    """
    reading = _Reading(path, data)
    try:
        records = chain.from_iterable(map(decode, reading.bodies()))
        header = next(records, None)
        if not isinstance(header, SnapshotHeader):
            raise CorruptRecord("it does not begin with a snapshot header")
        image = Image()
        image.load(_until_footer(records))
        image.revision = header.revision
    except CorruptRecord as unreadable:
        raise CorruptMetadata(path, reading.offset, str(unreadable)) from unreadable
    except KeyError as absent:
        reason = f"a record is bound to session {absent}, which is not in it"
        raise CorruptMetadata(path, reading.offset, reason) from absent
    return image, Point(header.sequence, header.crc)


class _Reading:
    """The batches of a snapshot, one at a time. So no second copy of it is made, and the place of a fault is known."""

    def __init__(self, path: Path, data: bytes) -> None:
        self._path = path
        self._data = data
        self.offset = 0
        """Where the current batch begins."""

    def bodies(self) -> Iterator[bytes]:
        for batch in read_batches(self._data, BEGINNING):
            self.offset = batch.offset
            if isinstance(batch, Damage):
                raise CorruptMetadata(self._path, batch.offset, batch.reason)
            yield batch.body


def _until_footer(records: Iterator[LogRecord]) -> Iterator[DataRecord]:
    for count, record in enumerate(records):
        if isinstance(record, SnapshotFooter):
            if record.records != count or next(records, None) is not None:
                raise CorruptRecord(f"its footer counts {record.records} records, but {count} precede it")
            return
        if isinstance(record, BeginTransaction | EndTransaction | AbortTransaction | SnapshotHeader | SnapshotNamed):
            raise CorruptRecord(f"a {type(record).__name__} does not belong in it")
        yield record
    raise CorruptRecord("it has no footer")
