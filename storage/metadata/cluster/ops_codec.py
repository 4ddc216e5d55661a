"""The operations of a change set on a link.

    operation = [u8 kind][fields]
    kind 1    = Put            [u8 flags][key][value][u64 expected]?[partition key]?[u64 session]?[indexes]?
    kind 2    = PutSequential  [u8 flags][prefix][value][partition key][indexes]?
    kind 3    = Delete         [u8 flags][key][u64 expected]?
    kind 4    = DeleteRange    [start][end]
    kind 5    = Check          [key][u64 expected]
    indexes   = [u32 count]([name][key])*

A flag says that an optional field is there. A kind or flag that this release does not know ends the link, because it
may be a condition. So a later release may add one only behind a feature level.

A change set goes in parts. A part holds whole operations, at most as many as one step of the event loop handles. So a
large change set blocks neither side (E7), and other frames pass between its parts.

Pure: values in, bytes out, and back.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from storage.metadata.cluster.fields import Fields, LinkError, blob, text, u8, u32, u64
from storage.metadata.cluster.messages import Write
from storage.metadata.slices import slices
from storage.metadata.steps import KEYS_AT_ONCE
from storage.metadata.store import ChangeSetTooLarge, Check, Delete, DeleteRange, IndexEntry, Op, Put, PutSequential

OPS_MAX: Final = 65_536
"""The most operations of a change set from another broker. So the numbers that an answer holds fit a frame."""

CHANGE_SET_BYTES_MAX: Final = 64 * 1024 * 1024
"""The largest change set from another broker, as `measure` counts, which is at least what its parts have together."""

PART_BYTES_MAX: Final = 1024 * 1024
"""A part is closed before its operations exceed this size. A single operation that is larger gets its own part."""

_PUT: Final = 1
_PUT_SEQUENTIAL: Final = 2
_DELETE: Final = 3
_DELETE_RANGE: Final = 4
_CHECK: Final = 5

_EXPECTED: Final = 1
_PARTITION: Final = 2
_SESSION: Final = 4
_INDEXES: Final = 8


class SessionNamed(NamedTuple):
    """The session of another process, of which this one knows only the id."""

    id: int


def require_sendable(ops: Sequence[Op], size: int) -> None:
    """Refuse a change set that no controller accepts, before any part is sent. `size` is what `measure` returned.

    Raises:
        ChangeSetTooLarge: it has too many operations, or is too large.
    """
    if len(ops) > OPS_MAX:
        raise ChangeSetTooLarge(
            f"a change set of {len(ops)} operations is above the {OPS_MAX} that one broker may send to another; "
            "divide it"
        )
    if size > CHANGE_SET_BYTES_MAX:
        raise ChangeSetTooLarge(
            f"a change set of about {size} bytes is above the {CHANGE_SET_BYTES_MAX} that one broker may send to "
            "another; divide it"
        )


def parts(ops: Sequence[Op]) -> Iterator[bytes]:
    """The change set, part by part, each encoded when it is asked for. An empty change set has one empty part."""
    if not ops:
        yield b""
    for part in slices(map(_encode, ops), bytes_max=PART_BYTES_MAX, count_max=KEYS_AT_ONCE):
        yield b"".join(part)


def decode_part(data: bytes) -> list[Op]:
    """The operations of one part.

    Raises:
        LinkError: the part does not divide into known operations exactly, or it has too many of them.
    """
    fields = Fields(data)
    ops: list[Op] = []
    while not fields.is_empty:
        if len(ops) == KEYS_AT_ONCE:
            raise LinkError(f"a part of a change set has more than {KEYS_AT_ONCE} operations")
        ops.append(_decode(fields))
    return ops


class Assembly:
    """Puts the parts of the change sets of one link together."""

    __slots__ = ("_bytes", "_number", "_ops")

    def __init__(self) -> None:
        self._number: int | None = None
        """The number of the write whose last part is missing; None if there is none."""
        self._ops: list[Op] = []
        self._bytes = 0

    def add(self, part: Write) -> tuple[Op, ...] | None:
        """Take the next part. Returns the whole change set with its last part, and None before that.

        The change set is well-formed, but only `measure` tells whether it keeps the store's contract.

        Raises:
            LinkError: the part belongs to another write, or is malformed, or the change set is too large.
        """
        if self._number is not None and self._number != part.number:
            raise LinkError(f"write {part.number} begins before the last part of write {self._number}")
        ops = decode_part(part.ops)
        self._bytes += len(part.ops)
        if self._bytes > CHANGE_SET_BYTES_MAX or len(self._ops) + len(ops) > OPS_MAX:
            raise LinkError(f"write {part.number} is above the limits of a change set")
        self._ops += ops
        if not part.is_last:
            self._number = part.number
            return None
        whole = tuple(self._ops)
        self._number = None
        self._ops = []
        self._bytes = 0
        return whole


def _encode(op: Op) -> bytes:
    match op:
        case Put(key, value, expected, indexes, partition_key, session):
            flags = _INDEXES if indexes else 0
            optional = []
            if expected is not None:
                flags |= _EXPECTED
                optional.append(u64(expected))
            if partition_key is not None:
                flags |= _PARTITION
                optional.append(text(partition_key))
            if session is not None:
                flags |= _SESSION
                optional.append(u64(session.id))
            return b"".join((u8(_PUT), u8(flags), text(key), blob(value), *optional, _encode_indexes(indexes)))
        case PutSequential(prefix, value, partition_key, indexes):
            flags = _INDEXES if indexes else 0
            known = (u8(_PUT_SEQUENTIAL), u8(flags), text(prefix), blob(value), text(partition_key))
            return b"".join((*known, _encode_indexes(indexes)))
        case Delete(key, None):
            return u8(_DELETE) + u8(0) + text(key)
        case Delete(key, int(expected)):
            return b"".join((u8(_DELETE), u8(_EXPECTED), text(key), u64(expected)))
        case DeleteRange(start, end):
            return u8(_DELETE_RANGE) + text(start) + text(end)
        case Check(key, expected):
            return u8(_CHECK) + text(key) + u64(expected)
    raise AssertionError(f"{type(op)} is not an operation")


def _encode_indexes(indexes: Sequence[IndexEntry]) -> bytes:
    if not indexes:
        return b""
    return u32(len(indexes)) + b"".join(text(name) + text(key) for name, key in indexes)


def _decode(fields: Fields) -> Op:
    kind = fields.u8()
    if kind == _PUT:
        flags = _decode_flags(fields, _EXPECTED | _PARTITION | _SESSION | _INDEXES)
        return Put(
            fields.text(),
            fields.blob(),
            fields.u64() if flags & _EXPECTED else None,
            partition_key=fields.text() if flags & _PARTITION else None,
            session=SessionNamed(fields.u64()) if flags & _SESSION else None,
            indexes=_decode_indexes(fields) if flags & _INDEXES else (),
        )
    if kind == _PUT_SEQUENTIAL:
        flags = _decode_flags(fields, _INDEXES)
        prefix, value, partition_key = fields.text(), fields.blob(), fields.text()
        return PutSequential(prefix, value, partition_key, _decode_indexes(fields) if flags & _INDEXES else ())
    if kind == _DELETE:
        flags = _decode_flags(fields, _EXPECTED)
        return Delete(fields.text(), fields.u64() if flags & _EXPECTED else None)
    if kind == _DELETE_RANGE:
        return DeleteRange(fields.text(), fields.text())
    if kind == _CHECK:
        return Check(fields.text(), fields.u64())
    raise LinkError(f"an operation has the unknown kind {kind}")


def _decode_flags(fields: Fields, known: int) -> int:
    flags = fields.u8()
    if flags & ~known:
        raise LinkError(f"an operation has the unknown flags {flags & ~known:#x}")
    return flags


def _decode_indexes(fields: Fields) -> tuple[IndexEntry, ...]:
    # Interned, because every record has some of the same few index names.
    return tuple(IndexEntry(sys.intern(fields.text()), fields.text()) for _ in range(fields.u32()))
