"""Snapshots: the whole state at one place in the log, so that what came before need not be replayed.

`<20 digits>.snapshot`, named by the last log batch it includes, is a file of batches as in the log (numbered from 1 by
itself) that holds plain state: a header, the records, a footer. Transaction markers never stand in it (R21). It is
written beside and renamed when it is whole and durable, so one that is damaged has been damaged later, and opening
the store is refused rather than answered from less than there was.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from storage.files import File, Files
from storage.metadata.batches import BEGINNING, Body, Damage, Point, encode_batches, read_batches
from storage.metadata.image import Image
from storage.metadata.log import CorruptMetadata, numbered, numbers
from storage.metadata.records import (
    AbortTransaction,
    BeginTransaction,
    CorruptRecord,
    DataRecord,
    EndTransaction,
    FeatureLevel,
    LogRecord,
    SequenceAdvance,
    SessionStart,
    SnapshotFooter,
    SnapshotHeader,
    decode,
    encode,
)

SLICE_BYTES_MAX: Final = 64 * 1024
SLICE_RECORDS_MAX: Final = 256
"""A snapshot is encoded in slices of at most so many bytes (a larger record alone) and records: half a millisecond."""

_SUFFIX: Final = ".snapshot"
_UNFINISHED: Final = ".snapshot-unfinished"


class FrozenState(NamedTuple):
    """An image as it was at one place in the log. Taking it copies references: some 30 ms for a million records."""

    point: Point
    revision: int
    records: list[DataRecord]


def freeze(image: Image, point: Point) -> FrozenState:
    """The image as it is now, which is the state after `point`."""
    records: list[DataRecord] = [FeatureLevel(image.revision, image.feature_level)]
    records += (SessionStart(session, state.timeout_ms) for session, state in image.sessions.items())
    if image.sequence:
        records.append(SequenceAdvance(image.revision, image.sequence))
    # In no particular order: following the sorted keys would take ten times as long, and loading sorts anyway.
    records += dict.values(image.records)
    return FrozenState(point, image.revision, records)


async def write(files: Files, directory: Path, state: FrozenState) -> int:
    """Write a snapshot, durable on return, and remove those before it; its size in bytes.

    The records are encoded here, slice by slice between other tasks, and written in a worker thread. Encoding in the
    thread too would hold the interpreter for milliseconds at a time whenever another task wants to go on.
    """
    final = numbered(directory, state.point.sequence, _SUFFIX)
    unfinished = numbered(directory, state.point.sequence, _UNFINISHED)
    file = await files.run(_create, files, unfinished)
    try:
        offset = 0
        point = BEGINNING
        for body in _slices(_content(state)):
            data, point = encode_batches(point, [body], confirmed=point.sequence)
            await files.run(file.write_at, offset, data)
            offset += len(data)
        await files.run(_finish, files, file, final)
    finally:
        file.close()
    await files.run(_remove_older, files, directory, state.point.sequence)
    return offset


def load_newest(files: Files, directory: Path) -> tuple[Image, Point, int]:
    """The newest snapshot's image, its place in the log and its size in bytes; the empty image if there is none.

    Blocks. Removes what an interrupted writer left.

    Raises:
        CorruptMetadata: it is damaged, or holds what a snapshot never holds.
    """
    for name in files.names(directory):
        if name.endswith(_UNFINISHED):
            files.remove(directory / name)
    found = numbers(files, directory, _SUFFIX)
    if not found:
        return Image(), BEGINNING, 0
    path = numbered(directory, found[-1], _SUFFIX)
    file = files.open(path)
    try:
        data = file.read_at(0, file.size())
    finally:
        file.close()
    image, point = load(path, data)
    if point.sequence != found[-1]:
        raise CorruptMetadata(path, 0, f"it holds the state after batch {point.sequence}")
    _remove_older(files, directory, found[-1])
    return image, point, len(data)


def _content(state: FrozenState) -> Iterator[LogRecord]:
    yield SnapshotHeader(state.revision, *state.point)
    yield from state.records
    yield SnapshotFooter(len(state.records))


def _slices(records: Iterable[LogRecord]) -> Iterator[Body]:
    parts: list[bytes] = []
    size = 0
    for record in records:
        encoded = encode(record)
        if parts and (size + len(encoded) > SLICE_BYTES_MAX or len(parts) == SLICE_RECORDS_MAX):
            yield Body(b"".join(parts), len(parts))
            parts = []
            size = 0
        parts.append(encoded)
        size += len(encoded)
    if parts:
        yield Body(b"".join(parts), len(parts))


def _create(files: Files, path: Path) -> File:
    return files.open(path, create=True, exclusive=True)


def _finish(files: Files, file: File, final: Path) -> None:
    file.sync()
    files.rename(file.path, final)
    files.sync_dir(final.parent)


def _remove_older(files: Files, directory: Path, sequence: int) -> None:
    older = [number for number in numbers(files, directory, _SUFFIX) if number < sequence]
    for number in older:
        files.remove(numbered(directory, number, _SUFFIX))
    if older:
        files.sync_dir(directory)


def snapshot_paths(files: Files, directory: Path) -> dict[int, Path]:
    """The whole snapshots in the directory, by the last log batch each includes, rising."""
    return {number: numbered(directory, number, _SUFFIX) for number in numbers(files, directory, _SUFFIX)}


def load(path: Path, data: bytes) -> tuple[Image, Point]:
    """The image that the bytes of the snapshot at `path` hold, and its place in the log.

    Raises:
        CorruptMetadata: it is damaged, or holds what a snapshot never holds.
    """
    offset = 0
    try:
        bodies: list[bytes] = []
        for batch in read_batches(data, BEGINNING):
            offset = batch.offset
            if isinstance(batch, Damage):
                raise CorruptMetadata(path, offset, batch.reason)
            bodies.append(batch.body)
        records = chain.from_iterable(map(decode, bodies))
        header = next(records, None)
        if not isinstance(header, SnapshotHeader):
            raise CorruptRecord("it does not begin with a snapshot header")
        image = Image()
        image.load(_until_footer(records))
        image.revision = header.revision
    except CorruptRecord as unreadable:
        raise CorruptMetadata(path, offset, str(unreadable)) from unreadable
    return image, Point(header.sequence, header.crc)


def _until_footer(records: Iterator[LogRecord]) -> Iterator[DataRecord]:
    for count, record in enumerate(records):
        if isinstance(record, SnapshotFooter):
            if record.records != count or next(records, None) is not None:
                raise CorruptRecord(f"its footer counts {record.records} records where {count} precede it")
            return
        if isinstance(record, BeginTransaction | EndTransaction | AbortTransaction | SnapshotHeader):
            raise CorruptRecord(f"a {type(record).__name__} stands in it")
        yield record
    raise CorruptRecord("it has no footer")
