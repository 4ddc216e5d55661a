"""Which Avro definition can read which other one, and what people are told if it cannot."""

import re
from collections.abc import Callable

import pytest

from broker.schemas.avro_reading import FIELDS_NAMED_MAX, why_unreadable
from broker.schemas.avro_schema import AvroSchema
from tests.broker.schemas.test_avro_schema import A, avro, record


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


REQUIRED = {"name": "b", "type": "string"}


def within(definition: object) -> dict[str, object]:
    """A record with a field of another record's type, as a client declares `Inner | None`."""
    return record({"name": "x", "type": ["null", definition], "default": None}, name="Out")


@pytest.mark.parametrize("wrapped", [lambda inner: inner, within], ids=["itself", "in a union"])
def test_a_field_without_a_default_is_named_with_what_to_do(wrapped: Callable[[object], object]) -> None:
    """The library says only that a union lacks RECORD, if the field's record is a branch of one."""
    before, after = avro(wrapped(record(A))), avro(wrapped(record(A, REQUIRED)))
    assert why_unreadable(reader=after, writer=before, earlier="version 3") == (
        "version 3 lacks R.b, which has no default. Give each new field a default: `= None` in a Python class,"
        ' `required_default=True` in a Record of pulsar-client, "default" in an Avro definition.'
    )
    assert why_unreadable(reader=after, writer=before, earlier="version 3", reads_earlier=False) == (
        "R.b is missing, and version 3 has no default for it. Keep each field that has no default there."
    )


@pytest.mark.parametrize("wrapped", [lambda inner: inner, within], ids=["itself", "in a union"])
@pytest.mark.parametrize(
    ("kind", "rest"),
    [
        ("record", {"fields": [A]}),
        ("enum", {"symbols": ["X"]}),
        ("fixed", {"size": 4}),
    ],
)
def test_another_name_is_the_cause_that_is_named(
    wrapped: Callable[[object], object], kind: str, rest: dict[str, object]
) -> None:
    old, new = (avro(wrapped({"type": kind, "name": name, **rest})) for name in ("Trip", "LongerTrip"))
    expected = f"the {kind} Trip of version 3 is named LongerTrip here. Give it its earlier name, Trip."
    assert why_unreadable(reader=new, writer=old, earlier="version 3") == expected
    assert why_unreadable(reader=old, writer=new, earlier="version 3", reads_earlier=False) == expected


def test_branches_of_a_union_are_no_other_names() -> None:
    """Each branch is compared with all others. Only the field that does not fit is the cause."""
    branches = [record(A, name=name) for name in ("P", "Q", "S")]
    worse = [*branches[:2], record(A, REQUIRED, name="S")]
    problem = why_unreadable(reader=avro(worse), writer=avro(branches), earlier="version 3")
    assert problem is not None
    assert problem.startswith("version 3 lacks S.b, which has no default.")
    assert "named" not in problem


def test_many_fields_are_counted() -> None:
    fields = [{"name": f"f{number}", "type": "int"} for number in range(100)]
    problem = why_unreadable(reader=avro(record(*fields)), writer=avro(record()), earlier="version 3")
    assert problem is not None
    assert f"R.f4 and {100 - FIELDS_NAMED_MAX} more, which" in problem
    assert "R.f5" not in problem
