"""Helpers for tests of the embedded metadata store's log: large change sets, readings, and the content of log files.

ops = large()                        # a change set that needs a transaction
await Stepping(disk, look).run(lambda: store.commit(ops))      # `look` is called before each write to the log
assert markers(disk) == [BeginTransaction(...), EndTransaction()]
"""

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import trio
from trio.testing import wait_all_tasks_blocked

from storage.metadata.inspection import FoundBatch, Inspection
from storage.metadata.records import AbortTransaction, BeginTransaction, EndTransaction, LogRecord
from storage.metadata.snapshots import SnapshotName
from storage.metadata.store import Delete, DeleteRange, IndexEntry, MetadataStore, Op, Put, PutSequential
from tests.support.disk import SimulatedFiles

DATA = Path("/data")
DIRECTORY = DATA / "metadata"
FIRST_LOG = DIRECTORY / f"{1:020}-{1:010}.log"
EVERYTHING = ("", "\U0010ffff")


def large(count: int = 100, value: bytes = bytes(1000), *, prefix: str = "/large") -> list[Op]:
    """Return a change set that takes many pieces and uses every kind of operation."""
    ops: list[Op] = [
        Put(f"{prefix}/{number:05}", value, indexes=(IndexEntry("i", "large"),)) for number in range(count)
    ]
    ops += [PutSequential(f"{prefix}/s", b"", "p"), PutSequential(f"{prefix}/s", b"", "p")]
    return [*ops, Delete("/old"), DeleteRange("/range/", "/range0"), Put("/changed", b"large", indexes=())]


async def prepare(store: MetadataStore) -> None:
    """Prepare the records that `large` changes and removes."""
    await store.commit([Put("/old", b""), Put("/changed", b"", indexes=(IndexEntry("i", "old"),))])
    await store.commit([Put(f"/range/{number}", b"") for number in range(5)])
    await store.commit([PutSequential("/s", b"", "p")])


async def seen(store: MetadataStore) -> object:
    """Return everything that readers see, as one comparable value."""
    return (
        await store.scan(*EVERYTHING),
        await store.query("i", *EVERYTHING),
        await store.barrier(),
        await store.get("/old"),
        store.peek("/changed"),
    )


def snapshots_in(names: Iterable[str]) -> list[str]:
    """Return the names of snapshots among these. The notice to older releases only has the name of one."""
    return [name for name in names if SnapshotName.parse(name) is not None]


def markers(disk: SimulatedFiles) -> list[LogRecord]:
    """Return the transaction markers in the log, in order."""
    return [
        record
        for record in records_of(disk)
        if isinstance(record, BeginTransaction | EndTransaction | AbortTransaction)
    ]


def records_of(disk: SimulatedFiles) -> list[LogRecord]:
    """Return the records of the log, through all of its files."""
    found: list[FoundBatch] = []
    Inspection(disk, DIRECTORY).follow(found.append)
    return [each.record for batch in found for each in batch.records]


class Stepping:
    """Lets a store write to its log one write at a time, and inspects the store before each."""

    def __init__(self, disk: SimulatedFiles, look: Callable[[int], Awaitable[None]]) -> None:
        self.disk = disk
        self.look = look
        self.steps = 0

    async def run(self, work: Callable[[], Awaitable[object]]) -> None:
        finished = False

        async def worker() -> None:
            nonlocal finished
            await work()
            finished = True

        def close_behind(operation: str, path: Path) -> None:
            if operation == "sync" and path.suffix == ".log":
                self.disk.stop()

        self.disk.stop()
        self.disk.before = close_behind
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker)
            await wait_all_tasks_blocked()
            while not finished:
                await self.look(self.steps)
                self.steps += 1
                self.disk.resume()
                await wait_all_tasks_blocked()
            self.disk.before = None
            self.disk.resume()
