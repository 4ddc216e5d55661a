"""JSON values that an earlier version of a schema wrote, read into the column of a newer one."""

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from tidewire.spark.decoding import Decoder
from tidewire.spark.errors import UnreadableMessage
from tidewire.spark.topic_schemas import TopicSchema, spark_type
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
NOON_MS = 1_357_041_600_000
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
DATE = {"type": "int", "logicalType": "date"}
OLD, NEW = (3).to_bytes(8, "big"), (4).to_bytes(8, "big")


def record(name: str = "Flight", **fields: Any) -> dict[str, Any]:
    """A record of these fields. A pair is a type and a default."""
    described = [
        {"name": field, "type": of[0], "default": of[1]} if isinstance(of, tuple) else {"name": field, "type": of}
        for field, of in fields.items()
    ]
    return {"type": "record", "name": name, "fields": described}


def read(values: Sequence[object], written: object, wanted: object, version: bytes = OLD) -> list[Any]:
    """Read JSON values of one version with the data frame's version."""
    schema = TopicSchema(pb.Schema.Json, json.dumps(wanted), NEW)
    decoder = Decoder(schema, spark_type(schema), lambda _: TopicSchema(pb.Schema.Json, json.dumps(written), OLD))
    encoded = [None if value is None else json.dumps(value).encode() for value in values]
    made: list[Any] = decoder.column(encoded, version).to_pylist()
    return made


@pytest.mark.parametrize(
    ("of", "default", "made"),
    [
        ("int", 7, 7),
        ("double", 1, 1.0),
        ("string", "?", "?"),
        (["null", "string"], None, None),
        (["string", "null"], "?", "?"),
        ("bytes", "\u00ff\u0000", b"\xff\0"),
        (MILLIS, NOON_MS, NOON),
        (MICROS, NOON_MS * 1000, NOON),
        (DATE, 1, date(1970, 1, 2)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "\u0001", Decimal("0.01")),
        ({"type": "string", "logicalType": "decimal", "precision": 4, "scale": 2}, "1.50", Decimal("1.50")),
        ({"type": "array", "items": MILLIS}, [NOON_MS], [NOON]),
        ({"type": "map", "values": "int"}, {"a": 1}, [("a", 1)]),
        ({"type": "enum", "name": "Kind", "symbols": ["A", "B"]}, "B", "B"),
        (record("In", a="int", b=("string", "?")), {"a": 1}, {"a": 1, "b": "?"}),
    ],
)
def test_a_field_that_was_added_reads_as_its_default_in_older_rows(of: object, default: object, made: object) -> None:
    old, new = record(a="int"), record(a="int", more=(of, default))
    assert read([{"a": 1}, None, {"a": 2}], old, new) == [{"a": 1, "more": made}, None, {"a": 2, "more": made}]


@pytest.mark.parametrize("version", [OLD, NEW, b""])
def test_a_null_that_was_left_out_is_no_default(version: bytes) -> None:
    """Clients leave out members that are null. Only the version says whether the field existed."""
    known = record(a=(["int", "null"], 7))
    assert read([{}, {"a": None}, {"a": 1}], known, known, version) == [{"a": None}, {"a": None}, {"a": 1}]


def test_defaults_reach_into_arrays_maps_and_records() -> None:
    def at(inner: dict[str, Any]) -> dict[str, Any]:
        many = {"type": "array", "items": "In"}
        return record(one=["null", inner], many=many, named={"type": "map", "values": ["null", "In"]})

    old, new = at(record("In", a="int")), at(record("In", a="long", b=("string", "?")))
    value = {"one": {"a": 1}, "many": [{"a": 2}, {"a": 3}], "named": {"x": {"a": 4}, "y": None}}
    assert read([value, {"one": None}], old, new) == [
        {
            "one": {"a": 1, "b": "?"},
            "many": [{"a": 2, "b": "?"}, {"a": 3, "b": "?"}],
            "named": [("x", {"a": 4, "b": "?"}), ("y", None)],
        },
        {"one": None, "many": None, "named": None},
    ]


@pytest.mark.parametrize(
    ("written", "wanted", "value", "made"),
    [
        ("int", "long", 7, 7),
        ("int", "double", 7, 7.0),
        ("string", "bytes", "ключ", "ключ".encode()),
        ("bytes", "string", "0LrQu9GO0Yc=", "ключ"),
        ("long", MILLIS, NOON_MS, NOON),
        (MILLIS, "long", NOON_MS, NOON_MS),
        (MILLIS, MICROS, NOON_MS, NOON),
        (MICROS, ["null", MILLIS], NOON_MS * 1000, NOON),
        ("int", DATE, 1, date(1970, 1, 2)),
        ({"type": "long", "logicalType": "time-micros"}, "long", 5, 5),
        ("null", ["null", "int"], None, None),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, [1, None], [1, None]),
    ],
)
def test_a_type_that_changed_is_converted(written: object, wanted: object, value: object, made: object) -> None:
    assert read([{"v": value}, None, {}], record(v=written), record(v=wanted)) == [{"v": made}, None, {"v": None}]


def test_a_renamed_field_is_found_by_its_alias() -> None:
    new = record(number="int", carrier="string")
    new["fields"][0]["aliases"] = ["no"]
    old = record(no="int", carrier="string")
    assert read([{"no": 7, "carrier": "UA"}], old, new) == [{"number": 7, "carrier": "UA"}]


def test_a_field_that_is_gone_is_skipped() -> None:
    assert read([{"a": 1, "gone": {"x": [1]}}], record(a="int", gone="string"), record(a="int")) == [{"a": 1}]
    assert read([{"gone": 1}, None], record(gone="int"), record(a=("int", 7))) == [{"a": 7}, None]


def test_a_field_without_a_default_is_null_where_it_did_not_exist() -> None:
    assert read([{"a": 1}], record(a="int"), record(a="int", b="string")) == [{"a": 1, "b": None}]


@pytest.mark.parametrize(
    ("written", "wanted", "sentence"),
    [
        (
            record(v="string"),
            record(v="int"),
            "defines field v as string, and version 4, which the data frame has, as int",
        ),
        (record(v="long"), record(v="int"), "defines field v as long"),
        (record(v=record("In", a="int")), record(v=record("In", a="string")), r"defines field v\.a as int"),
        (record(v={"type": "array", "items": "int"}), record(v="int"), "defines field v as array"),
        (record(v=["int", "string"]), record(v="int"), "defines field v as union"),
        ("int", record(v="int"), "defines the value as int"),
    ],
)
def test_a_field_of_another_type_is_named_with_the_version(written: object, wanted: object, sentence: str) -> None:
    with pytest.raises(UnreadableMessage, match=f"^version 3 of the topic's schema, .* {sentence}"):
        read([{"v": "1"}], written, wanted)


def test_avro_names_the_field_and_the_version_too() -> None:
    written, wanted = record(v="string"), record(v="int")
    schema = TopicSchema(pb.Schema.Avro, json.dumps(wanted), NEW)
    decoder = Decoder(schema, spark_type(schema), lambda _: TopicSchema(pb.Schema.Avro, json.dumps(written), OLD))
    with pytest.raises(UnreadableMessage, match=r"^version 3 of the topic's schema, .* defines field v as string"):
        decoder.column([b"\x02a"], OLD)


@pytest.mark.parametrize("value", ["not base64", "!", "YQ"])
def test_text_that_is_no_base64_is_not_guessed_at(value: str) -> None:
    with pytest.raises(UnreadableMessage, match="does not match the topic's Json schema"):
        read([{"v": value}], record(v="bytes"), record(v="bytes"), NEW)


def test_a_time_that_no_timestamp_can_hold_is_not_another_one() -> None:
    with pytest.raises(UnreadableMessage, match="overflow"):
        read([{"v": 2**62}], record(v=MILLIS), record(v=MILLIS), NEW)


@pytest.mark.parametrize("in_map", [False, True])
@pytest.mark.parametrize("kind", ["string", "bytes"])
def test_a_decimal_is_read_from_text_and_from_a_number(kind: str, in_map: bool) -> None:
    """Java's clients write a BigDecimal as a number."""
    price: dict[str, Any] = {"type": kind, "logicalType": "decimal", "precision": 9, "scale": 2}
    known = record(v={"type": "map", "values": price} if in_map else price)
    values: list[Any] = ["1.5", 2.25, 3, "-0.01"]
    made = [Decimal("1.50"), Decimal("2.25"), Decimal("3.00"), Decimal("-0.01")]
    if in_map:
        assert read([{"v": {"a": v}} for v in values], known, known) == [{"v": [("a", one)]} for one in made]
    else:
        assert read([{"v": v} for v in values], known, known) == [{"v": one} for one in made]
