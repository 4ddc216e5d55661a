"""Avro definitions: which are valid, and which are equal."""

import json

import pytest

from broker.errors import IncompatibleSchema
from broker.schemas.avro_schema import LARGE_BYTES, LARGE_PARSED_MAX, AvroSchema, parse

A = {"name": "a", "type": "int"}


def avro(definition: object) -> AvroSchema:
    return parse(json.dumps(definition).encode())


def record(*fields: object, name: str = "R", **attributes: object) -> dict[str, object]:
    return {"type": "record", "name": name, "fields": list(fields), **attributes}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (record(A), record(A, doc="said")),
        (record(A), record({**A, "doc": "said", "aliases": ["b"]}, aliases=["Q"])),
        (record(A, namespace="n.s"), record(A, name="n.s.R")),
        (record(A), record({"name": "a", "type": {"type": "int"}})),
        (record(A), record({**A, "order": "ascending"})),
        (
            record({"name": "r", "type": record(A, name="I")}, namespace="n"),
            record({"name": "r", "type": record(A, name="n.I")}, name="n.R"),
        ),
        ({"type": "string"}, "string"),
        ({"fields": [A], "name": "R", "type": "record"}, record(A)),
    ],
)
def test_definitions_that_are_the_same(one: object, other: object) -> None:
    """The comparison is Java's: documentation, aliases, spelling of names and order of keys do not count."""
    assert avro(one).fingerprint == avro(other).fingerprint


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (record(A), record({**A, "default": 1})),
        (record(A), record(A, name="Q")),
        (record(A), record(A, namespace="n")),
        (record(A), record({**A, "order": "descending"})),
        (record({"name": "a", "type": "long"}), record(A)),
        (record({"name": "a", "type": {"type": "string", "avro.java.string": "String"}}), record(A)),
        (
            record({"name": "a", "type": {"type": "long", "logicalType": "timestamp-millis"}}),
            record({"name": "a", "type": "long"}),
        ),
        (["null", "int"], ["int", "null"]),
        (record({"name": "a", "type": "string", "default": "doc"}), record({"name": "a", "type": "string"})),
    ],
)
def test_definitions_that_differ(one: object, other: object) -> None:
    assert avro(one).fingerprint != avro(other).fingerprint


@pytest.mark.parametrize(
    "definition",
    [
        b"",
        b"null",
        b"no json",
        b"{}",
        b'{"type":"record"}',
        b'{"type":"record","name":"R","fields":"x"}',
        b'{"type":"record","name":"R","fields":[1]}',
        b'{"type":"record","name":"R","fields":[{"name":"a"}]}',
        b'{"type":"record","name":"1R","fields":[]}',
        b'{"type":"record","name":"R","fields":[{"name":"a b","type":"int"}]}',
        b'{"type":"unheard"}',
        b'{"type":"object","properties":{"a":{"type":"integer"}}}',
        b'["null","null"]',
        b"\xff\xfe",
        b"[" * 900 + b"]" * 900,
        b'{"type":"array","items":' * 400 + b'"int"' + b"}" * 400,
        b'{"type":"map","values":' * 5000 + b'"int"' + b"}" * 5000,
    ],
)
def test_definitions_that_make_no_sense(definition: bytes) -> None:
    with pytest.raises(IncompatibleSchema):
        parse(definition)


def test_few_large_definitions_are_kept_as_they_were_read() -> None:
    """Clients may send any number of them, and each takes several times its size; small ones take little."""

    def kept(size: int) -> int:
        before = [parse(definition(number, size)) for number in range(20)]
        return sum(parse(definition(number, size)) is before[number] for number in reversed(range(20)))

    def definition(number: int, size: int) -> bytes:
        return json.dumps(record(A, name=f"R{number}", doc="." * size)).encode()

    assert kept(10) == 20
    assert 0 < kept(LARGE_BYTES) <= LARGE_PARSED_MAX
