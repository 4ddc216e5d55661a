import json
from dataclasses import dataclass, field
from typing import Annotated, Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewire.client.schema import Schema
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb


@dataclass
class Leg:
    origin: str
    miles: Annotated[int, "int"] = 0


@dataclass
class Trip:
    name: str
    seats: int
    ratio: Annotated[float, "float"]
    is_late: bool
    raw: bytes
    first: Leg
    legs: list[Leg]
    notes: dict[str, str]
    carrier: str | None
    delay: float | None = None
    tags: list[str] = field(default_factory=list)
    mark: bytes = b"\xff"


text = st.text(st.characters(codec="utf-8"), max_size=5)
legs = st.builds(Leg, text, st.integers(-(2**31), 2**31 - 1))
trips = st.builds(
    Trip,
    text,
    st.integers(-(2**63), 2**63 - 1),
    st.floats(width=32, allow_nan=False),
    st.booleans(),
    st.binary(max_size=5),
    legs,
    st.lists(legs, max_size=2),
    st.dictionaries(text, text, max_size=2),
    st.none() | text,
    st.none() | st.floats(allow_nan=False, allow_infinity=False),
    st.lists(text, max_size=2),
    st.binary(max_size=3),
)
SIMPLE: list[tuple[Schema[Any], Any, bytes, int]] = [
    (Schema.string(), "ä", b"\xc3\xa4", pb.Schema.String),
    (Schema.bool(), True, b"\x01", pb.Schema.Bool),
    (Schema.int8(), -2, b"\xfe", pb.Schema.Int8),
    (Schema.int16(), -2, b"\xff\xfe", pb.Schema.Int16),
    (Schema.int32(), 258, b"\0\0\1\2", pb.Schema.Int32),
    (Schema.int64(), 258, b"\0\0\0\0\0\0\1\2", pb.Schema.Int64),
    (Schema.float32(), 1.5, b"\x3f\xc0\0\0", pb.Schema.Float),
    (Schema.float64(), 1.5, b"\x3f\xf8\0\0\0\0\0\0", pb.Schema.Double),
]


@pytest.mark.parametrize(("schema", "value", "data", "kind"), SIMPLE)
def test_simple_values_are_sent_as_pulsars_clients_do(schema: Schema[Any], value: Any, data: bytes, kind: int) -> None:
    assert schema.encode(value) == data
    assert schema.decode(data) == value
    assert schema.declared is not None
    assert (schema.declared.type, schema.declared.schema_data) == (kind, b"")


def test_bytes_are_declared_to_nobody() -> None:
    schema = Schema.bytes()
    assert schema.declared is None
    assert schema.decode(schema.encode(b"x")) == b"x"
    with pytest.raises(TypeError):
        schema.encode("text")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not a INT8"):
        Schema.int8().encode(128)


@given(trips)
def test_records_come_back_and_avro_is_what_other_libraries_read(trip: Trip) -> None:
    for schema in (Schema.avro(Trip), Schema.json(Trip)):
        assert schema.decode(schema.encode(trip)) == trip
    declared = Schema.avro(Trip).declared
    assert declared is not None
    assert (declared.name, declared.type) == ("Trip", pb.Schema.Avro)
    import io

    parsed = fastavro.parse_schema(json.loads(declared.schema_data))
    read: Any = fastavro.schemaless_reader(io.BytesIO(Schema.avro(Trip).encode(trip)), parsed, None)
    assert (read["name"], read["raw"], read["legs"]) == (
        trip.name,
        trip.raw,
        [{"origin": leg.origin, "miles": leg.miles} for leg in trip.legs],
    )


def test_a_record_reads_what_an_older_or_newer_program_wrote() -> None:
    @dataclass
    class Old:
        name: str

    @dataclass
    class New:
        name: str
        seats: int = 7
        carrier: str | None = "none"

    Old.__name__ = New.__name__ = "Flight"
    for old, new in ((Schema.avro(Old), Schema.avro(New)), (Schema.json(Old), Schema.json(New))):
        assert old.declared is not None
        assert new.declared is not None
        written_old, written_new = old.declared.schema_data, new.declared.schema_data
        assert new.decode(old.encode(Old("x")), written_old) == New("x")
        assert old.decode(new.encode(New("x", 3, None)), written_new) == Old("x")


def test_encoded_values_are_declared_and_left_alone() -> None:
    schema = Schema.avro(Leg)
    assert schema.encoded().declared == schema.declared
    assert schema.encoded().encode(b"x") == schema.encoded().decode(b"x") == b"x"


def test_what_cannot_be_sent_is_refused_at_once() -> None:
    @dataclass
    class WithSet:
        names: set[str]

    @dataclass
    class WithTwo:
        name: str | int

    @dataclass
    class WithWrongName:
        number: Annotated[int, "string"]

    for record in (WithSet, WithTwo, WithWrongName):
        with pytest.raises(TypeError, match=record.__name__):
            Schema.avro(record)
    with pytest.raises(TypeError, match="not a dataclass"):
        Schema.json(int)
    with pytest.raises(TypeError, match="is not a Leg"):
        Schema.json(Leg).encode("x")  # type: ignore[arg-type]
