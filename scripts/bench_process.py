"""Measures one broker process beside Apache Kafka 4.3.0 and Apache Pulsar 5.0.0-M1, at the same time.

    .venv/bin/python scripts/bench_process.py [--repeats 3] [--only transactions,produce,fetch] [--json FILE]

All three brokers stay in memory and take turns, phase by phase. Each repeat has new ones. While one is measured, the
others are stopped by SIGSTOP, because an idle JVM also uses the cores. Tidewire syncs its files before it answers.
Kafka does not by default, and Pulsar is set not to. Each system has its own, warmed-up clients: Tidewire and Pulsar the
Java v5 client and the C++ client, Kafka its Java client. CPU is that of the broker's process alone. Every figure is the
median of the repeats, followed by the lowest and highest.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1]))

import orjson

from scripts.bench_transactions import percentiles
from scripts.comparison import Report, alone, run
from scripts.measuring_programs import java_v5
from scripts.need import install, place
from scripts.reference_kafka import ARTIFACT as KAFKA
from scripts.reference_kafka import running_kafka
from scripts.reference_pulsar import ARTIFACT as PULSAR
from scripts.reference_pulsar import running_pulsar
from tests.support.processes import running_broker

SCRIPTS: Final = Path(__file__).parent
ROUNDS: Final = {"tidewire": 400, "kafka": 400, "pulsar": 100}
"""Whole transactions with each number of participants. A transaction of 64 takes Pulsar a third of a second."""

WARM_UP_SECONDS: Final = 4
SECONDS: Final = 4
FETCHED_BYTES: Final = 200_000_000
FETCHED_MESSAGES_MAX: Final = 200_000

SYSTEMS: Final = ("tidewire", "kafka", "pulsar")
PARTICIPANTS: Final = (1, 4, 16, 64)


@dataclass(frozen=True, slots=True)
class Subject:
    """One of the systems."""

    pid: int
    java: Sequence[str]
    """The command of its Java client's program."""
    cpp: Sequence[str] | None
    """The command of its C++ client's program, if it is measured with one."""


Turns = Callable[[str], Subject]


@contextmanager
def running(chosen: Collection[str]) -> Iterator[Mapping[str, Subject]]:
    """Run new brokers of these systems, each on an empty folder, for the length of the block."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidewire-bench-")))
        java = java_v5("ProcessBench")
        cpp = (sys.executable, str(SCRIPTS / "cpp_bench.py"))
        subjects = {}
        if "tidewire" in chosen:
            ours = stack.enter_context(running_broker(folder / "data"))
            subjects["tidewire"] = Subject(ours.pid, (*java, ours.service_url, ours.http_url), (*cpp, ours.service_url))
        if "kafka" in chosen:
            kafka = stack.enter_context(running_kafka(folder / "kafka"))
            program = ("java", "-cp", f"{place(KAFKA)}/*", str(SCRIPTS / "KafkaBench.java"), kafka.bootstrap_servers)
            subjects["kafka"] = Subject(kafka.pid, program, None)
        if "pulsar" in chosen:
            pulsar = stack.enter_context(running_pulsar(folder / "pulsar", fsync=False))
            command = (*java, pulsar.service_url, pulsar.http_url)
            subjects["pulsar"] = Subject(pulsar.pid, command, (*cpp, pulsar.service_url))
        yield subjects


def transactions(turn_of: Turns, systems: Sequence[str], report: Report) -> None:
    """Measure whole transactions one after another, and many at once on one segment."""
    for system in systems:
        subject = turn_of(system)
        measured = run(subject.pid, subject.java, "whole", ROUNDS[system])
        for participants in PARTICIPANTS:
            for what in ("whole", "commit"):
                name = "begin..commit" if what == "whole" else "commit call"
                taken = measured.result[what][str(participants)]
                p50, p99 = percentiles(taken)
                report.add(f"{name}, {participants} segments, p50 ms", system, p50, ".2f")
                report.add(f"{name}, {participants} segments, p99 ms", system, p99, ".1f")
                report.add(f"{name}, {participants} segments, max ms", system, max(taken), ".0f")
        print(f"  {system}: whole transactions", flush=True)
    for system in systems:
        subject = turn_of(system)
        measured = run(subject.pid, subject.java, "in-flight", 2 * WARM_UP_SECONDS, 2 * SECONDS)
        report.add("one segment, 64 in flight, transactions/s", system, measured.rate, ".0f")
        report.add("one segment, 64 in flight, CPU of one, ms", system, measured.cpu_each * 1e3, ".2f")
        print(f"  {system}: 64 in flight", flush=True)


def produce(turn_of: Turns, systems: Sequence[str], report: Report) -> None:
    """Measure sends of several sizes to one segment."""
    for size in (100, 1_024, 10_240, 102_400):
        for system in systems:
            subject = turn_of(system)
            measured = run(subject.pid, subject.java, "produce", size, WARM_UP_SECONDS, SECONDS)
            report.add(f"Java produce {size:,} B, messages/s", system, measured.rate, ",.0f")
            report.add(f"Java produce {size:,} B, CPU of one, us", system, measured.cpu_each * 1e6, ".1f")
            print(f"  {system}: Java produce {size:,} B", flush=True)
    for size, batched in ((100, 1), (1_024, 1), (10_240, 1), (102_400, 1), (1_024, 0)):
        for system in systems:
            subject = turn_of(system)
            if subject.cpp is not None:
                measured = run(subject.pid, subject.cpp, "produce", size, batched, WARM_UP_SECONDS, SECONDS)
                what = f"C++ produce {size:,} B{'' if batched else ' unbatched'}"
                report.add(f"{what}, messages/s", system, measured.rate, ",.0f")
                report.add(f"{what}, CPU of one, us", system, measured.cpu_each * 1e6, ".1f")
                print(f"  {system}: {what}", flush=True)


def fetch(turn_of: Turns, systems: Sequence[str], report: Report) -> None:
    """Measure reads of messages that one segment already holds."""
    for size in (100, 1_024, 10_240):
        messages = min(FETCHED_MESSAGES_MAX, FETCHED_BYTES // size)
        for system in systems:
            subject = turn_of(system)
            measured = run(subject.pid, subject.cpp or subject.java, "fetch", size, messages)
            report.add(f"fetch {size:,} B, messages/s", system, measured.rate, ",.0f")
            report.add(f"fetch {size:,} B, CPU of one, us", system, measured.cpu_each * 1e6, ".1f")
            print(f"  {system}: fetch {size:,} B", flush=True)


PARTS: Final[Mapping[str, Callable[[Turns, Sequence[str], Report], None]]] = {
    "transactions": transactions,
    "produce": produce,
    "fetch": fetch,
}


def judge(report: Report) -> None:
    """Print each target and whether it was met."""
    print("\ntargets")

    def target(what: str, value: float, most: float, form: str = ".2f") -> None:
        print(f"  {what}: {value:{form}} (at most {most:g}): {'met' if value <= most else 'MISSED'}")

    rate = "one segment, 64 in flight, transactions/s"
    if report.has(rate, "tidewire", "kafka"):
        ratio = report.median(rate, "tidewire") / report.median(rate, "kafka")
        print(f"  {rate}, to Kafka's: {ratio:.2f} (at least 1.5): {'met' if ratio >= 1.5 else 'MISSED'}")
    whole = "begin..commit, 1 segments, p50 ms"
    if report.has(whole, "tidewire", "kafka"):
        ratio = report.median(whole, "tidewire") / report.median(whole, "kafka")
        target("whole transaction, 1 segment, to Kafka's", ratio, 1)
    for segments in PARTICIPANTS if report.has(whole, "tidewire") else ():
        commit = report.median(f"commit call, {segments} segments, p50 ms", "tidewire")
        target(f"commit p50, {segments} segments, ms", commit, 1)
        tail, middle = (
            report.median(f"begin..commit, {segments} segments, {p} ms", "tidewire") for p in ("p99", "p50")
        )
        target(f"begin..commit, {segments} segments, p99 to p50", tail / middle, 8)
    if report.has("C++ produce 1,024 B, CPU of one, us", "tidewire"):
        target("C++ produce 1 KiB, us", report.median("C++ produce 1,024 B, CPU of one, us", "tidewire"), 4)
        target("  unbatched, us", report.median("C++ produce 1,024 B unbatched, CPU of one, us", "tidewire"), 16)
    for row in report.figures():
        if "produce" in row and row.endswith("messages/s") and report.has(row, "tidewire", "pulsar"):
            ratio = report.median(row, "tidewire") / report.median(row, "pulsar")
            print(f"  {row}, to Pulsar's: {ratio:.2f} (at least 1): {'met' if ratio >= 1 else 'MISSED'}")


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description="Measure one broker process beside Kafka and Pulsar.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default=",".join(PARTS), help="parts to measure, separated by commas")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="systems to measure, separated by commas")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args(arguments)
    for need in ("pulsar-java-client", KAFKA, PULSAR):
        install(need)
    chosen = options.systems.split(",")
    report = Report(SYSTEMS)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {options.repeats} repeats", flush=True)
    for repeat in range(options.repeats):
        print(f"repeat {repeat + 1}", flush=True)
        # A Pulsar that was stopped many times takes its own bookie for a faulty one, and creates no topics.
        with running(chosen) as subjects, alone(subjects) as turn_of:
            for part in options.only.split(","):
                PARTS[part](turn_of, list(subjects), report)
        report.print()
    judge(report)
    print(f"\nload at the end {os.getloadavg()[0]:.1f}")
    if options.json is not None:
        options.json.write_bytes(orjson.dumps(report.figures(), option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    main(sys.argv[1:])
