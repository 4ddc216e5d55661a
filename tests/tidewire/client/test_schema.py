import io
import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
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
    with pytest.raises(
        TypeError, match=r"^'text' is not bytes\. Encode it, or open .* schema=tidewire\.Schema\.string"
    ):
        schema.encode("text")  # type: ignore[arg-type]
    assert schema.encode(memoryview(b"x")) == b"x"  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not a INT8"):
        Schema.int8().encode(128)


@given(trips)
def test_records_come_back_and_avro_is_what_other_libraries_read(trip: Trip) -> None:
    for schema in (Schema.avro(Trip), Schema.json(Trip)):
        assert schema.decode(schema.encode(trip)) == trip
    declared = Schema.avro(Trip).declared
    assert declared is not None
    assert (declared.name, declared.type) == ("Trip", pb.Schema.Avro)
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


@dataclass
class Sale:
    at: datetime
    on: date
    price: Annotated[Decimal, 30, 4]
    history: list[datetime]
    rates: dict[str, Annotated[Decimal, 3, 2]]
    before: datetime | None = datetime(2013, 1, 1, 12, tzinfo=UTC)
    first: date = date(1969, 12, 31)
    fee: Annotated[Decimal, 5, 2] = Decimal("-1.50")
    leg: Leg = field(default_factory=lambda: Leg("EWR"))
    ratio: float = 1
    raw: list[bytes] = field(default_factory=lambda: [b"\xff"])


moments = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.timezones()).map(  # noqa: DTZ001
    lambda moment: moment.astimezone(UTC).replace(microsecond=moment.microsecond // 1000 * 1000)
)


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    return st.integers(1 - 10**precision, 10**precision - 1).map(lambda unscaled: Decimal(f"{unscaled}e{-scale}"))


sales = st.builds(
    Sale,
    moments,
    st.dates(),
    decimals(30, 4),
    st.lists(moments, max_size=2),
    st.dictionaries(text, decimals(3, 2), max_size=2),
    st.none() | moments,
    st.dates(),
    decimals(5, 2),
    legs,
    st.floats(allow_nan=False, allow_infinity=False),
    st.lists(st.binary(max_size=3), max_size=2),
)


@given(sales)
def test_times_and_decimals_come_back(sale: Sale) -> None:
    for schema in (Schema.avro(Sale), Schema.json(Sale)):
        assert schema.decode(schema.encode(sale)) == sale
    declared = Schema.avro(Sale).declared
    assert declared is not None
    read = Schema.avro(Sale).decode(avro_of(declared.schema_data, sale), declared.schema_data)
    assert read == sale


def avro_of(definition: bytes, sale: Sale) -> bytes:
    """What another library writes."""
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(json.loads(definition)), asdict(sale))
    return written.getvalue()


def test_json_is_what_java_and_spark_write() -> None:
    sale = Sale(
        datetime(2013, 1, 1, 7, 0, 0, 123_999, tzinfo=timezone(timedelta(hours=-5))),
        date(1970, 1, 3),
        Decimal("12.3"),
        [],
        {"x": Decimal(1)},
    )
    assert json.loads(Schema.json(Sale).encode(sale)) == {
        "at": 1_357_041_600_123,
        "on": 2,
        "price": "12.3000",
        "history": [],
        "rates": {"x": "1.00"},
        "before": 1_357_041_600_000,
        "first": -1,
        "fee": "-1.50",
        "leg": {"origin": "EWR", "miles": 0},
        "ratio": 1,
        "raw": ["/w=="],
    }
    declared = Schema.json(Sale).declared
    assert declared is not None
    described = {one["name"]: one for one in json.loads(declared.schema_data)["fields"]}
    assert described["at"]["type"] == {"type": "long", "logicalType": "timestamp-millis"}
    assert described["fee"]["type"] == {"type": "string", "logicalType": "decimal", "precision": 5, "scale": 2}
    assert (described["fee"]["default"], described["raw"]["default"]) == ("-1.50", ["\u00ff"])


def test_a_decimal_is_read_from_a_number_exactly() -> None:
    @dataclass
    class Price:
        price: Annotated[Decimal, 30, 20]

    read = Schema.json(Price).decode(b'{"price": 1.00000000000000000001}')
    assert read == Price(Decimal("1.00000000000000000001"))


def test_what_was_added_has_its_default_in_older_messages() -> None:
    @dataclass
    class Old:
        at: datetime
        on: date
        price: Annotated[Decimal, 30, 4]
        history: list[datetime]
        rates: dict[str, Annotated[Decimal, 3, 2]]

    Old.__name__ = "Sale"
    moment = datetime(2013, 1, 1, tzinfo=UTC)
    for schema_of in (Schema.avro, Schema.json):
        old, new = schema_of(Old), schema_of(Sale)
        assert old.declared is not None
        encoded = old.encode(Old(moment, date(2013, 1, 1), Decimal(1), [], {}))
        read = new.decode(encoded, old.declared.schema_data)
        assert read == Sale(moment, date(2013, 1, 1), Decimal(1), [], {})


@dataclass
class Stop:
    at: str
    gate: str


@dataclass
class Route:
    last: Stop | None
    stops: list[Stop]


def named(definition: bytes | None, name: str, namespace: str | None) -> bytes:
    """The definition of Stop with another name, as other classes have it."""
    assert definition is not None
    content = json.loads(definition) | {"name": name} | ({} if namespace is None else {"namespace": namespace})
    return json.dumps(content).encode()


def definition_of(schema: Schema[Any]) -> bytes:
    assert schema.declared is not None
    return schema.declared.schema_data


def route(stop: bytes, reference: str) -> bytes:
    """The definition of Route with this definition of Stop, which it names again by `reference`."""
    fields = [
        {"name": "last", "type": ["null", json.loads(stop)], "default": None},
        {"name": "stops", "type": {"type": "array", "items": reference}},
    ]
    return json.dumps({"type": "record", "name": "Route", "namespace": "com.example", "fields": fields}).encode()


def test_what_a_java_class_has_written_is_read() -> None:
    """E10: its name has a namespace. Avro compares the bare names when it resolves."""
    written = route(named(definition_of(Schema.avro(Stop)), "Stop", "com.example.stops"), "com.example.stops.Stop")
    parsed = fastavro.parse_schema(json.loads(written))
    stop = {"at": "EWR", "gate": "B"}
    output = io.BytesIO()
    fastavro.schemaless_writer(output, parsed, {"last": stop, "stops": [stop]})
    assert Schema.avro(Route).decode(output.getvalue(), written) == Route(Stop("EWR", "B"), [Stop("EWR", "B")])


def test_namespaces_that_tell_two_types_apart_stay() -> None:
    """The two have different sizes, so a mistaken one would shift all that follows."""

    @dataclass
    class Pair:
        number: int

    one, two = (
        {"type": "fixed", "name": "F", "namespace": space, "size": size} for space, size in (("a", 1), ("b", 2))
    )
    fields = [{"name": "one", "type": one}, {"name": "two", "type": two}, {"name": "number", "type": {"type": "long"}}]
    written = json.dumps({"type": "record", "name": "Pair", "fields": fields}).encode()
    output = io.BytesIO()
    value = {"one": b"x", "two": b"yz", "number": 7}
    fastavro.schemaless_writer(output, fastavro.parse_schema(json.loads(written)), value)
    assert Schema.avro(Pair).decode(output.getvalue(), written) == Pair(7)


@pytest.mark.parametrize("is_inside", [False, True])
def test_another_name_is_said_with_what_to_do(is_inside: bool) -> None:
    """E10: the library says only that schemas do not match, and shows both."""
    stop = named(definition_of(Schema.avro(Stop)), "Halt", None)
    written = route(stop, "Halt").replace(b'"namespace": "com.example", ', b"") if is_inside else stop
    schema: Schema[Any] = Schema.avro(Route) if is_inside else Schema.avro(Stop)
    value = {"last": {"at": "EWR", "gate": "B"}, "stops": []} if is_inside else {"at": "EWR", "gate": "B"}
    output = io.BytesIO()
    fastavro.schemaless_writer(output, fastavro.parse_schema(json.loads(written)), value)
    with pytest.raises(
        ValueError, match=r"written as the record Halt, and the class here is named Stop\. Name it Halt"
    ):
        schema.decode(output.getvalue(), written)


@pytest.mark.parametrize("schema_of", [Schema.avro, Schema.json], ids=["avro", "json"])
def test_a_field_without_a_default_that_was_not_written_is_named(schema_of: Any) -> None:
    """E10: it says what to change in the class."""

    @dataclass
    class Older:
        at: str

    Older.__name__ = "Stop"
    older = schema_of(Older)
    with pytest.raises(ValueError, match=r"without Stop\.gate, which has no default\. .* such as `= None`"):
        schema_of(Stop).decode(older.encode(Older("EWR")), definition_of(older))


def test_a_class_that_refuses_its_values_is_heard() -> None:
    @dataclass
    class Picky:
        number: int

        def __post_init__(self) -> None:
            raise TypeError("never")

    with pytest.raises(TypeError, match="never"):
        Schema.json(Picky).decode(b'{"number": 1}')


def test_values_that_do_not_fit_are_refused() -> None:
    @dataclass
    class Price:
        price: Annotated[Decimal, 3, 2]

    @dataclass
    class Moment:
        at: datetime

    for price in (Decimal("0.001"), Decimal(10), Decimal("NaN")):
        with pytest.raises(ValueError, match="does not fit into 3 digits, 2 of them behind the point"):
            Schema.json(Price).encode(Price(price))
        with pytest.raises(ValueError, match="does not fit into 3 digits"):
            Schema.avro(Price).encode(Price(price))
    for schema in (Schema.avro(Moment), Schema.json(Moment)):
        with pytest.raises(ValueError, match="not a datetime with a time zone"):
            schema.encode(Moment(datetime(2013, 1, 1)))  # noqa: DTZ001


def test_a_text_in_an_avro_topic_is_no_record() -> None:
    """It begins as a record of one number does."""

    @dataclass
    class Number:
        number: int

    schema = Schema.avro(Number)
    assert schema.decode(b"\x68") == Number(52)
    with pytest.raises(ValueError, match="4 bytes are left behind the value"):
        schema.decode(b"hello")


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

    @dataclass
    class WithBareDecimal:
        price: Decimal

    @dataclass
    class WithWrongDecimal:
        price: Annotated[Decimal, 2, 3]

    for record in (WithSet, WithTwo, WithWrongName, WithBareDecimal, WithWrongDecimal):
        with pytest.raises(TypeError, match=record.__name__):
            Schema.avro(record)
    with pytest.raises(TypeError, match=r"price: a Decimal needs its number of digits.*Annotated\[Decimal, 12, 2\]"):
        Schema.json(WithBareDecimal)
    with pytest.raises(TypeError, match=r"is not supported; a field is a str, bool, .*Annotated\[Decimal"):
        Schema.json(WithSet)
    with pytest.raises(TypeError, match="not a dataclass"):
        Schema.json(int)
    with pytest.raises(TypeError, match="is not a Leg"):
        Schema.json(Leg).encode("x")  # type: ignore[arg-type]
