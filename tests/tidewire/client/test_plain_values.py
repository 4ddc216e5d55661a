"""Plain values against Avro definitions: what fits, what does not and where, and the bytes that result."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewire.client.plain_schema import AnySchema, PlainSchema
from tidewire.client.plain_values import DEPTH_MAX, Fitter, Unfit
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

FLIGHT = {
    "type": "record",
    "name": "Flight",
    "namespace": "air",
    "fields": [
        {"name": "carrier", "type": "string"},
        {"name": "number", "type": "int"},
        {"name": "delay", "type": ["null", "double"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["ON", "OFF"]}, "default": "ON"},
        {"name": "before", "type": {"type": "array", "items": "State"}, "default": []},
        {"name": "tags", "type": {"type": "map", "values": "bytes"}, "default": {}},
        {"name": "next", "type": ["null", "air.Flight"], "default": None},
    ],
}
DEFINITION = json.dumps(FLIGHT).encode()
UA = {"carrier": "UA", "number": 1}
DEFAULTS: dict[str, Any] = {"delay": None, "at": 0, "state": "ON", "before": [], "tags": {}, "next": None}


def test_missing_fields_get_their_defaults_at_any_depth() -> None:
    fitter = Fitter(FLIGHT, in_json=False)
    assert fitter.fit(UA) == UA | DEFAULTS
    assert fitter.fit(UA | {"next": UA}) == UA | DEFAULTS | {"next": UA | DEFAULTS}


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (5, "the value is 5, not an object"),
        ({"carrier": "UA"}, "field number is missing and has no default"),
        (UA | {"number": "1"}, "field number is '1', not an integer of 32 bits"),
        (UA | {"number": 2**31}, "field number is 2147483648, not an integer of 32 bits"),
        (UA | {"number": True}, "field number is True, not an integer of 32 bits"),
        (UA | {"delay": "late"}, "field delay is 'late', not a number"),
        (UA | {"state": "AWAY"}, "field state is 'AWAY', not one of ON, OFF"),
        (UA | {"before": ["ON", "X"]}, "field before[1] is 'X', not one of ON, OFF"),
        (UA | {"tags": {"a": "€"}}, "field tags.a is '€', not a text with one character for each byte"),
        (UA | {"tags": []}, "field tags is [], not an object"),
        (UA | {"gate": 1}, "field gate is not in the schema, whose fields are carrier, number, delay"),
        (UA | {"next": UA | {"carrier": None}}, "field next.carrier is None, not a text"),
    ],
)
def test_what_does_not_fit_is_named_with_its_field(value: Any, told: str) -> None:
    with pytest.raises(Unfit) as unfit:
        Fitter(FLIGHT, in_json=False).fit(value)
    assert str(unfit.value).startswith(told)


def test_a_value_that_contains_itself_often_is_refused() -> None:
    value: Any = None
    for _ in range(DEPTH_MAX):
        value = UA | {"next": value}
    with pytest.raises(Unfit, match="nested deeper"):
        Fitter(FLIGHT, in_json=False).fit(value)


def test_a_union_of_several_types_takes_the_first_that_fits() -> None:
    fitter = Fitter(["null", "long", "string", {"type": "array", "items": "long"}], in_json=True)
    assert [fitter.fit(value) for value in (None, 5, "x", [1])] == [None, 5, "x", [1]]
    with pytest.raises(Unfit, match="not of any type of its union"):
        fitter.fit(1.5)


@given(
    st.fixed_dictionaries(
        {"carrier": st.text(), "number": st.integers(-(2**31), 2**31 - 1)},
        optional={
            "delay": st.none() | st.floats(allow_nan=False),
            "at": st.integers(-(2**63), 2**63 - 1),
            "before": st.lists(st.sampled_from(["ON", "OFF"])),
            "tags": st.dictionaries(st.text(), st.text(st.characters(max_codepoint=255))),
        },
    )
)
def test_what_fits_comes_back_from_both_encodings(value: dict[str, Any]) -> None:
    for kind in (pb.Schema.Json, pb.Schema.Avro):
        schema = PlainSchema(kind, DEFINITION)
        written = schema.encode(value)
        declared = schema.declared
        assert (declared.type, declared.schema_data) == (kind, DEFINITION)
        read = AnySchema().decode_written(written, declared)
        if kind == pb.Schema.Avro:
            read["tags"] = {key: data.decode("latin-1") for key, data in read["tags"].items()}
        assert read == DEFAULTS | value
        assert schema.decode(written, DEFINITION)["carrier"] == value["carrier"]


def test_a_decimal_in_json_is_a_text_without_a_word_of_avros_library() -> None:
    """The definition that docs/spark.md gives for decimals. A warning would fail this test."""
    price = {"type": "string", "logicalType": "decimal", "precision": 12, "scale": 2}
    order = {"type": "record", "name": "Order", "fields": [{"name": "price", "type": price}]}
    schema = PlainSchema(pb.Schema.Json, json.dumps(order).encode())
    assert schema.encode({"price": "1.20"}) == b'{"price": "1.20"}'
    for wrong in ("1.205", "much"):
        with pytest.raises(Unfit, match=rf"price is '{wrong}', not a decimal of at most 12 digits, 2 of them behind"):
            schema.encode({"price": wrong})


@pytest.mark.parametrize("text", ["", "{", '"string"', '{"type": "record", "name": "x"}', '{"type": "enum"}', "[]"])
def test_a_file_that_defines_no_record_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an Avro definition"):
        PlainSchema(pb.Schema.Json, text.encode())


def test_without_a_schema_values_are_bytes_and_simple_types_are_read_as_they_are() -> None:
    assert AnySchema().decode_written(b"\xff", None) == b"\xff"
    assert AnySchema().decode_written(b"\x00\x00\x00\x05", pb.Schema(type=pb.Schema.Int32)) == 5
    assert AnySchema().decode_written("ü".encode(), pb.Schema(type=pb.Schema.String)) == "ü"
    assert AnySchema().decode_written(b"\xff", pb.Schema(type=pb.Schema.ProtobufNative)) == b"\xff"


def priced(price: dict[str, Any] | list[Any], **default: Any) -> dict[str, Any]:
    return {"type": "record", "name": "Order", "fields": [{"name": "price", "type": price, **default}]}


def in_avro(definition: dict[str, Any], value: dict[str, Any]) -> tuple[bytes, Any]:
    """The bytes of a value, and the value that they say."""
    schema = PlainSchema(pb.Schema.Avro, json.dumps(definition).encode())
    written = schema.encode(value)
    return written, AnySchema().decode_written(written, schema.declared)


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
FIXED = {"type": "fixed", "name": "Money", "size": 3, "logicalType": "decimal", "precision": 6, "scale": 2}


@pytest.mark.parametrize("price", ["12.30", 12.3, "-0.01", 0, "99999999.99", "1E+3", "-99999999.99"])
def test_a_decimal_is_the_number_that_the_line_says(price: Any) -> None:
    """Spark and Avro's other readers read the unscaled number (Avro 1.12, Decimal), not the text's bytes."""
    for definition in (priced(DECIMAL), priced(["null", DECIMAL])):
        written, read = in_avro(definition, {"price": price})
        data = written[1:] if definition == priced(DECIMAL) else written[2:]
        assert int.from_bytes(data, "big", signed=True) == round(float(price) * 100)
        assert read["price"] == Decimal(str(price))


def test_a_decimal_of_fixed_bytes_fills_them() -> None:
    written, read = in_avro(priced(FIXED), {"price": "-1.5"})
    assert (written, read) == (b"\xff\xffj", {"price": Decimal("-1.50")})
    with pytest.raises(Unfit, match=r"price is '99999.99', not a decimal of at most 6 digits, 2 of them behind"):
        in_avro(priced(FIXED | {"size": 2}), {"price": "99999.99"})


@pytest.mark.parametrize("price", ["99.999", "123456789.00", "\x04\xd2", "", "NaN", True, None, [1]])
def test_a_decimal_that_does_not_fit_is_refused_before_it_is_sent(price: Any) -> None:
    with pytest.raises(Unfit, match=r"^field price is .*, not a decimal of at most 10 digits, 2 of them behind the"):
        in_avro(priced(DECIMAL), {"price": price})


def test_bytes_behind_a_record_are_not_passed_over() -> None:
    definition = {"type": "record", "name": "Number", "fields": [{"name": "number", "type": "long"}]}
    declared = pb.Schema(type=pb.Schema.Avro, schema_data=json.dumps(definition).encode())
    assert AnySchema().decode_written(b"\x68", declared) == {"number": 52}
    with pytest.raises(ValueError, match="4 bytes are left behind the value"):
        AnySchema().decode_written(b"hello", declared)


def test_the_default_of_a_decimal_is_the_text_of_its_bytes() -> None:
    assert in_avro(priced(DECIMAL, default="\u0004\u00d2"), {})[1] == {"price": Decimal("12.34")}


def test_a_decimal_with_more_digits_than_its_definition_is_read_whole() -> None:
    declared = pb.Schema(type=pb.Schema.Avro, schema_data=json.dumps(priced(DECIMAL)).encode())
    assert AnySchema().decode_written(b"\x1012345678", declared) == {"price": Decimal(f"{0x3132333435363738}E-2")}
    assert AnySchema().decode_written(b"\x00", declared) == {"price": Decimal("0.00")}
