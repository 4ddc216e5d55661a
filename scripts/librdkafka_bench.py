"""The clients of `scripts/bench_kafka.py`: librdkafka, through `confluent-kafka`.

    .venv/bin/python scripts/librdkafka_bench.py BOOTSTRAP_SERVERS PHASE NUMBER...

The program prints `measuring` and `measured` around the measured part, and one JSON object on its last line. Settings
are librdkafka's defaults, except these:

| setting            | value       | where                                                                       |
|--------------------|-------------|-----------------------------------------------------------------------------|
| linger.ms          | 0           | latency: the default lets each message wait for 5 ms                        |
| auto.offset.reset  | earliest    | fetch: it reads what was written before                                     |
| fetch.wait.max.ms  | an argument | parked consumers: how long a fetch waits for messages; the default is 500   |
| enable.auto.commit | false       | latency, visible: the consumers have no progress to keep                    |

By default a producer waits for all replicas (acks=all) and a consumer reads committed messages only.
"""

import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import orjson
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

WAIT_SECONDS: Final = 60
WARM_UP_ROUNDS: Final = 30
PRODUCERS: Final = 64
AT_ONCE: Final = 1_000
"""Messages that a consumer takes by one call."""
MESSAGE_RATE: Final = 1_000
"""Messages a second whose latency is measured."""
PARK_SECONDS: Final = 0.005
"""Until the consumer's next fetch waits at the broker."""

Result = Mapping[str, Any]


class Servers:
    """Makes topics and clients of one broker."""

    def __init__(self, bootstrap: str) -> None:
        self._settings: Mapping[str, Any] = {"bootstrap.servers": bootstrap, "log_level": 3}

    def topic(self, partitions: int = 1) -> str:
        """Make a topic with a new name."""
        name = f"bench-{uuid.uuid4()}"
        admin = AdminClient(dict(self._settings))
        for made in admin.create_topics([NewTopic(name, partitions, 1)]).values():
            made.result(WAIT_SECONDS)
        return name

    def producer(self, **settings: object) -> Producer:
        """Make a producer. A failed send ends the program."""
        more = {"on_delivery": _require_delivered, "delivery.report.only.error": True}
        return Producer({**self._settings, **more, **_dotted(settings)})

    def consumer(self, **settings: object) -> Consumer:
        """Make a consumer in a group of its own."""
        return Consumer({**self._settings, "group.id": str(uuid.uuid4()), **_dotted(settings)})

    def transactional(self) -> Producer:
        """Make a producer that is ready for transactions."""
        producer = self.producer(transactional_id=str(uuid.uuid4()))
        producer.init_transactions(WAIT_SECONDS)
        return producer

    def reading(self, topic: str) -> Consumer:
        """Make a consumer that waits at the end of a topic with one partition."""
        consumer = self.consumer(enable_auto_commit=False)
        consumer.assign([TopicPartition(topic, 0, 0)])
        return consumer


def transactions(servers: Servers, partitions: int, rounds: int) -> Result:
    """Write one message to each partition in one transaction, again and again. The times are in milliseconds."""
    topic, producer, value = servers.topic(partitions), servers.transactional(), os.urandom(100)
    taken = []
    for round_ in range(-WARM_UP_ROUNDS, rounds):
        if round_ == 0:
            _say("measuring")
            began = time.perf_counter()
        start = time.perf_counter()
        producer.begin_transaction()
        for partition in range(partitions):
            producer.produce(topic, value, partition=partition)
        producer.commit_transaction(WAIT_SECONDS)
        if round_ >= 0:
            taken.append(1_000 * (time.perf_counter() - start))
    seconds = time.perf_counter() - began
    _say("measured")
    return {"done": rounds, "seconds": seconds, "taken": taken}


def in_flight(servers: Servers, warm_up_seconds: float, seconds: float) -> Result:
    """Commit transactions of one message on one partition, by many producers at once."""
    topic, value = servers.topic(), os.urandom(100)
    ended = threading.Event()
    done = [0] * PRODUCERS

    def work(number: int) -> None:
        producer = servers.transactional()
        while not ended.is_set():
            producer.begin_transaction()
            producer.produce(topic, value)
            producer.commit_transaction(WAIT_SECONDS)
            done[number] += 1

    with ThreadPoolExecutor(PRODUCERS) as threads:
        working = [threads.submit(work, number) for number in range(PRODUCERS)]
        try:
            while not all(done):
                _require_going_on(working)
            _pause(warm_up_seconds)
            _say("measuring")
            before, start = sum(done), time.perf_counter()
            _pause(seconds)
            committed, took = sum(done) - before, time.perf_counter() - start
            _say("measured")
        finally:
            ended.set()
        for each in working:
            each.result()
    return {"done": committed, "seconds": took}


def visible(servers: Servers, rounds: int) -> Result:
    """Measure from the call of commit until a waiting consumer has the transaction's message, in milliseconds."""
    topic, producer, value = servers.topic(), servers.transactional(), os.urandom(100)
    consumer = servers.reading(topic)
    got = threading.Semaphore(0)
    times: list[float] = []

    def receive() -> None:
        for _ in range(WARM_UP_ROUNDS + rounds):
            _received(consumer)
            times.append(time.perf_counter())
            got.release()

    reader = threading.Thread(target=receive, daemon=True)
    reader.start()
    taken = []
    for round_ in range(-WARM_UP_ROUNDS, rounds):
        if round_ == 0:
            _say("measuring")
            began = time.perf_counter()
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(WAIT_SECONDS)
        start = time.perf_counter()
        producer.commit_transaction(WAIT_SECONDS)
        if not got.acquire(timeout=WAIT_SECONDS):
            raise SystemExit("a committed message did not reach its consumer")
        if round_ >= 0:
            taken.append(1_000 * (times[-1] - start))
        _pause(PARK_SECONDS)
    seconds = time.perf_counter() - began
    _say("measured")
    consumer.close()
    return {"done": rounds, "seconds": seconds, "taken": taken}


def produce(servers: Servers, size: int, warm_up: int, messages: int) -> Result:
    """Send messages of `size` bytes to one partition, as many as the client takes."""
    topic, producer, value = servers.topic(), servers.producer(), os.urandom(size)
    _send(producer, topic, value, warm_up)
    _say("measuring")
    start = time.perf_counter()
    _send(producer, topic, value, messages)
    seconds = time.perf_counter() - start
    _say("measured")
    return {"done": messages, "seconds": seconds, "topic": topic}


def fetch(servers: Servers, size: int, messages: int) -> Result:
    """Receive messages of `size` bytes from one partition, which holds them."""
    topic = servers.topic()
    _send(servers.producer(), topic, os.urandom(size), messages)
    consumer = servers.consumer(auto_offset_reset="earliest")
    consumer.assign([TopicPartition(topic, 0, 0)])
    _say("measuring")
    start = time.perf_counter()
    done = 0
    while done < messages:
        received = consumer.consume(AT_ONCE, WAIT_SECONDS)
        if not received:
            raise SystemExit(f"only {done} of {messages} messages came")
        for message in received:
            _require_message(message)
        done += len(received)
    seconds = time.perf_counter() - start
    _say("measured")
    consumer.close()
    return {"done": done, "seconds": seconds}


def latency(servers: Servers, size: int, messages: int) -> Result:
    """Measure from send to receipt, in milliseconds, at a steady rate."""
    topic, producer, padding = servers.topic(), servers.producer(linger_ms=0), bytes(size - 8)
    consumer = servers.reading(topic)
    sent = MESSAGE_RATE + messages
    taken: list[float] = []

    def receive() -> None:
        for _ in range(sent):
            value = _received(consumer).value()
            assert value is not None, "every message has a value"
            taken.append((time.perf_counter_ns() - int.from_bytes(value[:8])) / 1e6)

    reader = threading.Thread(target=receive, daemon=True)
    reader.start()
    start = time.perf_counter()
    for number in range(sent):
        if number == MESSAGE_RATE:
            _say("measuring")
        pause = start + number / MESSAGE_RATE - time.perf_counter()
        if pause > 0:
            _pause(pause)
        producer.produce(topic, time.perf_counter_ns().to_bytes(8) + padding)
        producer.poll(0)
    reader.join(WAIT_SECONDS)
    _say("measured")
    producer.flush(WAIT_SECONDS)
    if len(taken) != sent:
        raise SystemExit(f"only {len(taken)} of {sent} messages came")
    consumer.close()
    return {"done": messages, "seconds": messages / MESSAGE_RATE, "taken": taken[MESSAGE_RATE:]}


def parked(servers: Servers, consumers: int, wait_ms: int, settle_seconds: float, seconds: float) -> Result:
    """Let consumers of one topic wait. Each is subscribed in a group of its own, and has received one message."""
    topic = servers.topic()
    _send(servers.producer(), topic, b"one", 1)
    settings = {"fetch_wait_max_ms": wait_ms, "auto_offset_reset": "earliest"}
    waiting = [servers.consumer(**settings) for _ in range(consumers)]
    for consumer in waiting:
        consumer.subscribe([topic])
    with ThreadPoolExecutor(consumers) as threads:
        for received in threads.map(_received, waiting):
            assert received.value() == b"one"
        _pause(settle_seconds)
        _say("measuring")
        _pause(seconds)
        _say("measured")
        list(threads.map(lambda consumer: consumer.close(), waiting))
    return {"done": consumers, "seconds": seconds}


def load(servers: Servers, size: int, messages: int) -> Result:
    """Write messages of `size` bytes to a new topic."""
    topic = servers.topic()
    _send(servers.producer(), topic, os.urandom(size), messages)
    return {"topic": topic}


def _send(producer: Producer, topic: str, value: bytes, messages: int) -> None:
    for _ in range(messages):
        while True:
            try:
                producer.produce(topic, value, partition=0)
            except BufferError:
                # The client's own queue is full.
                producer.poll(WAIT_SECONDS)
            else:
                break
    if producer.flush(WAIT_SECONDS):
        raise SystemExit("messages were not delivered in time")


def _received(consumer: Consumer) -> Message:
    message = consumer.poll(WAIT_SECONDS)
    if message is None:
        raise SystemExit("a message did not come in time")
    return _require_message(message)


def _require_message(message: Message) -> Message:
    if message.error() is not None:
        raise KafkaException(message.error())
    return message


def _require_delivered(error: KafkaError | None, _message: Message) -> None:
    if error is not None:
        raise SystemExit(f"a send failed: {error}")


def _require_going_on(working: Sequence[Any]) -> None:
    """Wait for a moment, and raise what ended a worker."""
    for each in working:
        if each.done():
            each.result()
    _pause(PARK_SECONDS)


def _dotted(settings: Mapping[str, object]) -> dict[str, object]:
    return {name.replace("_", "."): value for name, value in settings.items()}


def _pause(seconds: float) -> None:
    time.sleep(seconds)  # noqa: TID251 - nothing reports what it waits for: a rate, a window, or a parked fetch


def _number(text: str) -> float:
    return int(text) if text.isdigit() else float(text)


def _say(line: str) -> None:
    print(line, flush=True)


PHASES: Final[Mapping[str, Callable[..., Result]]] = {
    "transactions": transactions,
    "in-flight": in_flight,
    "visible": visible,
    "produce": produce,
    "fetch": fetch,
    "latency": latency,
    "parked": parked,
    "load": load,
}


def main(arguments: Sequence[str]) -> None:
    """Run one phase."""
    bootstrap, phase, *numbers = arguments
    result = PHASES[phase](Servers(bootstrap), *map(_number, numbers))
    print(orjson.dumps(result).decode(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
