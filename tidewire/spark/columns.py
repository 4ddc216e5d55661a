"""The columns that are written, and what they make of a row.

    value         required: binary or string; with the option `schema`, what that says (values.py); null is a message
                  without value (a deletion, to compaction)
    key           string, or binary, which stands in messages as base64; null is none. Rows of one key keep their order
    event_time    timestamp, to the millisecond, not before 1970; null is none, as the first of these milliseconds is
    properties    map<string, string>; null is none
    topic         string, the topic in full; needed, and only looked at, when the option `topic` is not given

What else a data frame that was read from a topic has (segment, position, index, publish_time) is of the message that
was read and is left out, so that such a frame can be written as it is. Any other column is refused by name: it would
be lost.
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
    """Where in a data frame the columns stand; None for those it has not."""

    value: int
    key: int | None
    event_time: int | None
    properties: int | None
    topic: int | None
    """None, too, if the column is not looked at."""


def find_columns(schema: StructType, *, topic_is_given: bool) -> FrameColumns:
    """Find them; of `value`, the type is not looked at.

    Raises:
        UnwritableColumns: there is one too many or too few, or one has another type.
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
        raise UnwritableColumns(
            "the column value is missing; name the messages' column so, as in to_json(struct(*)) AS value"
        )
    if not topic_is_given and "topic" not in places:
        raise UnwritableColumns("the target is missing; give the option topic or a column topic")
    return FrameColumns(places["value"], *(places.get(name) for name in FrameColumns._fields[1:]))


def column(batch: pa.RecordBatch, place: int | None) -> pa.Array | None:
    """One of a record batch's columns, if it is there, in Arrow's usual type where Spark was told to use large ones."""
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
    # Of maps, whether values may be null does not matter, and of strings the collation.
    if isinstance(known, MapType):
        return (
            isinstance(found, MapType)
            and isinstance(found.keyType, StringType)
            and isinstance(found.valueType, StringType)
        )
    return isinstance(found, type(known))
