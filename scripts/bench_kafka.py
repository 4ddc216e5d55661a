"""Measures Tidewire's Kafka listener beside Apache Kafka 4.3.0, with librdkafka, in the same run.

    .venv/bin/python scripts/bench_kafka.py [--repeats 3] [--only transactions,fetch] [--json FILE] [--plot FILE]

Three systems take turns, all parts in each turn, while the others are stopped:

    tidewire         as it comes: it syncs before it answers
    kafka            as it comes: it does not sync
    kafka, flushing  flush.messages=1 for all topics, so that it syncs each batch before it answers

Each has a short turn to warm up, which does not count. Clients have librdkafka's default settings;
`librdkafka_bench.py` lists the exceptions. CPU is that of the broker's process alone. Restarts are measured at the end,
with brokers of their own, without the third system. Every figure is the median of the repeats, with the lowest and
highest. The targets (`kafka_targets.py`) compare with Kafka as it comes.

`--quick` only shows that this program works, in half a minute, WITHOUT KAFKA. Its figures mean nothing.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import orjson
from confluent_kafka import Producer

from scripts.bench_transactions import percentiles
from scripts.comparison import Measured, Report, alone, run
from scripts.kafka_targets import CONSUMERS, KAFKA, OURS, PARTITIONS, judge, plot
from scripts.measuring_programs import measure
from scripts.need import install
from scripts.process_usage import resident_mib
from scripts.reference_kafka import ARTIFACT, RunningKafka, running_kafka
from tests.support.processes import RunningBroker, running_broker

PROGRAM: Final = (sys.executable, str(Path(__file__).with_name("librdkafka_bench.py")))
SETTINGS: Final[Mapping[str, Mapping[str, str]]] = {
    KAFKA: {},
    "kafka, flushing": {"log.flush.interval.messages": "1"},
}
"""What the Kafka brokers have besides the defaults. This one is the default of each topic's flush.messages."""
SYSTEMS: Final = (OURS, *SETTINGS)

SIZE: Final = 1_024
DEFAULT_WAIT_MS: Final = 500
LONG_WAIT_MS: Final = 30_000
SEND_SECONDS_MAX: Final = 60


class Sizes(NamedTuple):
    """How much is measured."""

    rounds: int
    """Transactions of each number of partitions, and deliveries after a commit."""
    in_flight_seconds: float
    warm_up: int
    """Messages before the measured ones."""
    messages: int
    """Produced, and fetched."""
    paced: int
    """Messages at a steady rate."""
    consumers: int
    parked_seconds: float
    settle_seconds: float
    restart_messages: int


FULL: Final = Sizes(100, 3, 40_000, 160_000, 2_000, CONSUMERS, 5, 2, 1024 * 1024)
WARM_UP: Final = Sizes(100, 3, 40_000, 80_000, 1_000, 0, 0, 0, 0)
QUICK: Final = Sizes(10, 1, 1_000, 5_000, 100, 5, 1, 1, 5_000)


class Subject(NamedTuple):
    """One of the systems."""

    broker: RunningBroker | RunningKafka

    @property
    def pid(self) -> int:
        """See `comparison.Subject`."""
        return self.broker.pid

    @property
    def bootstrap(self) -> str:
        """The address for clients."""
        return self.broker.bootstrap_servers if isinstance(self.broker, RunningKafka) else str(self.broker.kafka)

    def run(self, phase: str, *arguments: object) -> Measured:
        """Run one phase of `librdkafka_bench.py`."""
        return run(self.pid, PROGRAM, self.bootstrap, phase, *arguments)


class Rows(NamedTuple):
    """Where the figures of one turn go."""

    report: Report
    system: str

    def add(self, row: str, value: float, form: str) -> None:
        """Add a figure."""
        self.report.add(row, self.system, value, form)


@contextmanager
def running(chosen: Collection[str], folder: Path) -> Iterator[Mapping[str, Subject]]:
    """Run new brokers of these systems for the length of the block."""
    with ExitStack() as stack:
        subjects = {}
        for system in chosen:
            own = folder / system.replace(", ", "-")
            subjects[system] = Subject(
                stack.enter_context(running_kafka(own, settings=SETTINGS[system]))
                if system in SETTINGS
                else stack.enter_context(running_broker(own))
            )
        yield subjects


def transactions(subject: Subject, sizes: Sizes, rows: Rows) -> None:
    """Measure one producer's transactions, one after another."""
    for partitions in PARTITIONS:
        measured = subject.run("transactions", partitions, sizes.rounds)
        what = f"transaction, {partitions} partitions"
        p50, p99 = percentiles(measured.result["taken"])
        rows.add(f"{what}: p50 ms", p50, ".2f")
        rows.add(f"{what}: p99 ms", p99, ".1f")
        rows.add(f"{what}: a second", measured.rate, ".0f")
        rows.add(f"{what}: CPU of one, ms", measured.cpu_each * 1e3, ".2f")


def in_flight(subject: Subject, sizes: Sizes, rows: Rows) -> None:
    """Measure transactions of 64 producers on one partition."""
    measured = subject.run("in-flight", sizes.in_flight_seconds / 2, sizes.in_flight_seconds)
    rows.add("64 producers: transactions a second", measured.rate, ".0f")
    rows.add("64 producers: CPU of a transaction, ms", measured.cpu_each * 1e3, ".2f")


def visible(subject: Subject, sizes: Sizes, rows: Rows) -> None:
    """Measure from a commit to a waiting consumer."""
    p50, p99 = percentiles(subject.run("visible", sizes.rounds).result["taken"])
    rows.add("commit to visible: p50 ms", p50, ".2f")
    rows.add("commit to visible: p99 ms", p99, ".1f")


def produce(subject: Subject, sizes: Sizes, rows: Rows) -> None:
    """Measure sends to one partition."""
    measured = subject.run("produce", SIZE, sizes.warm_up, sizes.messages)
    rows.add("produce 1 KiB: messages a second", measured.rate, ",.0f")
    rows.add("produce 1 KiB: CPU of one, us", measured.cpu_each * 1e6, ".2f")


def fetch(subject: Subject, sizes: Sizes, rows: Rows) -> None:
    """Measure reads of one partition."""
    measured = subject.run("fetch", SIZE, sizes.messages)
    rows.add("fetch 1 KiB: messages a second", measured.rate, ",.0f")
    rows.add("fetch 1 KiB: CPU of one, us", measured.cpu_each * 1e6, ".2f")


def latency(subject: Subject, sizes: Sizes, rows: Rows) -> None:
    """Measure from send to receipt at 1,000 messages a second."""
    measured = subject.run("latency", SIZE, sizes.paced)
    p50, p99 = percentiles(measured.result["taken"])
    rows.add("1,000 messages a second: p50 ms", p50, ".2f")
    rows.add("1,000 messages a second: p99 ms", p99, ".1f")
    rows.add("1,000 messages a second: CPU of one, us", measured.cpu_each * 1e6, ".0f")


def idle(subject: Subject, sizes: Sizes, rows: Rows) -> None:
    """Measure the CPU time while consumers wait, with short and with long fetches."""
    for wait_ms in (DEFAULT_WAIT_MS, LONG_WAIT_MS):
        measured = subject.run("parked", sizes.consumers, wait_ms, sizes.settle_seconds, sizes.parked_seconds)
        share = 100 * measured.cpu_seconds / measured.result["seconds"]
        rows.add(f"{CONSUMERS} parked, fetches of {wait_ms / 1000:g} s: CPU %", share, ".2f")


def restart(subject: Subject, sizes: Sizes, rows: Rows) -> None:
    """Measure from `kill -9` until a message is stored behind a GiB of others."""
    topic = measure(PROGRAM, subject.bootstrap, "load", SIZE, sizes.restart_messages)["topic"]
    start = time.perf_counter()
    subject.broker.restart()
    # Shorter pauses than by default, because a broker may listen before it answers.
    backoff = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 50, "retry.backoff.ms": 20}
    producer = Producer({"bootstrap.servers": subject.bootstrap, "retry.backoff.max.ms": 50, **backoff})
    producer.produce(topic, b"after", partition=0)
    if producer.flush(SEND_SECONDS_MAX):
        raise SystemExit(f"{rows.system} stored nothing in {SEND_SECONDS_MAX} s after its restart")
    rows.add("kill -9 with 1 GiB until a message is stored: s", time.perf_counter() - start, ".2f")
    print(f"  {rows.system}: restart", flush=True)


Part = Callable[[Subject, Sizes, Rows], None]

IDLE: Final = "idle"
STEADY: Final[Mapping[str, Part]] = {
    "transactions": transactions,
    "in-flight": in_flight,
    "visible": visible,
    "produce": produce,
    "fetch": fetch,
    "latency": latency,
    IDLE: idle,
}
RESTART: Final = "restart"
RESTARTED: Final = frozenset({OURS, KAFKA})
PARTS: Final = (*STEADY, RESTART)


def take_turn(subject: Subject, parts: Collection[str], sizes: Sizes, rows: Rows) -> None:
    """Measure one system's parts, then its memory."""
    for name in parts:
        STEADY[name](subject, sizes, rows)
        print(f"  {rows.system}: {name}, load {os.getloadavg()[0]:.1f}", flush=True)
    rows.add("memory after the load: MiB", resident_mib(subject.pid), ".0f")


def compare(systems: Sequence[str], parts: Collection[str], sizes: Sizes, repeats: int, report: Report) -> None:
    """Measure all parts of all systems."""
    steady = [name for name in parts if name in STEADY]
    with tempfile.TemporaryDirectory(prefix="tidewire-bench-") as folder:
        if steady:
            with running(systems, Path(folder)) as subjects, alone(subjects) as turn_of:
                for system in systems if sizes is FULL else ():
                    print(f"warming up {system}", flush=True)
                    warm = [name for name in steady if name != IDLE]
                    take_turn(turn_of(system), warm, WARM_UP, Rows(Report(systems), system))
                for repeat in range(repeats):
                    print(f"repeat {repeat + 1}", flush=True)
                    # Each begins once, because late work of one may slow the next.
                    for place in range(len(systems)):
                        system = systems[(place + repeat) % len(systems)]
                        take_turn(turn_of(system), steady, sizes, Rows(report, system))
    for _ in range(repeats if RESTART in parts else 0):
        for system in [each for each in systems if each in RESTARTED]:
            with (
                tempfile.TemporaryDirectory(prefix="tidewire-bench-") as folder,
                running([system], Path(folder)) as subjects,
            ):
                restart(subjects[system], sizes, Rows(report, system))


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description="Measure Kafka's protocol beside Kafka.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default=",".join(PARTS), help="parts to measure, separated by commas")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS, help="systems to measure")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--plot", type=Path, help="write the plot to this file")
    parser.add_argument("--quick", action="store_true", help="only show that the program works, without Kafka")
    options = parser.parse_args(arguments)
    parts = options.only.split(",")
    if unknown := [name for name in parts if name not in PARTS]:
        parser.error(f"{unknown[0]} is no part. The parts are {', '.join(PARTS)}.")
    systems, sizes, repeats = options.systems, FULL, options.repeats
    if options.quick:
        print("QUICK: WITHOUT KAFKA, few messages, one repeat; the figures below mean nothing.")
        systems, sizes, repeats = (OURS,), QUICK, 1
    elif set(systems) & set(SETTINGS):
        install(ARTIFACT)
    report = Report(systems)
    began = time.monotonic()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {repeats} repeats", flush=True)
    compare(systems, parts, sizes, repeats, report)
    report.print()
    judge(report)
    print(f"\nload at the end {os.getloadavg()[0]:.1f}; {time.monotonic() - began:.0f} s")
    if options.json is not None:
        options.json.write_bytes(orjson.dumps(report.figures(), option=orjson.OPT_INDENT_2))
    if options.plot is not None:
        plot(options.plot, report)


if __name__ == "__main__":
    main(sys.argv[1:])
