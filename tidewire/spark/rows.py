"""Entries to Arrow record batches, column by column.

Python's time per message is what limits a reader, so no row is ever made. What all messages of an entry share (its
place, its time) is kept once per entry and spread over its rows by Arrow. What differs is collected in one list per
column, and for the usual batch of messages by a loop that does nothing else (`_plain_batch`): three times as fast as
taking messages apart one by one. It takes only what it fully understands; whatever is unusual or damaged goes to the
codec's `split_body`, which knows every case and says what is wrong.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidewire.spark.decoding import Decoder
from tidewire.spark.errors import UnreadableMessage
from tidewire.spark.filters import NOTHING_PUSHED, Pushed
from tidewire.spark.partitions import SegmentRange
from tidewire.spark.receiving import ReceivedEntry
from tidewire.spark.schema import SCHEMA
from tidewire.wire.pulsar.errors import MessageError
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.messages import open_body, split_body

ROWS_WANTED: Final = 4096
"""A record batch is handed on when it has so many rows,"""

BYTES_WANTED: Final = 8 * 1024 * 1024
"""or holds entries of so many bytes. What waits here is above that by at most one entry."""

ROWS_MAX: Final = 4 * ROWS_WANTED
"""A record batch has no more rows than this, however many messages an entry holds."""


def arrow_schema(made: StructType) -> pa.Schema:
    """The Arrow schema of a data frame's, by the very function with which Spark checks what a reader yields."""
    return to_arrow_schema(made, timezone="UTC")


ARROW_SCHEMA: Final[pa.Schema] = arrow_schema(SCHEMA)

_POSITION: Final[pa.StructType] = ARROW_SCHEMA.field("position").type
_TIME: Final[pa.DataType] = ARROW_SCHEMA.field("event_time").type
_PROPERTIES: Final[pa.MapType] = ARROW_SCHEMA.field("properties").type
_US_PER_MS: Final = 1000
_TIME_MS_MAX: Final = (2**63 - 1) // _US_PER_MS
_NO_INDEX: Final = -1
_ALONE: Final = np.array([_NO_INDEX], np.int32)
_SIZE: Final = struct.Struct(">I")


class _Columns(NamedTuple):
    """What differs between the messages of an entry, one item per message."""

    keys: list[str | None]
    values: list[bytes | None]
    event_times_ms: list[int]
    """0 for none."""


class Rows:
    """Collects entries and makes record batches of them."""

    def __init__(
        self,
        topic: str,
        segment: str | None,
        schema: pa.Schema = ARROW_SCHEMA,
        decoder: Decoder | None = None,
        pushed: Pushed = NOTHING_PUSHED,
    ) -> None:
        """Set up.

        Args:
            topic: the `topic` column.
            segment: the `segment` column.
            schema: of the record batches.
            decoder: makes the `value` column; None leaves it binary.
            pushed: rows that are not such may be left out.
        """
        self._schema = schema
        self._decoder = decoder
        self._pushed = pushed
        self._keys = None if pushed.keys is None else pa.array(sorted(pushed.keys), pa.string())
        self._topic = pa.scalar(topic, pa.string())
        self._segment = pa.scalar(segment, pa.string())
        self._clear()

    def _clear(self) -> None:
        self._bytes = 0
        self._columns = _Columns([], [], [])
        self._properties: dict[int, dict[str, str]] = {}
        # Per entry.
        self._rows_of_entries: list[int] = []
        self._ledgers: list[int] = []
        self._entries: list[int] = []
        self._publish_times_us: list[int | None] = []
        self._batch_indexes: list[np.ndarray[Any, np.dtype[np.int32]]] = []
        self._first_indexes: list[int] = []
        self._versions: list[bytes] = []

    @property
    def count(self) -> int:
        """Rows that wait."""
        return len(self._columns.values)

    @property
    def places(self) -> str:
        """Where the entries stand that wait, for errors."""
        if not self._ledgers:
            return "nowhere"
        return f"{self._ledgers[0]}:{self._entries[0]} to {self._ledgers[-1]}:{self._entries[-1]}"

    @property
    def is_full(self) -> bool:
        """Whether enough waits to be handed on."""
        return self.count >= ROWS_WANTED or self._bytes >= BYTES_WANTED

    def add(self, entry: ReceivedEntry) -> None:
        """Take an entry's messages.

        Raises:
            MessageError: they cannot be read. None of them was taken.
        """
        metadata = entry.metadata
        published_us = _microseconds(metadata.publish_time)
        if not self._pushed.wants_published(published_us):
            return
        body = open_body(metadata, entry.body)
        size = metadata.num_messages_in_batch
        columns = None
        if metadata.HasField("num_messages_in_batch") and not entry.ack_set and not metadata.compacted_batch_indexes:
            columns = _plain_batch(body, size)
        if columns is not None:
            indexes = np.arange(size, dtype=np.int32)
        else:
            columns, indexes = self._split(entry)
        self._columns.keys.extend(columns.keys)
        self._columns.values.extend(columns.values)
        self._columns.event_times_ms.extend(columns.event_times_ms)
        self._rows_of_entries.append(len(columns.values))
        self._ledgers.append(entry.position.ledger)
        self._entries.append(entry.position.entry)
        self._publish_times_us.append(published_us)
        self._first_indexes.append(_NO_INDEX if entry.last_index is None else entry.last_index - size + 1)
        self._versions.append(metadata.schema_version)
        self._batch_indexes.append(indexes)
        self._bytes += len(body)

    def _split(self, entry: ReceivedEntry) -> tuple[_Columns, np.ndarray[Any, np.dtype[np.int32]]]:
        messages = split_body(entry.metadata, entry.body, entry.ack_set)
        first = self.count
        for place, message in enumerate(messages, first):
            if message.properties:
                self._properties[place] = message.properties
        columns = _Columns(
            [message.key for message in messages],
            [None if message.null_value else message.value for message in messages],
            [message.event_time_ms or 0 for message in messages],
        )
        if len(messages) == 1 and messages[0].batch_index is None:
            return columns, _ALONE
        return columns, np.array([message.batch_index for message in messages], np.int32)

    def take(self) -> Iterator[pa.RecordBatch]:
        """What waits, as record batches, and begin anew."""
        count = self.count
        if count == 0:
            self._clear()
            return
        row_entries = pa.array(np.repeat(np.arange(len(self._ledgers)), self._rows_of_entries))
        batch_indexes = np.concatenate(self._batch_indexes)
        position = pa.StructArray.from_arrays(
            [
                pa.array(self._ledgers, pa.int64()).take(row_entries),
                pa.array(self._entries, pa.int64()).take(row_entries),
                pa.array(batch_indexes, pa.int32(), mask=batch_indexes == _NO_INDEX),
            ],
            fields=list(_POSITION),
        )
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array(self._columns.keys, pa.string()),
                self._values(),
                pa.repeat(self._topic, count),
                pa.repeat(self._segment, count),
                position,
                self._message_indexes(batch_indexes),
                pa.array(self._publish_times_us, _TIME).take(row_entries),
                _times(self._columns.event_times_ms),
                self._property_maps(),
            ],
            schema=self._schema,
        )
        self._clear()
        if self._keys is not None:
            batch = batch.filter(pc.is_in(batch.column("key"), value_set=self._keys))
            count = batch.num_rows
        for start in range(0, count, ROWS_MAX):
            yield batch.slice(start, ROWS_MAX)

    def _values(self) -> pa.Array:
        """The `value` column: each run of entries of one schema version by itself."""
        values = self._columns.values
        if self._decoder is None:
            return pa.array(values, pa.binary())
        pieces = []
        start = end = 0
        for number, rows in enumerate(self._rows_of_entries):
            end += rows
            is_last = number + 1 == len(self._versions)
            if is_last or self._versions[number] != self._versions[number + 1]:
                if end > start:
                    pieces.append(self._decoder.column(values[start:end], self._versions[number]))
                start = end
        return pa.concat_arrays(pieces)

    def _message_indexes(self, batch_indexes: np.ndarray[Any, np.dtype[np.int32]]) -> pa.Array:
        firsts = np.repeat(np.array(self._first_indexes, np.int64), self._rows_of_entries)
        return pa.array(firsts + np.maximum(batch_indexes, 0), pa.int64(), mask=firsts == _NO_INDEX)

    def _property_maps(self) -> pa.MapArray:
        sizes = np.zeros(self.count + 1, np.int32)
        for place, properties in self._properties.items():
            sizes[place + 1] = len(properties)
        maps = self._properties.values()
        return pa.MapArray.from_arrays(
            np.cumsum(sizes, dtype=np.int32),
            pa.array([name for properties in maps for name in properties], pa.string()),
            pa.array([text for properties in maps for text in properties.values()], pa.string()),
            type=_PROPERTIES,
        )


def record_batches(
    partition: SegmentRange,
    entries: Iterable[ReceivedEntry],
    schema: pa.Schema = ARROW_SCHEMA,
    decoder: Decoder | None = None,
    pushed: Pushed = NOTHING_PUSHED,
) -> Iterator[pa.RecordBatch]:
    """The messages of a range, in order, in record batches of the schema that Spark is told.

    Raises:
        UnreadableMessage: an entry's messages cannot be read; it says which, or about where.
    """
    rows = Rows(partition.topic, partition.segment, schema, decoder, pushed)
    for entry in entries:
        try:
            rows.add(entry)
        except MessageError as error:
            raise UnreadableMessage(f"{partition.wire_name} {entry.position}: {error}") from error
        if rows.is_full:
            yield from _taken(partition, rows)
    yield from _taken(partition, rows)


def _taken(partition: SegmentRange, rows: Rows) -> Iterator[pa.RecordBatch]:
    places = rows.places
    try:
        yield from rows.take()
    except UnreadableMessage as error:
        raise UnreadableMessage(f"{partition.wire_name} {places}: {error}") from error


def _plain_batch(body: bytes, size: int) -> _Columns | None:
    """The messages of a batch in which nothing is unusual; None for any other.

    Unusual are: properties, a null value or key, a message compacted away, an empty value, text that is not UTF-8, and
    lengths that do not add up.
    """
    columns = _Columns([], [], [])
    add_key = columns.keys.append
    add_value = columns.values.append
    add_event_time = columns.event_times_ms.append
    all_metadata: list[bytes] = []
    add_metadata = all_metadata.append
    parse = pb.SingleMessageMetadata.FromString
    size_at = _SIZE.unpack_from
    end = 0
    try:
        for _ in range(size):
            start = end + 4
            value_start = start + size_at(body, end)[0]
            encoded = body[start:value_start]
            single = parse(encoded)
            value_size = single.payload_size
            if value_size <= 0:
                # So every step goes forward, and all have stayed within the body if the last one ends where it does.
                return None
            end = value_start + value_size
            add_value(body[value_start:end])
            add_key(single.partition_key or (single.partition_key if single.HasField("partition_key") else None))
            add_event_time(single.event_time)
            add_metadata(encoded)
        # Encoded messages that are joined read as one that has every field which any of them had.
        joined = parse(b"".join(all_metadata))
    except (struct.error, DecodeError):
        return None
    is_plain = (
        end == len(body)
        and not joined.properties
        and not joined.HasField("null_value")
        and not joined.HasField("null_partition_key")
        and not joined.HasField("compacted_out")
        # Text that is not UTF-8 is handed out as bytes.
        and bytes not in set(map(type, columns.keys))
    )
    return columns if is_plain else None


def _microseconds(time_ms: int) -> int | None:
    return time_ms * _US_PER_MS if time_ms <= _TIME_MS_MAX else None


def _times(times_ms: list[int]) -> pa.Array:
    if not any(times_ms):
        return pa.nulls(len(times_ms), _TIME)
    milliseconds = np.array(times_ms, np.uint64)
    absent = (milliseconds == 0) | (milliseconds > _TIME_MS_MAX)
    # What is too large wraps here, and is masked.
    microseconds = (milliseconds * np.uint64(_US_PER_MS)).astype(np.int64)
    return pa.array(microseconds, pa.int64(), mask=absent).view(_TIME)
