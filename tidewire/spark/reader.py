"""What Spark calls to read a topic as a batch: `partitions` while it plans, `read` in each task.

The object is made in a planning process, pickled, and used in executors, so it holds options and no connection.
"""

from collections.abc import Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from tidewire.spark.brokers import Brokers
from tidewire.spark.options import ReadOptions
from tidewire.spark.partitions import SegmentRange
from tidewire.spark.planning import plan
from tidewire.spark.receiving import entries
from tidewire.spark.rows import record_batches


class TidewireReader(DataSourceReader):
    """Reads everything committed when the read is planned, from the beginning of the topic."""

    def __init__(self, options: ReadOptions) -> None:
        """Options that were checked; nothing is asked of a broker yet."""
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """A range for each segment that holds something, sealed ones included.

        Raises:
            SourceError: there is no such topic, or a broker could not be asked.
        """
        with Brokers(self._options) as brokers:
            return list(plan(self._options, brokers))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The range's messages in order, as Arrow record batches of bounded size.

        Raises:
            SourceError: while iterating, when the segment cannot be read to the range's end.
        """
        # Of a plan without ranges Spark makes one with nothing in it.
        if isinstance(partition, SegmentRange):
            yield from record_batches(partition, entries(partition, partial(Brokers, self._options)))
