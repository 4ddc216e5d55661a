"""The simplest Python data source: returns the same record batch from memory repeatedly.

Its rate is the upper bound for any Python source with these columns: `value` alone, or all columns of Tidewire's
source.
"""

from collections.abc import Iterator, MutableMapping

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import BinaryType, StructField, StructType

from tidewire.spark.pyspark_versions import arrow_schema
from tidewire.spark.schema import SCHEMA

_VALUE_ALONE = StructType([StructField("value", BinaryType(), nullable=True)])
_TASKS = 2


class Ceiling(DataSource):
    """Format "ceiling"; options: rows, size (of a value), rows_a_batch, columns (all, or value)."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = dict(options)

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "ceiling"

    def schema(self) -> StructType:
        """The columns."""
        return SCHEMA if self._options["columns"] == "all" else _VALUE_ALONE

    def reader(self, schema: StructType) -> "CeilingReader":
        """A batch reader."""
        options = self._options
        return CeilingReader(
            arrow_schema(schema), int(options["rows"]), int(options["size"]), int(options["rows_a_batch"])
        )


class CeilingReader(DataSourceReader):
    """Two tasks, each with half of the rows."""

    def __init__(self, schema: pa.Schema, rows: int, size: int, rows_a_batch: int) -> None:
        self._schema = schema
        self._batches = rows // _TASKS // rows_a_batch
        self._size = size
        self._rows_a_batch = rows_a_batch

    def partitions(self) -> list[InputPartition]:
        """Both tasks."""
        return [InputPartition(task) for task in range(_TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batch as often as needed."""
        batch = _batch(self._schema, self._rows_a_batch, self._size)
        for _ in range(self._batches):
            yield batch


def _batch(schema: pa.Schema, rows: int, size: int) -> pa.RecordBatch:
    numbers = pa.array(np.arange(rows))
    columns = {
        "key": pa.array([f"key-{row % 1000:04}" for row in range(rows)]),
        "value": pa.array([b"x" * size] * rows, pa.binary()),
        "topic": pa.array(["topic://public/default/bench-100-0"] * rows),
        "segment": pa.array(["0000-7fff-0"] * rows),
        "position": pa.StructArray.from_arrays(
            [numbers, numbers, numbers.cast(pa.int32())], fields=list(arrow_schema(SCHEMA).field("position").type)
        ),
        "index": numbers,
        "publish_time": pa.array([1_700_000_000_000_000] * rows, pa.timestamp("us", "UTC")),
        "event_time": pa.nulls(rows, pa.timestamp("us", "UTC")),
        "properties": pa.array([[]] * rows, arrow_schema(SCHEMA).field("properties").type),
    }
    return pa.RecordBatch.from_arrays([columns[field.name] for field in schema], schema=schema)
