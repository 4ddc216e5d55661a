import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tidewire.spark.columns import FrameColumns, column, find_columns
from tidewire.spark.errors import UnwritableColumns
from tidewire.spark.schema import SCHEMA

TEXT, BINARY, NUMBER = StringType(), BinaryType(), IntegerType()
VALUE, TOPIC = ("value", TEXT), ("topic", TEXT)


def frame(*columns: tuple[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns])


def test_columns_are_found_wherever_they_stand() -> None:
    schema = frame(
        TOPIC, ("value", BINARY), ("key", TEXT), ("properties", MapType(TEXT, TEXT)), ("event_time", TimestampType())
    )
    assert find_columns(schema, topic_is_given=False) == FrameColumns(1, 2, 4, 3, 0)


def test_a_value_is_enough_when_the_topic_is_given() -> None:
    assert find_columns(frame(VALUE), topic_is_given=True) == FrameColumns(0, None, None, None, None)


def test_a_topic_column_is_not_looked_at_when_the_topic_is_given() -> None:
    assert find_columns(frame(VALUE, ("topic", NUMBER)), topic_is_given=True).topic is None


def test_a_frame_that_was_read_from_a_topic_can_be_written_as_it_is() -> None:
    found = find_columns(SCHEMA, topic_is_given=True)
    names = SCHEMA.fieldNames()
    assert found == FrameColumns(
        names.index("value"), names.index("key"), names.index("event_time"), names.index("properties"), None
    )


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ([("key", TEXT)], "the column value is missing; make one, for instance with"),
        ([VALUE], "the target is missing; give the option topic or a column topic"),
        ([VALUE, TOPIC, ("carrier", TEXT)], "column carrier cannot be written: a message has value, key, event"),
        ([VALUE, TOPIC, ("key", NUMBER)], "column key is int, but must be string or binary"),
        ([VALUE, TOPIC, ("event_time", NUMBER)], "column event_time is int, but must be timestamp"),
        ([VALUE, TOPIC, ("event_time", TimestampNTZType())], "event_time is timestamp_ntz, but must be timestamp"),
        ([VALUE, TOPIC, ("properties", MapType(TEXT, NUMBER))], "column properties is map<string,int>, but must"),
        ([VALUE, TOPIC, ("value", BINARY)], "there are two columns value"),
        ([VALUE, ("topic", BINARY)], "column topic is binary, but must be string"),
    ],
)
def test_what_would_be_lost_or_misunderstood_is_refused_by_name(
    columns: list[tuple[str, DataType]], sentence: str
) -> None:
    with pytest.raises(UnwritableColumns, match=sentence):
        find_columns(frame(*columns), topic_is_given=False)


def test_columns_are_of_arrows_usual_types() -> None:
    """This includes `spark.sql.execution.arrow.useLargeVarTypes`."""
    large = pa.map_(pa.large_string(), pa.large_string())
    columns = [
        pa.array(["a"], pa.large_string()),
        pa.array([b"a"], pa.large_binary()),
        pa.array([[("a", "b")]], large),
        pa.array(["a"]),
    ]
    batch = pa.RecordBatch.from_arrays(columns, ["a", "b", "c", "d"])
    types = [column(batch, place).type for place in range(4)]  # type: ignore[union-attr]
    assert types == [pa.string(), pa.binary(), pa.map_(pa.string(), pa.string()), pa.string()]
    assert column(batch, None) is None
