"""JSON topics that Spark shares with Pulsar's unmodified Python client and with Tidewire's."""

import uuid
from base64 import b64encode
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any

import pulsar.schema
import pytest
import trio
from pyspark.sql import DataFrame, Row, SparkSession

import tidewire
from broker.schemas.compatibility import require_reader
from broker.schemas.schema import Schema as BrokersSchema
from broker.schemas.schema import SchemaType, StoredSchema
from tests.scenarios.test_pulsar_client import connected
from tests.support.admin import Admin
from tests.support.processes import RunningBroker
from tidewire.spark.options import ReadOptions, Use
from tidewire.spark.reader import columns
from tidewire.spark.values import RECORD_NAME

pytestmark = pytest.mark.timeout(300)

MOMENT = datetime(2013, 1, 1, 12, 0, 0, 123_000, tzinfo=UTC)
MOMENT_MS = 1_357_041_600_123


class Flight(pulsar.schema.Record):  # type: ignore[misc]
    number = pulsar.schema.Long()


class LongerFlight(pulsar.schema.Record):  # type: ignore[misc]
    number = pulsar.schema.Long()
    delay = pulsar.schema.Integer(default=7, required_default=True)
    gate = pulsar.schema.String(required_default=True)


class OtherFlight(pulsar.schema.Record):  # type: ignore[misc]
    """`delay` with another type."""

    number = pulsar.schema.Long()
    delay = pulsar.schema.String(required_default=True)


class ReadBySomebodyElse(pulsar.schema.Record):  # type: ignore[misc]
    """What Spark's sink has written, as docs/spark.md says."""

    at = pulsar.schema.Long()
    on = pulsar.schema.Integer()
    price = pulsar.schema.String()
    data = pulsar.schema.Bytes()


# A record's name counts for compatibility, and this client takes it from the class.
LongerFlight.__name__ = OtherFlight.__name__ = "Flight"
ReadBySomebodyElse.__name__ = RECORD_NAME


@pytest.fixture
def regular() -> str:
    return f"persistent://public/default/{uuid.uuid4().hex}"


def load(spark: SparkSession, broker: RunningBroker, topic: str) -> DataFrame:
    given = {"service_url": broker.service_url, "topic": topic, "schema": "auto"}
    return spark.read.format("tidewire").options(**given).load()


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.value.asDict() for row in frame.collect()]


def send(broker: RunningBroker, topic: str, *values: pulsar.schema.Record) -> None:
    """Send with Pulsar's client, each value with its own schema."""
    with connected(broker) as client:
        for value in values:
            producer = client.create_producer(topic, schema=pulsar.schema.JsonSchema(type(value)))
            producer.send(value)
            producer.close()


def test_older_rows_have_the_default_of_an_added_field(
    spark: SparkSession, broker: RunningBroker, regular: str
) -> None:
    """Also behind a migration, where the older rows have the regular topic's versions."""
    send(broker, regular, Flight(number=1), LongerFlight(number=2**40, delay=17, gate="A1"))
    expected = [{"number": 1, "delay": 7, "gate": None}, {"number": 2**40, "delay": 17, "gate": "A1"}]
    assert rows(load(spark, broker, regular)) == expected
    scalable = regular.replace("persistent://", "topic://")
    Admin(broker.http_url).migrate(scalable)
    assert rows(load(spark, broker, scalable)) == expected


def test_a_field_that_comes_back_with_another_type_is_refused(
    spark: SparkSession, broker: RunningBroker, regular: str
) -> None:
    send(broker, regular, LongerFlight(number=1, delay=17), Flight(number=2))
    with pytest.raises(pulsar.IncompatibleSchema):
        send(broker, regular, OtherFlight(number=3, delay="late"))
    read = rows(load(spark, broker, regular))
    assert [row["number"] for row in read] == [1, 2]


def test_what_spark_writes_comes_back_and_others_read_it(
    spark: SparkSession, broker: RunningBroker, topic: str
) -> None:
    """Pulsar's client reads the bytes with its own schema, which the broker admits beside Spark's."""
    value = Row(
        at=MOMENT,
        on=date(2013, 1, 1),
        price=Decimal("12.30"),
        data=bytearray(b"\xff\0"),
        moments=[MOMENT, None],
        inner=Row(at=MOMENT, prices={"a": Decimal("0.10")}),
    )
    kind = (
        "value struct<at: timestamp, on: date, price: decimal(10,2), data: binary, moments: array<timestamp>,"
        " inner: struct<at: timestamp, prices: map<string, decimal(5,2)>>>"
    )
    frame = spark.createDataFrame([Row(value=value), Row(value=None)], kind)
    written = {"service_url": broker.service_url, "topic": topic, "schema": "json"}
    frame.write.format("tidewire").options(**written).mode("append").save()
    read = load(spark, broker, topic).select("value")
    assert read.schema == frame.schema
    assert sorted(read.collect(), key=str) == sorted(frame.collect(), key=str)

    async def consume() -> list[bytes]:
        with trio.fail_after(30):
            async with (
                tidewire.connect(broker.service_url) as client,
                client.queue_consumer(topic, "s") as consumer,
            ):
                return [(await consumer.receive()).value for _ in range(2)]

    (encoded,) = filter(None, trio.run(consume))
    theirs = pulsar.schema.JsonSchema(ReadBySomebodyElse)
    seen = theirs.decode(encoded)
    assert (seen.at, seen.on, seen.price) == (MOMENT_MS, (date(2013, 1, 1) - date(1970, 1, 1)).days, "12.30")
    assert seen.data == b64encode(b"\xff\0")
    _, registered = columns(ReadOptions.parse({**written, "schema": "auto"}, Use.BATCH))
    assert registered is not None
    definition = theirs.schema_info().schema().encode()
    written_with = BrokersSchema(SchemaType.JSON, registered.definition.encode())
    require_reader(topic, StoredSchema(0, written_with, ""), BrokersSchema(SchemaType.JSON, definition))


@dataclass
class Value:
    """A record of Tidewire's client. Like the columns of a data frame, all its fields may be null."""

    at: datetime | None = None
    on: date | None = None
    price: Annotated[Decimal, 10, 2] | None = None
    data: bytes | None = None
    moments: list[datetime | None] | None = None


def test_spark_and_the_client_read_each_other(spark: SparkSession, broker: RunningBroker, topic: str) -> None:
    sent = [Value(MOMENT, date(2013, 1, 1), Decimal("12.30"), b"\xff\0", [MOMENT, None]), Value()]
    schema = tidewire.Schema.json(Value)

    async def send() -> None:
        with trio.fail_after(30):
            async with (
                tidewire.connect(broker.service_url) as client,
                client.producer(topic, schema=schema) as producer,
            ):
                for one in sent:
                    await producer.send(one)

    trio.run(send)
    frame = load(spark, broker, topic).select("value").localCheckpoint()
    (some, none) = sorted(rows(frame), key=lambda row: row["at"] is None)
    assert Value(**none) == sent[1]
    # Spark's datetimes are in local time, and do not say so.
    moments = [one and one.astimezone(UTC) for one in some["moments"]]
    in_utc = {**some, "at": some["at"].astimezone(UTC), "moments": moments, "data": bytes(some["data"])}
    assert Value(**in_utc) == sent[0]
    written = {"service_url": broker.service_url, "topic": topic, "schema": "json"}
    frame.write.format("tidewire").options(**written).mode("append").save()

    async def receive() -> list[Value]:
        with trio.fail_after(30):
            async with (
                tidewire.connect(broker.service_url) as client,
                client.queue_consumer(topic, "s", schema=schema) as consumer,
            ):
                return [(await consumer.receive()).value for _ in range(2 * len(sent))]

    assert sorted(trio.run(receive), key=str) == sorted(sent * 2, key=str)
