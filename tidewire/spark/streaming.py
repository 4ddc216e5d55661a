"""What Spark calls to read topics as a stream.

One object (A) lives in its own process as long as the query runs: it plans, and holds connections. Another one (B) is
pickled to the tasks and only reads ranges. The same call makes both, so connections are made at the first request. When
the query ends Spark kills the process without telling the object, and brokers see the connection close.

`StreamReading` is what all versions of Spark call. `EarlyStreamReader` is for Spark 4.0 and 4.1, and the reader in
`limited_streaming.py` for later ones.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from tidewire.spark.limits import Limit
from tidewire.spark.offsets import decode, encode
from tidewire.spark.one_sentence import one_sentence
from tidewire.spark.options import ReadOptions
from tidewire.spark.partitions import SegmentRange
from tidewire.spark.reader import RangeReading
from tidewire.spark.stream_planner import StreamPlanner
from tidewire.spark.topic_schemas import TopicSchema


class StreamReading(DataSourceStreamReader):
    """See the module's docstring."""

    def __init__(self, options: ReadOptions, schema: StructType, topic_schema: TopicSchema | None) -> None:
        """Take checked options and the result of `columns`. Ask no broker yet."""
        self._options = options
        self._reading = RangeReading(options, schema, topic_schema)
        self._planner: StreamPlanner | None = None

    def __getstate__(self) -> dict[str, Any]:
        """The state without connections: tasks make their own."""
        return {**self.__dict__, "_planner": None}

    @property
    def _plans(self) -> StreamPlanner:
        if self._planner is None:
            self._planner = StreamPlanner(self._options)
        return self._planner

    @property
    def _own_limit(self) -> Limit:
        """The limit in the options."""
        return Limit(self._options.rows_max, self._options.bytes_max)

    @one_sentence()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - these names are Spark's
        """The offset at which a new query begins; the same each time."""
        return encode(self._plans.first())

    @one_sentence()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The ranges between two offsets."""
        return list(self._plans.ranges(decode(start), decode(end)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """As for a batch."""
        if isinstance(partition, SegmentRange):
            with one_sentence():
                yield from self._reading.read(partition)

    @one_sentence()
    def commit(self, end: dict[str, Any]) -> None:
        """Everything up to `end` is processed. Move the query's subscription there."""
        self._plans.committed(decode(end))

    @one_sentence()
    def stop(self) -> None:
        """Close the connections."""
        if self._planner is not None:
            self._planner.close()
            self._planner = None


class EarlyStreamReader(StreamReading):
    """For Spark 4.0 and 4.1, which ask for the end of the next micro-batch without saying where it begins.

    It begins where the last one ended. Before the first question to a query that has a checkpoint, these versions ask
    for the partitions between its last offset and the same offset. A new query begins at its first offset.
    """

    def __init__(self, options: ReadOptions, schema: StructType, topic_schema: TopicSchema | None) -> None:
        """As `StreamReading`."""
        super().__init__(options, schema, topic_schema)
        self._seen: dict[str, Any] | None = None
        """The end of the newest micro-batch that Spark has planned."""

    @one_sentence()
    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802 - the old signature
        """The end of the next micro-batch; that of the last one when there is nothing to read."""
        start = self._plans.first() if self._seen is None else decode(self._seen)
        self._seen = encode(self._plans.next(start, self._own_limit))
        return self._seen

    @one_sentence()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The ranges between two offsets."""
        self._seen = end
        return super().partitions(start, end)


_NO_REPORT: Final = "None"
"""What a listener of PySpark 4.0 to 4.3 gets as `latestOffset` when the source reported none: the text of None."""


def lag_of(progress: Mapping[str, Any]) -> Mapping[str, float]:
    """The lag that a source of a query's progress reports: messages, bytes, and seconds since the oldest was stored.

    For example `lag_of(query.lastProgress["sources"][0])`.

    Raises:
        ValueError: the progress has no lag. The query's Spark is older than 4.2, or it did not plan this micro-batch,
            because the run before a restart had planned it.
    """
    found = _report_in(progress)
    if "lag" not in found:
        raise ValueError(
            "this progress has no lag: Spark 4.2 and newer report it, but not of a micro-batch that an earlier run "
            "planned"
        )
    lag: Mapping[str, float] = found["lag"]
    return lag


def trouble_of(progress: Mapping[str, Any]) -> str | None:
    """Why no broker answers, if a source of a query's progress reports that; None while brokers answer.

    Spark itself says "Waiting for data to arrive" then. The query waits for up to `operation_timeout_seconds`, and ends
    with this error. Spark older than 4.2 does not report it.
    """
    trouble: str | None = _report_in(progress).get("trouble")
    return trouble


def _report_in(progress: Mapping[str, Any]) -> Mapping[str, Any]:
    latest = progress["latestOffset"]
    if latest == _NO_REPORT:
        return {}
    report: Mapping[str, Any] | None = json.loads(latest) if isinstance(latest, str) else latest
    return report or {}
