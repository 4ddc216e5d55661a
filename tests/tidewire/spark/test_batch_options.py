"""The effect of a batch's options, from a broker in a separate process to a data frame."""

import json
import uuid
from dataclasses import dataclass
from typing import Any

import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

import tidewire
from tests.support.admin import Admin
from tests.support.processes import RunningBroker
from tests.tidewire.spark.test_end_to_end import load, send_all, values, write
from tidewire import Schema

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


@dataclass
class Trip:
    origin: str
    passengers: int


@dataclass
class LongerTrip:
    origin: str
    passengers: int
    delay: int | None = None


# A record's name counts for compatibility.
LongerTrip.__name__ = "Trip"


class Flight(Record):  # type: ignore[misc]
    number = Integer(required=True)
    gate = String()


def test_a_read_goes_on_where_the_one_before_it_ended(spark: SparkSession, broker: RunningBroker, topic: str) -> None:
    """The positions come from the rows; the index counts a segment's messages without gaps."""

    async def first(client: tidewire.Client) -> None:
        await send_all(topic, [b"%d" % number for number in range(50)], client)

    async def second(client: tidewire.Client) -> None:
        await send_all(topic, [b"%d" % number for number in range(50, 80)], client)

    write(broker, first)
    frame = load(spark, broker, topic)
    per_segment = frame.groupBy("segment").agg(
        F.max("position.ledger").alias("ledger"),
        F.max_by("position.entry", "index").alias("entry"),
        F.count("*").alias("rows"),
        F.countDistinct("index").alias("indexes"),
        F.max("index").alias("last"),
    )
    ends: dict[str, str] = {}
    for row in per_segment.collect():
        assert row.rows == row.indexes == row.last + 1
        ends[row.segment] = f"{row.ledger}:{row.entry}"
    text = json.dumps({topic: ends})
    write(broker, second)
    assert len(values(load(spark, broker, topic))) == 80
    assert values(load(spark, broker, topic, {"starting_position": text})) == [b"%d" % n for n in range(50, 80)]
    assert values(load(spark, broker, topic, {"endingPosition": text})) == sorted(b"%d" % n for n in range(50))


def test_several_topics_and_those_of_a_pattern_are_one_data_frame(
    spark: SparkSession, broker: RunningBroker, topic: str
) -> None:
    other = Admin(broker.http_url).create(f"{topic}-other")

    async def story(client: tidewire.Client) -> None:
        await send_all(topic, [b"a"], client)
        await send_all(other, [b"b"], client)

    write(broker, story)
    for options in ({"topic": f"{topic},{other}"}, {"topic": "", "topic_pattern": f"{topic}.*"}):
        rows = load(spark, broker, topic, options).select("topic", "value").collect()
        assert {(row.topic, bytes(row.value)) for row in rows} == {(topic, b"a"), (other, b"b")}


def test_uncommitted_messages_are_read_when_asked_for(spark: SparkSession, broker: RunningBroker, topic: str) -> None:
    """T14: open and aborted messages, and later ones, are read; without the option none of them are."""

    async def story(client: tidewire.Client) -> None:
        async with client.producer(topic) as producer:
            await producer.send(b"before", key="k")
            aborted, left_open = await client.new_transaction(), await client.new_transaction()
            await producer.send(b"aborted", key="k", txn=aborted)
            await aborted.abort()
            await producer.send(b"open", key="k", txn=left_open)
            await producer.send(b"behind", key="k")

    write(broker, story)
    assert values(load(spark, broker, topic)) == [b"before"]
    everything = [b"aborted", b"before", b"behind", b"open"]
    assert values(load(spark, broker, topic, {"isolation": "read_uncommitted"})) == everything


def test_a_large_segment_is_read_by_several_tasks(spark: SparkSession, broker: RunningBroker, topic: str) -> None:
    async def story(client: tidewire.Client) -> None:
        async with client.producer(topic) as producer:
            for number in range(2_000):
                await producer.enqueue(b"%04d" % number * 100, key="one key")

    write(broker, story)
    frame = load(spark, broker, topic, {"partition_bytes": "131072"})
    assert 4 <= frame.rdd.getNumPartitions() <= 14
    assert values(frame) == [b"%04d" % number * 100 for number in range(2_000)]


def test_named_columns_are_read_alone(spark: SparkSession, broker: RunningBroker, topic: str) -> None:
    async def story(client: tidewire.Client) -> None:
        await send_all(topic, [b"1", b"2"], client)

    write(broker, story)
    frame = load(spark, broker, topic, {"columns": "value,key"})
    assert frame.columns == ["key", "value"]
    assert values(frame) == [b"1", b"2"]


def test_filters_reach_the_source(spark: SparkSession, broker: RunningBroker, topic: str) -> None:
    async def story(client: tidewire.Client) -> None:
        await send_all(topic, [b"%d" % number for number in range(40)], client)

    write(broker, story)
    everything = load(spark, broker, topic)
    middle = everything.orderBy("publish_time").collect()[20].publish_time
    segment = "8000-ffff-1"
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = load(spark, broker, topic, {"push_filters": "true"})
        by_key = frame.filter(F.col("key") == "k7")
        assert values(by_key) == [b"7"]
        assert by_key.rdd.getNumPartitions() == 1
        by_segment = frame.filter(F.col("segment") == segment)
        assert by_segment.rdd.getNumPartitions() == 1
        assert values(by_segment) == values(everything.filter(F.col("segment") == segment))
        for condition in (F.col("publish_time") >= F.lit(middle), F.col("publish_time") < F.lit(middle)):
            assert values(frame.filter(condition)) == values(everything.filter(condition))
        # Of a frame of its own: Spark keeps what it pushed for further queries of the same one that push nothing.
        assert values(load(spark, broker, topic, {"push_filters": "true"})) == values(everything)
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert values(load(spark, broker, topic).filter(F.col("key") == "k7")) == [b"7"]


@pytest.mark.parametrize("schema", [JsonSchema(Flight), AvroSchema(Flight)], ids=["json", "avro"])
def test_values_are_columns_by_the_topics_schema(
    spark: SparkSession, broker: RunningBroker, schema: JsonSchema | AvroSchema
) -> None:
    """Pulsar's own client registers and writes them."""
    topic = f"persistent://public/default/{uuid.uuid4().hex}"
    client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        producer = client.create_producer(topic, schema=schema)
        for number in range(20):
            producer.send(Flight(number=number, gate=None if number % 2 else f"G{number}"))
    finally:
        client.close()
    frame = load(spark, broker, topic, {"schema": "auto"})
    assert frame.schema["value"].dataType.simpleString() == "struct<number:int,gate:string>"
    rows = frame.select("value.*").orderBy("number").collect()
    assert [(row.number, row.gate) for row in rows] == [(n, None if n % 2 else f"G{n}") for n in range(20)]
    assert frame.filter("value.gate is null").count() == 10


@pytest.mark.parametrize("kind", [Schema.avro, Schema.json], ids=["avro", "json"])
def test_each_message_of_a_topic_is_read_by_the_version_it_was_written_with(
    spark: SparkSession,
    broker: RunningBroker,
    topic: str,
    kind: Any,
) -> None:
    """This also holds through a split."""

    async def story(client: tidewire.Client) -> None:
        async with (
            client.producer(topic, schema=kind(Trip)) as older,
            client.producer(topic, schema=kind(LongerTrip)) as newer,
        ):
            for number in range(3):
                await older.send(Trip("EWR", number), key="k")
                await newer.send(LongerTrip("JFK", number, 17), key="k")
                if number == 1:
                    await Admin(broker.http_url).split(topic, 0)

    write(broker, story)
    rows = load(spark, broker, topic, {"schema": "auto"}).select("value.*").collect()
    assert {(row.origin, row.passengers, row.delay) for row in rows} == {
        *(("EWR", number, None) for number in range(3)),
        *(("JFK", number, 17) for number in range(3)),
    }


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"schema": "auto"}, "read it without schema=auto"),
        ({"subscription": "s"}, "option subscription is not for a batch"),
        (
            {"starting_position": '{"TOPIC": {"0000-0fff-9": "1:1"}}'},
            "it was removed, or never existed; set fail_on_data",
        ),
        ({"topic": "", "topic_pattern": "topic://public/none/.*", "schema": "auto"}, "no topic matches"),
    ],
)
def test_mistakes_reach_the_user_as_one_sentence(
    spark: SparkSession, broker: RunningBroker, topic: str, options: dict[str, str], sentence: str
) -> None:
    given = {name: value.replace("TOPIC", topic) for name, value in options.items()}
    with pytest.raises(AnalysisException) as caught:
        load(spark, broker, topic, given).count()
    assert sentence in str(caught.value)
