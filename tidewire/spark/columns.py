"""The columns that the sink writes, and what each becomes in a message.

    value         required: binary or string; with the option `schema`, a type that it allows (values.py); null is a
                  message without a value (compaction treats it as a deletion)
    key           string, or binary, which messages hold as base64; null is no key. Rows of one key keep their order
    event_time    timestamp, rounded down to milliseconds, not before 1970; null and the first millisecond of 1970 are
                  no event time
    properties    map<string, string>; null is no properties
    topic         string, the topic's full name; required and used only without the option `topic`

A data frame that was read from a topic has more columns (segment, position, index, publish_time). They describe the
read message and are ignored, so such a data frame can be written as it is. Any other column is an error, because its
data would be lost.
"""

from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType, TimestampType

from tidewire.spark.errors import UnwritableColumns
from tidewire.spark.schema import SCHEMA

_WRITTEN: Final[dict[str, tuple[DataType, ...]]] = {
    "key": (StringType(), BinaryType()),
    "event_time": (TimestampType(),),
    "properties": (MapType(StringType(), StringType()),),
    "topic": (StringType(),),
}
_LEFT_OUT: Final = frozenset(SCHEMA.fieldNames()) - {"value", *_WRITTEN}


class FrameColumns(NamedTuple):
    """The places of the columns in a data frame; None for missing ones."""

    value: int
    key: int | None
    event_time: int | None
    properties: int | None
    topic: int | None
    """Also None if the option `topic` is given."""


def find_columns(schema: StructType, *, topic_is_given: bool) -> FrameColumns:
    """Find the columns. The type of `value` is not checked here.

    Raises:
        UnwritableColumns: a column is unknown, missing or duplicate, or has the wrong type.
    """
    places: dict[str, int] = {}
    for place, field in enumerate(schema.fields):
        name = field.name
        if name in _LEFT_OUT or (name == "topic" and topic_is_given):
            continue
        types = _WRITTEN.get(name)
        if types is None and name != "value":
            names = ", ".join(["value", *_WRITTEN])
            raise UnwritableColumns(
                f"column {name} cannot be written: a message has {names}; drop the column, or put it into one of these"
            )
        if name in places:
            raise UnwritableColumns(f"there are two columns {name}")
        if types is not None and not any(_is_a(field.dataType, known) for known in types):
            expected = " or ".join(known.simpleString() for known in types)
            raise UnwritableColumns(f"column {name} is {field.dataType.simpleString()}, but must be {expected}")
        places[name] = place
    if "value" not in places:
        raise UnwritableColumns("the column value is missing; make one, for instance with to_json(struct(*)) AS value")
    if not topic_is_given and "topic" not in places:
        raise UnwritableColumns("the target is missing; give the option topic or a column topic")
    return FrameColumns(places["value"], *(places.get(name) for name in FrameColumns._fields[1:]))


def column(batch: pa.RecordBatch, place: int | None) -> pa.Array | None:
    """One of a record batch's columns, or None; large Arrow types become the usual ones."""
    if place is None:
        return None
    found = batch.column(place)
    if pa.types.is_large_string(found.type):
        return found.cast(pa.string())
    if pa.types.is_large_binary(found.type):
        return found.cast(pa.binary())
    if pa.types.is_map(found.type) and pa.types.is_large_string(found.type.key_type):
        return found.cast(pa.map_(pa.string(), pa.string()))
    return found


def _is_a(found: DataType, known: DataType) -> bool:
    # Whether a map's values may be null does not matter, and neither does a string's collation.
    if isinstance(known, MapType):
        return (
            isinstance(found, MapType)
            and isinstance(found.keyType, StringType)
            and isinstance(found.valueType, StringType)
        )
    return isinstance(found, type(known))
