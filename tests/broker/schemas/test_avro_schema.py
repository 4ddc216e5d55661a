"""Avro definitions: which are valid, which are equal, and which can read which."""

import json
import re

import pytest

from broker.errors import IncompatibleSchema
from broker.schemas.avro_schema import LARGE_BYTES, LARGE_PARSED_MAX, AvroSchema, parse, why_unreadable

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


def test_names_of_java_classes_and_of_other_scripts() -> None:
    inner = record({"name": "größe", "type": "int"}, name="Outer$Inner", namespace="com.example")
    assert why_unreadable(reader=avro(inner), writer=avro(inner)) is None


@pytest.mark.parametrize("logical", ["timestamp-millis", "of-tomorrow", "decimal"])
def test_a_logical_type_is_no_matter_of_reading(logical: str) -> None:
    """This includes types that the library does not know, or knows differently."""
    plain, typed = record(A), record({"name": "a", "type": {"type": "int", "logicalType": logical}})
    assert why_unreadable(reader=avro(plain), writer=avro(typed)) is None


@pytest.mark.parametrize(
    ("reader", "writer", "reads"),
    [
        (record(A), record(A, {"name": "b", "type": "string"}), True),
        (record(A, {"name": "b", "type": "string"}), record(A), False),
        (record(A, {"name": "b", "type": "string", "default": ""}), record(A), True),
        (record({"name": "a", "type": "long"}), record(A), True),
        (record(A), record({"name": "a", "type": "long"}), False),
        (record({"name": "b", "type": "int", "aliases": ["a"]}), record(A), True),
        (record(A, name="Q"), record(A), False),
        ({"type": "enum", "name": "E", "symbols": ["X"]}, {"type": "enum", "name": "E", "symbols": ["X", "Y"]}, False),
        (["null", "int"], "int", True),
        ("int", ["null", "int"], False),
    ],
)
def test_who_reads_what(reader: object, writer: object, reads: bool) -> None:
    problem = why_unreadable(reader=avro(reader), writer=avro(writer))
    assert (problem is None) is reads


def test_a_recursive_record_reads_itself() -> None:
    tree = record({"name": "children", "type": {"type": "array", "items": "R"}})
    assert why_unreadable(reader=avro(tree), writer=avro({**tree, "doc": "another object"})) is None


def nullable(kind: str) -> dict[str, object]:
    return record({"name": "x", "type": ["null", kind]})


INNER = {"type": "array", "items": record({"name": "b", "type": "int"}, name="In")}
OTHER_INNER = {"type": "array", "items": record({"name": "b", "type": "string"}, name="In")}


@pytest.mark.parametrize(
    ("reader", "writer", "problem"),
    [
        (record(A, {"name": "b", "type": "string"}), record(A), "at field b: b"),
        (nullable("int"), nullable("string"), "at field x: reader union lacking writer type: STRING"),
        (record(A, {"name": "x", "type": INNER}), record(A, {"name": "x", "type": OTHER_INNER}), r"at field x\.b: "),
        ("int", "string", r"at /: "),
    ],
)
def test_why_not_says_what_and_where(reader: object, writer: object, problem: str) -> None:
    assert re.search(problem, why_unreadable(reader=avro(reader), writer=avro(writer)) or "")


def test_a_comparison_has_an_end() -> None:
    """Unions compare every branch with every other one, and a client chooses how many there are."""

    def union(letter: str) -> AvroSchema:
        return avro([{"type": "fixed", "name": f"{letter}{number}", "size": 1} for number in range(2_000)])

    assert "steps" in (why_unreadable(reader=union("a"), writer=union("b")) or "")


def test_few_large_definitions_are_kept_as_they_were_read() -> None:
    """Clients may send any number of them, and each takes several times its size; small ones take little."""

    def kept(size: int) -> int:
        before = [parse(definition(number, size)) for number in range(20)]
        return sum(parse(definition(number, size)) is before[number] for number in reversed(range(20)))

    def definition(number: int, size: int) -> bytes:
        return json.dumps(record(A, name=f"R{number}", doc="." * size)).encode()

    assert kept(10) == 20
    assert 0 < kept(LARGE_BYTES) <= LARGE_PARSED_MAX
