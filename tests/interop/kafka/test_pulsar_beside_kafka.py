"""One topic, Kafka's clients on one side and Pulsar's Python client on the other."""

from collections.abc import Iterator
from typing import Final

import pulsar
import pytest

from tests.interop.kafka.conftest import Station
from tests.support.kafka_clients.contract import ConsumerOptions, Place, ProducerOptions
from tests.support.kafka_clients.reading import read_all
from tests.support.processes import RunningBroker

pytestmark = pytest.mark.interop

RECEIVE_MS_MAX: Final = 30_000
SILENCE_MS: Final = 500
"""How long a consumer that should get nothing waits."""


@pytest.fixture
def pulsar_client(tidewire: RunningBroker) -> Iterator[pulsar.Client]:
    """Connect Pulsar's client to the shared broker."""
    client = pulsar.Client(tidewire.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


def subscribe(client: pulsar.Client, topic: str) -> pulsar.Consumer:
    """Read the topic from its beginning."""
    return client.subscribe(topic, "reading", initial_position=pulsar.InitialPosition.Earliest)


def receive(consumer: pulsar.Consumer, count: int) -> list[pulsar.Message]:
    """Receive this many messages, and then silence."""
    messages = [consumer.receive(timeout_millis=RECEIVE_MS_MAX) for _ in range(count)]
    with pytest.raises(pulsar.Timeout):
        consumer.receive(timeout_millis=SILENCE_MS)
    return messages


def test_a_pulsar_consumer_reads_what_a_kafka_producer_wrote(
    station: Station, topic: str, pulsar_client: pulsar.Client
) -> None:
    """K42: keys, headers and timestamps are keys, properties and event times. Compression does not show."""
    producer = station.producer(ProducerOptions(codec="zstd"))
    for n in range(50):
        producer.send(topic, b"%d" % n, key=b"key %d" % n, headers=[("trace", b"%d" % n)], timestamp_ms=1_000 + n)
    producer.send(topic, b"binary", headers=[("sig", b"\x00\xff"), ("trace", b"a"), ("trace", b"b")], timestamp_ms=9)
    producer.flush()
    *messages, last = receive(subscribe(pulsar_client, topic), 51)
    assert [(one.data(), one.partition_key(), one.properties(), one.event_timestamp()) for one in messages] == [
        (b"%d" % n, f"key {n}", {"trace": str(n)}, 1_000 + n) for n in range(50)
    ]
    assert last.properties() == {"kafka:base64:sig": "AP8=", "trace": "a", "kafka:2:trace": "b"}


def test_a_kafka_consumer_reads_what_a_pulsar_producer_wrote(
    station: Station, topic: str, pulsar_client: pulsar.Client
) -> None:
    """K20, K42: in batches and alone, compressed or not, each message has an offset of its own."""
    batched = pulsar_client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=5, compression_type=pulsar.CompressionType.LZ4
    )
    for n in range(50):
        batched.send_async(
            b"%d" % n,
            lambda *_: None,
            partition_key=f"key {n}",
            properties={"trace": str(n)},
            event_timestamp=1_000 + n,
        )
    batched.flush()
    pulsar_client.create_producer(topic, batching_enabled=False).send(b"alone", event_timestamp=7)
    got = read_all(station.consumer(), Place(topic))
    assert [(one.offset, one.value, one.key, one.headers, one.timestamp_ms) for one in got] == [
        *((n, b"%d" % n, b"key %d" % n, (("trace", b"%d" % n),), 1_000 + n) for n in range(50)),
        (50, b"alone", None, (), 7),
    ]


@pytest.mark.parametrize("batching_enabled", [False, True])
def test_a_kafka_consumer_passes_over_what_decompresses_to_too_much(
    station: Station, topic: str, pulsar_client: pulsar.Client, *, batching_enabled: bool
) -> None:
    """K21: Pulsar's client sends it, because it is small when compressed. The messages around it come."""
    producer = pulsar_client.create_producer(
        topic, batching_enabled=batching_enabled, compression_type=pulsar.CompressionType.ZSTD
    )
    sizes = [1, 8 * 1024 * 1024, 2]
    for size in sizes:
        producer.send(bytes(size))
    got = read_all(station.consumer(), Place(topic))
    assert [(one.offset, one.value) for one in got] == [(0, bytes(1)), (2, bytes(2))]
    assert [len(one.data()) for one in receive(subscribe(pulsar_client, topic), 3)] == sizes


def test_both_protocols_take_turns_in_one_topic(station: Station, topic: str, pulsar_client: pulsar.Client) -> None:
    """K42: there is one order, and readers of both protocols see it."""
    ours, theirs = station.producer(), pulsar_client.create_producer(topic, batching_enabled=False)
    for n in range(0, 20, 2):
        ours.send(topic, b"%d" % n)
        ours.flush()
        theirs.send(b"%d" % (n + 1))
    expected = [b"%d" % n for n in range(20)]
    assert [one.value for one in read_all(station.consumer(), Place(topic))] == expected
    assert [one.data() for one in receive(subscribe(pulsar_client, topic), 20)] == expected


def test_a_pulsar_consumer_reads_all_partitions_of_a_kafka_topic(
    station: Station, name: str, pulsar_client: pulsar.Client
) -> None:
    """K43: Pulsar's client finds three partitions by the topic's name, and writes to them too."""
    station.admin().create(name, 3)
    assert len(pulsar_client.get_topic_partitions(name)) == 3
    producer = station.producer()
    for n in range(30):
        producer.send(name, b"%d" % n, partition=n % 3)
    producer.flush()
    consumer = subscribe(pulsar_client, name)
    messages = receive(consumer, 30)
    assert sorted(int(one.data()) for one in messages) == list(range(30))
    for n in range(3):
        of_partition = [int(one.data()) for one in messages if one.topic_name().endswith(f"-partition-{n}")]
        assert of_partition == list(range(n, 30, 3))
    theirs = pulsar_client.create_producer(
        name, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution
    )
    for n in range(9):
        theirs.send(b"theirs %d" % n)
    got = read_all(station.consumer(), *(Place(name, n) for n in range(3)))
    assert len(got) == 39
    assert {one.place.partition for one in got if (one.value or b"").startswith(b"theirs")} == {0, 1, 2}


def test_a_pulsar_consumer_gets_kafkas_committed_transactions_alone(
    station: Station, topic: str, pulsar_client: pulsar.Client
) -> None:
    """K22, K35: it never sees what was aborted, nor a marker, and waits for what is open."""
    producer = station.producer(ProducerOptions(transactional_id=topic))
    producer.init_transactions()
    for value, end in ((b"kept", producer.commit), (b"dropped", producer.abort)):
        producer.begin()
        producer.send(topic, value)
        producer.flush()
        end()
    producer.begin()
    producer.send(topic, b"open")
    producer.flush()
    consumer = subscribe(pulsar_client, topic)
    assert [one.data() for one in receive(consumer, 1)] == [b"kept"]
    producer.commit()
    assert [one.data() for one in receive(consumer, 1)] == [b"open"]


def test_a_kafka_group_and_a_pulsar_subscription_of_one_name_are_two(
    station: Station, topic: str, pulsar_client: pulsar.Client
) -> None:
    """K36: neither moves the other's position."""
    producer = station.producer()
    for n in range(10):
        producer.send(topic, b"%d" % n)
    producer.flush()
    reading = station.consumer(ConsumerOptions(group_id="reading"))
    assert len(read_all(reading, Place(topic))) == 10
    reading.commit()
    consumer = subscribe(pulsar_client, topic)
    messages = receive(consumer, 10)
    for message in messages[:5]:
        consumer.acknowledge(message)
    assert station.admin().committed("reading")[Place(topic)].offset == 10
