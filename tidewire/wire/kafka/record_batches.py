"""Record batches, version 2: how clients group records, and what brokers store unchanged.

    batch = [i64 base offset][i32 length of the rest][i32 leader epoch][i8 magic = 2][u32 crc32c]
            [i16 attributes][i32 last offset delta][i64 base timestamp][i64 max timestamp]
            [i64 producer id][i16 producer epoch][i32 base sequence][i32 record count][records, maybe compressed]

The crc covers everything behind itself. The base offset and the leader epoch stand before it, so a broker sets them
without touching the rest: `placed` does that when a stored batch is sent. Records stay opaque here.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

import google_crc32c

MAGIC: Final = 2
HEADER_SIZE: Final = 61

_PREFIX: Final = struct.Struct(">qiibI")
_REST: Final = struct.Struct(">hiqqqhii")
_PLACE: Final = struct.Struct(">qii")
_LENGTH_END: Final = 12
"""Bytes up to the end of the length. The length counts what is behind them."""
_CRC_END: Final = 21
_MAGIC_AT: Final = 16
_CRC: Final = struct.Struct(">I")
_CRC_AT: Final = 17
_ATTRIBUTES: Final = struct.Struct(">h")
_MOMENT: Final = struct.Struct(">q")
_MAX_TIMESTAMP_AT: Final = 35

_CODEC_MASK: Final = 0x07
_LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
"""The attribute of a batch that belongs to a transaction."""
CONTROL: Final = 0x20
"""The attribute of a batch that has a marker of a broker."""

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
NO_SEQUENCE: Final = -1


class Compression(IntEnum):
    """The codec of a batch's records."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class CorruptBatch(ValueError):
    """The bytes are no intact record batch. The message names the broken rule."""


class UnsupportedFormat(ValueError):
    """The batch has an older format, which clients before Kafka 0.11 write."""


class BatchHeader(NamedTuple):
    """The header of one batch."""

    base_offset: int
    """The offset of its first record. A producer sends 0."""
    size: int
    """Bytes of the whole batch."""
    leader_epoch: int
    crc: int
    attributes: int
    last_offset_delta: int
    """The offset of its last record, from its base offset on."""
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    """The id of an idempotent or transactional producer; NO_PRODUCER_ID without."""
    producer_epoch: int
    base_sequence: int
    """The producer's sequence number of the first record; NO_SEQUENCE without."""
    record_count: int

    @property
    def compression(self) -> int:
        """The codec of its records. Numbers above those of `Compression` mean nothing."""
        return self.attributes & _CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        """Whether its timestamps are those of the broker."""
        return bool(self.attributes & _LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        """Whether it belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether it has a marker of a broker instead of a client's records."""
        return bool(self.attributes & CONTROL)

    @property
    def offset_count(self) -> int:
        """How many offsets it takes."""
        return self.last_offset_delta + 1


def read_header(data: bytes | memoryview, at: int = 0) -> BatchHeader:
    """Read the header at `at`, and check its shape. `check` verifies the content.

    Raises:
        CorruptBatch: too few bytes, or a field outside its bounds.
        UnsupportedFormat: the batch has an older format.
    """
    if len(data) - at > _MAGIC_AT and data[at + _MAGIC_AT] in {0, 1}:
        raise UnsupportedFormat(f"the format {data[at + _MAGIC_AT]} of record batches is not served; use format 2")
    if len(data) - at < HEADER_SIZE:
        raise CorruptBatch(f"{len(data) - at} bytes are too few for a record batch")
    base_offset, length, leader_epoch, magic, crc = _PREFIX.unpack_from(data, at)
    rest = _REST.unpack_from(data, at + _CRC_END)
    header = BatchHeader(base_offset, _LENGTH_END + length, leader_epoch, crc, *rest)
    if magic != MAGIC:
        raise CorruptBatch(f"{magic} is no format of record batches")
    if not HEADER_SIZE <= header.size <= len(data) - at:
        raise CorruptBatch(f"a record batch of {header.size} bytes stands in {len(data) - at}")
    return header


def check(header: BatchHeader, data: bytes | memoryview, at: int = 0) -> None:
    """Verify the checksum of the batch at `at`, and that its counts agree (K20).

    Raises:
        CorruptBatch: the bytes differ from what the client made, or the counts contradict each other.
    """
    if google_crc32c.value(bytes(data[at + _CRC_END : at + header.size])) != header.crc:
        raise CorruptBatch("the checksum of a record batch differs")
    if header.record_count <= 0 or header.record_count != header.last_offset_delta + 1:
        raise CorruptBatch(
            f"a record batch counts {header.record_count} records and takes {header.last_offset_delta + 1} offsets"
        )


def encode(
    records: bytes,
    *,
    attributes: int,
    offsets: int,
    base_timestamp_ms: int,
    max_timestamp_ms: int,
    record_count: int,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_EPOCH,
) -> bytes:
    """A batch of records that are encoded already. It takes the offsets from 0 on, and has no sequence."""
    moments = (base_timestamp_ms, max_timestamp_ms)
    rest = _REST.pack(attributes, offsets - 1, *moments, producer_id, producer_epoch, NO_SEQUENCE, record_count)
    length = HEADER_SIZE - _LENGTH_END + len(records)
    crc = google_crc32c.extend(google_crc32c.value(rest), records)
    return b"".join((_PREFIX.pack(0, length, NO_EPOCH, MAGIC, crc), rest, records))


def stamped(batch: bytes, timestamp_ms: int) -> bytes:
    """The batch with the broker's time (LogAppendTime). Its records are not touched, and its checksum is right."""
    made = bytearray(batch)
    (attributes,) = _ATTRIBUTES.unpack_from(made, _CRC_END)
    _ATTRIBUTES.pack_into(made, _CRC_END, attributes | _LOG_APPEND_TIME)
    _MOMENT.pack_into(made, _MAX_TIMESTAMP_AT, timestamp_ms)
    _CRC.pack_into(made, _CRC_AT, google_crc32c.value(bytes(made[_CRC_END:])))
    return bytes(made)


def batches(records: bytes) -> Iterator[tuple[BatchHeader, bytes]]:
    """Divide the records of a request into batches, each with its header. Not copied if there is one.

    Raises:
        CorruptBatch, UnsupportedFormat: see `read_header`. Batches before the damage were yielded.
    """
    at = 0
    while at < len(records):
        header = read_header(records, at)
        is_whole = at == 0 and header.size == len(records)
        yield header, records if is_whole else records[at : at + header.size]
        at += header.size


def placed(batch: bytes, base_offset: int, leader_epoch: int) -> tuple[bytes, memoryview]:
    """A stored batch at its place in the log, in two pieces. The records are not copied."""
    length = len(batch) - _LENGTH_END
    return _PLACE.pack(base_offset, length, leader_epoch), memoryview(batch)[_PLACE.size :]
