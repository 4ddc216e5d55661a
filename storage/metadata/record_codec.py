"""The bytes of the metadata log's records.

    record = [u8 type][u8 version][u32 length of the rest][fixed fields][u8 count][u8 tag, u32 length, value]*

Optional fields are tagged, as in Kafka's flexible versions. An older reader skips a tag that it does not know, and an
absent text stays absent instead of becoming "". An unknown record type or version is refused, because skipping it would
lose state.

`BeginTransaction`, `EndTransaction` and `AbortTransaction` are those of KIP-868 and keep its numbers (R1).

Pure: values in, bytes out, and back.
"""

import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import Final

from storage.metadata.outcomes import Made, Run, WriteId
from storage.metadata.records import (
    FEATURE_LEVEL,
    TEXT_BYTES_MAX,
    AbortTransaction,
    Answered,
    BeginTransaction,
    Deletion,
    EndTransaction,
    FeatureLevel,
    LogRecord,
    RangeDeletion,
    SequenceAdvance,
    SessionEnd,
    SessionStart,
    SnapshotFooter,
    SnapshotHeader,
    SnapshotNamed,
    TakeOver,
)
from storage.metadata.store import IndexEntry, InvalidOperation, Record


class CorruptRecord(ValueError):
    """The bytes are not a record that this code knows. The message names the broken rule."""


class _Type(IntEnum):
    PUT = 1
    DELETE = 2
    RANGE_DELETE = 3
    SEQUENCE = 4
    SESSION_START = 5
    SESSION_END = 6
    FEATURE_LEVEL = 12
    TAKE_OVER = 13
    ANSWERED = 14
    SNAPSHOT_NAMED = 15
    BEGIN_TRANSACTION = 23
    END_TRANSACTION = 24
    ABORT_TRANSACTION = 25
    SNAPSHOT_HEADER = 30
    SNAPSHOT_FOOTER = 31


_VERSION: Final = 0
_HEADER: Final = struct.Struct(">BBI")
_TAG: Final = struct.Struct(">BI")
_PUT: Final = struct.Struct(">BBIQHI")  # header, revision, length of the key, length of the value
_PUT_FIXED: Final = struct.Struct(">QHI")
_U64: Final = struct.Struct(">Q")
_TWO_U64: Final = struct.Struct(">QQ")
_LEVEL: Final = struct.Struct(">QH")
_POINT: Final = struct.Struct(">QQI")
_ANSWERED: Final = struct.Struct(">QQQQI")  # session, number, answered below, revision, count of runs
_RUN: Final = struct.Struct(">QI")
_NAMED: Final = struct.Struct(">QQIQ")
_TWO_U16: Final = struct.Struct(">HH")
_TAKE_OVER: Final = struct.Struct(">QQH")
_KEY: Final = struct.Struct(">QH")
_RANGE: Final = struct.Struct(">QHH")

_TAG_TEXT: Final = 0
_TAG_PARTITION: Final = 0
_TAG_SESSION: Final = 1
_TAG_INDEXES: Final = 2
_TAG_OWNER: Final = 0
_TAG_NONCE: Final = 1

_Tags = dict[int, bytes]


def encode(record: LogRecord) -> bytes:
    """The record as it is in a batch.

    Raises:
        InvalidOperation: the name or reason of a transaction is too long.
    """
    if isinstance(record, Record):
        return _encode_put(record)
    if isinstance(record, SessionStart):
        return _encode_session_start(record)
    if isinstance(record, TakeOver):
        return _encode_take_over(record)
    kind, fixed, text = _parts(record)
    if text is None:
        return _HEADER.pack(kind, _VERSION, len(fixed) + 1) + fixed + b"\0"
    encoded = text.encode()
    if len(encoded) > TEXT_BYTES_MAX:
        raise InvalidOperation(f"{len(encoded)} bytes of name or reason are above the limit of {TEXT_BYTES_MAX}")
    tail = b"\1" + _TAG.pack(_TAG_TEXT, len(encoded)) + encoded
    return _HEADER.pack(kind, _VERSION, len(fixed) + len(tail)) + fixed + tail


def decode(body: bytes) -> Iterator[LogRecord]:
    """The records of a batch's body, in order.

    Raises:
        CorruptRecord: the body does not divide into known records exactly.
    """
    offset = 0
    end = len(body)
    decoders = _DECODERS
    while offset < end:
        try:
            kind, version, length = _HEADER.unpack_from(body, offset)
            offset += _HEADER.size
            stop = offset + length
            if stop > end:
                raise CorruptRecord(f"a record claims {length} bytes, but {end - offset} are left")
            decoder = decoders.get(kind)
            if decoder is None or version != _VERSION:
                raise CorruptRecord(f"record type {kind}, version {version} is not known to this release")
            yield decoder(body, offset, stop)
        except (struct.error, UnicodeDecodeError) as malformed:
            raise CorruptRecord(f"a record at byte {offset} of its batch is malformed: {malformed}") from malformed
        offset = stop


def _encode_put(record: Record) -> bytes:
    key = record.key.encode()
    value = record.value
    if record.partition_key is None and record.session is None and not record.indexes:
        length = _PUT_FIXED.size + len(key) + len(value) + 1
        header = _PUT.pack(_Type.PUT, _VERSION, length, record.version, len(key), len(value))
        return b"".join((header, key, value, b"\0"))
    tags = []
    if record.partition_key is not None:
        tags.append(_tag(_TAG_PARTITION, record.partition_key.encode()))
    if record.session is not None:
        tags.append(_tag(_TAG_SESSION, _U64.pack(record.session)))
    if record.indexes:
        tags.append(_tag(_TAG_INDEXES, b"".join(map(_encode_index, record.indexes))))
    tail = bytes((len(tags),)) + b"".join(tags)
    length = _PUT_FIXED.size + len(key) + len(value) + len(tail)
    header = _PUT.pack(_Type.PUT, _VERSION, length, record.version, len(key), len(value))
    return b"".join((header, key, value, tail))


def _encode_session_start(record: SessionStart) -> bytes:
    tags = []
    if record.owner:
        tags.append(_tag(_TAG_OWNER, record.owner.encode()))
    if record.nonce:
        tags.append(_tag(_TAG_NONCE, _U64.pack(record.nonce)))
    return _encode_tagged(_Type.SESSION_START, _TWO_U64.pack(record.revision, record.timeout_ms), tags)


def _encode_take_over(record: TakeOver) -> bytes:
    name = record.broker.encode()
    tags = [] if record.address is None else [_tag(_TAG_TEXT, record.address.encode())]
    return _encode_tagged(_Type.TAKE_OVER, _TAKE_OVER.pack(record.revision, record.epoch, len(name)) + name, tags)


def _encode_tagged(kind: _Type, fixed: bytes, tags: Sequence[bytes]) -> bytes:
    content = b"".join((fixed, bytes((len(tags),)), *tags))
    return _HEADER.pack(kind, _VERSION, len(content)) + content


def _encode_index(entry: IndexEntry) -> bytes:
    name = entry.name.encode()
    key = entry.key.encode()
    return _TWO_U16.pack(len(name), len(key)) + name + key


def _tag(tag: int, value: bytes) -> bytes:
    return _TAG.pack(tag, len(value)) + value


def _parts(record: LogRecord) -> tuple[_Type, bytes, str | None]:
    """Type, fixed fields and the tagged text of any record but a put."""
    match record:
        case Deletion(revision, key):
            name = key.encode()
            return _Type.DELETE, _KEY.pack(revision, len(name)) + name, None
        case RangeDeletion(revision, start, end):
            first, last = start.encode(), end.encode()
            return _Type.RANGE_DELETE, _RANGE.pack(revision, len(first), len(last)) + first + last, None
        case SequenceAdvance(revision, last_used):
            return _Type.SEQUENCE, _TWO_U64.pack(revision, last_used), None
        case SessionEnd(revision, session):
            return _Type.SESSION_END, _TWO_U64.pack(revision, session), None
        case FeatureLevel(revision, level):
            return _Type.FEATURE_LEVEL, _LEVEL.pack(revision, level), None
        case Answered(write, made):
            fixed = _ANSWERED.pack(*write, made.revision, len(made.numbers))
            return _Type.ANSWERED, fixed + b"".join(_RUN.pack(*run) for run in made.numbers), None
        case SnapshotNamed(revision, sequence, crc, epoch):
            return _Type.SNAPSHOT_NAMED, _NAMED.pack(revision, sequence, crc, epoch), None
        case BeginTransaction(text):
            return _Type.BEGIN_TRANSACTION, b"", text
        case EndTransaction():
            return _Type.END_TRANSACTION, b"", None
        case AbortTransaction(text):
            return _Type.ABORT_TRANSACTION, b"", text
        case SnapshotHeader(revision, sequence, crc):
            return _Type.SNAPSHOT_HEADER, _POINT.pack(revision, sequence, crc), None
        case SnapshotFooter(records):
            return _Type.SNAPSHOT_FOOTER, _U64.pack(records), None
    raise AssertionError(f"{type(record)} is not a log record")


def _tags(body: bytes, offset: int, stop: int) -> _Tags:
    """The tagged fields that end a record. Unknown tags are skipped."""
    if offset >= stop:
        raise CorruptRecord(f"the fixed fields of a record pass its end at byte {stop} of its batch")
    count = body[offset]
    offset += 1
    tags: _Tags = {}
    for _ in range(count):
        tag, length = _TAG.unpack_from(body, offset)
        offset += _TAG.size + length
        tags[tag] = body[offset - length : offset]
    if offset != stop:
        raise CorruptRecord(f"the fields of a record end at byte {offset} of its batch, the record at {stop}")
    return tags


def _decode_put(body: bytes, offset: int, stop: int) -> Record:
    revision, key_size, value_size = _PUT_FIXED.unpack_from(body, offset)
    offset += _PUT_FIXED.size
    end_of_key = offset + key_size
    end_of_value = end_of_key + value_size
    key = body[offset:end_of_key].decode()
    value = body[end_of_key:end_of_value]
    if end_of_value + 1 == stop and not body[end_of_value]:
        return Record(key, value, revision)
    if end_of_value >= stop:
        raise CorruptRecord(f"the key and value of a record pass its end at byte {stop} of its batch")
    tags = _tags(body, end_of_value, stop)
    partition = tags.get(_TAG_PARTITION)
    session = tags.get(_TAG_SESSION)
    return Record(
        key,
        value,
        revision,
        _decode_indexes(tags.get(_TAG_INDEXES, b"")),
        None if partition is None else partition.decode(),
        None if session is None else _U64.unpack(session)[0],
    )


def _decode_indexes(data: bytes) -> tuple[IndexEntry, ...]:
    entries: list[IndexEntry] = []
    offset = 0
    while offset < len(data):
        name_size, key_size = _TWO_U16.unpack_from(data, offset)
        offset += _TWO_U16.size
        end_of_name = offset + name_size
        end_of_key = end_of_name + key_size
        if end_of_key > len(data):
            raise CorruptRecord("an index entry passes the end of its record")
        # Interned, because every record has some of the same few index names.
        name = sys.intern(data[offset:end_of_name].decode())
        entries.append(IndexEntry(name, data[end_of_name:end_of_key].decode()))
        offset = end_of_key
    return tuple(entries)


def _decode_delete(body: bytes, offset: int, stop: int) -> Deletion:
    revision, size = _KEY.unpack_from(body, offset)
    end_of_key = offset + _KEY.size + size
    _tags(body, end_of_key, stop)
    return Deletion(revision, body[offset + _KEY.size : end_of_key].decode())


def _decode_range(body: bytes, offset: int, stop: int) -> RangeDeletion:
    revision, start_size, end_size = _RANGE.unpack_from(body, offset)
    offset += _RANGE.size
    middle = offset + start_size
    _tags(body, middle + end_size, stop)
    return RangeDeletion(revision, body[offset:middle].decode(), body[middle : middle + end_size].decode())


def _decode_session_start(body: bytes, offset: int, stop: int) -> SessionStart:
    revision, timeout_ms = _TWO_U64.unpack_from(body, offset)
    tags = _tags(body, offset + _TWO_U64.size, stop)
    nonce = tags.get(_TAG_NONCE)
    owner = tags.get(_TAG_OWNER, b"").decode()
    return SessionStart(revision, timeout_ms, owner, 0 if nonce is None else _U64.unpack(nonce)[0])


def _decode_take_over(body: bytes, offset: int, stop: int) -> TakeOver:
    revision, epoch, size = _TAKE_OVER.unpack_from(body, offset)
    offset += _TAKE_OVER.size
    address = _tags(body, offset + size, stop).get(_TAG_TEXT)
    broker = body[offset : offset + size].decode()
    return TakeOver(revision, epoch, broker, None if address is None else address.decode())


def _decode_answered(body: bytes, offset: int, stop: int) -> Answered:
    session, number, answered_below, revision, count = _ANSWERED.unpack_from(body, offset)
    offset += _ANSWERED.size
    end = offset + count * _RUN.size
    _tags(body, end, stop)
    runs = tuple(Run(*run) for run in _RUN.iter_unpack(body[offset:end]))
    return Answered(WriteId(session, number, answered_below), Made(revision, runs))


def _decode_fixed(layout: struct.Struct, make: Callable[..., LogRecord]) -> Callable[[bytes, int, int], LogRecord]:
    def decode_fields(body: bytes, offset: int, stop: int) -> LogRecord:
        fields = layout.unpack_from(body, offset)
        _tags(body, offset + layout.size, stop)
        return make(*fields)

    return decode_fields


def _decode_text(make: Callable[[str | None], LogRecord]) -> Callable[[bytes, int, int], LogRecord]:
    def decode_fields(body: bytes, offset: int, stop: int) -> LogRecord:
        text = _tags(body, offset, stop).get(_TAG_TEXT)
        return make(None if text is None else text.decode())

    return decode_fields


def _known_level(revision: int, level: int) -> FeatureLevel:
    if level > FEATURE_LEVEL:
        raise CorruptRecord(
            f"the following records need feature level {level}; this release reads up to {FEATURE_LEVEL}"
        )
    return FeatureLevel(revision, level)


_DECODERS: Final[dict[int, Callable[[bytes, int, int], LogRecord]]] = {
    _Type.PUT: _decode_put,
    _Type.DELETE: _decode_delete,
    _Type.RANGE_DELETE: _decode_range,
    _Type.SEQUENCE: _decode_fixed(_TWO_U64, SequenceAdvance),
    _Type.SESSION_START: _decode_session_start,
    _Type.SESSION_END: _decode_fixed(_TWO_U64, SessionEnd),
    _Type.FEATURE_LEVEL: _decode_fixed(_LEVEL, _known_level),
    _Type.TAKE_OVER: _decode_take_over,
    _Type.ANSWERED: _decode_answered,
    _Type.SNAPSHOT_NAMED: _decode_fixed(_NAMED, SnapshotNamed),
    _Type.BEGIN_TRANSACTION: _decode_text(BeginTransaction),
    _Type.END_TRANSACTION: _decode_fixed(struct.Struct(""), EndTransaction),
    _Type.ABORT_TRANSACTION: _decode_text(AbortTransaction),
    _Type.SNAPSHOT_HEADER: _decode_fixed(_POINT, SnapshotHeader),
    _Type.SNAPSHOT_FOOTER: _decode_fixed(_U64, SnapshotFooter),
}
