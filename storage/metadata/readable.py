"""Records as tools show them: one JSON object per line, in UTF-8, without loss.

A JSON value is in the line byte for byte, except for line breaks between its parts. So numbers keep all their digits.
Any other value is in base64, under another name, so that the two cannot be confused.

Pure: values in, bytes out.
"""

import base64
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import orjson

from storage.metadata.records import (
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
from storage.metadata.store import Change, IndexHit, Record

PIECE_BYTES: Final = 64 * 1024
"""Lines are joined up to this size, so that the sender makes few calls and still pauses often."""

_TYPES: Final[dict[type, str]] = {
    Record: "put",
    Deletion: "delete",
    RangeDeletion: "delete_range",
    SequenceAdvance: "sequence",
    SessionStart: "session_start",
    SessionEnd: "session_end",
    FeatureLevel: "feature_level",
    TakeOver: "take_over",
    Answered: "answered",
    SnapshotNamed: "snapshot_named",
    BeginTransaction: "begin_transaction",
    EndTransaction: "end_transaction",
    AbortTransaction: "abort_transaction",
    SnapshotHeader: "snapshot_header",
    SnapshotFooter: "snapshot_footer",
}

_NO_LINE_BREAKS: Final = bytes.maketrans(b"\r\n", b"  ")


def line(fields: Mapping[str, object]) -> bytes:
    """One line, its line break included."""
    return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)


def record_fields(record: Record) -> dict[str, object]:
    """All of a record: key, version, value or value_base64, indexes, partition_key, session."""
    return {
        "key": record.key,
        "version": record.version,
        **_value(record.value),
        "indexes": [{"name": name, "key": key} for name, key in record.indexes],
        "partition_key": record.partition_key,
        "session": record.session,
    }


def record_line(record: Record) -> bytes:
    """`record_fields` as a line."""
    return line(record_fields(record))


def log_record_fields(record: LogRecord) -> dict[str, object]:
    """A record of the log: its type, and its fields by their names."""
    return {"type": _TYPES[type(record)], **_log_fields(record)}


def hit_line(hit: IndexHit) -> bytes:
    """A result of an index query: the index key it was found by, and the record."""
    return line({"index_key": hit.index_key, **record_fields(hit.record)})


def listing_lines(listing: Change) -> Iterator[bytes]:
    """The first lines of a range watch: `present` records, then `listed` with the revision of all of them."""
    for record in listing.records:
        yield line({"event": "present", **record_fields(record)})
    yield line({"event": "listed", "revision": listing.revision})


def change_lines(change: Change) -> Iterator[bytes]:
    """One step of a range watch: a line for each key, in key order, all with the step's revision.

    Every line but the last says `more`, so that a reader knows when it has the whole step.
    """
    steps: list[tuple[str, dict[str, object]]] = [
        (record.key, {"event": "written", "revision": change.revision, **record_fields(record)})
        for record in change.records
    ]
    steps += ((key, {"event": "deleted", "revision": change.revision, "key": key}) for key in change.deleted)
    steps.sort(key=lambda step: step[0])
    last = len(steps) - 1
    for number, (_key, fields) in enumerate(steps):
        yield line(fields if number == last else {**fields, "more": True})


def failure_line(reason: str) -> bytes:
    """Ends an answer that cannot be completed. No other line has the name `failed`."""
    return line({"failed": reason})


def pieces(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Lines joined into pieces of about PIECE_BYTES. A longer line is a piece by itself, or ends one."""
    gathered: list[bytes] = []
    size = 0
    for each in lines:
        gathered.append(each)
        size += len(each)
        if size >= PIECE_BYTES:
            yield b"".join(gathered)
            gathered = []
            size = 0
    if gathered:
        yield b"".join(gathered)


def _log_fields(record: LogRecord) -> dict[str, object]:
    if isinstance(record, Record):
        return record_fields(record)
    if isinstance(record, Answered):
        numbers = [run._asdict() for run in record.made.numbers]
        return {**record.write._asdict(), "revision": record.revision, "numbers": numbers}
    return record._asdict()


def _value(value: bytes) -> dict[str, object]:
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError:
        return {"value_base64": base64.b64encode(value).decode("ascii")}
    # JSON allows line breaks between tokens and not inside texts, so replacing them changes no value.
    return {"value": orjson.Fragment(value.translate(_NO_LINE_BREAKS))}
