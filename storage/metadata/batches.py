"""How records are laid out in a file: in batches, each checked and chained to the one before it.

    batch  = [header, 40 bytes][record]*
    header = [magic][crc of the header][crc][previous crc][sequence][confirmed][bytes][empty sectors][records]

A batch is the unit of damage: it is wholly there or not at all (R9). A change set without transaction markers is in one
batch. The batch's crc32c covers header and records and continues the crc of the batch before it. So a batch that was
lost, moved or left over cannot pass for the next one. The header has a crc of its own, so it can be trusted even if the
bytes before it cannot. `confirmed` is the last batch known to be durable when this one was written. Several batches are
written at once and may reach the disk in any order. So a later batch proves damage only of the batches that it calls
confirmed.

A log file is filled with zeros before it is written. Its length is durable before anything is written into it, and a
disk writes a sector whole or not at all. So a batch whose write was interrupted lacks a whole sector. A batch that
lacks none was written whole. That separates a torn tail, which was never confirmed, from damage to the last confirmed
batch (D9). The header says how many sectors hold only zeros of the batch itself. In logs without that number it is 0.

Pure: bytes in, values out.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import google_crc32c

from storage.sector import SECTOR

BATCH_BYTES_MAX: Final = 8 * 1024
"""A batch is closed before its records exceed this size. A single record that is larger gets its own batch. At feature
level 1, so does a larger change set."""

BODY_BYTES_MAX: Final = 1024 * 1024
"""The most bytes of records in any batch."""

_MAGIC: Final = b"TWM1"
_HEADER: Final = struct.Struct(">4sIIIQQIHH")
_CHECKED: Final = struct.Struct(">IQQIHH")
HEADER_BYTES: Final = _HEADER.size
_EMPTY: Final = bytes(SECTOR)
_ANY_HEADER: Final = _MAGIC * (HEADER_BYTES // len(_MAGIC))
_STRAY_BITS_MAX: Final = 8
"""The magic alone has 14 set bits. So up to this many set bits are damage to empty space, not the rest of a header."""


class Point(NamedTuple):
    """A place in the log: everything up to and including one batch."""

    sequence: int
    """The sequence of that batch. The first batch has 1, so 0 is the beginning."""
    crc: int
    """The crc of that batch, which the next batch continues; 0 at the beginning."""


BEGINNING: Final = Point(0, 0)


class Batch(NamedTuple):
    """A batch that was read and is whole."""

    offset: int
    """Where its header begins in the file."""
    point: Point
    """The place in the log after it."""
    body: bytes
    """Its records."""
    records: int
    """How many records it has."""
    confirmed: int
    """Sequence of the last batch that was known to be durable when this one was written."""

    @property
    def end(self) -> int:
        """Where the next batch's header begins."""
        return self.offset + HEADER_BYTES + len(self.body)


class Damage(NamedTuple):
    """The bytes where a batch should begin are neither a batch nor empty space."""

    offset: int
    reason: str
    is_torn_tail: bool
    """Whether it was never confirmed, as far as this file shows."""


class Body(NamedTuple):
    """The content of a batch to be written."""

    data: bytes
    records: int


def pack(change_sets: Iterable[Sequence[bytes]]) -> list[Body]:
    """Encodes change sets without markers as batches. No change set is divided, and as many as fit share a batch."""
    bodies: list[Body] = []
    parts: list[bytes] = []
    size = 0
    for change_set in change_sets:
        added = sum(map(len, change_set))
        assert added <= BODY_BYTES_MAX, "larger change sets are refused or become transactions"
        if parts and size + added > BATCH_BYTES_MAX:
            bodies.append(Body(b"".join(parts), len(parts)))
            parts = []
            size = 0
        parts += change_set
        size += added
    if parts:
        bodies.append(Body(b"".join(parts), len(parts)))
    return bodies


def encode_batches(after: Point, bodies: Iterable[Body], *, confirmed: int, offset: int) -> tuple[bytes, Point]:
    """Batches that follow `after` and go to `offset` in their file, and the place behind them."""
    parts: list[bytes] = []
    point = after
    for data, records in bodies:
        sequence = point.sequence + 1
        # The header itself never leaves a sector empty.
        empty = _empty_sectors(b"".join((_ANY_HEADER, data)), offset)
        crc = _crc(point.crc, sequence, confirmed, data, empty, records)
        header = _HEADER.pack(_MAGIC, 0, crc, point.crc, sequence, confirmed, len(data), empty, records)
        parts += (_with_own_crc(header), data)
        point = Point(sequence, crc)
        offset += HEADER_BYTES + len(data)
    return b"".join(parts), point


def read_batches(data: bytes, after: Point, *, begin: int = 0) -> Iterator[Batch | Damage]:
    """The batches of a file that follow `after`, in order. The last item is a `Damage` if the file ends in one.

    `data` is the file from byte `begin` to its end, or a part of it. The end of a part may look damaged. The first row
    that fits decides what the bytes mean where the next batch should begin:

    | there                                              | meaning                                            |
    |----------------------------------------------------|----------------------------------------------------|
    | the next batch, whole                              | it is taken                                        |
    | zeros to the file's end                            | the end: prepared space, not yet used              |
    | anything; a later batch calls this one confirmed   | corruption: something confirmed is lost            |
    | something, and the file ends before it does        | corruption: batches go only where a file reaches   |
    | less than a header: not even its magic             | torn tail, or a stray bit where nothing was written|
    | a damaged header that lacks a sector               | torn tail                                          |
    | a damaged header that lacks none                   | corruption                                         |
    | a good header with another number or chain         | corruption                                         |
    | a good header; its batch lacks a sector            | torn tail                                          |
    | a good header; its batch lacks none                | corruption                                         |

    A batch lacks a sector if the sector holds only zeros and the header does not count it as empty. One case stays
    undecided. If the last sector of a confirmed batch holds a single set bit, and exactly that bit is lost, the batch
    passes for torn.
    """
    place = 0
    point = after
    while True:
        batch = _batch_at(data, place, begin, point)
        if not isinstance(batch, Batch):
            break
        yield batch
        point = batch.point
        place = batch.end - begin
    if data.count(0, place) == len(data) - place:
        return
    later = _later_proof(data, place, point.sequence + 1)
    if later is not None:
        reason = f"{batch.reason}, but a whole batch header follows at byte {begin + later}"
        batch = Damage(batch.offset, reason, is_torn_tail=False)
    yield batch


class Link(NamedTuple):
    """What the header of one batch says, whether or not the batch is whole."""

    before: Point
    """The place in the log that the batch follows."""
    after: Point
    """The place in the log behind it."""
    size: int
    """The bytes from this header to the next one."""


def link_at(data: bytes, place: int = 0) -> Link | None:
    """What the batch header at `place` says; None if there is no whole one.

    For reading a file without what comes before it. Recovery knows the place from what it has read.
    """
    header = _header_at(data, place)
    if header is None:
        return None
    crc, previous_crc, sequence, _confirmed, size, _empty, _records = header
    return Link(Point(sequence - 1, previous_crc), Point(sequence, crc), HEADER_BYTES + size)


def _batch_at(data: bytes, place: int, begin: int, after: Point) -> Batch | Damage:
    """The batch that follows `after`, or what the table says of the bytes there. A later batch may still prove more."""
    header = _header_at(data, place)
    if header is None:
        return _no_header(data, place, begin)
    crc, previous_crc, sequence, confirmed, size, empty, records = header
    offset = begin + place
    if (sequence, previous_crc) != (after.sequence + 1, after.crc):
        return Damage(offset, f"batch {sequence} is where batch {after.sequence + 1} should be", is_torn_tail=False)
    start = place + HEADER_BYTES
    body = data[start : start + size]
    if len(body) < size:
        reason = f"batch {sequence} is cut short: the file ends at byte {begin + len(data)}"
        return Damage(offset, reason, is_torn_tail=False)
    if _crc(previous_crc, sequence, confirmed, body, empty, records) != crc:
        lacking = _empty_sectors(data[place : start + size], offset) - empty
        return Damage(offset, f"the checksum of batch {sequence} differs", is_torn_tail=lacking > 0)
    return Batch(offset, Point(sequence, crc), body, records, confirmed)


def _no_header(data: bytes, place: int, begin: int) -> Damage:
    """The meaning of bytes that are no good header."""
    offset = begin + place
    found = data[place : place + HEADER_BYTES]
    if len(found) < HEADER_BYTES:
        reason = f"a batch header is cut short: the file ends at byte {begin + len(data)}"
        return Damage(offset, reason, is_torn_tail=False)
    if int.from_bytes(found).bit_count() <= _STRAY_BITS_MAX:
        return Damage(offset, "something stands in prepared space", is_torn_tail=True)
    # Whole sectors: an interrupted write leaves them as they were, and they were zeros.
    end = -(-(offset + HEADER_BYTES) // SECTOR) * SECTOR - begin
    return Damage(offset, "no batch header", is_torn_tail=_empty_sectors(data[place:end], offset) > 0)


def _empty_sectors(data: bytes, offset: int) -> int:
    """In how many sectors the part of `data`, which begins at `offset`, is only zeros."""
    first = SECTOR - offset % SECTOR
    last = (offset + len(data)) // SECTOR * SECTOR - offset
    if last > first and _EMPTY not in data:
        # The usual case: none of the sectors in between can be empty.
        shares = [data[:first], data[last:]]
    else:
        shares = [data[:first], *(data[begin : begin + SECTOR] for begin in range(first, len(data), SECTOR))]
    return sum(share.count(0) == len(share) > 0 for share in shares)


def _header_at(data: bytes, offset: int) -> tuple[int, int, int, int, int, int, int] | None:
    header = data[offset : offset + HEADER_BYTES]
    if len(header) < HEADER_BYTES or not header.startswith(_MAGIC) or _with_own_crc(header) != header:
        return None
    _magic, _own_crc, crc, previous_crc, sequence, confirmed, size, empty, records = _HEADER.unpack(header)
    return crc, previous_crc, sequence, confirmed, size, empty, records


def _later_proof(data: bytes, offset: int, lost: int) -> int | None:
    """Where a batch header is that was written when the batch `lost` was already durable."""
    while True:
        offset = data.find(_MAGIC, offset)
        if offset < 0:
            return None
        header = _header_at(data, offset)
        if header is not None:
            _crc, _previous, sequence, confirmed, *_rest = header
            if lost <= confirmed < sequence:
                return offset
        offset += 1


def _crc(previous: int, sequence: int, confirmed: int, body: bytes, empty: int, records: int) -> int:
    checked = _CHECKED.pack(previous, sequence, confirmed, len(body), empty, records)
    return int(google_crc32c.extend(google_crc32c.extend(previous, checked), body))


def _with_own_crc(header: bytes) -> bytes:
    crc = int(google_crc32c.value(header[8:]))
    return b"".join((header[:4], crc.to_bytes(4), header[8:]))
