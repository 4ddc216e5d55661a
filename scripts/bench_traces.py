"""Measures what traces cost: a broker's CPU time for each message, and the time until a lone send is answered.

    .venv/bin/python scripts/bench_traces.py [--repeats 3]

Each repeat starts four brokers, one after another, and sends each the same messages. One does not trace. The others
send their spans to a collector in the benchmark's process: of no message, of one in a hundred, of all. CPU is that of
the broker's process alone, by the kernel, with its thread for exports. Every figure is the median of the repeats, with
the lowest and highest.
"""

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from typing import Final
from urllib.request import urlopen

sys.path.insert(0, str(Path(__file__).parents[1]))

import trio

import tidewire
from scripts.comparison import Report
from scripts.process_usage import cpu_seconds
from tests.support.admin import Admin
from tests.support.collector import running_collector
from tests.support.processes import RunningBroker, running_broker

VALUE: Final = bytes(100)
WARM_UP: Final = 2_000
LONE: Final = 2_000
KINDS: Final = {"alone": 10_000, "in batches": 200_000}
"""How messages are sent, and how many."""

EVERY: Final[Mapping[str, int | None]] = {"off": None, "none traced": 0, "1 in 100 traced": 100, "all traced": 1}
"""By system: every which message is traced."""


def properties(number: int, every: int | None) -> Mapping[str, str] | None:
    """Return the properties of a message, with the trace context of a span of its own if it is traced."""
    if not every or number % every:
        return None
    return {"traceparent": f"00-{number + 1:032x}-{number + 1:016x}-01"}


async def cost(broker: RunningBroker, kind: str, every: int | None) -> float:
    """Send and receive all messages; the broker's CPU seconds for each."""
    count = KINDS[kind]
    topic = Admin(broker.http_url).new_topic()
    async with (
        tidewire.connect(broker.service_url) as client,
        client.producer(topic, batching=kind != "alone") as producer,
        client.stream_consumer(topic, "s") as consumer,
    ):

        async def send(first: int, behind: int) -> None:
            for number in range(first, behind):
                await producer.enqueue(VALUE, key="k", properties=properties(number, every))
            await producer.flush()

        async def turn(first: int, behind: int) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send, first, behind)
                for _ in range(first, behind):
                    message = await consumer.receive()
                await consumer.acknowledge_cumulative(message)

        await turn(0, WARM_UP)
        before = cpu_seconds(broker.pid)
        await turn(WARM_UP, WARM_UP + count)
        return (cpu_seconds(broker.pid) - before) / count


async def waits(broker: RunningBroker, every: int | None) -> list[float]:
    """Send messages one after another; the seconds until each is answered."""
    topic = Admin(broker.http_url).new_topic()
    seconds = []
    async with tidewire.connect(broker.service_url) as client, client.producer(topic) as producer:
        for number in range(WARM_UP + LONE):
            start = trio.current_time()
            await producer.send(VALUE, key="k", properties=properties(number, every))
            seconds.append(trio.current_time() - start)
    return seconds[WARM_UP:]


def dropped_percent(broker: RunningBroker) -> float:
    """Return how many of a hundred spans were dropped."""
    with urlopen(f"{broker.http_url}/metrics?local=true", timeout=60) as answer:  # noqa: S310 - our own broker
        text = answer.read().decode()
    counts = {what: float(n) for what, n in re.findall(r'tidewire_trace_spans_total{result="(\w+)"} (.+)', text)}
    return 100 * counts["dropped"] / sum(counts.values())


@contextmanager
def exporting_to(endpoint: str | None) -> Iterator[None]:
    """Let brokers that start in the block send their spans there."""
    name = "OTEL_EXPORTER_OTLP_ENDPOINT"
    kept = os.environ.pop(name, None)
    if endpoint is not None:
        os.environ[name] = endpoint
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if kept is not None:
            os.environ[name] = kept


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description="What traces cost a broker.")
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args(arguments)
    report = Report(tuple(EVERY))
    with running_collector() as collector:
        for _ in range(asked.repeats):
            for system, every in EVERY.items():
                endpoint = None if every is None else collector.endpoint
                with (
                    tempfile.TemporaryDirectory(prefix="tidewire-bench-") as folder,
                    exporting_to(endpoint),
                    running_broker(Path(folder) / "data") as broker,
                ):
                    for kind in KINDS:
                        seconds = trio.run(cost, broker, kind, every)
                        report.add(f"a message sent {kind}, µs of CPU", system, seconds * 1e6, ".1f")
                    seconds_each = trio.run(waits, broker, every)
                    p50, *_between, p99 = quantiles(seconds_each, n=100)[49:]
                    report.add("a lone send, p50 ms", system, p50 * 1e3, ".2f")
                    report.add("a lone send, p99 ms", system, p99 * 1e3, ".2f")
                    if every:
                        report.add("spans that did not fit into the queue, %", system, dropped_percent(broker), ".0f")
    report.print()


if __name__ == "__main__":
    main(sys.argv[1:])
