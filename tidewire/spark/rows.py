"""Entries to Arrow record batches, column by column.

Python's time per message limits a reader, so no row becomes a Python object. Values shared by all messages of an entry
(its position, its time) are stored once, and Arrow repeats them for its rows. The others are read from all entries of a
record batch together (`contents.py`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidewire.spark.contents import NO_BATCH, Contents, Opened, open_entry, read_contents
from tidewire.spark.decoding import Decoder
from tidewire.spark.errors import UnreadableMessage
from tidewire.spark.partitions import SegmentRange
from tidewire.spark.plain_batches import Times
from tidewire.spark.pushed import NOTHING_PUSHED, Pushed
from tidewire.spark.pyspark_versions import arrow_schema
from tidewire.spark.receiving import ReceivedEntry
from tidewire.spark.schema import SCHEMA
from tidewire.wire.pulsar.errors import MessageError

ROWS_WANTED: Final = 8192
"""A record batch is complete when it has this many rows,"""

BYTES_WANTED: Final = 4 * 1024 * 1024
"""or holds entries of this many bytes. At most one more entry waits here."""

ROWS_MAX: Final = 2 * ROWS_WANTED
"""The most rows of a record batch, however many messages an entry holds."""


ARROW_SCHEMA: Final[pa.Schema] = arrow_schema(SCHEMA)

_POSITION: Final[pa.StructType] = ARROW_SCHEMA.field("position").type
_TIME: Final[pa.DataType] = ARROW_SCHEMA.field("event_time").type
_PROPERTIES: Final[pa.MapType] = ARROW_SCHEMA.field("properties").type
_US_PER_MS: Final = 1000
_TIME_MS_MAX: Final = (2**63 - 1) // _US_PER_MS
_NO_INDEX: Final = -1


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
        """Start empty.

        Args:
            topic: the `topic` column.
            segment: the `segment` column.
            schema: the schema of the record batches.
            decoder: makes the `value` column; None leaves it binary.
            pushed: conditions on rows; others may be left out.
        """
        self._schema = schema
        self._decoder = decoder
        self._pushed = pushed
        self._keys = None if pushed.keys is None else pa.array(sorted(pushed.keys), pa.string())
        self._topic = pa.scalar(topic, pa.string())
        self._segment = pa.scalar(segment, pa.string())
        self._clear()

    def _clear(self) -> None:
        self._entries: list[Opened] = []
        self._published_us: list[int | None] = []
        self._messages_max = 0
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether enough waits for a record batch."""
        return self._messages_max >= ROWS_WANTED or self._bytes >= BYTES_WANTED

    def add(self, entry: ReceivedEntry) -> None:
        """Take an entry's messages.

        Raises:
            MessageError: they cannot be read. None of them was taken.
        """
        published_us = _microseconds(entry.metadata.publish_time)
        if not self._pushed.wants_published(published_us):
            return
        opened = open_entry(entry)
        self._entries.append(opened)
        self._published_us.append(published_us)
        self._messages_max += opened.messages_max
        self._bytes += len(opened.body)

    def take(self) -> Iterator[pa.RecordBatch]:
        """Return what waits as record batches, and start empty again.

        Raises:
            UnreadableMessage: an entry turns out to be unreadable; the error gives its position.
        """
        opened, published_us = self._entries, self._published_us
        self._clear()
        if not opened:
            return
        entries = [each.entry for each in opened]
        contents = read_contents(opened)
        count = len(contents.values)
        row_entries = pa.array(np.repeat(np.arange(len(entries)), contents.rows))
        columns: dict[str, Callable[[], pa.Array]] = {
            "key": lambda: contents.keys,
            "value": lambda: self._values(entries, contents),
            "topic": lambda: pa.repeat(self._topic, count),
            "segment": lambda: pa.repeat(self._segment, count),
            "position": lambda: _positions(entries, row_entries, contents),
            "index": lambda: _message_indexes(entries, contents),
            "publish_time": lambda: pa.array(published_us, _TIME).take(row_entries),
            "event_time": lambda: _times(contents.event_times_ms),
            "properties": lambda: _property_maps(contents),
        }
        # Only the columns that the user wants are made.
        batch = pa.RecordBatch.from_arrays([columns[field.name]() for field in self._schema], schema=self._schema)
        if self._keys is not None:
            batch = batch.filter(pc.is_in(contents.keys, value_set=self._keys))
            count = batch.num_rows
        for start in range(0, count, ROWS_MAX):
            yield batch.slice(start, ROWS_MAX)

    def _values(self, entries: Sequence[ReceivedEntry], contents: Contents) -> pa.Array:
        """The `value` column. Consecutive entries of one schema version are decoded together."""
        if self._decoder is None:
            return contents.values
        pieces = [pa.array([], self._schema.field("value").type)]
        start = end = 0
        runs = groupby(zip(entries, contents.rows, strict=True), key=lambda each: each[0].metadata.schema_version)
        for version, run in runs:
            places = list(run)
            end += sum(rows for _, rows in places)
            if end > start:
                values = contents.values.slice(start, end - start).to_pylist()
                try:
                    pieces.append(self._decoder.column(values, version))
                except UnreadableMessage as error:
                    raise UnreadableMessage(f"{places[0][0].position} to {places[-1][0].position}: {error}") from error
            start = end
        return pa.concat_arrays(pieces)


def _positions(entries: Sequence[ReceivedEntry], row_entries: pa.Array, contents: Contents) -> pa.StructArray:
    indexes = contents.batch_indexes
    return pa.StructArray.from_arrays(
        [
            pa.array([entry.position.ledger for entry in entries], pa.int64()).take(row_entries),
            pa.array([entry.position.entry for entry in entries], pa.int64()).take(row_entries),
            pa.array(indexes, pa.int32(), mask=indexes == NO_BATCH),
        ],
        fields=list(_POSITION),
    )


def _message_indexes(entries: Sequence[ReceivedEntry], contents: Contents) -> pa.Array:
    firsts = np.array([_first_index(entry) for entry in entries], np.int64)
    row_firsts = np.repeat(firsts, contents.rows)
    indexes = row_firsts + np.maximum(contents.batch_indexes, 0)
    return pa.array(indexes, pa.int64(), mask=row_firsts == _NO_INDEX)


def _first_index(entry: ReceivedEntry) -> int:
    return _NO_INDEX if entry.last_index is None else entry.last_index - entry.metadata.num_messages_in_batch + 1


def _property_maps(contents: Contents) -> pa.MapArray:
    sizes = np.zeros(len(contents.values) + 1, np.int32)
    for number, properties in contents.properties.items():
        sizes[number + 1] = len(properties)
    maps = contents.properties.values()
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
    """The messages of a range, in order, in record batches of the schema that Spark expects.

    Raises:
        UnreadableMessage: an entry's messages cannot be read; the error gives its position, or a range of positions.
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
    try:
        yield from rows.take()
    except UnreadableMessage as error:
        raise UnreadableMessage(f"{partition.wire_name} {error}") from error


def _microseconds(time_ms: int) -> int | None:
    return time_ms * _US_PER_MS if time_ms <= _TIME_MS_MAX else None


def _times(milliseconds: Times) -> pa.Array:
    if not milliseconds.any():
        return pa.nulls(len(milliseconds), _TIME)
    absent = (milliseconds == 0) | (milliseconds > _TIME_MS_MAX)
    # Times that are too large overflow here, and are masked.
    microseconds = (milliseconds * np.uint64(_US_PER_MS)).astype(np.int64)
    return pa.array(microseconds, pa.int64(), mask=absent).view(_TIME)
