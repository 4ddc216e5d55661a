"""Segments that were pruned, for Kafka's clients that had read them, or had not."""

from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Final

import anyio
import pytest

import tidewire
from tests.interop.kafka.conftest import Station
from tests.support.admin import Admin
from tests.support.kafka_clients.contract import Client, Consumer, ConsumerOptions, Place
from tests.support.kafka_clients.reading import until, values
from tests.support.kafka_spark.reading import source
from tests.support.kafka_spark.reading import values as texts
from tests.support.processes import RunningBroker, running_broker
from tests.support.scalable_writer import scalable_writer
from tests.support.spark_process import RunningSpark

pytestmark = pytest.mark.interop

PRUNED_SECONDS_MAX: Final = 30.0
SENT: Final = [b"%d" % number for number in range(10)]


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """Run a broker that prunes a sealed segment as soon as every subscription has drained it."""
    folder = tmp_path_factory.mktemp("forgetful") / "data"
    with running_broker(folder, "--segment-retention-seconds", "0") as broker:
        yield broker


@pytest.fixture
def scalable(forgetful: RunningBroker, name: str) -> str:
    """Create a scalable topic with ten messages in its only segment. Kafka's clients know it by `name`."""
    topic = Admin(forgetful.http_url).create(f"topic://public/default/{name}")
    with scalable_writer(forgetful.service_url, topic) as writer:
        for value in SENT:
            writer.send(value)
    return topic


@pytest.fixture
def station(client: Client, forgetful: RunningBroker) -> Station:
    """Return the client at that broker."""
    return Station(client, str(forgetful.kafka))


def split_and_drain(broker: RunningBroker, topic: str) -> None:
    """Split the segment, and let the topic's only subscription acknowledge all of it. So the broker prunes it."""
    Admin(broker.http_url).split_now(topic, 0)

    async def drain() -> None:
        with anyio.fail_after(30):
            async with tidewire.connect(broker.service_url) as client, client.queue_consumer(topic, "s") as consumer:
                for _ in SENT:
                    await consumer.acknowledge(await consumer.receive())

    anyio.run(drain)


def wait_pruned(consumer: Consumer, place: Place) -> None:
    """Return when the partition has no messages any more."""
    deadline = monotonic() + PRUNED_SECONDS_MAX
    while consumer.begin(place) < consumer.end(place):
        assert monotonic() < deadline


def test_a_group_that_had_read_everything_goes_on(
    station: Station, forgetful: RunningBroker, name: str, scalable: str
) -> None:
    """K41: its committed offset is in range, so it needs no reset policy, and reads the children from their start."""
    place = Place(name)
    first = station.consumer(ConsumerOptions(group_id=name))
    first.subscribe(name)
    assert values(until(lambda got: len(got) >= len(SENT), first)) == SENT
    first.commit()
    first.close()
    split_and_drain(forgetful, scalable)
    looking = station.consumer()
    wait_pruned(looking, place)
    assert (looking.begin(place), looking.end(place)) == (len(SENT), len(SENT))
    with scalable_writer(forgetful.service_url, scalable) as writer:
        for number in range(10, 20):
            writer.send(b"%d" % number, key=f"key {number}")
    second = station.consumer(ConsumerOptions(group_id=name, reset="none"))
    second.subscribe(name)
    got = until(lambda got: len({*values(got)}) >= 10, second)
    assert sorted({int(value or b"") for value in values(got)}) == [*range(10, 20)]
    assert {one.place.partition for one in got} <= {1, 2}


def test_a_consumer_that_comes_later_finds_an_empty_partition(
    station: Station, forgetful: RunningBroker, name: str, scalable: str
) -> None:
    """K41: its reset policy leads it past the pruned messages."""
    split_and_drain(forgetful, scalable)
    wait_pruned(station.consumer(), Place(name))
    with scalable_writer(forgetful.service_url, scalable) as writer:
        writer.send(b"after")
    consumer = station.consumer(ConsumerOptions(group_id=name))
    consumer.subscribe(name)
    assert values(until(bool, consumer)) == [b"after"]


def test_a_stream_of_spark_does_not_report_lost_data(
    spark: RunningSpark, forgetful: RunningBroker, name: str, scalable: str, tmp_path: Path
) -> None:
    """K41: its checkpoint has the end of the pruned segment, and failOnDataLoss is on."""
    options = source(str(forgetful.kafka), name, failOnDataLoss="true")
    stored = {"checkpoint": str(tmp_path / "checkpoint"), "folder": str(tmp_path / "rows")}
    spark.ask("store_available", options=options, **stored)
    split_and_drain(forgetful, scalable)
    expected = [value.decode() for value in SENT]
    with scalable_writer(forgetful.service_url, scalable) as writer:
        for number in range(10, 20):
            writer.send(b"%d" % number, key=f"key {number}")
            expected.append(str(number))
    spark.ask("store_available", options=options, **stored)
    assert sorted(texts(spark.ask("stored", folder=stored["folder"]))) == sorted(expected)
