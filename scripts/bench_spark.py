"""Measures how Spark reads and writes topics of Tidewire and of Apache Kafka, in the same session.

    .venv/bin/python scripts/bench_spark.py [--rounds 5] [--save docs/performance] [--quick]

Three subjects take turns: format "tidewire" on a broker as its users start it; format "kafka" on a real Kafka 4.3.0
with one node and default settings; and the ceiling, a Python data source that returns the same record batch from
memory. Both topics have two partitions or segments. Each format reads the rows that its own sink wrote. Besides rows
per second and milliseconds, it prints the CPU time of the processes, because other load on the machine affects CPU time
less. It prints medians, lowest and highest figures, but does not judge them.

Tidewire's sink writes each batch exactly once, and its broker syncs to disk before it answers. Kafka's sink writes
retried rows again, and its broker does not sync.

`--quick` only shows that this program works, in half a minute, WITHOUT KAFKA. Its figures mean nothing.
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, Final, NamedTuple, TypeVar

sys.path.insert(0, str(Path(__file__).parents[1]))

import orjson
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from scripts import reference_kafka
from scripts.need import install
from scripts.reference_kafka import running_kafka
from scripts.spark_latency import latencies
from scripts.spark_subjects import (
    CONNECTOR,
    CONNECTOR_NEEDS,
    PARTITIONS,
    Cpu,
    Kafka,
    Subject,
    Tidewire,
    session,
    timed_write_to_nothing,
)
from tests.support.processes import running_broker

Results = dict[str, dict[str, list[float]]]
"""Figures by measurement and subject, one for each round."""


class Load(NamedTuple):
    """Rows of one size."""

    value_bytes: int
    rows: int
    ceiling_rows: int
    rows_a_batch: int
    """Of the ceiling's record batch, about a mebibyte."""


FULL: Final = (Load(100, 1_000_000, 4_000_000, 8_000), Load(1_024, 200_000, 1_000_000, 1_000))
QUICK: Final = (Load(100, 20_000, 40_000, 4_000), Load(1_024, 4_000, 8_000, 1_000))
EVENTS: Final = 100
QUICK_EVENTS: Final = 10
KEY_AND_VALUE: Final = "tidewire, key and value"
CEILINGS: Final = {"ceiling, our columns": "all", "ceiling, value alone": "value"}
MILLION: Final = 1_000_000
_One = TypeVar("_One")


def rows_of(spark: SparkSession, load: Load) -> DataFrame:
    """Make rows with a thousand keys of 8 bytes, and values that differ in their first 8 bytes."""
    number = F.col("id")
    return spark.range(load.rows, numPartitions=PARTITIONS).select(
        F.concat(F.lit("key-"), F.lpad((number % 1000).cast("string"), 4, "0")).alias("key"),
        F.concat(F.lpad(number.cast("string"), 8, "0"), F.lit("x" * (load.value_bytes - 8))).alias("value"),
    )


def in_turns(subjects: Sequence[_One], number: int) -> Sequence[_One]:
    """Return the order of the subjects in a round. It alternates, because a subject's late work slows the next one."""
    return subjects if number % 2 else subjects[::-1]


def note(results: Results, what: str, who: str, rows: int, seconds: float, used: Mapping[str, float]) -> None:
    """Store a round's figures, and print them."""
    results[f"{what}: rows/s"][who].append(rows / seconds)
    a_million = {process: cpu_seconds / rows * MILLION for process, cpu_seconds in used.items()}
    a_million["all"] = sum(a_million.values())
    for process, cpu_seconds in a_million.items():
        results[f"{what}: CPU s a million rows, {process}"][who].append(cpu_seconds)
    print(
        f"  {what:14}{who:22}{rows / seconds:12,.0f} rows/s   load {os.getloadavg()[0]:.1f}   CPU s a million rows "
        + ", ".join(f"{process} {cpu_seconds:.2f}" for process, cpu_seconds in a_million.items()),
        flush=True,
    )


def write_and_read(spark: SparkSession, subjects: Sequence[Subject], load: Load, rounds: int, results: Results) -> None:
    """Run the rounds in turns. The first round is for warming up and is not kept."""
    size = f"{load.value_bytes} B"
    topics = {}
    for number in range(rounds + 1):
        kept = results if number else _nowhere()
        for subject in in_turns(subjects, number):
            topics[subject.name] = topic = f"bench-{load.value_bytes}-{number}"
            subject.make_topic(topic)
            cpu, start = Cpu(spark, subject.pid), perf_counter()
            subject.write(rows_of(spark, load), topic)
            note(kept, f"write {size}", subject.name, load.rows, perf_counter() - start, cpu.used())
    for number in range(rounds + 1):
        kept = results if number else _nowhere()
        for subject in in_turns(subjects, number):
            frame = subject.read(spark, topics[subject.name])
            if number == 0 and (count := frame.count()) != load.rows:
                raise SystemExit(f"{subject.name}: {load.rows} rows were written, but {count} were read")
            cpu = Cpu(spark, subject.pid)
            note(kept, f"read {size}", subject.name, load.rows, timed_write_to_nothing(frame), cpu.used())
            if isinstance(subject, Tidewire):
                frame = subject.read_only(spark, topics[subject.name], "key,value")
                cpu = Cpu(spark, subject.pid)
                note(kept, f"read {size}", KEY_AND_VALUE, load.rows, timed_write_to_nothing(frame), cpu.used())
        for name, columns in CEILINGS.items():
            options = {"rows": load.ceiling_rows, "size": load.value_bytes, "rows_a_batch": load.rows_a_batch}
            frame = spark.read.format("ceiling").options(columns=columns, **options).load()
            cpu = Cpu(spark, None)
            note(kept, f"read {size}", name, load.ceiling_rows, timed_write_to_nothing(frame), cpu.used())


def measure_latency(
    spark: SparkSession, subjects: Sequence[Tidewire | Kafka], rounds: int, events: int, folder: Path
) -> Results:
    """Measure the latency of each event in milliseconds, by round. The first round is for warming up, and not kept."""
    taken: Results = _nowhere()
    for number in range(rounds + 1):
        kept = taken if number else _nowhere()
        for subject in in_turns(subjects, number):
            seconds = latencies(spark, subject, f"latency-{number}", folder / subject.name, events)
            kept[f"latency, round {number}, ms"][subject.name] = [1000 * each for each in seconds]
            print(
                f"  latency             {subject.name:22}{1000 * statistics.median(seconds):12,.0f} ms p50"
                f"   load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
    return taken


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the value at or below which at least `percent` percent of the values are."""
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


def report(results: Results) -> None:
    """Print the median (lowest to highest) of each measurement, and its ratio to Kafka's."""
    for what, by_whom in results.items():
        print(f"\n{what}")
        theirs = statistics.median(by_whom.get("kafka", [0.0]))
        for name, figures in by_whom.items():
            ratio = statistics.median(figures) / theirs if theirs else None
            beside = f"   {ratio:.2f} times kafka's" if ratio is not None and name != "kafka" else ""
            print(f"  {name:24}{_spread(figures, 2 if 'CPU' in what else 0):>40}{beside}")
    print("\ntargets: read, rows/s at least 1.5 times kafka's; latency p50 below kafka's")


def _spread(figures: Sequence[float], digits: int) -> str:
    low, middle, high = min(figures), statistics.median(figures), max(figures)
    return f"{middle:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def with_percentiles(taken: Results) -> Results:
    """Return p50 and p95 of each round as figures of their own."""
    made: Results = defaultdict(lambda: defaultdict(list))
    for by_whom in taken.values():
        for who, milliseconds in by_whom.items():
            for percent in (50, 95):
                made[f"latency p{percent}, ms"][who].append(percentile(milliseconds, percent))
    return made


def plot(path: Path, results: Results, taken: Results) -> None:
    """Plot rows per second, and the distribution of latencies."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (rates, times) = plt.subplots(1, 2, figsize=(11, 4))
    kinds = [what for what in results if what.endswith(": rows/s")]
    names = list(dict.fromkeys(name for what in kinds for name in results[what]))
    for number, name in enumerate(names):
        places = [place + 0.8 * number / len(names) for place, what in enumerate(kinds) if results[what].get(name)]
        figures = [results[what][name] for what in kinds if results[what].get(name)]
        middles = [statistics.median(each) for each in figures]
        errors = [
            [middle - min(each) for middle, each in zip(middles, figures, strict=True)],
            [max(each) - middle for middle, each in zip(middles, figures, strict=True)],
        ]
        rates.bar(places, middles, 0.8 / len(names), yerr=errors, label=name)
    rates.set_xticks([place + 0.3 for place in range(len(kinds))], [what.removesuffix(": rows/s") for what in kinds])
    rates.set_yscale("log")
    rates.set_ylabel("rows a second")
    rates.legend(fontsize="small")
    for name in dict.fromkeys(who for by_whom in taken.values() for who in by_whom):
        all_times = sorted(each for by_whom in taken.values() for each in by_whom.get(name, []))
        times.plot(all_times, [100 * (place + 1) / len(all_times) for place in range(len(all_times))], label=name)
    times.set_xlabel("milliseconds from topic to topic through Spark, 10 events a second")
    times.set_ylabel("percent of events")
    times.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def _nowhere() -> Results:
    return defaultdict(lambda: defaultdict(list))


@contextmanager
def compared(folder: Path, *, with_kafka: bool) -> Iterator[tuple[SparkSession, list[Any]]]:
    """Yield Spark and the subjects that take turns."""
    with ExitStack() as stack:
        subjects: list[Tidewire | Kafka] = [Tidewire(stack.enter_context(running_broker(folder / "data")))]
        if with_kafka:
            kafka = stack.enter_context(running_kafka(folder / "kafka", partitions=PARTITIONS))
            subjects.append(Kafka(kafka))
        yield stack.enter_context(session(folder, with_kafka=with_kafka)), subjects


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description="Measure Spark's reading and writing beside Kafka.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", type=Path, help="write the figures and the plot to this folder")
    parser.add_argument("--quick", action="store_true", help="only show that the program works, without Kafka")
    options = parser.parse_args(arguments)
    loads, rounds, events = (QUICK, 1, QUICK_EVENTS) if options.quick else (FULL, options.rounds, EVENTS)
    if options.quick:
        print("QUICK: WITHOUT KAFKA, few rows, one round; the figures below mean nothing.")
    else:
        for need in (reference_kafka.ARTIFACT, CONNECTOR, CONNECTOR_NEEDS):
            install(need)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {rounds} rounds after one to warm up", flush=True)
    results = _nowhere()
    with (
        tempfile.TemporaryDirectory(prefix="tidewire-bench-") as folder,
        compared(Path(folder), with_kafka=not options.quick) as (spark, subjects),
    ):
        for load in loads:
            write_and_read(spark, subjects, load, rounds, results)
        taken = measure_latency(spark, subjects, rounds, events, Path(folder) / "checkpoints")
    results |= with_percentiles(taken)
    report(results)
    print(f"load at the end {os.getloadavg()[0]:.1f}")
    if options.save is not None:
        options.save.mkdir(parents=True, exist_ok=True)
        kept = {"results": results, "latencies": taken, "load average at the end": os.getloadavg()}
        (options.save / "spark.json").write_bytes(orjson.dumps(kept, option=orjson.OPT_INDENT_2))
        plot(options.save / "spark.png", results, taken)


if __name__ == "__main__":
    main(sys.argv[1:])
