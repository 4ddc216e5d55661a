"""The unmodified Python `pulsar-client` on `persistent://` topics, against a broker started as users start it."""

import re
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from time import time_ns
from typing import Final

import pulsar
import pytest

from tests.support.processes import RunningBroker, running_broker

RECEIVE_MS_MAX = 10_000

PATTERN_SECONDS: Final = 60
"""How often the client asks for the topics of a pattern."""


@contextmanager
def connected(broker: RunningBroker, timeout_seconds: int = 20) -> Iterator[pulsar.Client]:
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(broker.service_url, operation_timeout_seconds=timeout_seconds, logger=logger)
    with closing(client):
        yield client


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """Run one broker for the whole module; each test has its own topic."""
    with running_broker(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker


@pytest.fixture
def topic() -> str:
    """Return a topic that no other test uses."""
    return f"persistent://public/default/{uuid.uuid4().hex}"


def receive_all(consumer: pulsar.Consumer, count: int) -> list[bytes]:
    received = []
    for _ in range(count):
        message = consumer.receive(timeout_millis=RECEIVE_MS_MAX)
        received.append(message.data())
        consumer.acknowledge(message)
    return received


def create_partitioned(broker: RunningBroker, topic: str) -> None:
    """Create a topic of two partitions."""
    path = f"/admin/v2/{topic.replace('://', '/')}/partitions"
    made = urllib.request.Request(f"{broker.http_url}{path}", b"2", method="PUT")
    assert urllib.request.urlopen(made).status == 204


def expect_nothing(consumer: pulsar.Consumer) -> None:
    with pytest.raises(pulsar.Timeout):
        consumer.receive(timeout_millis=300)


@pytest.mark.parametrize("batching", [False, True], ids=["single", "batched"])
@pytest.mark.parametrize(
    "compression",
    [pulsar.CompressionType.NONE, pulsar.CompressionType.LZ4, pulsar.CompressionType.ZSTD],
    ids=["plain", "lz4", "zstd"],
)
def test_an_exclusive_consumer_gets_what_was_sent_in_order(
    broker: RunningBroker, topic: str, batching: bool, compression: pulsar.CompressionType
) -> None:
    with connected(broker) as client:
        consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
        producer = client.create_producer(
            topic, batching_enabled=batching, compression_type=compression, batching_max_publish_delay_ms=5
        )
        sent = [f"message {number} ".encode() * 20 for number in range(300)]
        for value in sent[:-1]:
            producer.send_async(value, callback=lambda _result, _message_id: None)
        producer.send(sent[-1])
        assert receive_all(consumer, len(sent)) == sent
        expect_nothing(consumer)


def test_properties_key_and_event_time_arrive(broker: RunningBroker, topic: str) -> None:
    with connected(broker) as client:
        consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
        client.create_producer(topic).send(
            b"value", properties={"a": "1", "b": "2"}, partition_key="key", event_timestamp=1357034400000
        )
        message = consumer.receive(timeout_millis=RECEIVE_MS_MAX)
        assert message.data() == b"value"
        assert message.properties() == {"a": "1", "b": "2"}
        assert message.partition_key() == "key"
        assert message.event_timestamp() == 1357034400000
        assert message.topic_name() == topic


def test_shared_consumers_divide_the_messages(broker: RunningBroker, topic: str) -> None:
    with connected(broker) as client:
        shared = [
            client.subscribe(
                topic,
                "s",
                consumer_type=pulsar.ConsumerType.Shared,
                initial_position=pulsar.InitialPosition.Earliest,
                receiver_queue_size=5,
            )
            for _ in range(2)
        ]
        producer = client.create_producer(topic, batching_enabled=False)
        sent = {f"{number}".encode() for number in range(100)}
        for value in sent:
            producer.send(value)
        received: list[set[bytes]] = [set(), set()]
        while sum(map(len, received)) < len(sent):
            for consumer, mine in zip(shared, received, strict=True):
                try:
                    message = consumer.receive(timeout_millis=200)
                except pulsar.Timeout:
                    continue
                mine.add(message.data())
                consumer.acknowledge(message)
        assert received[0] | received[1] == sent
        assert not received[0] & received[1]
        assert all(received)


def test_a_second_exclusive_consumer_is_refused(broker: RunningBroker, topic: str) -> None:
    with connected(broker) as client:
        client.subscribe(topic, "s")
        with pytest.raises(pulsar.ConsumerBusy):
            client.subscribe(topic, "s")


def test_what_was_acknowledged_does_not_come_again_and_the_rest_does(broker: RunningBroker, topic: str) -> None:
    """D3: an answered acknowledgement survives kill -9; unacknowledged messages are redelivered."""
    with connected(broker) as client:
        producer = client.create_producer(topic, batching_enabled=False)
        consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
        for number in range(10):
            producer.send(f"{number}".encode())
        for _ in range(6):
            consumer.acknowledge(consumer.receive(timeout_millis=RECEIVE_MS_MAX))
        consumer.close()
        consumer = client.subscribe(topic, "s")
        assert receive_all(consumer, 4) == [b"6", b"7", b"8", b"9"]


def test_acknowledged_publishes_survive_kill_and_restart(broker: RunningBroker, topic: str) -> None:
    """D8: all answered sends are there after kill -9, in order, and new sends follow them."""
    with connected(broker) as client:
        producer = client.create_producer(topic, batching_enabled=False)
        for number in range(50):
            producer.send(f"{number}".encode())
        broker.kill()
        broker.restart()
        producer.send(b"50")
        consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
        assert receive_all(consumer, 51) == [f"{number}".encode() for number in range(51)]


def test_a_negative_acknowledgement_brings_the_message_back(broker: RunningBroker, topic: str) -> None:
    with connected(broker) as client:
        consumer = client.subscribe(
            topic,
            "s",
            consumer_type=pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
            negative_ack_redelivery_delay_ms=100,
        )
        client.create_producer(topic).send(b"value")
        first = consumer.receive(timeout_millis=RECEIVE_MS_MAX)
        consumer.negative_acknowledge(first)
        second = consumer.receive(timeout_millis=RECEIVE_MS_MAX)
        assert second.data() == b"value"
        assert second.redelivery_count() == 1
        consumer.acknowledge(second)


def test_a_reader_reads_from_the_beginning_and_from_a_message(broker: RunningBroker, topic: str) -> None:
    with connected(broker) as client:
        producer = client.create_producer(topic, batching_enabled=False)
        ids = [producer.send(f"{number}".encode()) for number in range(5)]
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        values = []
        while reader.has_message_available():
            values.append(reader.read_next(timeout_millis=RECEIVE_MS_MAX).data())
        assert values == [b"0", b"1", b"2", b"3", b"4"]
        later = client.create_reader(topic, ids[2])
        assert later.read_next(timeout_millis=RECEIVE_MS_MAX).data() == b"3"


def test_seeking_goes_back(broker: RunningBroker, topic: str) -> None:
    with connected(broker) as client:
        producer = client.create_producer(topic, batching_enabled=False)
        for number in range(5):
            producer.send(f"{number}".encode())
        consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
        receive_all(consumer, 5)
        consumer.seek(pulsar.MessageId.earliest)
        assert receive_all(consumer, 5) == [b"0", b"1", b"2", b"3", b"4"]


def rest_of(reader: pulsar.Reader) -> list[bytes]:
    values = []
    while reader.has_message_available():
        values.append(reader.read_next(timeout_millis=RECEIVE_MS_MAX).data())
    return values


@pytest.mark.parametrize("batching", [False, True], ids=["single", "batched"])
def test_a_reader_goes_on_where_it_sought(broker: RunningBroker, topic: str, batching: bool) -> None:
    """E21: the target is a time, an end or a message, after it has read most of the topic."""
    values = [f"{number}".encode() for number in range(10)]
    with connected(broker) as client:
        producer = client.create_producer(topic, batching_enabled=batching, batching_max_publish_delay_ms=1_000)
        moment = 0
        for number, value in enumerate(values):
            if number == 5:
                producer.flush()
                moment = _moment_between()
            producer.send_async(value, callback=lambda _result, _message_id: None)
        producer.flush()
        for inclusive in (False, True):
            for to, first in ((moment, 5), (pulsar.MessageId.earliest, 0), (3, 3 if inclusive else 4)):
                reader = client.create_reader(topic, pulsar.MessageId.earliest, start_message_id_inclusive=inclusive)
                read = [reader.read_next(timeout_millis=RECEIVE_MS_MAX) for _ in range(8)]
                reader.seek(read[to].message_id() if isinstance(to, int) and to < len(read) else to)
                assert rest_of(reader) == values[first:]
                reader.close()


@pytest.mark.parametrize("batching", [False, True], ids=["single", "batched"])
def test_a_reader_begins_at_a_message_or_behind_it(broker: RunningBroker, topic: str, batching: bool) -> None:
    """E21: as its option `start_message_id_inclusive` says. The last message of the topic is one to begin at, too."""
    values = [f"{number}".encode() for number in range(10)]
    with connected(broker) as client:
        producer = client.create_producer(topic, batching_enabled=batching, batching_max_publish_delay_ms=1_000)
        for value in values:
            producer.send_async(value, callback=lambda _result, _message_id: None)
        producer.flush()
        every = client.create_reader(topic, pulsar.MessageId.earliest)
        ids = [every.read_next(timeout_millis=RECEIVE_MS_MAX).message_id() for _ in values]
        for start in (0, 5, 9):
            for inclusive in (False, True):
                reader = client.create_reader(topic, ids[start], start_message_id_inclusive=inclusive)
                assert rest_of(reader) == values[start if inclusive else start + 1 :]
                reader.close()


def _moment_between() -> int:
    """Return a time in milliseconds that differs from the publish times of both neighbours."""
    before = time_ns() // 1_000_000
    while (moment := time_ns() // 1_000_000) <= before + 1:
        pass
    while time_ns() // 1_000_000 <= moment:
        pass
    return moment


def test_unsubscribing_forgets(broker: RunningBroker, topic: str) -> None:
    with connected(broker) as client:
        client.create_producer(topic).send(b"value")
        consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
        assert receive_all(consumer, 1) == [b"value"]
        consumer.unsubscribe()
        again = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
        assert receive_all(again, 1) == [b"value"]


def test_delayed_delivery_is_refused_at_once(broker: RunningBroker, topic: str) -> None:
    """E20: only at this error does the client fail a send; at any other it would resend it again and again."""
    with connected(broker) as client:
        producer = client.create_producer(topic)
        with pytest.raises(pulsar.ChecksumError):
            producer.send(b"late", deliver_after=timedelta(hours=1))
        producer.send(b"now")
        consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
        assert receive_all(consumer, 1) == [b"now"]
        expect_nothing(consumer)


def test_credentials_are_refused_at_once(broker: RunningBroker, topic: str) -> None:
    """E20: the broker does not check them, so it must not seem to accept them."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    token = pulsar.AuthenticationToken("a.b.c")
    with (
        closing(pulsar.Client(broker.service_url, authentication=token, logger=logger)) as client,
        pytest.raises(pulsar.AuthenticationError),
    ):
        client.create_producer(topic)


DEAD_LETTERS: Final = """
import os, sys
import pulsar

url, topic, wait_ms = sys.argv[1], sys.argv[2], int(sys.argv[3])
client = pulsar.Client(url)
consumer = client.subscribe(
    topic,
    "s",
    consumer_type=pulsar.ConsumerType.Shared,
    initial_position=pulsar.InitialPosition.Earliest,
    negative_ack_redelivery_delay_ms=50,
    dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(1, topic + "-dead", "kept"),
)
client.create_producer(topic).send(b"value")
for _ in range(2):
    consumer.negative_acknowledge(consumer.receive(timeout_millis=wait_ms))
print(client.subscribe(topic + "-dead", "kept").receive(timeout_millis=wait_ms).data().decode(), flush=True)
os._exit(0)
"""
"""A program that ends without closing its consumer, because to close it while its timer sends messages back has crashed
the client's native code."""


def test_a_producer_may_make_the_subscription_that_keeps_its_messages(broker: RunningBroker, topic: str) -> None:
    """E20: clients request this for dead-letter topics."""
    command = (sys.executable, "-c", DEAD_LETTERS, broker.service_url, topic, str(RECEIVE_MS_MAX))
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.stdout.splitlines()[-1:], ended.returncode) == (["value"], 0), ended.stderr


@pytest.mark.parametrize("name", ["..", "a/b", "x" * 2_000])
def test_an_illegal_name_is_refused_at_once(broker: RunningBroker, name: str) -> None:
    """At InvalidTopicName this client would look the name up again until its timeout."""
    with connected(broker, timeout_seconds=3600) as client, pytest.raises(pulsar.NotAllowedError):
        client.create_producer(f"persistent://public/default/{name}")


def test_a_pattern_finds_the_topics_of_its_namespace(broker: RunningBroker) -> None:
    """E20: topics, and all partitions of a partitioned one, which the client joins to one topic."""
    kind = uuid.uuid4().hex
    topic, parted = (f"persistent://public/default/{kind}-{local}" for local in ("topic", "parted"))
    create_partitioned(broker, parted)
    sent = {topic: b"1", f"{parted}-partition-0": b"2", f"{parted}-partition-1": b"3", f"{topic}x": b"not asked for"}
    with connected(broker) as client:
        for name, payload in sent.items():
            client.create_producer(name).send(payload)
        pattern = re.compile(f"persistent://public/default/{kind}-(topic|parted)")
        consumer = client.subscribe(pattern, "s", initial_position=pulsar.InitialPosition.Earliest)
        assert sorted(receive_all(consumer, 3)) == [b"1", b"2", b"3"]
        expect_nothing(consumer)


@pytest.mark.interop
@pytest.mark.thorough
@pytest.mark.timeout(4 * PATTERN_SECONDS)
def test_a_pattern_finds_later_topics(broker: RunningBroker) -> None:
    """E20: the client asks again each minute, whatever its setting says, and joins new topics and partitions."""
    kind = uuid.uuid4().hex
    early, late, parted = (f"persistent://public/default/{kind}-{local}" for local in ("early", "late", "parted"))
    with connected(broker) as client:
        producer = client.create_producer(early)
        consumer = client.subscribe(
            re.compile(f"persistent://public/default/{kind}-.*"), "s", initial_position=pulsar.InitialPosition.Earliest
        )
        producer.send(b"early")
        assert receive_all(consumer, 1) == [b"early"]
        create_partitioned(broker, parted)
        for name in (late, f"{parted}-partition-0", f"{parted}-partition-1"):
            client.create_producer(name).send(name.encode())
        messages = [consumer.receive(timeout_millis=3 * PATTERN_SECONDS * 1000) for _ in range(3)]
        assert all(message.data() == message.topic_name().encode() for message in messages)
        assert len({message.topic_name() for message in messages}) == 3
        producer.send(b"early again")
        assert receive_all(consumer, 1) == [b"early again"]


def test_a_non_persistent_topic_is_refused_at_once(broker: RunningBroker) -> None:
    """E20: the client gives up at the answer. At InvalidTopicName it would look up again until its timeout."""
    with connected(broker, timeout_seconds=3600) as client, pytest.raises(pulsar.NotAllowedError):
        client.create_producer("non-persistent://public/default/orders")
