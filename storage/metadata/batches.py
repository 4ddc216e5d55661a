"""How records stand in a file: in batches, each checked and chained to the one before it.

    batch  = [header, 40 bytes][record]*
    header = [magic][crc of the header][crc][previous crc][sequence][confirmed][length of the records][their count]

A batch is the unit of damage: it is wholly there or not at all (R9), and a change set without transaction markers lies
in one batch. Its crc32c covers header and records and continues the previous batch's, so a batch that was lost, moved
or left over cannot pass for the next one. The header has a crc of its own, so that it can be believed when what stands
before it cannot. `confirmed` is the last batch known to be durable when this one was written: several batches are
written at once and may reach the disk in any order, so a later batch proves damage only of what it calls confirmed.

Pure: bytes in, values out.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import google_crc32c

BATCH_BYTES_MAX: Final = 8 * 1024
"""A batch is closed before its records pass this size; a change set that is larger by itself gets a batch to itself."""

BODY_BYTES_MAX: Final = 1024 * 1024
"""The most bytes of records in any batch."""

_MAGIC: Final = b"TWM1"
_HEADER: Final = struct.Struct(">4sIIIQQII")
_CHECKED: Final = struct.Struct(">IQQII")
HEADER_BYTES: Final = _HEADER.size


class Point(NamedTuple):
    """A place in the log: everything up to and including one batch."""

    sequence: int
    """That batch's; the first batch has 1, so 0 is the beginning."""
    crc: int
    """Its crc, which the next batch's continues; 0 at the beginning."""


BEGINNING: Final = Point(0, 0)


class Batch(NamedTuple):
    """A batch that was read and found whole."""

    offset: int
    """Where its header begins in the file."""
    point: Point
    """The place in the log after it."""
    body: bytes
    """Its records."""
    records: int
    """How many there are."""
    confirmed: int
    """Sequence of the last batch that was known to be durable when this one was written."""

    @property
    def end(self) -> int:
        """Where the next batch's header begins."""
        return self.offset + HEADER_BYTES + len(self.body)


class Damage(NamedTuple):
    """What stands where a batch should begin is none, and is not just empty space."""

    offset: int
    reason: str
    is_torn_tail: bool
    """True if it was never confirmed, as far as this file tells."""


class Body(NamedTuple):
    """The content of a batch to be written."""

    data: bytes
    records: int


def pack(change_sets: Iterable[Sequence[bytes]]) -> list[Body]:
    """Encoded change sets as batches: none is divided, and as many as fit share a batch."""
    bodies: list[Body] = []
    parts: list[bytes] = []
    size = 0
    for change_set in change_sets:
        added = sum(map(len, change_set))
        assert added <= BODY_BYTES_MAX, "larger change sets are refused before they are decided"
        if parts and size + added > BATCH_BYTES_MAX:
            bodies.append(Body(b"".join(parts), len(parts)))
            parts = []
            size = 0
        parts += change_set
        size += added
    if parts:
        bodies.append(Body(b"".join(parts), len(parts)))
    return bodies


def encode_batches(after: Point, bodies: Iterable[Body], *, confirmed: int) -> tuple[bytes, Point]:
    """Batches that follow `after`, and the place behind them."""
    parts: list[bytes] = []
    point = after
    for data, records in bodies:
        sequence = point.sequence + 1
        crc = _crc(point.crc, sequence, confirmed, data, records)
        header = _HEADER.pack(_MAGIC, 0, crc, point.crc, sequence, confirmed, len(data), records)
        parts += (_with_own_crc(header), data)
        point = Point(sequence, crc)
    return b"".join(parts), point


def read_batches(data: bytes, after: Point) -> Iterator[Batch | Damage]:
    """The batches of a file that follow `after`, in order; last a `Damage` if they end in one.

    What stands where the next batch should begin:

    | there                  | a later batch that calls it confirmed | meaning                                  |
    |------------------------|---------------------------------------|------------------------------------------|
    | the next batch, whole  | (not looked for)                      | it is taken                              |
    | zeros to the file's end| none                                  | the end: prepared space, not yet used    |
    | anything else          | none                                  | torn tail: it was never confirmed        |
    | anything else          | found                                 | corruption: something confirmed is lost  |
    """
    offset = 0
    point = after
    while True:
        batch = _batch_at(data, offset, point)
        if isinstance(batch, str):
            break
        yield batch
        point = batch.point
        offset = batch.end
    later = _later_proof(data, offset, point.sequence + 1)
    if later is not None:
        yield Damage(offset, f"{batch}, but a whole batch header stands behind it at byte {later}", is_torn_tail=False)
    elif data.count(0, offset) < len(data) - offset:
        yield Damage(offset, batch, is_torn_tail=True)


def _batch_at(data: bytes, offset: int, after: Point) -> Batch | str:
    """The batch that follows `after`, or why what stands there is not it."""
    header = _header_at(data, offset)
    if header is None:
        return "no batch header"
    crc, previous_crc, sequence, confirmed, size, records = header
    if (sequence, previous_crc) != (after.sequence + 1, after.crc):
        return f"batch {sequence} stands where batch {after.sequence + 1} should"
    start = offset + HEADER_BYTES
    body = data[start : start + size]
    if len(body) < size:
        return f"batch {sequence} is cut short"
    if _crc(previous_crc, sequence, confirmed, body, records) != crc:
        return f"the checksum of batch {sequence} differs"
    return Batch(offset, Point(sequence, crc), body, records, confirmed)


def _header_at(data: bytes, offset: int) -> tuple[int, int, int, int, int, int] | None:
    header = data[offset : offset + HEADER_BYTES]
    if len(header) < HEADER_BYTES or not header.startswith(_MAGIC) or _with_own_crc(header) != header:
        return None
    _magic, _own_crc, crc, previous_crc, sequence, confirmed, size, records = _HEADER.unpack(header)
    return crc, previous_crc, sequence, confirmed, size, records


def _later_proof(data: bytes, offset: int, lost: int) -> int | None:
    """Where a batch header stands that was written when the batch `lost` was already durable."""
    while True:
        offset = data.find(_MAGIC, offset)
        if offset < 0:
            return None
        header = _header_at(data, offset)
        if header is not None:
            _crc, _previous, sequence, confirmed, _size, _records = header
            if lost <= confirmed < sequence:
                return offset
        offset += 1


def _crc(previous: int, sequence: int, confirmed: int, body: bytes, records: int) -> int:
    checked = _CHECKED.pack(previous, sequence, confirmed, len(body), records)
    return int(google_crc32c.extend(google_crc32c.extend(previous, checked), body))


def _with_own_crc(header: bytes) -> bytes:
    crc = int(google_crc32c.value(header[8:]))
    return b"".join((header[:4], crc.to_bytes(4), header[8:]))
