"""What values say by their schemas, as Apache Avro's own writer and Pulsar's clients write them."""

import io
import json
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from broker.schemas.avro_values import VALUES_MAX
from broker.schemas.key_value import joined
from broker.schemas.schema import Schema, SchemaType
from broker.schemas.values import Decoder, Undecodable

WHOLE = {
    "type": "record",
    "name": "Whole",
    "namespace": "a.b",
    "fields": [
        {"name": "none", "type": "null"},
        {"name": "flag", "type": "boolean"},
        {"name": "small", "type": "int"},
        {"name": "large", "type": "long"},
        {"name": "single", "type": "float"},
        {"name": "double", "type": "double"},
        {"name": "raw", "type": "bytes"},
        {"name": "text", "type": "string"},
        {"name": "suit", "type": {"type": "enum", "name": "Suit", "symbols": ["HEARTS", "CLUBS"]}},
        {"name": "again", "type": ["null", "Suit"]},
        {"name": "fixed", "type": {"type": "fixed", "name": "c.Four", "size": 4}},
        {"name": "named", "type": "c.Four"},
        {"name": "list", "type": {"type": "array", "items": {"type": "map", "values": "long"}}},
        {"name": "inner", "type": {"type": "record", "name": "Inner", "fields": [{"name": "of", "type": "Suit"}]}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 2}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "other", "type": {"type": "long", "logicalType": "unheard-of"}},
    ],
}


def avro(definition: object) -> Decoder:
    return Decoder(Schema(SchemaType.AVRO, json.dumps(definition).encode()))


def test_every_type_of_avro_is_told() -> None:
    value = {
        "none": None,
        "flag": True,
        "small": -1,
        "large": -(2**63),
        "single": 0.5,
        "double": 0.1,
        "raw": b"\xff\x00",
        "text": "é",
        "suit": "CLUBS",
        "again": "HEARTS",
        "fixed": b"abcd",
        "named": b"efgh",
        "list": [{"x": 1, "y": 2}, {}],
        "inner": {"of": "HEARTS"},
        "price": Decimal("-12345678901234567890123456.70"),
        "day": date(2026, 2, 3),
        "at": datetime(2026, 2, 3, 4, 5, 6, 7, tzinfo=UTC),
        "other": 9,
    }
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(WHOLE), value)
    assert avro(WHOLE).decoded(written.getvalue()) == value | {
        "raw": "/wA=",
        "fixed": "YWJjZA==",
        "named": "ZWZnaA==",
        "price": "-12345678901234567890123456.70",
        "day": "2026-02-03",
        "at": "2026-02-03T04:05:06.000007Z",
    }


ENDLESS = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "R"}]}
LONG_NAMES = {
    "type": "array",
    "items": {"type": "record", "name": "R", "fields": [{"name": "n" * 9_999, "type": "int"}]},
}
DEEP: Any = "int"
for _ in range(70):
    DEEP = {"type": "array", "items": DEEP}


@pytest.mark.parametrize(
    ("definition", "data", "problem"),
    [
        (
            {"type": "array", "items": "null"},
            b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f\x00",
            f"more than {VALUES_MAX:,} parts",
        ),
        (ENDLESS, b"", "nested more than 64 deep"),
        (DEEP, b"\x02" * 80, "nested more than 64 deep"),
        (LONG_NAMES, b"\x80\x08" + b"\x02" * 600, "more than 262,144 characters"),
        ("long", b"\xff" * 11, "more than 64 bits"),
        ("string", b"\xfe\xff\xff\xff\x0f", "bytes are missing"),
        ("string", b"\x01", "-1 bytes are missing"),
        (["null", "int"], b"\x04", "no branch 2 in a union of 2"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", "no symbol 1"),
        ("int", b"\x00\x00", "1 bytes are left"),
        ("string", b"\x02\xff", "utf-8"),
        ("Unheard", b"", "does not say what 'Unheard' is"),
        ({"type": "record", "name": "R"}, b"", "has a form that is not decoded"),
        ({"type": "long", "logicalType": "timestamp-millis"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "AVRO"),
    ],
)
def test_bytes_that_are_no_value_or_stand_for_too_much_are_refused(
    definition: object, data: bytes, problem: str
) -> None:
    """E7: a few bytes can stand for any number of values."""
    with pytest.raises(Undecodable) as refused:
        avro(definition).decoded(data)
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "data", "value"),
    [
        (SchemaType.STRING, "é".encode(), "é"),
        (SchemaType.JSON, b'{"a": [1, null]}', {"a": [1, None]}),
        (SchemaType.BOOLEAN, b"\1", True),
        (SchemaType.INT8, b"\xff", -1),
        (SchemaType.INT64, struct.pack(">q", -9), -9),
        (SchemaType.DOUBLE, struct.pack(">d", 0.1), 0.1),
        (SchemaType.TIMESTAMP, struct.pack(">q", 1_500), "1970-01-01T00:00:01.500000Z"),
        (SchemaType.INSTANT, struct.pack(">qi", 1, 5_000), "1970-01-01T00:00:01.000005Z"),
        (SchemaType.LOCAL_DATE, struct.pack(">q", 1), "1970-01-02"),
        (SchemaType.LOCAL_TIME, struct.pack(">q", 3_600 * 10**9), "01:00:00"),
        (SchemaType.LOCAL_DATE_TIME, struct.pack(">qq", 1, 0), "1970-01-02T00:00:00"),
    ],
)
def test_other_types_are_told(kind: SchemaType, data: bytes, value: object) -> None:
    assert Decoder(Schema(kind)).decoded(data) == value


@pytest.mark.parametrize(
    ("kind", "data", "problem"),
    [
        (SchemaType.INT32, b"\0", "The bytes are no value of type INT32: "),
        (SchemaType.JSON, b"{", "The bytes are no value of type JSON: "),
        (SchemaType.JSON, b"[" * 60_000, "The bytes are no value of type JSON: "),
        (SchemaType.STRING, b"\xff", "The bytes are no value of type STRING: "),
        (SchemaType.DATE, b"\x7f" * 8, "The bytes are no value of type DATE: "),
        (SchemaType.PROTOBUF_NATIVE, b"", "Values of type PROTOBUF_NATIVE are not decoded here."),
        (SchemaType.KEY_VALUE, b"", "Its schema has a form that is not decoded here."),
    ],
)
def test_other_types_that_cannot_be_told_say_why(kind: SchemaType, data: bytes, problem: str) -> None:
    with pytest.raises(Undecodable) as refused:
        Decoder(Schema(kind)).decoded(data)
    assert str(refused.value).startswith(problem)


def pairs(encoding: str) -> Decoder:
    properties = {"key.schema.type": "STRING", "value.schema.type": "INT32", "kv.encoding.type": encoding}
    return Decoder(Schema(SchemaType.KEY_VALUE, joined(b"", b""), properties))


def pair(key: bytes | None, value: bytes | None) -> bytes:
    return b"".join(
        struct.pack(">i", -1) if part is None else struct.pack(">i", len(part)) + part for part in (key, value)
    )


def test_pairs_are_told_by_the_schemas_of_their_parts() -> None:
    seven = struct.pack(">i", 7)
    assert pairs("INLINE").decoded(pair(b"k", seven)) == {"key": "k", "value": 7}
    assert pairs("INLINE").decoded(pair(None, None)) == {"key": None, "value": None}
    assert pairs("SEPARATED").decoded(seven) == 7
    for wrong in (b"", pair(b"k", seven)[:-1], pair(b"k", seven) + b"x", pair(b"\xff", seven), pair(b"k", b"")):
        with pytest.raises(Undecodable, match=r"The bytes are no value of type (KEY_VALUE|STRING|INT32): "):
            pairs("INLINE").decoded(wrong)
