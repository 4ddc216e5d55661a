"""Measures the metadata store: single writes, many writes, delivery to a watch, opening, and snapshots.

    .venv/bin/python scripts/bench_metadata.py [--rounds 5] [--keys 1000000] [--plot docs/performance/metadata.png]

The puts take turns with a raw append on the same disk (200 bytes, crc32c, fdatasync), so that other load on the machine
affects both alike. Opening and snapshots run in separate processes, so that the memory is that of the store alone. If
etcd is installed (`scripts/need.py etcd`), the same writes are measured on etcd with one member on this machine. It
prints the median, lowest and highest of the rounds beside the target, but does not judge them.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import trio

from scripts.metadata_measurements import (
    WRITERS_PUTS,
    Opening,
    Snapshot,
    Writing,
    fill,
    recover,
    snapshot,
    subjects,
    write,
)


class Table:
    """Prints the lines of the report: name, figures, target."""

    def __init__(self, subject: str) -> None:
        print(f"\n{subject:44}{'median':>9}{'lowest':>9}{'highest':>9}  target")

    def line(self, what: str, rounds: Sequence[float], target: str = "", *, digits: int = 2) -> None:
        """Print the median, lowest and highest of the rounds."""
        figures = (statistics.median(rounds), min(rounds), max(rounds))
        print(f"{what:44}" + "".join(f"{figure:9,.{digits}f}" for figure in figures) + f"  {target}", flush=True)


def report_writing(name: str, rounds: Sequence[Writing]) -> None:
    """Report the rounds of writing."""
    median = statistics.median
    is_embedded = name == "embedded"
    table = Table(f"writing, {name}")
    table.line("raw append of 200 B, crc32c, fdatasync: ms", [1000 * median(each.raw) for each in rounds])
    table.line("one writer, put p50: ms", [1000 * median(each.put) for each in rounds])
    table.line(
        "  beside raw", [median(each.put) / median(each.raw) for each in rounds], "at most 2.5" if is_embedded else ""
    )
    table.line(
        "put until a watch has it, p50: ms",
        [1000 * median(each.watched) for each in rounds],
        "under 1" if is_embedded else "",
    )
    table.line(
        "64 writers: puts/s",
        [each.puts_per_second for each in rounds],
        "at least 30,000" if is_embedded else "",
        digits=0,
    )
    table.line("CPU per raw append: us", [1e6 * each.raw_cpu_seconds for each in rounds], digits=0)
    table.line("CPU per put, one writer: us", [1e6 * each.lone_cpu_seconds for each in rounds], digits=0)
    table.line("CPU per put, 64 writers: us", [1e6 * each.shared_cpu_seconds for each in rounds], digits=0)


def report_opening(what: str, openings: Sequence[Opening]) -> None:
    """Report the openings."""
    table = Table(what)
    table.line("until it answers: s", [each.seconds for each in openings], "under 6")
    table.line("  CPU: s", [each.cpu_seconds for each in openings])
    table.line("memory a key: bytes", [each.bytes_per_key for each in openings], "under 900", digits=0)
    table.line("  at the highest while opening", [each.peak_bytes_per_key for each in openings], digits=0)


def report_snapshots(what: str, taken: Sequence[Snapshot]) -> None:
    """Report the snapshots, and their effect on a concurrent writer."""
    table = Table(what)
    table.line("until it is durable: s", [each.seconds for each in taken])
    table.line("longest put meanwhile: ms", [1000 * max(each.puts) for each in taken], "at most 20")
    table.line("  and in as long a time after it: ms", [1000 * max(each.calm_puts) for each in taken])
    table.line("longest pause of the event loop: ms", [1000 * each.pause_seconds for each in taken])
    table.line("put p50 meanwhile: ms", [1000 * statistics.median(each.puts) for each in taken])
    table.line("  and after it: ms", [1000 * statistics.median(each.calm_puts) for each in taken])


def plot(path: Path, writing: Sequence[Writing], taken: Sequence[Snapshot]) -> None:
    """Plot the distribution of the times of single writes."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    samples: dict[str, Iterator[float]] = {
        "raw append and fdatasync": (second for each in writing for second in each.raw),
        "put": (second for each in writing for second in each.put),
        "put until a watch has it": (second for each in writing for second in each.watched),
        "put while a snapshot is taken": (second for each in taken for second in each.puts),
    }
    figure, axes = plt.subplots(figsize=(7, 4))
    for label, seconds in samples.items():
        ordered = sorted(1000 * second for second in seconds)
        axes.plot(ordered, [1 - shorter / len(ordered) for shorter in range(len(ordered))], label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("milliseconds")
    axes.set_ylabel("share that took longer")
    axes.legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def measure_large(folder: Path, keys: int, rounds: int, *, indexed: bool) -> list[Snapshot]:
    """Open a store of many keys from its log and from its snapshot, and write that snapshot. Print the figures."""
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        filled = folder / f"filled-{indexed}"
        pool.submit(fill, filled, keys, indexed=indexed).result()
        of = f"{keys:,} keys, {'each with an index entry' if indexed else 'without index entries'}"
        report_opening(f"opening, log alone, {of}", [pool.submit(recover, filled).result() for _ in range(rounds)])
        taken = []
        openings = []
        for number in range(rounds):
            copy = folder / f"copy-{indexed}-{number}"
            shutil.copytree(filled, copy)
            # The measurement must not wait for writes that the copy left behind.
            os.sync()
            taken.append(pool.submit(snapshot, copy).result())
            openings.append(pool.submit(recover, copy).result())
            shutil.rmtree(copy)
        shutil.rmtree(filled)
    report_snapshots(f"snapshot, {of}", taken)
    report_opening(f"opening, snapshot, {of}", openings)
    return taken


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description="Measure the metadata store.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--large-rounds", type=int, default=3, help="rounds with many keys")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args(arguments)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {options.rounds} rounds")
    with tempfile.TemporaryDirectory(prefix="tidewire-bench-") as name:
        folder = Path(name)
        measured = subjects()
        writing: dict[str, list[Writing]] = {subject: [] for subject in measured}
        for number in range(options.rounds):
            for subject, opened in measured.items():
                own = folder / f"{subject}-{number}"
                own.mkdir()
                writing[subject].append(trio.run(write, opened, own, WRITERS_PUTS[subject]))
        for subject, rounds in writing.items():
            report_writing(subject, rounds)
        taken = []
        for indexed in (False, True):
            taken += measure_large(folder, options.keys, options.large_rounds, indexed=indexed)
    print(f"\nload at the end {os.getloadavg()[0]:.1f}")
    if options.plot is not None:
        plot(options.plot, writing["embedded"], taken)


if __name__ == "__main__":
    main(sys.argv[1:])
