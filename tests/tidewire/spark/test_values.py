"""The source's decoder reads written values with the schema that the topic got."""

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_type
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
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidewire.spark.decoding import Decoder
from tidewire.spark.errors import UnwritableColumns, UnwritableRow
from tidewire.spark.topic_schemas import TopicSchema, spark_type
from tidewire.spark.values import values_of
from tidewire.spark.write_options import Form
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

MOMENT = datetime(2024, 5, 1, 12, 0, 0, 123_000, tzinfo=UTC)


def struct(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


def arrow(kind: DataType, values: list[Any]) -> pa.Array:
    return pa.array(values, to_arrow_type(kind, timezone="UTC"))


def read_back(form: Form, kind: DataType, values: list[Any]) -> tuple[DataType, list[Any]]:
    """Return what schema=auto reads of the written rows: the column's type and values."""
    written = values_of(form, kind)
    declared = written.declared
    assert declared is not None
    schema = TopicSchema(declared.type, declared.schema_data.decode())
    made = spark_type(schema)

    def unknown(version: bytes) -> TopicSchema:
        raise AssertionError(version)

    column = Decoder(schema, made, unknown).column(written.encode(arrow(kind, values)).to_pylist(), b"")
    return made, column.to_pylist()


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (StringType(), ["a", "", "ключ", None]),
        (BooleanType(), [True, False, None]),
        (ByteType(), [-128, 127, None]),
        (ShortType(), [-(2**15), 1, None]),
        (IntegerType(), [-(2**31), 2**31 - 1, None]),
        (LongType(), [-(2**63), 2**63 - 1, 0, None]),
        (FloatType(), [1.5, None]),
        (DoubleType(), [0.1, math.inf, None]),
        (TimestampType(), [MOMENT, datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC), None]),
    ],
)
def test_primitives_are_read_back_as_they_were(kind: DataType, values: list[Any]) -> None:
    assert read_back(Form.AUTO, kind, values) == (kind, values)


def test_a_part_of_a_column_is_written_alone() -> None:
    column = arrow(IntegerType(), [1, None, 3, 4]).slice(1, 2)
    assert values_of(Form.AUTO, IntegerType()).encode(column).to_pylist() == [None, b"\0\0\0\3"]


NESTED = struct(
    name=StringType(),
    count=IntegerType(),
    total=LongType(),
    ratio=DoubleType(),
    yes=BooleanType(),
    inner=struct(a=StringType(), b=ArrayType(LongType())),
    tags=ArrayType(StringType()),
    marks=MapType(StringType(), IntegerType()),
)
RECORDS = [
    {
        "name": "ключ",
        "count": 1,
        "total": 2**40,
        "ratio": 0.5,
        "yes": True,
        "inner": {"a": "x", "b": [1, None]},
        "tags": ["t", None],
        "marks": [("m", 1), ("n", None)],
    },
    dict.fromkeys(NESTED.fieldNames()),
    {
        "name": "",
        "count": 0,
        "total": 0,
        "ratio": 0.0,
        "yes": False,
        "inner": {"a": None, "b": []},
        "tags": [],
        "marks": [],
    },
    None,
]


@pytest.mark.parametrize("form", [Form.AUTO, Form.JSON, Form.AVRO])
def test_structs_are_read_back_as_they_were(form: Form) -> None:
    assert read_back(form, NESTED, RECORDS) == (NESTED, RECORDS)


@pytest.mark.parametrize("form", [Form.JSON, Form.AVRO])
def test_records_within_fields_of_like_names_are_told_apart(form: Form) -> None:
    """A definition with two records of one name would be refused."""
    kind = struct(a=struct(b=struct(x=IntegerType())), a_b=struct(y=StringType()))
    values = [{"a": {"b": {"x": 1}}, "a_b": {"y": "z"}}]
    declared = values_of(form, kind).declared
    assert declared is not None
    fastavro.parse_schema(json.loads(declared.schema_data))
    assert read_back(form, kind, values) == (kind, values)


def test_avro_keeps_bytes_times_and_decimals() -> None:
    kind = struct(data=BinaryType(), at=TimestampType(), on=DateType(), price=DecimalType(10, 2), small=FloatType())
    values = [
        {"data": b"\xff\0", "at": MOMENT, "on": date(2024, 5, 1), "price": Decimal("12.30"), "small": 1.5},
        {"data": b"", "at": datetime(1969, 1, 1, tzinfo=UTC), "on": date(1969, 1, 1), "price": Decimal(-1), "small": 0},
    ]
    assert read_back(Form.AVRO, kind, values) == (kind, values)


def test_json_keeps_bytes_times_and_decimals() -> None:
    """Times are whole milliseconds, rounded down."""
    inner = struct(at=TimestampType(), on=DateType(), price=DecimalType(20, 4), data=BinaryType())
    kind = struct(
        at=TimestampType(),
        on=DateType(),
        price=DecimalType(38, 10),
        data=BinaryType(),
        inner=inner,
        moments=ArrayType(TimestampType()),
        records=ArrayType(inner),
        prices=MapType(StringType(), DecimalType(5, 2)),
    )
    one = {"at": MOMENT, "on": date(1969, 1, 3), "price": Decimal("-0.0001"), "data": b"\xff\0"}
    values: list[Any] = [
        {
            "at": datetime(1969, 12, 31, 23, 59, 59, 500_000, UTC),
            "on": date(1970, 1, 3),
            "price": Decimal("1234567890123456789012345678.0123456789"),
            "data": b"",
            "inner": one,
            "moments": [MOMENT, None],
            "records": [one, None, dict.fromkeys(one)],
            "prices": [("a", Decimal("1.50")), ("b", None)],
        },
        {**dict.fromkeys(kind.fieldNames()), "records": [], "prices": []},
        None,
    ]
    assert read_back(Form.JSON, kind, values) == (kind, values)
    # Without maps, Arrow's own reader reads them.
    part = StructType(kind.fields[:-1])
    parts = [value and {name: value[name] for name in part.fieldNames()} for value in values]
    assert read_back(Form.JSON, part, parts) == (part, parts)
    micros = [{"at": MOMENT.replace(microsecond=123_999)}]
    assert read_back(Form.JSON, struct(at=TimestampType()), micros)[1] == [{"at": MOMENT}]


def test_json_is_what_the_table_says() -> None:
    kind = struct(at=TimestampType(), on=DateType(), price=DecimalType(10, 2), data=BinaryType())
    value = {"at": MOMENT, "on": date(1970, 1, 3), "price": Decimal("12.30"), "data": b"\xff\0"}
    written = values_of(Form.JSON, kind)
    (encoded,) = written.encode(arrow(kind, [value])).to_pylist()
    assert json.loads(encoded) == {"at": 1_714_564_800_123, "on": 2, "price": "12.30", "data": "/wA="}
    assert written.declared is not None
    assert [field["type"][1] for field in json.loads(written.declared.schema_data)["fields"]] == [
        {"type": "long", "logicalType": "timestamp-millis"},
        {"type": "int", "logicalType": "date"},
        {"type": "string", "logicalType": "decimal", "precision": 10, "scale": 2},
        "bytes",
    ]


def test_bytes_and_text_need_no_schema() -> None:
    for form, kind, values, written in (
        (Form.NONE, BinaryType(), [b"a", None], [b"a", None]),
        (Form.AUTO, BinaryType(), [b"a", None], [b"a", None]),
        (Form.NONE, StringType(), ["ключ", None], ["ключ".encode(), None]),
    ):
        how = values_of(form, kind)
        assert how.declared is None
        assert how.encode(arrow(kind, values)).to_pylist() == written


@pytest.mark.parametrize(
    ("form", "kind", "sentence"),
    [
        (Form.NONE, IntegerType(), "column value is int, but must be binary or string; the option schema"),
        (Form.NONE, struct(a=StringType()), "column value is struct<a:string>, but must be binary or string"),
        (Form.AUTO, DateType(), "column value is date, for which there is no schema; cast it"),
        (Form.JSON, StringType(), "column value is string, but must be a struct for schema=json"),
        (Form.AVRO, BinaryType(), "column value is binary, but must be a struct for schema=avro"),
        (
            Form.JSON,
            struct(a=struct(b=NullType())),
            "field a.b of column value is void, which cannot be written as JSON",
        ),
        (Form.AVRO, struct(a=NullType()), "field a of column value is void, which cannot be written as Avro"),
        (Form.AVRO, struct(a=MapType(IntegerType(), StringType())), "field a of column value is map<int,string>"),
    ],
)
def test_what_has_no_schema_is_refused_by_name(form: Form, kind: DataType, sentence: str) -> None:
    with pytest.raises(UnwritableColumns, match=sentence):
        values_of(form, kind)


def test_a_number_that_json_does_not_have_is_refused() -> None:
    kind = struct(a=DoubleType())
    with pytest.raises(UnwritableRow, match="a value cannot be written as JSON: JSON cannot represent nan"):
        values_of(Form.JSON, kind).encode(arrow(kind, [{"a": math.nan}]))


@pytest.mark.parametrize(("form", "name"), [(Form.JSON, "JSON"), (Form.AVRO, "Avro")])
def test_a_time_that_python_does_not_have_is_refused(form: Form, name: str) -> None:
    """Spark's timestamps cover some 290,000 years."""
    kind = struct(at=TimestampType())
    far = pa.StructArray.from_arrays([pa.array([2**60], pa.timestamp("us", "UTC"))], ["at"])
    with pytest.raises(UnwritableRow, match=f"a value cannot be written as {name}: date value out of range"):
        values_of(form, kind).encode(far)


def test_the_schemas_declared_are_named_as_pulsars_clients_name_them() -> None:
    assert values_of(Form.AUTO, LongType()).declared == pb.Schema(name="INT64", schema_data=b"", type=pb.Schema.Int64)
