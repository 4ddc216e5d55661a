"""What Spark calls to read a topic as a batch: `partitions` in the planner, `read` in each task.

Spark makes the objects in a planning process, pickles them, and uses them in executors. So they hold options and no
connection. Spark refuses a reader that takes filters while its own setting for filters is off, and does not show the
setting. So there are two readers, and an option to choose. The other one is in `filters.py`.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tidewire.protocol.refusals import Refused
from tidewire.spark.brokers import Brokers, ask_persistently
from tidewire.spark.chunked import whole_messages
from tidewire.spark.decoding import Decoder
from tidewire.spark.layouts import is_gone, selected
from tidewire.spark.one_sentence import one_sentence
from tidewire.spark.options import ReadOptions
from tidewire.spark.partitions import SegmentRange
from tidewire.spark.planning import plan
from tidewire.spark.pushed import NOTHING_PUSHED, Pushed
from tidewire.spark.pyspark_versions import arrow_schema
from tidewire.spark.receiving import entries
from tidewire.spark.rows import record_batches
from tidewire.spark.schema import SCHEMA, only, with_value
from tidewire.spark.topic_schemas import TopicSchema, common_schema, schema_of, spark_type
from tidewire.spark.worker_memory import settle

_Answer = TypeVar("_Answer")


def columns(options: ReadOptions) -> tuple[StructType, TopicSchema | None]:
    """The columns of a data frame, and the schema that decodes its values, if one does.

    Raises:
        TidewireError: the topic's schema could not be fetched, or has no Spark type.
    """
    if not options.decoded or "value" not in options.columns:
        return only(SCHEMA, options.columns), None
    found = _asked(options, lambda brokers: common_schema(brokers, selected(options, brokers)))
    return only(with_value(spark_type(found)), options.columns), found


class RangeReading:
    """Reads ranges of segments in executors."""

    def __init__(self, options: ReadOptions, schema: StructType, topic_schema: TopicSchema | None) -> None:
        """Store the arguments.

        Args:
            options: checked ones.
            schema: the data frame's schema.
            topic_schema: the schema that its `value` column was made from; None for a binary column.
        """
        self._options = options
        self._schema = schema
        self._topic_schema = topic_schema

    def read(self, partition: SegmentRange, pushed: Pushed = NOTHING_PUSHED) -> Iterator[pa.RecordBatch]:
        """The range's messages in order, as Arrow record batches of bounded size.

        Raises:
            TidewireError: while iterating, if the segment cannot be read to the range's end.
        """
        settle(makes_arrays=True)
        options = self._options
        connect = partial(Brokers, options)
        patience_seconds = options.operation_timeout_seconds
        receive = partial(entries, brokers=connect, uncommitted=options.uncommitted, patience_seconds=patience_seconds)
        received = whole_messages(partition, receive(partition), receive)
        decoder = None
        if self._topic_schema is not None:
            value = self._schema["value"].dataType
            # Messages of a migrated topic have the versions of the regular one, which is the segment's name.
            decoder = Decoder(self._topic_schema, value, partial(_schema_of, options, partition.wire_name))
        try:
            yield from record_batches(partition, received, arrow_schema(self._schema), decoder, pushed)
        except Refused as refused:
            # The topic or segment was deleted after the read was planned.
            if options.fail_on_data_loss or not is_gone(refused):
                raise


def _schema_of(options: ReadOptions, topic: str, version: bytes) -> TopicSchema:
    # On a connection of its own, because messages are arriving on the other one.
    return _asked(options, lambda brokers: schema_of(brokers, topic, version))


def _asked(options: ReadOptions, ask: Callable[[Brokers], _Answer]) -> _Answer:
    return ask_persistently(partial(Brokers, options), ask, options.operation_timeout_seconds)


class TidewireReader(DataSourceReader):
    """Reads what was committed when the read is planned."""

    def __init__(
        self, options: ReadOptions, schema: StructType = SCHEMA, topic_schema: TopicSchema | None = None
    ) -> None:
        """Take checked options and the result of `columns`. Ask no broker yet."""
        self._options = options
        self._pushed = NOTHING_PUSHED
        self._reading: Final = RangeReading(options, schema, topic_schema)

    @one_sentence()
    def partitions(self) -> list[InputPartition]:
        """The ranges that together are what the options select, including those of sealed segments.

        Raises:
            TidewireError: there is no such topic, or no broker could be asked.
        """
        return list(_asked(self._options, lambda brokers: plan(self._options, brokers, self._pushed)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The range's messages in order, as Arrow record batches of bounded size.

        Raises:
            TidewireError: while iterating, if the segment cannot be read to the range's end.
        """
        # For a plan without ranges Spark makes an empty partition.
        if isinstance(partition, SegmentRange):
            with one_sentence():
                yield from self._reading.read(partition, self._pushed)
