import io
import json
import struct
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, DataType, IntegerType, LongType, MapType, StringType, StructField, StructType

from tidewire.spark.decoding import Decoder
from tidewire.spark.errors import LibraryMissing, UnreadableMessage, UnreadableSchema
from tidewire.spark.topic_schemas import TopicSchema, spark_type
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

S = pb.Schema
RECORD: dict[str, Any] = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "number", "type": "long"},
        {"name": "gate", "type": ["null", "string"], "default": None},
        {"name": "stops", "type": {"type": "array", "items": {"type": "record", "name": "Stop", "fields": [
            {"name": "code", "type": "string"}]}}},
    ],
}  # fmt: skip
WITH_MAP = {**RECORD, "fields": [*RECORD["fields"], {"name": "seats", "type": {"type": "map", "values": "int"}}]}

NESTED = {"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]}


def nobody(version: bytes) -> TopicSchema:
    raise AssertionError("no version has to be looked up")


def decoder(kind: int, definition: object = "", of_version: Callable[[bytes], TopicSchema] = nobody) -> Decoder:
    schema = TopicSchema(kind, json.dumps(definition) if definition else "")
    return Decoder(schema, spark_type(schema), of_version)


def avro(value: object, schema: dict[str, Any]) -> bytes:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(schema), value)
    return written.getvalue()


@pytest.mark.parametrize(
    ("kind", "encoded", "decoded"),
    [
        (S.String, "Köln".encode(), "Köln"),
        (S.Bool, b"\1", True),
        (S.Int8, b"\xff", -1),
        (S.Int16, struct.pack(">h", -300), -300),
        (S.Int32, struct.pack(">i", 70_000), 70_000),
        (S.Int64, struct.pack(">q", -(2**40)), -(2**40)),
        (S.Float, struct.pack(">f", 0.5), 0.5),
        (S.Double, struct.pack(">d", 0.1), 0.1),
        (S.Timestamp, struct.pack(">q", 1_500), datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)),
        (S.NoSchema, b"\0", b"\0"),
    ],
)  # fmt: skip
def test_primitive_values_are_read_and_absent_ones_are_null(kind: int, encoded: bytes, decoded: object) -> None:
    column = decoder(kind).column([encoded, None, encoded], b"")
    assert column.to_pylist() == [decoded, None, decoded]


@pytest.mark.parametrize("kind", [S.Bool, S.Int8, S.Int32, S.Int64, S.Double, S.Timestamp, S.String])
def test_a_value_that_is_no_such_thing_is_not_guessed_at(kind: int) -> None:
    with pytest.raises(UnreadableMessage, match="a value does not match the topic's"):
        decoder(kind).column([b"\xff\xff\xff"], b"")


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
flights = st.fixed_dictionaries(
    {
        "number": st.integers(-(2**63), 2**63 - 1),
        "gate": st.none() | texts,
        "stops": st.lists(st.fixed_dictionaries({"code": texts}), max_size=2),
    }
)


@given(st.lists(st.none() | flights, min_size=1, max_size=5), st.booleans(), st.booleans())
def test_json_objects_are_structs(objects: list[dict[str, Any] | None], pretty: bool, has_map: bool) -> None:
    """Their layout does not matter, and unknown members are skipped."""
    if has_map:
        objects = [one and {**one, "seats": {"a": 1}} for one in objects]
    indent = 1 if pretty else None
    values = [None if one is None else json.dumps({**one, "more": [1]}, indent=indent).encode() for one in objects]
    column = decoder(S.Json, WITH_MAP if has_map else RECORD).column(values, b"")
    expected = [one and {**one, "seats": [("a", 1)]} for one in objects] if has_map else objects
    assert column.to_pylist() == expected


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"seats": {"a": "many"}}, "field seats.a is many, not int32"),
        ({"seats": {"a": 1}, "number": 1.5}, "field number is 1.5, not int64"),
        ({"seats": {"a": 1}, "miles": True}, "field miles is True, not double"),
        ({"seats": {}, "gate": 2}, "field gate is 2, not string"),
        ({"seats": {}, "stops": [{"code": "x"}, {"code": 7}]}, "field stops.code is 7, not string"),
    ],
)
def test_a_json_field_of_another_type_is_named(value: dict[str, Any], told: str) -> None:
    """Such as the enums of pulsar-client: it declares their names, and writes their values."""
    definition = {**WITH_MAP, "fields": [*WITH_MAP["fields"], {"name": "miles", "type": "double"}]}
    good = json.dumps({"seats": {}, "miles": 2**60 + 1}).encode()
    assert decoder(S.Json, definition).column([good], b"").to_pylist()[0]["miles"] == float(2**60)
    with pytest.raises(UnreadableMessage, match=f"Json schema: {told};"):
        decoder(S.Json, definition).column([good, json.dumps(value).encode()], b"")


@pytest.mark.parametrize(
    "values",
    [
        [b""],
        [b"3"],
        [b'{"number": 1'],
        [b'{"number": "x"}'],
        [b"", b"{}{}"],
        [b'{"number":', b"1}", b"{} {}"],
        [b"{} {}", b""],
        [b"[{}]"],
        [b'{"gate": "}', b'{"}'],
    ],
)
def test_what_is_no_json_object_is_not_guessed_at(values: list[bytes]) -> None:
    """It does not shift later rows, either."""
    with pytest.raises(UnreadableMessage, match="Json schema"):
        decoder(S.Json, RECORD).column([b"{}", *values, b"{}"], b"")


@given(st.lists(st.none() | flights, min_size=1, max_size=5))
def test_avro_records_are_structs(objects: list[dict[str, Any] | None]) -> None:
    values = [None if one is None else avro(one, RECORD) for one in objects]
    assert decoder(S.Avro, RECORD).column(values, b"").to_pylist() == objects


def test_avro_is_read_with_the_schema_it_was_written_with_into_that_of_the_data_frame() -> None:
    old = {"type": "record", "name": "Flight", "fields": [{"name": "number", "type": "int"}]}
    new = {**old, "fields": [{"name": "number", "type": "long"}, {"name": "gate", "type": "string", "default": "?"}]}
    asked: list[bytes] = []

    def of_version(version: bytes) -> TopicSchema:
        asked.append(version)
        return TopicSchema(S.Avro, json.dumps(old))

    made = decoder(S.Avro, new, of_version)
    for _ in range(2):
        assert made.column([avro({"number": 7}, old)], b"v0").to_pylist() == [{"number": 7, "gate": "?"}]
    assert asked == [b"v0"]


def test_logical_types_of_avro_are_sparks() -> None:
    schema = {"type": "record", "name": "R", "fields": [
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "again", "type": ["null", "Kind"]},
    ]}  # fmt: skip
    day = date(2024, 5, 1)
    value = {"day": day, "at": datetime(2024, 5, 1, tzinfo=UTC), "price": Decimal("1.50"), "kind": "B", "again": "A"}
    assert decoder(S.Avro, schema).column([avro(value, schema)], b"").to_pylist() == [value]


@pytest.mark.parametrize(
    ("kind", "logical", "value", "read"),
    [
        ("string", "uuid", UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ("int", "time-millis", time(0, 0, 1), 1000),
        ("long", "time-micros", time(0, 0, 1), 1_000_000),
        ("long", "local-timestamp-millis", datetime(1970, 1, 1, 0, 0, 1), 1000),  # noqa: DTZ001 - it has no zone
        ("long", "local-timestamp-micros", datetime(1970, 1, 1, 0, 0, 1), 1_000_000),  # noqa: DTZ001
    ],
)
def test_other_logical_types_are_what_they_are_written_as(kind: str, logical: str, value: object, read: object) -> None:
    """The column's type, made from the same definition, says so."""
    plain = {"type": kind, "logicalType": logical}
    fields = [
        {"name": "one", "type": plain},
        {"name": "perhaps", "type": ["null", plain]},
        {"name": "many", "type": {"type": "array", "items": plain}},
        # Where it means nothing, though it is written there often.
        {"name": "misplaced", "type": ["null", "long"], "logicalType": "timestamp-millis"},
    ]
    schema = {"type": "record", "name": "R", "fields": fields}
    encoded = avro({"one": value, "perhaps": value, "many": [value], "misplaced": 7}, schema)
    made = decoder(S.Avro, schema, lambda version: TopicSchema(S.Avro, json.dumps(schema)))
    for version in (b"", b"v1"):
        (row,) = made.column([encoded], version).to_pylist()
        assert row == {"one": read, "perhaps": read, "many": [read], "misplaced": 7}


@pytest.mark.parametrize("kind", [S.Date, S.Timestamp])
@pytest.mark.parametrize("milliseconds", [2**62, -(2**62), -(2**63)])
def test_a_time_that_no_timestamp_can_hold_is_not_another_one(kind: int, milliseconds: int) -> None:
    with pytest.raises(UnreadableMessage, match=r"schema: a timestamp cannot hold the time"):
        decoder(kind).column([struct.pack(">q", 1), struct.pack(">q", milliseconds)], b"")


def test_garbage_in_an_avro_topic_is_named() -> None:
    with pytest.raises(UnreadableMessage, match=r"Avro schema: .*; read the topic without schema=auto, or from a"):
        decoder(S.Avro, RECORD).column([b"\xff"], b"")


def test_a_record_with_bytes_behind_it_is_no_record() -> None:
    """A text begins as a record of one number does. It was sent without the schema."""
    number = {"type": "record", "name": "Number", "fields": [{"name": "number", "type": "long"}]}
    assert decoder(S.Avro, number).column([b"\x68"], b"").to_pylist() == [{"number": 52}]
    with pytest.raises(UnreadableMessage, match="Avro schema: 4 bytes are left behind it"):
        decoder(S.Avro, number).column([b"\x68", b"hello"], b"")


@pytest.mark.parametrize(
    ("schema", "made"),
    [
        (WITH_MAP, StructType([
            StructField("number", LongType()), StructField("gate", StringType()),
            StructField("stops", ArrayType(StructType([StructField("code", StringType())]))),
            StructField("seats", MapType(StringType(), IntegerType()))])),
        ("string", StringType()),
        ({"type": {"type": "array", "items": "int"}}, ArrayType(IntegerType())),
    ],
)  # fmt: skip
def test_definitions_in_avros_language_are_column_types(schema: object, made: DataType) -> None:
    assert spark_type(TopicSchema(S.Json, json.dumps(schema))) == made


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        (TopicSchema(S.KeyValuePair, ""), "schemas of type KeyValuePair are not decoded"),
        (TopicSchema(S.ProtobufNative, ""), "without schema=auto"),
        (TopicSchema(S.Avro, json.dumps(["string", "int"])), "no column type for the union"),
        (TopicSchema(S.Avro, "{"), "the topic's schema cannot be parsed"),
        (TopicSchema(S.Avro, json.dumps(NESTED)), "it contains itself"),
    ],
)
def test_what_has_no_column_type_is_refused(schema: TopicSchema, complaint: str) -> None:
    with pytest.raises(UnreadableSchema, match=complaint):
        spark_type(schema)


def test_an_empty_struct_is_read_too() -> None:
    empty = {"type": "record", "name": "R", "fields": []}
    assert decoder(S.Json, empty).column([b"{}", None], b"") == pa.array([{}, None], pa.struct([]))


def test_fastavro_is_needed_for_avro_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    assert decoder(S.String).column([b"a"], b"").to_pylist() == ["a"]
    with pytest.raises(LibraryMissing, match="need the package fastavro"):
        decoder(S.Avro, RECORD)
