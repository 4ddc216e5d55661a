"""The measurements of scripts/bench_metadata.py: one round of each kind, as functions that print nothing.

Run the functions `fill`, `recover` and `snapshot` in separate processes, so that the memory is that of the store alone.
"""

import gc
import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from time import perf_counter, process_time
from typing import Final, NamedTuple

import google_crc32c
import trio

from scripts.need import place
from scripts.need_kinds import NeedError
from scripts.process_usage import cpu_seconds
from storage.files import DiskFiles
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.etcd.store import EtcdStore
from storage.metadata.store import IndexEntry, MetadataStore, Put, starting_with
from tidewire.cli.local_etcd import EtcdProcess

VALUE: Final = b"v" * 100
RAW_BYTES: Final = 200
LONE_PUTS: Final = 500
"""Puts of one writer in a round; also the number of raw appends, and of puts that a watch receives."""
WRITERS: Final = 64
WRITERS_PUTS: Final = {"embedded": 32_000, "etcd": 6_400}
"""Puts of all 64 writers in a round, which take a second or more."""
WARM_UP_PUTS: Final = 200
NEVER_BYTES: Final = 1 << 62
"""A log size that is never reached, so that no snapshot is written."""
FILL_CHANGE_SET: Final = 1000
TICK_SECONDS: Final = 0.001


class Opened(NamedTuple):
    """A store that is being measured."""

    store: MetadataStore
    cpu_seconds: Callable[[], float]
    """User and system time so far of all processes of the store, including this one."""


Subject = Callable[[Path], AbstractAsyncContextManager[Opened]]


@asynccontextmanager
async def embedded(folder: Path) -> AsyncIterator[Opened]:
    """The store inside the broker."""
    async with EmbeddedStore.open(DiskFiles(), folder) as store:
        yield Opened(store, process_time)


@asynccontextmanager
async def etcd(folder: Path) -> AsyncIterator[Opened]:
    """A new etcd on the same disk, and this project's client of it."""
    with EtcdProcess(folder, command=str(place("etcd"))) as process:
        async with EtcdStore.open([process.endpoint], root="/bench") as store:
            yield Opened(store, lambda: process_time() + cpu_seconds(process.pid))


def subjects() -> dict[str, Subject]:
    """Return the stores that are installed on this machine."""
    try:
        place("etcd")
    except NeedError as absent:
        print(absent)
        return {"embedded": embedded}
    return {"embedded": embedded, "etcd": etcd}


class Writing(NamedTuple):
    """One round of writing: seconds of each raw append, put and watched put, and the figures of 64 writers."""

    raw: list[float]
    put: list[float]
    watched: list[float]
    raw_cpu_seconds: float
    lone_cpu_seconds: float
    puts_per_second: float
    shared_cpu_seconds: float


class Opening(NamedTuple):
    """The figures of one opening."""

    seconds: float
    cpu_seconds: float
    bytes_per_key: float
    peak_bytes_per_key: float


class Snapshot(NamedTuple):
    """The figures of one snapshot beside a writer that never pauses."""

    seconds: float
    puts: list[float]
    """Seconds of each put during the snapshot."""
    pause_seconds: float
    """The longest time for which the event loop was blocked meanwhile."""
    calm_puts: list[float]
    """Seconds of each put during the same time after it."""


def key_of(number: int) -> str:
    """Return a key with the length of real keys."""
    return f"/bench/{number:020}"


def raw_append(folder: Path) -> Callable[[], tuple[float, float]]:
    """Return a function that makes one small durable append, and returns its total and CPU seconds."""
    descriptor = os.open(folder / "raw", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    data = b"x" * RAW_BYTES

    def measure() -> tuple[float, float]:
        cpu_start, start = process_time(), perf_counter()
        crc = int(google_crc32c.value(data))
        os.write(descriptor, data + crc.to_bytes(4))
        os.fdatasync(descriptor)
        return perf_counter() - start, process_time() - cpu_start

    return measure


async def write(subject: Subject, folder: Path, shared_puts: int) -> Writing:
    """Run one round of writing to a new store."""
    raw_once = raw_append(folder)
    async with subject(folder / "data") as (store, cpu_of_all):
        for number in range(WARM_UP_PUTS):
            await store.put(key_of(number), VALUE)
        raw: list[tuple[float, float]] = []
        put: list[float] = []
        cpu_start = cpu_of_all()
        for number in range(LONE_PUTS):
            raw.append(raw_once())
            start = perf_counter()
            await store.put(key_of(number), VALUE)
            put.append(perf_counter() - start)
        raw_cpu = sum(cpu for _, cpu in raw)
        lone_cpu = cpu_of_all() - cpu_start - raw_cpu
        watched = await watch(store)

        async def put_many(writer: int) -> None:
            for number in range(writer, shared_puts, WRITERS):
                await store.put(key_of(number), VALUE)

        cpu_start, start = cpu_of_all(), perf_counter()
        async with trio.open_nursery() as nursery:
            for writer in range(WRITERS):
                nursery.start_soon(put_many, writer)
        shared_seconds, shared_cpu = perf_counter() - start, cpu_of_all() - cpu_start
    return Writing(
        [seconds for seconds, _ in raw],
        put,
        watched,
        raw_cpu / LONE_PUTS,
        lone_cpu / LONE_PUTS,
        shared_puts / shared_seconds,
        shared_cpu / shared_puts,
    )


async def watch(store: MetadataStore) -> list[float]:
    """Measure the time from the call of a put until a waiting range watch has its record."""
    taken: list[float] = []
    told, arrivals = trio.open_memory_channel[float](1)

    async def read(task_status: trio.TaskStatus[None]) -> None:
        async with store.watch_range(*starting_with("/watched/")) as changes:
            await changes.next()
            task_status.started()
            while True:
                await changes.next()
                await told.send(perf_counter())

    async with trio.open_nursery() as nursery:
        await nursery.start(read)
        for number in range(LONE_PUTS):
            start = perf_counter()
            await store.put(f"/watched/{number % 10}", VALUE)
            taken.append(await arrivals.receive() - start)
        nursery.cancel_scope.cancel()
    return taken


def fill(folder: Path, keys: int, *, indexed: bool) -> None:
    """Write the keys, in random order, into a log without a snapshot."""

    async def put_all() -> None:
        order = random.Random(1).sample(range(keys), keys)  # noqa: S311 - an order, not a secret
        async with EmbeddedStore.open(DiskFiles(), folder, snapshot_log_bytes=NEVER_BYTES) as store:
            for begin in range(0, keys, FILL_CHANGE_SET):
                await store.commit(
                    [put_of(number, indexed=indexed) for number in order[begin : begin + FILL_CHANGE_SET]]
                )

    trio.run(put_all)


def put_of(number: int, *, indexed: bool) -> Put:
    """Return a put of one key, with or without an index entry."""
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
    """Have a filled store write a snapshot during concurrent writes."""

    async def write_beside() -> Snapshot:
        async with EmbeddedStore.open(DiskFiles(), folder, snapshot_log_bytes=NEVER_BYTES) as store:
            order = random.Random(2)  # noqa: S311 - an order, not a secret
            keys = store.statistics().records
            # A broker does the same when it is ready.
            gc.collect()
            gc.freeze()
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
                nursery.start_soon(store.take_snapshot)
                puts, seconds = await put_while(lambda: not store.statistics().extra["snapshots"])
                pause = max(pauses)
                calm_end = perf_counter() + seconds
                calm, _ = await put_while(lambda: perf_counter() < calm_end)
                nursery.cancel_scope.cancel()
        return Snapshot(seconds, puts, pause, calm)

    return trio.run(write_beside)


async def tick(pauses: list[float]) -> None:
    """Record repeatedly by how much the event loop is late."""
    while True:
        start = perf_counter()
        await trio.sleep(TICK_SECONDS)
        pauses.append(perf_counter() - start - TICK_SECONDS)


def resident_bytes() -> tuple[int, int]:
    """Return this process's current and highest memory."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024, int(fields["VmHWM"].split()[0]) * 1024
