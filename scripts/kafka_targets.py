"""What the project wants of Kafka's protocol beside Apache Kafka, and how the figures are judged and drawn.

`bench_kafka.py` measures the rows. Most targets are ratios to Kafka as it comes.
"""

import statistics
from pathlib import Path
from typing import Final, NamedTuple

from scripts.comparison import Report

OURS: Final = "tidewire"
KAFKA: Final = "kafka"
"""Kafka as it comes."""
PARTITIONS: Final = (1, 4, 16)
"""Of a transaction."""
CONSUMERS: Final = 100
"""That wait."""


class Target(NamedTuple):
    """What the project wants of a figure."""

    row: str
    bound: float
    is_least: bool = False
    """Whether the bound is the least; otherwise it is the most."""
    is_ratio: bool = True
    """Whether it is about the ratio to Kafka as it comes."""


TARGETS: Final = (
    *(Target(f"transaction, {partitions} partitions: p50 ms", 1) for partitions in PARTITIONS),
    *(Target(f"transaction, {partitions} partitions: a second", 1, is_least=True) for partitions in PARTITIONS),
    Target("64 producers: transactions a second", 1, is_least=True),
    Target("commit to visible: p50 ms", 0.5),
    Target("produce 1 KiB: messages a second", 0.8, is_least=True),
    Target("fetch 1 KiB: messages a second", 0.7, is_least=True),
    Target("1,000 messages a second: p50 ms", 1, is_ratio=False),
    Target(f"{CONSUMERS} parked, fetches of 0.5 s: CPU %", 0.1),
    Target(f"{CONSUMERS} parked, fetches of 30 s: CPU %", 0.1),
    Target("memory after the load: MiB", 0.2),
    Target("kill -9 with 1 GiB until a message is stored: s", 0.2),
)


def ratio(report: Report, row: str) -> float | None:
    """Return our figure beside that of Kafka as it comes; None if one is missing or Kafka's is 0."""
    if not report.has(row, OURS, KAFKA) or not report.median(row, KAFKA):
        return None
    return report.median(row, OURS) / report.median(row, KAFKA)


def judge(report: Report) -> None:
    """Print the ratio to Kafka of each row, then each target and whether it is met."""
    print("\nratios to Kafka as it comes")
    for row in report.figures():
        if (times := ratio(report, row)) is not None:
            print(f"  {row:50}{times:8.2f}")
    print("\ntargets")
    for target in TARGETS:
        if not report.has(target.row, OURS):
            continue
        value = ratio(report, target.row) if target.is_ratio else report.median(target.row, OURS)
        if value is None:
            continue
        is_met = value >= target.bound if target.is_least else value <= target.bound
        bound = f"{'at least' if target.is_least else 'at most'} {target.bound:g}"
        kind = " times Kafka's" if target.is_ratio else ""
        print(f"  {target.row:50}{value:8.2f}{kind}, {bound}: {'met' if is_met else 'MISSED'}")


def plot(path: Path, report: Report) -> None:
    """Plot transactions by their number of partitions, and the other targets as ratios."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figures = report.figures()
    figure, (times, ratios) = plt.subplots(1, 2, figsize=(12, 4), width_ratios=(2, 3))
    for system in dict.fromkeys(system for by_system in figures.values() for system in by_system):
        rows = [
            figures.get(f"transaction, {partitions} partitions: p50 ms", {}).get(system) for partitions in PARTITIONS
        ]
        measured = [(place, row) for place, row in zip(PARTITIONS, rows, strict=True) if row]
        middles = [statistics.median(row) for _place, row in measured]
        errors = [
            [middle - min(row) for middle, (_place, row) in zip(middles, measured, strict=True)],
            [max(row) - middle for middle, (_place, row) in zip(middles, measured, strict=True)],
        ]
        times.errorbar([place for place, _row in measured], middles, errors, label=system, marker="o", capsize=3)
    times.set_xlabel("partitions of a transaction")
    times.set_ylabel("milliseconds, p50")
    times.set_ylim(bottom=0)
    times.legend()
    found = [(target, ratio(report, target.row)) for target in TARGETS if target.is_ratio]
    bars = [(target, times_) for target, times_ in found[::-1] if times_]
    ratios.barh([target.row for target, _times in bars], [times_ for _target, times_ in bars])
    for place, (target, _times) in enumerate(bars):
        ratios.plot([target.bound] * 2, [place - 0.45, place + 0.45], color="black")
    ratios.set_xscale("log")
    ratios.axvline(1, color="grey", linestyle=":")
    ratios.set_xlabel("times the figure of Kafka as it comes; black: the target")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
