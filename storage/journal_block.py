"""A journal block: the batches of many ledgers, written and synced as one.

    block     = [header, 40 bytes][directory][body]
    header    = [u32 magic][u64 stream][u64 sequence][u32 directory size][u32 body size][u32 crc of the body before]
                [u32 crc of the body][u32 crc of this header]
    directory = [u32 crc][u32 parts][u32 runs][part: i64 ledger, i64 offset in the ledger file, u32 bytes]*[run]*
    body      = ([i64 offset in the ledger file][batch])*[u32 end mark]

A part of 0 bytes at offset -1 says that the ledger was deleted. It has nothing in the body.

Every crc is a CRC-32C. Header, directory and every batch have one of their own, and the offsets are stored twice. So
one damaged spot leaves enough to find and check everything else in the block. The body's crc continues that of the
block before it. Every header names the stream, a random number of one writer's life. No client sees the stream, so no
payload can forge it.

The first sector of a journal file is its label, the file's own name (`sector.py`). Blocks begin behind it. So a file
without blocks still shows which file it is, and another file in its place is found (E3).

The rest of the file is zeros before it is written, and a disk writes a sector whole or not at all. So a torn block has
an empty sector, and a block without one was written whole. That separates an interrupted write, which was never
confirmed, from confirmed data that was damaged later (D9). Sectors that are empty because of the payload are listed in
the directory as runs.

All integers are big-endian. Pure: bytes in, values out.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import google_crc32c

from storage.entry import CorruptEntry, Pieces, check_batch, copy_small_together, decode_batch_header, extend_checksum
from storage.sector import SECTOR, DamagedSector, decode_sector, encode_sector

BLOCK_MAGIC: Final = 0x54574A31  # "TWJ1": the last digit is the format's version
LABEL_SIZE: Final = SECTOR
"""Where the first block of a file begins."""

_HEADER: Final = struct.Struct(">IQQIIII")  # magic, stream, sequence, directory size, body size, previous crc, body crc
_CRC: Final = struct.Struct(">I")
HEADER_SIZE: Final = _HEADER.size + _CRC.size
_IDENTITY: Final = struct.Struct(">IQ")
_DIRECTORY: Final = struct.Struct(">III")
_PART: Final = struct.Struct(">qqI")
_RUN: Final = struct.Struct(">II")
_OFFSET: Final = struct.Struct(">q")
_END_MARK: Final = _CRC.pack(BLOCK_MAGIC)
_EMPTY: Final = bytes(SECTOR)
_HALF_EMPTY: Final = bytes(SECTOR // 2)
_DELETED: Final = -1
_STRAY_BITS_MAX: Final = 8
"""The magic alone has 14 set bits. So at most this many set bits are damage to empty space, not the rest of a
header."""


class DamagedBlock(ValueError):
    """The bytes break a rule of this part of a block. The message names the rule."""


class Part(NamedTuple):
    """One batch on its way to its ledger file."""

    ledger: int
    offset: int
    """Where the batch begins in the ledger file."""
    batch: bytes


class WrittenPart(NamedTuple):
    """The same before it is written: the batch is not copied into one piece."""

    ledger: int
    offset: int
    pieces: Pieces


class BlockHeader(NamedTuple):
    """The header of a block."""

    stream: int
    sequence: int
    """Blocks of a stream are numbered from 0 without gaps, across files."""
    directory_size: int
    body_size: int
    previous_crc: int
    body_crc: int

    @property
    def size(self) -> int:
        """Bytes of the whole block."""
        return HEADER_SIZE + self.directory_size + self.body_size


class Directory(NamedTuple):
    """The places of a block's parts, and which of its sectors may be empty."""

    parts: tuple[tuple[int, int, int], ...]
    """(ledger, offset in the ledger file, bytes) in the order of the body, without deletions."""
    deleted: tuple[int, ...]
    """Ledgers that were deleted."""
    empty_sectors: frozenset[int]
    """Numbers of the sectors with only zeros, counted from the sector in which the block begins."""
    size: int

    @property
    def body_size(self) -> int:
        """Bytes of the body, as the parts add up."""
        return sum(_OFFSET.size + size for _ledger, _offset, size in self.parts) + len(_END_MARK)


def encode_label(name: str) -> bytes:
    """The first sector of the journal file `name`."""
    return encode_sector(name.encode())


def decode_label(data: bytes) -> str:
    """The name in the label that `data` begins with.

    Raises:
        DamagedBlock: it is not a label, or its checksum differs.
    """
    try:
        return decode_sector(data).decode(errors="replace")
    except DamagedSector:
        raise DamagedBlock("the label's checksum differs") from None


def encode_block(
    parts: Sequence[WrittenPart],
    deleted: Sequence[int],
    *,
    stream: int,
    sequence: int,
    previous_crc: int,
    file_offset: int,
) -> tuple[BlockHeader, Pieces]:
    """A block for offset `file_offset` of its file, and its header. The next block continues its body crc."""
    pieces: list[bytes] = []
    records = [_PART.pack(ledger, _DELETED, 0) for ledger in deleted]
    for ledger, offset, batch in parts:
        records.append(_PART.pack(ledger, offset, sum(map(len, batch))))
        pieces.append(_OFFSET.pack(offset))
        pieces += batch
    pieces.append(_END_MARK)
    body = copy_small_together(pieces)
    body_size = sum(map(len, body))
    body_crc = extend_checksum(previous_crc, body)
    chain = (body_size, stream, sequence, previous_crc, body_crc)
    header, top = _encode_top(records, [], chain)
    # Between two payloads stand the sizes of entries and the magic numbers of batches. So an empty sector has most of
    # its zeros in one piece.
    if any(_HALF_EMPTY in piece for piece in body):
        joined = b"".join(body)
        body = (joined,)
        # The list of runs moves the body, which changes the list. Its room grows until it fits.
        room = 0
        while len(runs := _runs(empty_sectors(top + joined, file_offset))) > room:
            room = len(runs) + 1
            header, top = _encode_top(records, [(0, 1)] * room, chain)
        runs += [(0, 1)] * (room - len(runs))
        header, top = _encode_top(records, runs, chain)
    return header, (top, *body)


def _encode_top(
    records: list[bytes], runs: list[tuple[int, int]], chain: tuple[int, int, int, int, int]
) -> tuple[BlockHeader, bytes]:
    """Header and directory, which stand before the body."""
    body_size, stream, sequence, previous_crc, body_crc = chain
    listing = b"".join([*records, *(_RUN.pack(*run) for run in runs)])
    bare = _DIRECTORY.pack(0, len(records), len(runs)) + listing
    directory = _CRC.pack(google_crc32c.value(bare)) + bare[_CRC.size :]
    header = BlockHeader(stream, sequence, len(directory), body_size, previous_crc, body_crc)
    packed = _HEADER.pack(BLOCK_MAGIC, *header)
    return header, b"".join((packed, _CRC.pack(google_crc32c.value(packed)), directory))


def decode_header(data: bytes, offset: int) -> BlockHeader:
    """The header at `offset`.

    Raises:
        DamagedBlock: too few bytes, another magic, or the crc differs.
    """
    if len(data) - offset < HEADER_SIZE:
        raise DamagedBlock("the file ends inside the header")
    packed = data[offset : offset + _HEADER.size]
    magic, *fields = _HEADER.unpack(packed)
    if magic != BLOCK_MAGIC or _CRC.unpack_from(data, offset + _HEADER.size)[0] != google_crc32c.value(packed):
        raise DamagedBlock("the header's magic or checksum differs")
    return BlockHeader(*fields)


def is_unwritten(data: bytes, offset: int) -> bool:
    """Whether no header was ever written here: its marks are zeros, except for a few bits that a disk changed."""
    marks = int.from_bytes(data[offset : offset + _IDENTITY.size])
    return marks.bit_count() <= _STRAY_BITS_MAX


def decode_directory(data: bytes, offset: int) -> Directory:
    """The directory at `offset`, which contains its own length.

    Raises:
        DamagedBlock: too few bytes or the crc differs.
    """
    if len(data) - offset < _DIRECTORY.size:
        raise DamagedBlock("the file ends inside the directory")
    crc, part_count, run_count = _DIRECTORY.unpack_from(data, offset)
    size = _DIRECTORY.size + part_count * _PART.size + run_count * _RUN.size
    if len(data) - offset < size:
        raise DamagedBlock("the file ends inside the directory")
    bare = b"\0\0\0\0" + data[offset + _CRC.size : offset + size]
    if google_crc32c.value(bare) != crc:
        raise DamagedBlock("the directory's checksum differs")
    listing = memoryview(bare)[_DIRECTORY.size :]
    parts: list[tuple[int, int, int]] = []
    deleted: list[int] = []
    for ledger, at, length in _PART.iter_unpack(listing[: part_count * _PART.size]):
        if at == _DELETED:
            deleted.append(ledger)
        else:
            parts.append((ledger, at, length))
    empty = {
        sector
        for first, count in _RUN.iter_unpack(listing[part_count * _PART.size :])
        for sector in range(first, first + count)
    }
    # Spare runs name sector 0, which is never empty, because a block begins with the magic.
    return Directory(tuple(parts), tuple(deleted), frozenset(empty - {0}), size)


def is_body_good(header: BlockHeader, data: bytes, offset: int) -> bool:
    """Whether the block at `offset` is complete and its body matches its header."""
    start = offset + HEADER_SIZE + header.directory_size
    stop = offset + header.size
    return len(data) >= stop and google_crc32c.extend(header.previous_crc, data[start:stop]) == header.body_crc


def parts_by_directory(directory: Directory, data: bytes, offset: int) -> Iterator[tuple[Part, bool]]:
    """Every part of the block at `offset`, and whether its batch is undamaged."""
    place = offset + HEADER_SIZE + directory.size
    for ledger, at, length in directory.parts:
        batch = data[place + _OFFSET.size : place + _OFFSET.size + length]
        yield Part(ledger, at, batch), _is_batch_of(ledger, batch, length)
        place += _OFFSET.size + length


def _is_batch_of(ledger: int, batch: bytes, length: int) -> bool:
    try:
        header = decode_batch_header(batch)
        check_batch(header, batch)
    except CorruptEntry:
        return False
    return header.ledger == ledger and header.size == length


def parts_by_body(header: BlockHeader, data: bytes, offset: int) -> Iterator[Part]:
    """Every part of a block whose body is good, without its directory."""
    place = offset + HEADER_SIZE + header.directory_size
    stop = offset + header.size - len(_END_MARK)
    while place < stop:
        (at,) = _OFFSET.unpack_from(data, place)
        batch_header = decode_batch_header(data, place + _OFFSET.size)
        place += _OFFSET.size
        yield Part(batch_header.ledger, at, data[place : place + batch_header.size])
        place += batch_header.size


def empty_sectors(block: bytes, file_offset: int) -> list[int]:
    """Numbers of the sectors in which the block's part is only zeros, counted from the sector of `file_offset`."""
    # A block of 8 MiB has 16,000 sectors, and the event loop waits meanwhile. So: whole sectors, one comprehension.
    first = SECTOR - file_offset % SECTOR
    found = [0] if _EMPTY.startswith(block[:first]) else []
    starts = range(first, len(block), SECTOR)
    found += [number for number, start in enumerate(starts, 1) if block[start : start + SECTOR] == _EMPTY]
    if starts and (rest := block[starts[-1] :]) != _EMPTY and _EMPTY.startswith(rest):
        found.append(len(starts))
    return found


def _runs(sectors: Sequence[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    first = stop = -1
    for sector in sectors:
        if sector != stop:
            if first >= 0:
                runs.append((first, stop - first))
            first = sector
        stop = sector + 1
    if first >= 0:
        runs.append((first, stop - first))
    return runs


def finds_later_header(data: bytes, after: int, stream: int, sequence: int) -> bool:
    """Whether a good header of a later block of this stream is anywhere behind `after`."""
    mark = _IDENTITY.pack(BLOCK_MAGIC, stream)
    place = data.find(mark, after + 1)
    while place >= 0:
        try:
            if decode_header(data, place).sequence > sequence:
                return True
        except DamagedBlock:
            pass  # Damaged like the one before it. A later one may still be good.
        place = data.find(mark, place + 1)
    return False
