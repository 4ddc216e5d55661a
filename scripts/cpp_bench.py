"""The C++ client's part of `scripts/bench_process.py`, through its Python binding `pulsar-client`.

    .venv/bin/python scripts/cpp_bench.py SERVICE_URL produce BYTES BATCHED WARM_UP_SECONDS SECONDS
    .venv/bin/python scripts/cpp_bench.py SERVICE_URL fetch BYTES MESSAGES

The program prints `measuring` and `measured` around the measured part, and one JSON object on its last line.
"""

import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import orjson
import pulsar

SENDS_IN_FLIGHT: Final = 5_000
BYTES_IN_FLIGHT: Final = 16 * 1024 * 1024
RECEIVE_MILLISECONDS_MAX: Final = 30_000


class Sends:
    """Counts sends in flight, and sends that the broker has confirmed."""

    def __init__(self, in_flight_max: int) -> None:
        self._room = threading.Semaphore(in_flight_max)
        self._in_flight_max = in_flight_max
        self.confirmed = 0
        self._failure: object = None

    def send(self, producer: pulsar.Producer, value: bytes) -> None:
        """Send one message, once there is room for it."""
        self._room.acquire()
        producer.send_async(value, self._answered)

    def _answered(self, result: object, _message_id: object) -> None:
        if result != pulsar.Result.Ok:
            self._failure = result
        self.confirmed += 1
        self._room.release()

    def finish(self) -> None:
        """Wait for the last receipt. A failed send ends the program."""
        for _ in range(self._in_flight_max):
            self._room.acquire()
        if self._failure is not None:
            raise SystemExit(f"a send failed: {self._failure}")


def produce(client: pulsar.Client, size: int, batched: int, warm_up_seconds: int, seconds: int) -> Mapping[str, float]:
    """Send messages of `size` bytes to one topic for `seconds`, as many as the client takes."""
    producer = _producer(client, f"produce-{uuid.uuid4()}", batched=bool(batched))
    value = os.urandom(size)
    sends = Sends(_in_flight(size))
    _send_until(sends, producer, value, time.perf_counter() + warm_up_seconds)
    _say("measuring")
    before, start = sends.confirmed, time.perf_counter()
    _send_until(sends, producer, value, start + seconds)
    done, took = sends.confirmed - before, time.perf_counter() - start
    _say("measured")
    sends.finish()
    return {"done": done, "seconds": took}


def fetch(client: pulsar.Client, size: int, messages: int) -> Mapping[str, float]:
    """Receive messages of `size` bytes, which were sent before."""
    topic = f"fetch-{uuid.uuid4()}"
    producer = _producer(client, topic, batched=True)
    value = os.urandom(size)
    sends = Sends(_in_flight(size))
    for _ in range(messages):
        sends.send(producer, value)
    sends.finish()
    # The subscription is created before the measured part.
    consumer = client.subscribe(topic, "fetch", initial_position=pulsar.InitialPosition.Earliest)
    consumer.receive(RECEIVE_MILLISECONDS_MAX)
    _say("measuring")
    start = time.perf_counter()
    for _ in range(messages - 1):
        last = consumer.receive(RECEIVE_MILLISECONDS_MAX)
    took = time.perf_counter() - start
    _say("measured")
    consumer.acknowledge_cumulative(last)
    return {"done": messages - 1, "seconds": took}


def _send_until(sends: Sends, producer: pulsar.Producer, value: bytes, deadline: float) -> None:
    while time.perf_counter() < deadline:
        for _ in range(100):
            sends.send(producer, value)


def _in_flight(size: int) -> int:
    return min(SENDS_IN_FLIGHT, max(64, BYTES_IN_FLIGHT // size))


def _producer(client: pulsar.Client, topic: str, *, batched: bool) -> pulsar.Producer:
    return client.create_producer(
        topic,
        batching_enabled=batched,
        # The same delay as for the other clients in this comparison.
        batching_max_publish_delay_ms=1,
        max_pending_messages=SENDS_IN_FLIGHT,
        block_if_queue_full=True,
    )


def _say(line: str) -> None:
    print(line, flush=True)


def main(arguments: Sequence[str]) -> None:
    """Run one phase."""
    service_url, phase, *numbers = arguments
    phases: Mapping[str, Callable[..., Mapping[str, float]]] = {"produce": produce, "fetch": fetch}
    client = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    result = phases[phase](client, *map(int, numbers))
    print(orjson.dumps(result).decode(), flush=True)
    client.close()


if __name__ == "__main__":
    main(sys.argv[1:])
