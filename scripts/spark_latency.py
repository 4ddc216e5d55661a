"""Measures how long an event takes through Spark.

That is the time from the send to a topic until a consumer of another topic has the event. A query copies the first
topic to the second. Events are sent at an even pace. Sender and receiver are in one process, so there is one clock.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol

import trio
from pyspark.sql import SparkSession

import tidewire
from scripts.spark_subjects import Kafka, Tidewire

EVENTS_A_SECOND: Final = 10
FIRST_SECONDS_MAX: Final = 120.0
"""How long a new query may take until it has copied the first event."""
LAST_SECONDS_MAX: Final = 30.0
_PRIME_SECONDS: Final = 1.0
_PRIME: Final = "prime"


class Lane(Protocol):
    """Sends to one topic and receives from another."""

    def send(self, value: str) -> None:
        """Send the event. It may return before the event is stored."""


Arrived = Callable[[str], None]


class _Clock:
    """Records when events were sent and received."""

    def __init__(self) -> None:
        self.sent: dict[str, float] = {}
        self.came: dict[str, float] = {}
        self._news = threading.Condition()

    def arrived(self, value: str) -> None:
        """Record that an event has arrived. It may be called from any thread."""
        now = time.perf_counter()
        with self._news:
            self.came.setdefault(value, now)
            self._news.notify_all()

    def wait(self, is_enough: Callable[[], bool], seconds: float) -> bool:
        """Wait until `is_enough` returns true. Return False if the time is over first."""
        with self._news:
            return self._news.wait_for(is_enough, seconds)


def latencies(spark: SparkSession, subject: Tidewire | Kafka, name: str, folder: Path, events: int) -> list[float]:
    """Return the seconds of each event, in a new query.

    Raises:
        RuntimeError: nothing was copied, or not everything.
    """
    source, target = f"{name}-in", f"{name}-out"
    clock = _Clock()
    lanes = _tidewire_lane if isinstance(subject, Tidewire) else _kafka_lane
    for topic in (source, target):
        subject.make_topic(topic)
    with lanes(spark, subject, source, target, clock.arrived) as lane:  # type: ignore[arg-type]
        lane.send(_PRIME)  # So that the topic is there.
        query = subject.stream(spark, source, target, folder / name)
        try:
            deadline = time.perf_counter() + FIRST_SECONDS_MAX
            while not clock.wait(lambda: bool(clock.came), _PRIME_SECONDS):
                if time.perf_counter() > deadline or not query.isActive:
                    raise RuntimeError(f"{subject.name}: the query copies nothing: {query.exception()}")
                lane.send(_PRIME)
            start = time.perf_counter()
            for number in range(events):
                time.sleep(max(0.0, start + number / EVENTS_A_SECOND - time.perf_counter()))  # noqa: TID251 - the pace
                clock.sent[str(number)] = time.perf_counter()
                lane.send(str(number))
            if not clock.wait(lambda: clock.sent.keys() <= clock.came.keys(), LAST_SECONDS_MAX):
                raise RuntimeError(f"{subject.name}: {len(clock.sent)} were sent, {len(clock.came)} came")
        finally:
            query.stop()
    return [clock.came[value] - sent for value, sent in clock.sent.items()]


@contextmanager
def _tidewire_lane(
    spark: SparkSession, subject: Tidewire, source: str, target: str, arrived: Arrived
) -> Iterator[Lane]:
    """Use the Python client on Trio in a separate thread."""
    send: trio.MemorySendChannel[str]
    receive: trio.MemoryReceiveChannel[str]
    send, receive = trio.open_memory_channel(1_000)
    ready = threading.Event()
    token: list[trio.lowlevel.TrioToken] = []

    async def serve() -> None:
        token.append(trio.lowlevel.current_trio_token())
        async with (
            tidewire.connect(subject.broker.service_url) as client,
            client.producer(f"topic://public/default/{source}") as producer,
            client.stream_consumer(f"topic://public/default/{target}", "bench") as consumer,
            trio.open_nursery() as nursery,
        ):
            ready.set()

            async def hear() -> None:
                while True:
                    message = await consumer.receive()
                    arrived(message.value.decode())

            nursery.start_soon(hear)
            async for value in receive:
                await producer.enqueue(value.encode(), key=value)
            nursery.cancel_scope.cancel()

    thread = threading.Thread(target=trio.run, args=(serve,), daemon=True)
    thread.start()
    if not ready.wait(LAST_SECONDS_MAX):
        raise RuntimeError("tidewire: the client did not connect")

    class _Lane:
        def send(self, value: str) -> None:
            token[0].run_sync_soon(send.send_nowait, value)

    try:
        yield _Lane()
    finally:
        with suppress(trio.RunFinishedError):
            token[0].run_sync_soon(send.close)
        thread.join(LAST_SECONDS_MAX)


@contextmanager
def _kafka_lane(spark: SparkSession, subject: Kafka, source: str, target: str, arrived: Arrived) -> Iterator[Lane]:
    """Use Kafka's own client in Spark's JVM. A call from here takes less than a millisecond."""
    jvm: Any = spark._jvm  # noqa: SLF001 - there is no other way to Java's classes
    clients, strings = jvm.org.apache.kafka.clients, "org.apache.kafka.common.serialization.String"
    settings = jvm.java.util.Properties()
    for name, value in {
        "bootstrap.servers": subject.servers,
        "key.serializer": f"{strings}Serializer",
        "value.serializer": f"{strings}Serializer",
        "key.deserializer": f"{strings}Deserializer",
        "value.deserializer": f"{strings}Deserializer",
        "group.id": target,
        "auto.offset.reset": "earliest",
        "metadata.max.age.ms": "1000",
    }.items():
        settings.put(name, value)
    producer = clients.producer.KafkaProducer(settings)
    consumer = clients.consumer.KafkaConsumer(settings)
    topics = jvm.java.util.ArrayList()
    topics.add(target)
    consumer.subscribe(topics)
    ending = threading.Event()

    def hear() -> None:
        while not ending.is_set():
            records = consumer.poll(jvm.java.time.Duration.ofMillis(200)).iterator()
            while records.hasNext():
                arrived(records.next().value())
        consumer.close()

    thread = threading.Thread(target=hear, daemon=True)
    thread.start()

    class _Lane:
        def send(self, value: str) -> None:
            producer.send(clients.producer.ProducerRecord(source, value, value))

    try:
        yield _Lane()
    finally:
        producer.close()
        ending.set()
        thread.join(LAST_SECONDS_MAX)
