"""Spark 4.0.5 with its own Kafka connector: batches, streams and both sinks, in one session for all tests."""

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pulsar
import pytest

from tests.interop.kafka.conftest import Station
from tests.support.kafka_clients.contract import ConsumerOptions, Place, Producer, ProducerOptions
from tests.support.kafka_clients.every import CONFLUENT
from tests.support.kafka_clients.reading import read_all
from tests.support.kafka_spark.reading import source, values
from tests.support.processes import RunningBroker
from tests.support.spark_process import RunningSpark

# The client feeds Spark and reads what it wrote. Which one it is does not matter here.
pytestmark = [pytest.mark.interop, pytest.mark.parametrize("client", [CONFLUENT], indirect=True)]

COMMITTED: Final = ConsumerOptions(read_committed=True)
RECEIVE_MS_MAX: Final = 30_000
Read = Callable[..., list[dict[str, Any]]]


def sink(station: Station, topic: str) -> dict[str, str]:
    """Return the options of a sink."""
    return {"kafka.bootstrap.servers": station.address, "topic": topic}


def transactional(station: Station, name: str) -> Producer:
    """Return a producer of transactions."""
    producer = station.producer(ProducerOptions(transactional_id=name))
    producer.init_transactions()
    return producer


def send(producer: Producer, topic: str, *values: str, partitions: int = 1) -> None:
    """Send these values, spread over the partitions, and wait until they are stored."""
    for number, value in enumerate(values):
        producer.send(topic, value.encode(), partition=number % partitions)
    producer.flush()


def places(rows: list[Mapping[str, Any]]) -> list[tuple[int, int, str]]:
    """Return where each value is."""
    return [(row["partition"], row["offset"], row["value"]) for row in rows]


def test_a_batch_has_keys_headers_and_timestamps(spark: RunningSpark, station: Station, topic: str) -> None:
    """K42: nulls and repeated headers, too."""
    producer = station.producer(ProducerOptions(codec="zstd"))
    producer.send(topic, b"a", key=b"k", headers=[("trace", b"1"), ("trace", b"2"), ("none", None)], timestamp_ms=1_234)
    producer.send(topic, None, timestamp_ms=5_678)
    producer.flush()
    assert spark.ask("read", options=source(station.address, topic)) == [
        {
            "topic": topic,
            "partition": 0,
            "offset": 0,
            "timestamp_ms": 1_234,
            "key": "k",
            "value": "a",
            "headers": [["trace", "1"], ["trace", "2"], ["none", None]],
        },
        {
            "topic": topic,
            "partition": 0,
            "offset": 1,
            "timestamp_ms": 5_678,
            "key": None,
            "value": None,
            "headers": [],
        },
    ]


def test_a_batch_reads_between_offsets_and_from_a_time(spark: RunningSpark, station: Station, name: str) -> None:
    """K39: offsets for each partition; by time the first record that is not older."""
    station.admin().create(name, 2)
    producer = station.producer()
    for n in range(20):
        producer.send(name, b"%d" % n, partition=n % 2, timestamp_ms=1_000 + n)
    producer.flush()
    between = source(
        station.address,
        name,
        startingOffsets=f'{{"{name}": {{"0": 3, "1": -2}}}}',
        endingOffsets=f'{{"{name}": {{"0": 5, "1": 2}}}}',
    )
    assert values(spark.ask("read", options=between)) == ["6", "8", "1", "3"]
    later = source(station.address, name, startingTimestamp="1016")
    assert values(spark.ask("read", options=later)) == ["16", "18", "17", "19"]


def test_a_batch_of_committed_records_has_nothing_aborted_and_nothing_open(
    spark: RunningSpark, station: Station, name: str
) -> None:
    """K3, K13, K21: aborted in the middle and at the end; its end is the last stable offset."""
    station.admin().create(name, 2)
    producer = transactional(station, name)
    for value, end in (
        ("kept", producer.commit),
        ("dropped", producer.abort),
        ("kept too", producer.commit),
        ("dropped too", producer.abort),
    ):
        producer.begin()
        send(producer, name, *[value] * 4, partitions=2)
        end()
    options = source(station.address, name)
    assert values(spark.ask("read", options=options)) == ["kept", "kept", "kept too", "kept too"] * 2
    producer.begin()
    send(producer, name, "open", "open", partitions=2)
    plain = station.producer()
    send(plain, name, "behind", "behind", partitions=2)
    assert values(spark.ask("read", options=options)) == ["kept", "kept", "kept too", "kept too"] * 2
    everything = spark.ask("read", options=options | {"kafka.isolation.level": "read_uncommitted"})
    assert len(everything) == 20
    producer.commit()
    found = values(spark.ask("read", options=options))
    assert found == ["kept", "kept", "kept too", "kept too", "open", "behind"] * 2


def test_a_stream_takes_each_committed_record_once_over_restarts(
    spark: RunningSpark, station: Station, name: str, tmp_path: Path
) -> None:
    """K3, K21, K39: in small micro-batches that begin and end inside of aborted transactions."""
    station.admin().create(name, 2)
    producer = transactional(station, name)
    options = source(station.address, name, maxOffsetsPerTrigger="7")
    expected: list[str] = []
    for run in range(3):
        for number in range(4):
            made = [f"{run}.{number}.{n}" for n in range(5)]
            producer.begin()
            send(producer, name, *made, partitions=2)
            if number % 2:
                producer.abort()
            else:
                producer.commit()
                expected += made
        stored = {"checkpoint": str(tmp_path / "checkpoint"), "folder": str(tmp_path / "rows")}
        assert spark.ask("store_available", options=options, **stored) > 1
        rows = spark.ask("stored", folder=stored["folder"])
        assert sorted(values(rows)) == sorted(expected)
        there = read_all(station.consumer(COMMITTED), Place(name, 0), Place(name, 1))
        assert places(rows) == sorted((one.place.partition, one.offset, (one.value or b"").decode()) for one in there)


def test_a_stream_that_waits_goes_on_when_a_transaction_ends(
    spark: RunningSpark, station: Station, topic: str, tmp_path: Path
) -> None:
    """K3, K40: it takes nothing open, and needs no new record to go on."""
    stored = {"checkpoint": str(tmp_path / "checkpoint"), "folder": str(tmp_path / "rows")}
    spark.ask("start_storing", options=source(station.address, topic), **stored)
    send(station.producer(), topic, "plain")
    producer = transactional(station, topic)
    producer.begin()
    send(producer, topic, "inside")
    spark.ask("process_all", checkpoint=stored["checkpoint"])
    assert values(spark.ask("stored", folder=stored["folder"])) == ["plain"]
    producer.commit()
    spark.ask("process_all", checkpoint=stored["checkpoint"])
    assert values(spark.ask("stored", folder=stored["folder"])) == ["plain", "inside"]
    spark.ask("stop", checkpoint=stored["checkpoint"])


def test_a_stream_goes_on_after_the_broker_was_killed(
    spark: RunningSpark, doomed: Station, mortal: RunningBroker, name: str, tmp_path: Path
) -> None:
    """K19, K27: under the query, which does not notice; each record is stored once."""
    doomed.admin().create(name, 2)
    producer = transactional(doomed, name)
    stored = {"checkpoint": str(tmp_path / "checkpoint"), "folder": str(tmp_path / "rows")}
    spark.ask("start_storing", options=source(doomed.address, name), **stored)
    expected = []
    for number in range(3):
        made = [f"{number}.{n}" for n in range(10)]
        producer.begin()
        send(producer, name, *made, partitions=2)
        if number < 2:
            mortal.restart()
        producer.commit()
        expected += made
    spark.ask("process_all", checkpoint=stored["checkpoint"])
    spark.ask("stop", checkpoint=stored["checkpoint"])
    assert sorted(values(spark.ask("stored", folder=stored["folder"]))) == sorted(expected)


def test_pulsars_client_reads_what_sparks_sink_wrote(
    spark: RunningSpark, station: Station, topic: str, tidewire: RunningBroker
) -> None:
    """K42: a batch of rows, with keys, a header and nulls."""
    rows = [{"key": f"key {n}", "value": f"value {n}", "trace": f"t{n}"} for n in range(20)]
    spark.ask("write", options=sink(station, topic), rows=[*rows, {"key": "last"}])
    client = pulsar.Client(tidewire.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    with closing(client):
        consumer = client.subscribe(topic, "reading", initial_position=pulsar.InitialPosition.Earliest)
        messages = [consumer.receive(timeout_millis=RECEIVE_MS_MAX) for _ in range(21)]
    got = {one.partition_key(): (one.data().decode(), one.properties().get("trace")) for one in messages}
    assert got == {row["key"]: (row["value"], row["trace"]) for row in rows} | {"last": ("", None)}


def test_a_batch_names_the_topic_of_each_row(spark: RunningSpark, station: Station, name: str) -> None:
    """K42: two topics, and Kafka's client reads them."""
    topics = [f"{name}-a", f"{name}-b"]
    for topic in topics:
        station.admin().create(topic)
    rows = [{"topic": topics[n % 2], "key": "k", "value": str(n)} for n in range(10)]
    spark.ask("write", options={"kafka.bootstrap.servers": station.address}, rows=rows)
    for number, topic in enumerate(topics):
        got = read_all(station.consumer(), Place(topic))
        assert sorted(one.value or b"" for one in got) == [b"%d" % n for n in range(number, 10, 2)]


def test_a_stream_copies_committed_records_to_another_topic(
    spark: RunningSpark, station: Station, name: str, tmp_path: Path
) -> None:
    """K3, K21: and goes on from its checkpoint."""
    inputs, copies = f"{name}-inputs", f"{name}-copies"
    station.admin().create(inputs, 2)
    station.admin().create(copies, 2)
    producer = transactional(station, name)
    expected = set()
    for run in range(2):
        for number, end in enumerate((producer.commit, producer.abort, producer.commit)):
            made = [f"{run}.{number}.{n}" for n in range(4)]
            producer.begin()
            send(producer, inputs, *made, partitions=2)
            end()
            expected |= set() if number == 1 else {value[::-1] for value in made}
        spark.ask(
            "copy_available",
            options=source(station.address, inputs),
            target=sink(station, copies),
            checkpoint=str(tmp_path / "checkpoint"),
        )
        got = [(one.value or b"").decode() for one in read_all(station.consumer(), Place(copies, 0), Place(copies, 1))]
        assert sorted(got) == sorted(expected)
