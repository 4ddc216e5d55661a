"""The records within a batch. Brokers look into them only to convert between protocols, and to search by time.

    record = [varint length][i8 attributes][varint timestamp delta][varint offset delta]
             [varint key length][key][varint value length][value][varint header count][header]*
    header = [varint key length][key][varint value length][value]

Lengths are zigzag-encoded, and -1 stands for null. Deltas count from the batch's base. A batch may hold hundreds of
thousands of records. So `read` yields them one by one, `BatchBuilder` takes them one by one, and their callers pause
in between (E7).

A control batch has one record, the marker of a transaction's end (KIP-98).
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from tidewire.wire.kafka.compression import compress, decompress_steps
from tidewire.wire.kafka.record_batches import (
    CONTROL,
    HEADER_SIZE,
    NO_EPOCH,
    TRANSACTIONAL,
    BatchHeader,
    Compression,
    CorruptBatch,
    encode,
)
from tidewire.wire.steps import Steps, finished

_VARINT_BYTES_MAX: Final = 10
_RECORD_BYTES_MIN: Final = 7
_ONE_BYTE: Final = [bytes((value,)) for value in range(0x80)]

_MARKER_KEY: Final = struct.Struct(">hh")
_MARKER_VALUE: Final = struct.Struct(">hi")
_MARKER_VERSION: Final = 0
_ABORT: Final = 0
_COMMIT: Final = 1

HEADERS_MAX: Final = 10_000
"""The most headers of one record. Reading so many takes about 10 ms (E7)."""


class Header(NamedTuple):
    """A header of a record. Keys may repeat."""

    key: bytes
    value: bytes | None


class Record(NamedTuple):
    """One record."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    """When its producer says it was made, milliseconds since the epoch."""
    headers: tuple[Header, ...] = ()


class Marker(NamedTuple):
    """The end of a transaction, as a coordinator writes it into a partition."""

    is_commit: bool
    coordinator_epoch: int


def read(header: BatchHeader, batch: bytes, size_max: int) -> Iterator[tuple[int, Record]]:
    """Yield the records of a checked batch, each with its offset from the batch's base on.

    Raises:
        CorruptBatch: a record breaks a rule, or the records decompress to more than `size_max` bytes.
    """
    yield from parse(header, finished(opened(header, batch, size_max)))


def opened(header: BatchHeader, batch: bytes, size_max: int) -> Steps[bytes]:
    """The records of a checked batch, decompressed, in steps.

    Raises:
        CorruptBatch: they do not decompress, or to more than `size_max` bytes.
    """
    if header.compression not in set(Compression):
        raise CorruptBatch(f"{header.compression} is no known compression of records")
    records = memoryview(batch)[HEADER_SIZE : header.size]
    return bytes((yield from decompress_steps(Compression(header.compression), records, size_max)))


def parse(header: BatchHeader, data: bytes) -> Iterator[tuple[int, Record]]:
    """As `read`, from records that are decompressed already."""
    if header.record_count * _RECORD_BYTES_MIN > len(data):
        raise CorruptBatch(f"a batch counts {header.record_count} records in {len(data)} bytes")
    given = _Input(data)
    for _ in range(header.record_count):
        yield _read_record(given, header)
    if given.at != len(given.data):
        raise CorruptBatch("a batch has bytes behind its last record")


def build(records: Sequence[Record], compression: Compression = Compression.NONE) -> bytes:
    """A batch of these records, without a producer. It has the offsets from 0 on; `placed` moves it."""
    builder = BatchBuilder()
    for number, record in enumerate(records):
        builder.add(number, record)
    return builder.finish(len(records), compression)


class BatchBuilder:
    """Builds a batch record by record. Their places rise, and may have gaps."""

    __slots__ = ("_base_ms", "_body", "_max_ms", "count")

    def __init__(self) -> None:
        self.count = 0
        """Records added so far."""
        self._body = bytearray()
        self._base_ms = self._max_ms = 0

    @property
    def size(self) -> int:
        """Bytes of the records so far, before compression."""
        return len(self._body)

    def add(self, place: int, record: Record) -> None:
        """Append a record at this offset from the batch's base on."""
        moment = record.timestamp_ms
        if not self.count:
            self._base_ms = self._max_ms = moment
        self._max_ms = max(self._max_ms, moment)
        self.count += 1
        written = _record_bytes(place, record, self._base_ms)
        self._body += _varint(len(written))
        self._body += written

    def finish(self, offsets: int, compression: Compression = Compression.NONE) -> bytes:
        """The batch, which takes this many offsets. At least one record was added."""
        assert self.count, "a batch has at least one record"
        return encode(
            compress(compression, bytes(self._body)),
            attributes=compression,
            offsets=offsets,
            base_timestamp_ms=self._base_ms,
            max_timestamp_ms=self._max_ms,
            record_count=self.count,
        )


def build_marker(marker: Marker, *, producer_id: int, producer_epoch: int, timestamp_ms: int) -> bytes:
    """The control batch that ends a producer's transaction in a partition."""
    key = _MARKER_KEY.pack(_MARKER_VERSION, _COMMIT if marker.is_commit else _ABORT)
    value = _MARKER_VALUE.pack(_MARKER_VERSION, marker.coordinator_epoch)
    written = _record_bytes(0, Record(key, value, timestamp_ms), timestamp_ms)
    return encode(
        _varint(len(written)) + written,
        attributes=TRANSACTIONAL | CONTROL,
        offsets=1,
        base_timestamp_ms=timestamp_ms,
        max_timestamp_ms=timestamp_ms,
        record_count=1,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def read_marker(header: BatchHeader, batch: bytes) -> Marker:
    """The marker in a control batch.

    Raises:
        CorruptBatch: it is none that this release knows.
    """
    ((_delta, record),) = read(header, batch, len(batch))
    key, value = record.key or b"", record.value or b""
    if len(key) < _MARKER_KEY.size or len(value) < _MARKER_VALUE.size:
        raise CorruptBatch("a marker of a transaction is cut short")
    _version, kind = _MARKER_KEY.unpack_from(key)
    if kind not in {_ABORT, _COMMIT}:
        raise CorruptBatch(f"{kind} is no known kind of marker")
    return Marker(kind == _COMMIT, _MARKER_VALUE.unpack_from(value)[1])


def build_filler(offsets: int, timestamp_ms: int) -> bytes:
    """A batch that takes this many offsets and has no record for anybody. Consumers pass over it (K21).

    It is the marker of a commit by nobody, at the last of the offsets. A batch without records would do for the format.
    But librdkafka moves the position that its users see only at records and markers.
    """
    key, value = _MARKER_KEY.pack(_MARKER_VERSION, _COMMIT), _MARKER_VALUE.pack(_MARKER_VERSION, NO_EPOCH)
    written = _record_bytes(offsets - 1, Record(key, value, timestamp_ms), timestamp_ms)
    return encode(
        _varint(len(written)) + written,
        attributes=CONTROL,
        offsets=offsets,
        base_timestamp_ms=timestamp_ms,
        max_timestamp_ms=timestamp_ms,
        record_count=1,
    )


class _Input:
    """The bytes of a batch's records, and how far they are read."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def varint(self) -> int:
        """A signed number of variable length."""
        if self.at < len(self.data) and (byte := self.data[self.at]) < 0x80:
            # Most numbers have one byte.
            self.at += 1
            return (byte >> 1) ^ -(byte & 1)
        value = 0
        for number in range(_VARINT_BYTES_MAX):
            if self.at >= len(self.data):
                break
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << (7 * number)
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
        raise CorruptBatch("a record ends within a number, or the number is too long")

    def take(self, size: int) -> bytes:
        """The next bytes."""
        start, self.at = self.at, self.at + size
        if size < 0 or self.at > len(self.data):
            raise CorruptBatch(f"a field of {size} bytes is longer than its batch")
        return self.data[start : self.at]

    def sized(self) -> bytes | None:
        """Bytes behind their length, or null."""
        size = self.varint()
        return None if size == -1 else self.take(size)


def _read_record(given: _Input, header: BatchHeader) -> tuple[int, Record]:
    size = given.varint()
    end = given.at + size
    given.take(1)
    timestamp = header.base_timestamp_ms + given.varint()
    delta = given.varint()
    key, value = given.sized(), given.sized()
    count = given.varint()
    if not 0 <= count <= HEADERS_MAX:
        raise CorruptBatch(f"a record counts {count} headers; at most {HEADERS_MAX} are read")
    headers = tuple([_read_header(given) for _ in range(count)])
    if given.at != end:
        raise CorruptBatch("a record has another size than it says")
    if not 0 <= delta <= header.last_offset_delta:
        raise CorruptBatch(f"a record stands at {delta}, outside of its batch")
    if header.is_log_append_time:
        timestamp = header.max_timestamp_ms
    return delta, Record(key, value, timestamp, headers)


def _read_header(given: _Input) -> Header:
    key = given.sized()
    if key is None:
        raise CorruptBatch("a header of a record has no key")
    return Header(key, given.sized())


def _record_bytes(number: int, record: Record, base_ms: int) -> bytes:
    pieces = [b"\0", _varint(record.timestamp_ms - base_ms), _varint(number), _sized(record.key), _sized(record.value)]
    pieces.append(_varint(len(record.headers)))
    for key, value in record.headers:
        pieces += (_sized(key), _sized(value))
    return b"".join(pieces)


def _sized(value: bytes | None) -> bytes:
    return _varint(-1) if value is None else _varint(len(value)) + value


def _varint(value: int) -> bytes:
    zigzag = (value << 1) ^ (value >> 63)
    if zigzag < 0x80:
        return _ONE_BYTE[zigzag]
    groups = bytearray()
    while zigzag >= 0x80:
        groups.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    groups.append(zigzag)
    return bytes(groups)
