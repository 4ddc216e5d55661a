"""Avro values whose field got or lost a logical type after they were written."""

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from tidewire.spark.avro_evolution import with_logical_types_of
from tidewire.spark.decoding import Decoder
from tidewire.spark.errors import UnreadableMessage
from tidewire.spark.topic_schemas import TopicSchema, spark_type
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
NOON_MS = 1_357_041_600_000
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}


def record(of: object) -> dict[str, Any]:
    return {"type": "record", "name": "Flight", "fields": [{"name": "v", "type": of}]}


def read(value: object, written: object, wanted: object) -> Any:
    """Read a value of one type that was written as another."""
    definition = json.dumps(record(written))
    encoded = io.BytesIO()
    fastavro.schemaless_writer(encoded, fastavro.parse_schema(json.loads(definition)), {"v": value})
    schema = TopicSchema(pb.Schema.Avro, json.dumps(record(wanted)))
    decoder = Decoder(schema, spark_type(schema), lambda _: TopicSchema(pb.Schema.Avro, definition))
    (made,) = decoder.column([encoded.getvalue()], b"before").to_pylist()
    return made["v"]


@pytest.mark.parametrize(
    ("written", "wanted", "value", "made"),
    [
        ("long", MILLIS, NOON_MS, NOON),
        ({"type": "long"}, ["null", MILLIS], NOON_MS, NOON),
        (["null", "long"], ["null", MILLIS], NOON_MS, NOON),
        (["null", "long"], ["null", MILLIS], None, None),
        (MILLIS, "long", NOON, NOON_MS),
        (MILLIS, MICROS, NOON, NOON),
        (MICROS, MILLIS, NOON, NOON),
        ("int", {"type": "int", "logicalType": "date"}, 1, date(1970, 1, 2)),
        ("bytes", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, b"\x01", Decimal("0.01")),
        ({"type": "array", "items": "long"}, {"type": "array", "items": MILLIS}, [NOON_MS], [NOON]),
        ({"type": "map", "values": "long"}, {"type": "map", "values": MILLIS}, {"a": NOON_MS}, [("a", NOON)]),
        ({**record("long"), "name": "In"}, {**record(MILLIS), "name": "In"}, {"v": NOON_MS}, {"v": NOON}),
        ("int", "long", 7, 7),
    ],
)
def test_the_columns_logical_type_says_what_was_stored(
    written: object, wanted: object, value: object, made: object
) -> None:
    assert read(value, written, wanted) == made


@pytest.mark.parametrize(
    ("written", "wanted", "value"),
    [("int", MILLIS, 7), ({"type": "int", "logicalType": "date"}, "long", date(1970, 1, 2))],
)
def test_a_logical_type_that_came_or_went_with_a_wider_type_is_refused(
    written: object, wanted: object, value: object
) -> None:
    with pytest.raises(
        UnreadableMessage, match=r"it was written as int and is read as long, but only one of them is a"
    ):
        read(value, written, wanted)


def test_types_are_found_by_their_names_and_fields_by_their_aliases() -> None:
    """A field may have the name of a type."""

    def outer(name: str, of: object, **more: object) -> dict[str, Any]:
        inner = {"type": "record", "name": "In", "fields": [{"name": name, "type": of, **more}]}
        fields = [{"name": "long", "type": inner}, {"name": "again", "type": "a.In"}]
        return {"type": "record", "name": "Out", "namespace": "a", "fields": fields}

    made = with_logical_types_of(outer("new", MILLIS, aliases=["old"]), outer("old", "long"))
    assert made == outer("old", MILLIS)
    gone = with_logical_types_of({**outer("new", MILLIS), "fields": []}, outer("old", "long"))
    assert gone == outer("old", "long")
