"""Reads plain batches many messages at a time.

    batch = ([u32 size][SingleMessageMetadata] value)*

A message's start is known only when the message before it has been read, and a Python step for each message would limit
a reader. So this module guesses all starts at once: wherever three zero bytes, a size and a field's tag could be one.
numpy then reads all guesses together, a field at a time. In the end the guesses are checked against each other. Each
message has to end where the next one starts, from the first byte on, and the last one with the batch. The remaining
guesses are what a sequential reader would have found. Guesses inside a value, which only look like a message, drop out.

Whatever this module does not fully understand goes to the codec, which knows every case and reports errors.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

Ints = np.ndarray[Any, np.dtype[np.int64]]
Octets = np.ndarray[Any, np.dtype[np.uint8]]
Times = np.ndarray[Any, np.dtype[np.uint64]]

_VARINT: Final = 0
_LENGTH_DELIMITED: Final = 2
_KIND_MASK: Final = 7


def _tag(number: int, kind: int) -> int:
    return number << 3 | kind


_Fields = pb.SingleMessageMetadata
_KEY: Final = _tag(_Fields.PARTITION_KEY_FIELD_NUMBER, _LENGTH_DELIMITED)
_VALUE_SIZE: Final = _tag(_Fields.PAYLOAD_SIZE_FIELD_NUMBER, _VARINT)
_EVENT_TIME: Final = _tag(_Fields.EVENT_TIME_FIELD_NUMBER, _VARINT)
_PASSED_OVER: Final = (
    _tag(_Fields.SEQUENCE_ID_FIELD_NUMBER, _VARINT),
    _tag(_Fields.PARTITION_KEY_B64_ENCODED_FIELD_NUMBER, _VARINT),
    _tag(_Fields.ORDERING_KEY_FIELD_NUMBER, _LENGTH_DELIMITED),
)

_IS_KNOWN: Final = np.zeros(256, np.bool_)
_IS_KNOWN[[_KEY, _VALUE_SIZE, _EVENT_TIME, *_PASSED_OVER]] = True

_SIZE_BYTES: Final = 4
_HEAD_BYTES_MIN: Final = 2
"""The tag and one byte of the only required field, the value's size."""
_PADDING: Final = bytes(16)
"""Follows the data, so that every guess can be read; a varint has at most 10 bytes."""
_VARINT_SHIFT_MAX: Final = 63
_TOO_LARGE: Final = 2**31
"""Does not fit into an int32."""
_ABSENT: Final = -1


class PlainColumns(NamedTuple):
    """What differs between messages, one item for each."""

    keys: pa.StringArray
    """Null for none."""
    values: pa.BinaryArray
    event_times_ms: Times
    """0 for none."""


class _Heads(NamedTuple):
    """The metadata of each guess."""

    starts: Ints
    value_starts: Ints
    ends: Ints
    """_ABSENT for a guess that is not a plain message."""
    key_starts: Ints
    """_ABSENT for none."""
    key_ends: Ints
    event_times_ms: Times

    def only(self, chosen: Ints) -> "_Heads":
        columns: list[Any] = [column[chosen] for column in self]
        return _Heads(*columns)


def read_plain(bodies: Sequence[bytes | bytearray | memoryview], counts: Sequence[int]) -> PlainColumns | None:
    """The messages of batches, one after another; None when anything in any of them is unusual or damaged.

    Unusual are properties, a null value or key, a message removed by compaction, a key that is not UTF-8, and metadata
    of 256 bytes or more.

    Args:
        bodies: not compressed; together less than 2 GiB.
        counts: how many messages each claims to hold.
    """
    data = b"".join((*bodies, _PADDING))
    end = len(data) - len(_PADDING)
    octets = np.frombuffer(data, np.uint8)
    heads = _read_heads(octets, _guesses(octets, end))
    chain = _chain(heads, end)
    if chain is None or len(chain) != sum(counts):
        return None
    if len(chain) < len(heads.starts):
        heads = heads.only(chain)
    starts_of_bodies = list(accumulate(map(len, bodies), initial=0))[:-1]
    first_messages = list(accumulate(counts, initial=0))[:-1]
    if not np.array_equal(heads.starts[first_messages], starts_of_bodies):
        return None
    buffer = pa.py_buffer(data)
    try:
        keys = _keys(buffer, heads)
    except pa.ArrowInvalid:
        return None
    return PlainColumns(keys, _slices(buffer, heads.value_starts, heads.ends), heads.event_times_ms)


def _guesses(octets: Octets, end: int) -> Ints:
    """Possible starts: every real one if all messages are plain, and perhaps others."""
    # A size below 256 begins with three zero bytes. Two of them are at an even place and the next one.
    pairs = 2 * np.flatnonzero(octets[: end & ~1].view(np.uint16) == 0)
    starts = np.sort(np.concatenate((pairs[octets[pairs + 2] == 0], pairs[octets[pairs - 1] == 0] - 1)))
    sizes = octets[starts + 3]
    can_be = (
        (starts >= 0)
        & (sizes >= _HEAD_BYTES_MIN)
        & (starts + _SIZE_BYTES + sizes <= end)
        & _IS_KNOWN[octets[starts + _SIZE_BYTES]]
    )
    guesses: Ints = starts[can_be]
    return guesses


def _read_heads(octets: Octets, starts: Ints) -> _Heads:
    at = starts + _SIZE_BYTES
    value_starts = at + octets[starts + _SIZE_BYTES - 1]
    value_sizes = np.full(len(starts), _ABSENT)
    key_starts = np.full(len(starts), _ABSENT)
    key_ends = value_starts.copy()
    event_times = np.zeros(len(starts), np.uint64)
    is_plain = np.ones(len(starts), np.bool_)
    rows = np.arange(len(starts))
    while rows.size:
        tags = octets[at[rows]]
        for tag in np.flatnonzero(np.bincount(tags)):
            chosen = rows[tags == tag]
            if not _IS_KNOWN[tag]:
                is_plain[chosen] = False
                at[chosen] = value_starts[chosen]
                continue
            numbers, behind = _varints(octets, at[chosen] + 1)
            if tag == _VALUE_SIZE:
                value_sizes[chosen] = np.minimum(numbers, _TOO_LARGE)
            elif tag == _EVENT_TIME:
                event_times[chosen] = numbers
            elif tag & _KIND_MASK == _LENGTH_DELIMITED:
                contents = behind
                behind = contents + np.minimum(numbers, _TOO_LARGE).astype(np.int64)
                if tag == _KEY:
                    key_starts[chosen], key_ends[chosen] = contents, behind
            at[chosen] = behind
        rows = rows[at[rows] < value_starts[rows]]
    is_plain &= (at == value_starts) & (value_sizes >= 0) & (value_sizes < _TOO_LARGE)
    ends = np.where(is_plain, value_starts + value_sizes, _ABSENT)
    return _Heads(starts, value_starts, ends, key_starts, key_ends, event_times)


def _varints(octets: Octets, starts: Ints) -> tuple[Times, Ints]:
    """The numbers that begin there, and where each ends; beyond all data for a number that is too long."""
    octet = octets[starts]
    numbers = (octet & 0x7F).astype(np.uint64)
    behind = starts + 1
    shift = 0
    going_on = np.flatnonzero(octet & 0x80)
    while going_on.size:
        shift += 7
        octet = octets[behind[going_on]]
        numbers[going_on] |= (octet & 0x7F).astype(np.uint64) << np.uint64(shift)
        behind[going_on] += 1
        if shift == _VARINT_SHIFT_MAX:
            behind[going_on[octet > 1]] = len(octets)
            break
        going_on = going_on[octet >= 0x80]
    return numbers, behind


def _chain(heads: _Heads, end: int) -> Ints | None:
    """The guesses that follow one another from the first byte to the end; None if they do not reach it."""
    starts, ends = heads.starts, heads.ends
    if not len(starts) or starts[0] != 0:
        return None
    if ends[-1] == end and np.array_equal(ends[:-1], starts[1:]):
        return np.arange(len(starts))
    followers = np.searchsorted(starts, ends)
    follows = starts[np.minimum(followers, len(starts) - 1)] == ends
    steps = np.where(ends == end, len(starts), np.where(follows, followers, _ABSENT)).tolist()
    chain = []
    at = 0
    # Each step goes forward, because metadata take at least two bytes.
    while 0 <= at < len(steps):
        chain.append(at)
        at = steps[at]
    return np.array(chain) if at == len(steps) else None


def _keys(buffer: pa.Buffer, heads: _Heads) -> pa.StringArray:
    is_there = heads.key_starts != _ABSENT
    if not is_there.any():
        return pa.nulls(len(is_there), pa.string())
    starts = np.where(is_there, heads.key_starts, heads.key_ends)
    # The cast checks that keys are UTF-8.
    return _slices(buffer, starts, heads.key_ends, None if is_there.all() else ~is_there).cast(pa.string())


def _slices(
    buffer: pa.Buffer, starts: Ints, ends: Ints, is_null: np.ndarray[Any, np.dtype[np.bool_]] | None = None
) -> pa.BinaryArray:
    """The bytes between starts and ends, in ascending order, as a new array."""
    # The gaps between slices are items, too; every second item is taken.
    bounds = np.stack((starts, ends), axis=1).astype(np.int32)
    items = 2 * len(starts) - 1
    all_items = pa.BinaryArray.from_buffers(pa.binary(), items, [None, pa.py_buffer(bounds), buffer])
    return all_items.take(pa.array(np.arange(0, items, 2), mask=is_null))
