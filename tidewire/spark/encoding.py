"""Encodes rows as messages of a batch, by columns: no row becomes a Python object.

A message in a batch is the size of its metadata, the metadata (protobuf), and the value. The metadata's fields of
variable length (key, properties) are Arrow columns already. The other fields become a matrix of bytes with a line for
each row, and a mask selects the bytes that a row has. Arrow then joins the pieces row by row into one binary column. So
consecutive rows are consecutive bytes, which can be sent as they are.

Pure.
"""

import base64
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import mmh3
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidewire.spark.errors import UnwritableRow
from tidewire.wire.pulsar.frames import MAX_MESSAGE_SIZE
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.hashing import HASH_SPACE_SIZE

ROW_BYTES_MAX: Final = MAX_MESSAGE_SIZE
"""The largest size of a row as a message, since a batch has at least one message."""

NO_KEY: Final = -1
"""The hash of a row without a key."""

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]

_M: Final = pb.SingleMessageMetadata
_NUMBER: Final = 0
_DELIMITED: Final = 2
_SIZE_BYTES: Final = 4
_VARINT_BYTES_MAX: Final = 10
_VARINT_BITS: Final = 7
_US_PER_MS: Final = 1000
_YES: Final = 1


class Rows(NamedTuple):
    """Rows as messages of a batch."""

    messages: pa.BinaryArray
    """One for each row; their bytes follow each other without gaps."""
    hashes: Numbers
    """The hashes of their keys; NO_KEY for those without a key."""

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def ends(self) -> npt.NDArray[np.int32]:
        """The offset of each row's first byte, and that of the last row's end: one more than there are rows."""
        messages = self.messages
        offsets = np.frombuffer(messages.buffers()[1], np.int32)
        return offsets[messages.offset : messages.offset + len(messages) + 1]

    @property
    def size_bytes(self) -> int:
        """The size of all rows together."""
        ends = self.ends
        return int(ends[-1] - ends[0])

    @property
    def data(self) -> memoryview:
        """The bytes of all rows."""
        ends = self.ends
        return memoryview(self.messages.buffers()[2] or b"")[ends[0] : ends[-1]]

    @property
    def first_named(self) -> str:
        """The first row, for an error."""
        data = self.data
        metadata_end = _SIZE_BYTES + int.from_bytes(data[:_SIZE_BYTES], "big")
        metadata = _M.FromString(bytes(data[_SIZE_BYTES:metadata_end]))
        return _named(metadata.partition_key if metadata.HasField("partition_key") else None)

    def part(self, start: int, stop: int) -> "Rows":
        """Consecutive rows."""
        return Rows(self.messages.slice(start, stop - start), self.hashes[start:stop])

    def select(self, places: Numbers) -> "Rows":
        """The rows at these places, in this order."""
        return Rows(self.messages.take(pa.array(places)), self.hashes[places])


class Columns(NamedTuple):
    """What messages are made of."""

    values: pa.Array
    """Binary; null for a message without a value."""
    keys: pa.Array | None = None
    """Text, or binary, which messages hold as base64."""
    event_times: pa.Array | None = None
    """Timestamps in microseconds."""
    properties: pa.Array | None = None
    """Maps of text to text."""


def encode(columns: Columns) -> Rows:
    """Make messages of rows.

    Raises:
        UnwritableRow: a row is too large, or holds something that a message cannot hold.
    """
    values = columns.values
    count = len(values)
    value_sizes = _sizes(values)
    heads = _Matrix(count)
    heads.add_space(_SIZE_BYTES)
    tails = _Matrix(count)
    pieces: list[pa.Array] = []
    sizes = np.zeros(count, np.int64)
    hashes = np.full(count, NO_KEY, np.int64)
    if columns.keys is not None:
        keys, from_bytes = _key_texts(columns.keys)
        has_key = _present(keys)
        heads.add_tag(_M.PARTITION_KEY_FIELD_NUMBER, _DELIMITED, has_key)
        key_sizes = _sizes(keys)
        heads.add_varints(key_sizes, has_key)
        pieces.append(keys)
        sizes += key_sizes
        hashes[has_key] = _hashes(keys)[has_key]
        if from_bytes:
            tails.add_tag(_M.PARTITION_KEY_B64_ENCODED_FIELD_NUMBER, _NUMBER, has_key)
            tails.add_varints(np.full(count, _YES), has_key)
    tails.add_tag(_M.PAYLOAD_SIZE_FIELD_NUMBER, _NUMBER)
    tails.add_varints(value_sizes)
    if columns.event_times is not None:
        times, has_time = _milliseconds(columns.event_times, columns)
        tails.add_tag(_M.EVENT_TIME_FIELD_NUMBER, _NUMBER, has_time)
        tails.add_varints(times, has_time)
    if values.null_count:
        has_none = ~_present(values)
        tails.add_tag(_M.NULL_VALUE_FIELD_NUMBER, _NUMBER, has_none)
        tails.add_varints(np.full(count, _YES), has_none)
    pieces.append(tails.column())
    sizes += tails.sizes
    if columns.properties is not None:
        properties = _properties(columns.properties, columns)
        pieces.append(properties)
        sizes += _sizes(properties)
    sizes += heads.sizes - _SIZE_BYTES
    _check_sizes(_SIZE_BYTES + sizes + value_sizes, columns)
    heads.put_sizes(sizes)
    return Rows(_joined([heads.column(), *pieces, values]), hashes)


def _check_sizes(sizes: Numbers, columns: Columns) -> None:
    if len(sizes) and int(sizes.max()) > ROW_BYTES_MAX:
        place = int(sizes.argmax())
        raise UnwritableRow(
            f"{_named_at(place, columns)} takes {sizes[place]} bytes as a message, and no broker accepts more than "
            f"{ROW_BYTES_MAX}; write smaller rows"
        )


def _named_at(place: int, columns: Columns) -> str:
    return _named(None if columns.keys is None else columns.keys[place].as_py())


def _named(key: str | bytes | None) -> str:
    return "a row without a key" if key is None else f"the row with the key {key!r:.100}"


class _Matrix:
    """Bytes for each row, stored by column. A mask for each column says which rows have that byte."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._columns: list[Bytes] = []
        self._had: list[npt.NDArray[np.bool_] | None] = []
        self.sizes = np.zeros(count, np.int64)
        """How many bytes each row has."""

    def _add(self, column: Bytes, had: npt.NDArray[np.bool_] | None) -> None:
        self._columns.append(column)
        if had is not None and had.all():
            had = None
        self._had.append(had)
        self.sizes += 1 if had is None else had

    def add_space(self, width: int) -> None:
        """Add bytes that every row has, initially 0."""
        for _ in range(width):
            self._add(np.zeros(self._count, np.uint8), None)

    def put_sizes(self, sizes: Numbers) -> None:
        """Put a number into the first four bytes, big-endian."""
        for place in range(_SIZE_BYTES):
            self._columns[place] = (sizes >> 8 * (_SIZE_BYTES - 1 - place)).astype(np.uint8)

    def add_tag(self, field: int, kind: int, had: npt.NDArray[np.bool_] | None = None) -> None:
        """Begin a protobuf field, in all rows or in some."""
        self._add(np.full(self._count, field << 3 | kind, np.uint8), had)

    def add_varints(self, numbers: Numbers, had: npt.NDArray[np.bool_] | None = None) -> None:
        """Add a number of a protobuf field, in all rows or in some. No number is negative."""
        most = int(numbers.max(initial=0))
        left = numbers
        for place in range(_VARINT_BYTES_MAX):
            goes_on = left >= 1 << _VARINT_BITS
            self._add(
                (left & 0x7F | np.where(goes_on, 0x80, 0)).astype(np.uint8),
                # A row has another byte if its previous byte says that the number continues.
                had,
            )
            if most < 1 << _VARINT_BITS * (place + 1):
                return
            had = goes_on if had is None else goes_on & had
            left = left >> _VARINT_BITS

    def column(self) -> pa.BinaryArray:
        """All bytes as one binary column."""
        matrix = np.column_stack(self._columns) if self._columns else np.zeros((self._count, 0), np.uint8)
        if any(had is not None for had in self._had):
            everywhere = np.ones(self._count, np.bool_)
            matrix = matrix[np.column_stack([everywhere if had is None else had for had in self._had])]
        return _binary(self.sizes, matrix.tobytes())


def _binary(sizes: Numbers, data: bytes | pa.Buffer) -> pa.BinaryArray:
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    buffer = pa.py_buffer(data) if isinstance(data, bytes) else data
    return pa.BinaryArray.from_buffers(pa.binary(), len(sizes), [None, pa.py_buffer(offsets), buffer])


def _joined(pieces: Sequence[pa.Array]) -> pa.BinaryArray:
    binaries = [piece if pa.types.is_binary(piece.type) else piece.view(pa.binary()) for piece in pieces]
    return pc.binary_join_element_wise(*binaries, b"", null_handling="replace", null_replacement=b"")


def _present(column: pa.Array) -> npt.NDArray[np.bool_]:
    present: npt.NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return present


def _sizes(column: pa.Array) -> Numbers:
    """The size of each in bytes, 0 for null."""
    sizes = pc.binary_length(column)
    if sizes.null_count:
        sizes = sizes.fill_null(0)
    numbers: Numbers = sizes.to_numpy().astype(np.int64)
    return numbers


def _key_texts(keys: pa.Array) -> tuple[pa.Array, bool]:
    """Keys as messages hold them, and whether they were binary."""
    if not pa.types.is_binary(keys.type):
        return keys, False
    texts = [None if key is None else base64.b64encode(key) for key in keys.to_pylist()]
    return pa.array(texts, pa.binary()).view(pa.string()), True


def _hashes(keys: pa.Array) -> Numbers:
    """As `key_hash`, computed once for each distinct key."""
    encoded = keys.dictionary_encode()
    different = encoded.dictionary.to_pylist()
    of_different = np.fromiter((mmh3.hash(key, 0, False) for key in different), np.int64, len(different))
    of_different &= HASH_SPACE_SIZE - 1
    if not different:
        return np.full(len(keys), NO_KEY, np.int64)
    indices = encoded.indices
    if indices.null_count:
        indices = indices.fill_null(0)
    hashes: Numbers = of_different[indices.to_numpy()]
    return hashes


def _milliseconds(times: pa.Array, columns: Columns) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    present = _present(times)
    microseconds: Numbers = times.view(pa.int64()).fill_null(0).to_numpy()
    if len(microseconds) and int(microseconds.min()) < 0:
        place = int(microseconds.argmin())
        raise UnwritableRow(
            f"{_named_at(place, columns)} has an event_time before 1970: {times[place]}; messages cannot hold that, so "
            "write a later time or null"
        )
    return microseconds // _US_PER_MS, present


def _properties(maps: pa.Array, columns: Columns) -> pa.BinaryArray:
    """The `properties` fields of each row: one field for each entry, joined for each row."""
    # A part of an array of maps still has the entries of all maps.
    firsts: npt.NDArray[Any] = maps.offsets.to_numpy()
    own = (int(firsts[0]), int(firsts[-1] - firsts[0]))
    names, texts = maps.keys.slice(*own), maps.items.slice(*own)
    firsts = firsts - firsts[0]
    if texts.null_count:
        entry = int(np.flatnonzero(~_present(texts))[0])
        place = int(np.searchsorted(firsts, entry, "right")) - 1
        raise UnwritableRow(
            f"{_named_at(place, columns)} has a property {names[entry].as_py()!r:.100} without a text; leave such "
            "entries out of properties"
        )
    count = len(names)
    name_sizes, text_sizes = _sizes(names), _sizes(texts)
    name_heads, text_heads = _Matrix(count), _Matrix(count)
    for heads, sizes, field in (
        (name_heads, name_sizes, pb.KeyValue.KEY_FIELD_NUMBER),
        (text_heads, text_sizes, pb.KeyValue.VALUE_FIELD_NUMBER),
    ):
        heads.add_tag(field, _DELIMITED)
        heads.add_varints(sizes)
    entry_heads = _Matrix(count)
    entry_heads.add_tag(_M.PROPERTIES_FIELD_NUMBER, _DELIMITED)
    entry_heads.add_varints(name_heads.sizes + name_sizes + text_heads.sizes + text_sizes)
    entries = _joined([entry_heads.column(), name_heads.column(), names, text_heads.column(), texts])
    ends = np.frombuffer(entries.buffers()[1], np.int32)[: count + 1]
    rows = pa.BinaryArray.from_buffers(
        pa.binary(), len(maps), [None, pa.py_buffer(ends[firsts].astype(np.int32)), entries.buffers()[2]]
    )
    return pc.if_else(maps.is_valid(), rows, b"") if maps.null_count else rows
