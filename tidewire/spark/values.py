"""Encodes the `value` column, and declares its schema to the topic.

    option schema   column                           value                                  schema of the topic
    none            binary, string                   the bytes, or the text in UTF-8        none
    auto            binary                           unchanged                              none
                    string, boolean, numbers         as Pulsar's clients write them         String, Boolean, INT8 ...
                    timestamp                        milliseconds since 1970                TIMESTAMP
                    struct                           as with json                           JSON
    json            struct                           an object without its null fields      JSON
    avro            struct                           Avro's binary form                     AVRO

    field of a struct            in JSON                                       in the definition
    boolean, numbers, string     as JSON has them                              boolean, int, long, float, double, string
    timestamp                    milliseconds since 1970, rounded down         long, timestamp-millis
    date                         days since 1970                               int, date
    decimal                      text, because clients read numbers as floats  string, decimal with precision and scale
    binary                       text in base64, as Pulsar's Java client does  bytes
    array, map, struct           array, object, object                         array, map, record

The definitions of JSON and AVRO schemas follow from the column's type. They define a record `Value`, and all its fields
may be null, like those of a data frame. So a topic accepts added and removed fields as its schema evolves.
"""

import base64
import io
import json
import math
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from tidewire.spark.avro import avro_library
from tidewire.spark.errors import UnwritableColumns, UnwritableRow
from tidewire.spark.write_options import Form
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

_S: Final = pb.Schema
RECORD_NAME: Final = "Value"

_FIXED: Final[dict[type[DataType], tuple[str, pb.Schema.Type, str]]] = {
    ByteType: ("INT8", _S.Int8, ">i1"),
    ShortType: ("INT16", _S.Int16, ">i2"),
    IntegerType: ("INT32", _S.Int32, ">i4"),
    LongType: ("INT64", _S.Int64, ">i8"),
    FloatType: ("Float", _S.Float, ">f4"),
    DoubleType: ("Double", _S.Double, ">f8"),
    BooleanType: ("Boolean", _S.Bool, ">i1"),
    TimestampType: ("TIMESTAMP", _S.Timestamp, ">i8"),
}
_AVRO: Final[dict[type[DataType], Any]] = {
    BooleanType: "boolean",
    ByteType: "int",
    ShortType: "int",
    IntegerType: "int",
    LongType: "long",
    FloatType: "float",
    DoubleType: "double",
    StringType: "string",
    BinaryType: "bytes",
    DateType: {"type": "int", "logicalType": "date"},
    TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
}
_AVRO_IN_JSON: Final[dict[type[DataType], Any]] = {
    **_AVRO,
    TimestampType: {"type": "long", "logicalType": "timestamp-millis"},
}
_US_PER_MS: Final = 1000

Encode = Callable[[pa.Array], pa.BinaryArray]


class Values:
    """The encoding of one column's values."""

    def __init__(self, declared: pb.Schema | None, encode: Encode) -> None:
        """Made by `values_of`."""
        self.declared: Final = declared
        """The schema declared to topics; None for no schema."""
        self._encode: Final = encode

    def encode(self, column: pa.Array) -> pa.BinaryArray:
        """The column's values as bytes; null stays null.

        Raises:
            UnwritableRow: the schema cannot represent a value.
        """
        return self._encode(column)


def values_of(form: Form, kind: DataType) -> Values:
    """The encoding of a `value` column of this type.

    Raises:
        UnwritableColumns: the type is not supported.
    """
    if isinstance(kind, BinaryType) and form in (Form.NONE, Form.AUTO):
        return Values(None, _as_it_is)
    if isinstance(kind, StringType) and form is Form.NONE:
        return Values(None, _as_bytes)
    if isinstance(kind, StringType) and form is Form.AUTO:
        return Values(_S(name="String", schema_data=b"", type=_S.String), _as_bytes)
    if isinstance(kind, StructType) and form is not Form.NONE:
        return _avro(kind) if form is Form.AVRO else _json(kind)
    fixed = _FIXED.get(type(kind))
    if form is Form.AUTO and fixed is not None:
        name, number, item = fixed
        return Values(_S(name=name, schema_data=b"", type=number), lambda column: _fixed(column, np.dtype(item)))
    raise UnwritableColumns(f"column value is {kind.simpleString()}, {_ADVICE[form]}")


_ADVICE: Final = {
    Form.NONE: "but must be binary or string; the option schema (auto, json, avro) allows more types",
    Form.AUTO: "for which there is no schema; cast it, or put it into a struct",
    Form.JSON: "but must be a struct for schema=json",
    Form.AVRO: "but must be a struct for schema=avro",
}


def _as_it_is(column: pa.Array) -> pa.BinaryArray:
    return column


def _as_bytes(column: pa.Array) -> pa.BinaryArray:
    return column.view(pa.binary())


def _fixed(column: pa.Array, item: np.dtype[Any]) -> pa.BinaryArray:
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    elif pa.types.is_timestamp(column.type):
        # Rounded down, also before 1970.
        column = pa.array(column.view(pa.int64()).fill_null(0).to_numpy() // _US_PER_MS, mask=_absent(column))
    numbers = column.fill_null(0).to_numpy().astype(item)
    offsets = np.arange(len(column) + 1, dtype=np.int32) * item.itemsize
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(numbers.tobytes())]
    made = pa.BinaryArray.from_buffers(pa.binary(), len(column), buffers)
    return pc.if_else(column.is_valid(), made, None) if column.null_count else made


def _absent(column: pa.Array) -> Any:  # noqa: ANN401 - an array of booleans
    return column.is_null().to_numpy(zero_copy_only=False)


def _json(kind: StructType) -> Values:
    definition = json.dumps(_definition(kind, RECORD_NAME, set(), in_json=True)).encode()
    plain = _plain(kind)

    def encode(column: pa.Array) -> pa.BinaryArray:
        try:
            return pa.array(
                [
                    None if value is None else orjson.dumps(plain(value))
                    for value in column.to_pylist(maps_as_pydicts="strict")
                ],
                pa.binary(),
            )
        # Spark's times have a larger range than Python's.
        except (OverflowError, TypeError, ValueError) as error:
            raise UnwritableRow(f"a value cannot be written as JSON: {error}") from error

    return Values(_S(name=RECORD_NAME, schema_data=definition, type=_S.Json), encode)


def _plain(kind: DataType) -> Callable[[Any], Any]:
    """Converts Arrow's value of a type to JSON's. Null fields are left out, as by Pulsar's Java client."""
    if isinstance(kind, StructType):
        fields = [(field.name, _plain(field.dataType)) for field in kind.fields]
        return lambda value: {name: plain(value[name]) for name, plain in fields if value[name] is not None}
    if isinstance(kind, ArrayType):
        item = _plain(kind.elementType)
        return lambda value: [None if one is None else item(one) for one in value]
    if isinstance(kind, MapType):
        text = _plain(kind.valueType)
        return lambda value: {name: None if one is None else text(one) for name, one in value.items()}
    return _PLAIN.get(type(kind), _same)


def _same(value: Any) -> Any:  # noqa: ANN401 - JSON
    return value


def _days(day: date) -> int:
    return (day - _FIRST_DAY).days


def _milliseconds(moment: datetime) -> int:
    since = moment - _FIRST_MOMENT
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError(f"JSON cannot represent {number}")
    return number


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


_PLAIN: Final[dict[type[DataType], Callable[[Any], Any]]] = {
    BinaryType: _base64,
    DecimalType: str,
    DateType: _days,
    TimestampType: _milliseconds,
    FloatType: _finite,
    DoubleType: _finite,
}
_FIRST_DAY: Final = date(1970, 1, 1)
_FIRST_MOMENT: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _avro(kind: StructType) -> Values:
    definition = _definition(kind, RECORD_NAME, set(), in_json=False)
    avro = avro_library()
    parsed = avro.parse_schema(definition)

    def encode(column: pa.Array) -> pa.BinaryArray:
        made: list[bytes | None] = []
        try:
            for value in column.to_pylist(maps_as_pydicts="strict"):
                output = io.BytesIO()
                if value is not None:
                    avro.schemaless_writer(output, parsed, value)
                made.append(None if value is None else output.getvalue())
        # The library raises all kinds of errors for a value that does not fit.
        except Exception as error:
            raise UnwritableRow(f"a value cannot be written as Avro: {error}") from error
        return pa.array(made, pa.binary())

    return Values(_S(name=RECORD_NAME, schema_data=json.dumps(definition).encode(), type=_S.Avro), encode)


def _definition(kind: DataType, name: str, taken: set[str], *, in_json: bool) -> Any:  # noqa: ANN401 - JSON
    """Avro's definition of a type. Its records get names that are not in `taken`, and add them there."""
    if isinstance(kind, StructType):
        # Field `a_b` and field `b` of field `a` would give the same name.
        while name in taken:
            name += "_"
        taken.add(name)
        fields = [
            {
                "name": field.name,
                "type": ["null", _definition(field.dataType, f"{name}_{field.name}", taken, in_json=in_json)],
                "default": None,
            }
            for field in kind.fields
        ]
        return {"type": "record", "name": name, "fields": fields}
    if isinstance(kind, ArrayType):
        return {"type": "array", "items": ["null", _definition(kind.elementType, name, taken, in_json=in_json)]}
    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        return {"type": "map", "values": ["null", _definition(kind.valueType, name, taken, in_json=in_json)]}
    if isinstance(kind, DecimalType):
        stored = "string" if in_json else "bytes"
        return {"type": stored, "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    known = (_AVRO_IN_JSON if in_json else _AVRO).get(type(kind))
    if known is None:
        where = name.removeprefix(f"{RECORD_NAME}_").replace("_", ".") if name != RECORD_NAME else "value"
        form = "JSON" if in_json else "Avro"
        raise UnwritableColumns(
            f"field {where} of column value is {kind.simpleString()}, which cannot be written as {form}"
        )
    return known
