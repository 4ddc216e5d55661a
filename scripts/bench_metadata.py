"""What the metadata store takes: for one write, for many, for telling a watch, for opening, for a snapshot.

    .venv/bin/python scripts/bench_metadata.py [--rounds 5] [--keys 1000000] [--plot docs/performance/metadata.png]

The raw figure beside a put (append 200 bytes, crc32c, fdatasync, on the same disk) is taken in turns with the puts, so
whatever else the machine does hits both alike. Opening and snapshots run in processes of their own, so that memory is
that of the store alone. Prints the median over the rounds, with the lowest and highest, beside the target; it judges
nothing.
"""

import argparse
import os
import random
import shutil
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter, process_time
from typing import Final, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import google_crc32c
import trio

from storage.files import DiskFiles
from storage.metadata.embedded import SNAPSHOT_LOG_BYTES, EmbeddedStore
from storage.metadata.store import IndexEntry, MetadataStore, Put, starting_with

VALUE: Final = b"v" * 100
RAW_BYTES: Final = 200
LONE_PUTS: Final = 500
"""Puts of one writer in a round, and raw appends, and puts until a watch knows."""
WRITERS: Final = 64
WRITERS_PUTS: Final = 32_000
WARM_UP_PUTS: Final = 200
NEVER_BYTES: Final = 1 << 62
"""As a log size that calls for a snapshot: none is taken."""
FILL_CHANGE_SET: Final = 1000
TICK_SECONDS: Final = 0.001


class Opened(NamedTuple):
    """A store that is being measured."""

    store: MetadataStore
    cpu_seconds: Callable[[], float]
    """User and system time so far of all that works for it, this process included."""


Subject = Callable[[Path], AbstractAsyncContextManager[Opened]]


@asynccontextmanager
async def embedded(folder: Path) -> AsyncIterator[Opened]:
    """The store inside the broker."""
    async with EmbeddedStore.open(DiskFiles(), folder) as store:
        yield Opened(store, process_time)


SUBJECTS: Final[dict[str, Subject]] = {"embedded": embedded}


class Writing(NamedTuple):
    """One round of writing: seconds of every raw append, put, and put until a watch knew; and what 64 writers did."""

    raw: list[float]
    put: list[float]
    watched: list[float]
    lone_cpu_seconds: float
    puts_per_second: float
    shared_cpu_seconds: float


class Opening(NamedTuple):
    """One opening."""

    seconds: float
    cpu_seconds: float
    bytes_per_key: float
    peak_bytes_per_key: float


class Snapshot(NamedTuple):
    """One snapshot beside a writer that never pauses."""

    seconds: float
    puts: list[float]
    """Of every put while it was taken."""
    pause_seconds: float
    """The longest time the event loop was held meanwhile."""
    calm_puts: list[float]
    """Of every put in the same time after it."""


def key_of(number: int) -> str:
    """Keys of the length ours have."""
    return f"/bench/{number:020}"


def raw_append(folder: Path) -> Callable[[], float]:
    """What the disk takes for one small durable append: a function that measures it once."""
    descriptor = os.open(folder / "raw", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    data = b"x" * RAW_BYTES

    def measure() -> float:
        start = perf_counter()
        crc = int(google_crc32c.value(data))
        os.write(descriptor, data + crc.to_bytes(4))
        os.fdatasync(descriptor)
        return perf_counter() - start

    return measure


async def write(subject: Subject, folder: Path) -> Writing:
    """One round of writing to a new store."""
    raw_once = raw_append(folder)
    async with subject(folder / "data") as (store, cpu_seconds):
        for number in range(WARM_UP_PUTS):
            await store.put(key_of(number), VALUE)
        raw, put, lone_cpu = [], [], 0.0
        for number in range(LONE_PUTS):
            raw.append(raw_once())
            cpu_start, start = cpu_seconds(), perf_counter()
            await store.put(key_of(number), VALUE)
            put.append(perf_counter() - start)
            lone_cpu += cpu_seconds() - cpu_start
        watched = await watch(store)

        async def put_many(writer: int) -> None:
            for number in range(writer, WRITERS_PUTS, WRITERS):
                await store.put(key_of(number), VALUE)

        cpu_start, start = cpu_seconds(), perf_counter()
        async with trio.open_nursery() as nursery:
            for writer in range(WRITERS):
                nursery.start_soon(put_many, writer)
        seconds, cpu = perf_counter() - start, cpu_seconds() - cpu_start
    return Writing(raw, put, watched, lone_cpu / LONE_PUTS, WRITERS_PUTS / seconds, cpu / WRITERS_PUTS)


async def watch(store: MetadataStore) -> list[float]:
    """How long from the call of a put until a parked range watch has its record."""
    taken: list[float] = []
    begun = 0.0

    async def read(task_status: trio.TaskStatus[None]) -> None:
        async with store.watch_range(*starting_with("/watched/")) as changes:
            await changes.next()
            task_status.started()
            for _ in range(LONE_PUTS):
                await changes.next()
                taken.append(perf_counter() - begun)

    async with trio.open_nursery() as nursery:
        await nursery.start(read)
        for number in range(LONE_PUTS):
            begun = perf_counter()
            await store.put(f"/watched/{number % 10}", VALUE)
            while len(taken) <= number:
                await trio.lowlevel.checkpoint()
    return taken


def fill(folder: Path, keys: int, *, indexed: bool) -> None:
    """Write the keys, in no order, into a log without any snapshot."""

    async def put_all() -> None:
        order = random.Random(1).sample(range(keys), keys)  # noqa: S311 - an order, not a secret
        async with EmbeddedStore.open(DiskFiles(), folder, snapshot_log_bytes=NEVER_BYTES) as store:
            for begin in range(0, keys, FILL_CHANGE_SET):
                await store.commit(
                    [put_of(number, indexed=indexed) for number in order[begin : begin + FILL_CHANGE_SET]]
                )

    trio.run(put_all)


def put_of(number: int, *, indexed: bool) -> Put:
    """A put of one key, with an index entry or without."""
    indexes = (IndexEntry("by-number", f"{number * 7:020}"),) if indexed else ()
    return Put(key_of(number), VALUE, indexes=indexes)


def recover(folder: Path) -> Opening:
    """Open a filled store once."""

    async def open_once() -> Opening:
        before, _ = resident_bytes()
        cpu_start, start = process_time(), perf_counter()
        async with EmbeddedStore.open(DiskFiles(), folder, snapshot_log_bytes=NEVER_BYTES) as store:
            seconds, cpu = perf_counter() - start, process_time() - cpu_start
            resident, peak = resident_bytes()
            keys = store.statistics().records
        return Opening(seconds, cpu, (resident - before) / keys, (peak - before) / keys)

    return trio.run(open_once)


def snapshot(folder: Path) -> Snapshot:
    """Let a filled store take a snapshot while somebody writes."""

    async def write_beside() -> Snapshot:
        async with EmbeddedStore.open(DiskFiles(), folder, snapshot_log_bytes=SNAPSHOT_LOG_BYTES) as store:
            order = random.Random(2)  # noqa: S311 - an order, not a secret
            keys = store.statistics().records
            pauses: list[float] = []

            async def put_while(go_on: Callable[[], bool]) -> tuple[list[float], float]:
                puts = []
                begin = perf_counter()
                while go_on():
                    start = perf_counter()
                    await store.put(key_of(order.randrange(keys)), VALUE)
                    puts.append(perf_counter() - start)
                return puts, perf_counter() - begin

            async with trio.open_nursery() as nursery:
                nursery.start_soon(tick, pauses)
                puts, seconds = await put_while(lambda: not store.statistics().extra["snapshots"])
                pause = max(pauses)
                calm_end = perf_counter() + seconds
                calm, _ = await put_while(lambda: perf_counter() < calm_end)
                nursery.cancel_scope.cancel()
        return Snapshot(seconds, puts, pause, calm)

    return trio.run(write_beside)


async def tick(pauses: list[float]) -> None:
    """Note by how much the event loop is late, time and again."""
    while True:
        start = perf_counter()
        await trio.sleep(TICK_SECONDS)
        pauses.append(perf_counter() - start - TICK_SECONDS)


def resident_bytes() -> tuple[int, int]:
    """Memory of this process now, and its highest so far."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024, int(fields["VmHWM"].split()[0]) * 1024


class Table:
    """Lines of the report: what, measured, target."""

    def __init__(self, subject: str) -> None:
        print(f"\n{subject:44}{'median':>9}{'lowest':>9}{'highest':>9}  target")

    def line(self, what: str, rounds: Sequence[float], target: str = "", *, digits: int = 2) -> None:
        """The median of the rounds, and between what they lie."""
        figures = (statistics.median(rounds), min(rounds), max(rounds))
        print(f"{what:44}" + "".join(f"{figure:9,.{digits}f}" for figure in figures) + f"  {target}", flush=True)


def report_writing(name: str, rounds: Sequence[Writing]) -> None:
    """What the rounds of writing took."""
    median = statistics.median
    table = Table(f"{name}: writing")
    table.line("raw append of 200 B, crc32c, fdatasync: ms", [1000 * median(each.raw) for each in rounds])
    table.line("one writer, put p50: ms", [1000 * median(each.put) for each in rounds])
    table.line("  beside raw", [median(each.put) / median(each.raw) for each in rounds], "at most 2.5 (embedded)")
    table.line("put until a watch has it, p50: ms", [1000 * median(each.watched) for each in rounds], "under 1")
    table.line("64 writers: puts/s", [each.puts_per_second for each in rounds], "at least 30,000 (embedded)", digits=0)
    table.line("CPU per put, one writer: us", [1e6 * each.lone_cpu_seconds for each in rounds], digits=0)
    table.line("CPU per put, 64 writers: us", [1e6 * each.shared_cpu_seconds for each in rounds], digits=0)


def report_opening(what: str, openings: Sequence[Opening]) -> None:
    """What the openings took."""
    table = Table(what)
    table.line("until it answers: s", [each.seconds for each in openings], "under 6")
    table.line("  CPU: s", [each.cpu_seconds for each in openings])
    table.line("memory a key: bytes", [each.bytes_per_key for each in openings], "under 900", digits=0)
    table.line("  at the highest while opening", [each.peak_bytes_per_key for each in openings], digits=0)


def report_snapshots(what: str, taken: Sequence[Snapshot]) -> None:
    """What the snapshots did to who wrote beside them."""
    table = Table(what)
    table.line("until it is durable: s", [each.seconds for each in taken])
    table.line("longest put meanwhile: ms", [1000 * max(each.puts) for each in taken], "at most 20")
    table.line("  and in as long a time after it: ms", [1000 * max(each.calm_puts) for each in taken])
    table.line("longest pause of the event loop: ms", [1000 * each.pause_seconds for each in taken])
    table.line("put p50 meanwhile: ms", [1000 * statistics.median(each.puts) for each in taken])
    table.line("  and after it: ms", [1000 * statistics.median(each.calm_puts) for each in taken])


def plot(path: Path, writing: Sequence[Writing], taken: Sequence[Snapshot]) -> None:
    """How the times of single writes are distributed."""
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
        axes.plot(ordered, [1 - place / len(ordered) for place in range(len(ordered))], label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("milliseconds")
    axes.set_ylabel("share that took longer")
    axes.legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def measure_large(folder: Path, keys: int, rounds: int, *, indexed: bool) -> list[Snapshot]:
    """Open a store of many keys, from its log and from its snapshot, and take that snapshot; print what it took."""
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
            # What the copy left to be written must not be waited for by what is measured.
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
    parser = argparse.ArgumentParser(description="What the metadata store takes.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--large-rounds", type=int, default=3, help="rounds of those with many keys")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args(arguments)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {options.rounds} rounds")
    with tempfile.TemporaryDirectory(prefix="tidewire-bench-") as name:
        folder = Path(name)
        writing: dict[str, list[Writing]] = {subject: [] for subject in SUBJECTS}
        for number in range(options.rounds):
            for subject, opened in SUBJECTS.items():
                place = folder / f"{subject}-{number}"
                place.mkdir()
                writing[subject].append(trio.run(write, opened, place))
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
