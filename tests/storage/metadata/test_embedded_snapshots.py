"""The embedded store's snapshots: when they are taken, what they contain, and that nobody waits for them."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from storage.files import Files
from storage.metadata import log, snapshots, transactions
from storage.metadata.batches import Body
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.log import Appended, MetadataLog
from storage.metadata.older_releases import NOTICE
from storage.metadata.store import IndexEntry, Op, Put, PutSequential, Record, SnapshotTaken, StoreUnavailable
from tests.support.disk import SimulatedFiles
from tests.support.metadata_log import large, snapshots_in

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

DATA = Path("/data")
DIRECTORY = DATA / "metadata"
FIRST_LOG = DIRECTORY / f"{1:020}-{1:010}.log"


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "PREALLOCATION_BYTES", 4096)


class SlowAppends(SimulatedFiles):
    """Lets other tasks run during appends to the log."""

    async def run_urgent(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        for _ in range(5):
            await trio.lowlevel.checkpoint()
        return call(*args)


@pytest.fixture
def disk() -> SimulatedFiles:
    return SimulatedFiles(seed=1)


async def content(files: Files) -> dict[str, bytes]:
    async with EmbeddedStore.open(files, DATA) as store:
        return {record.key: record.value for record in await store.scan("", "~")}


async def test_snapshots_keep_the_log_short(disk: SimulatedFiles) -> None:
    """R27: log and snapshots hold the state, not its history, and opening gives the same state."""
    async with EmbeddedStore.open(disk, DATA, snapshot_log_bytes=4000) as store:
        for number in range(300):
            await store.put(f"/{number % 7}", b"%d" % number * 20)
            await wait_all_tasks_blocked()
        statistics = store.statistics()
        assert statistics.extra["snapshots"] >= 3
        assert statistics.extra["log_tail_bytes"] < 6000
        before = await store.scan("", "~")
        names = disk.names(DIRECTORY)
        assert len(snapshots_in(names)) == 1
        assert len([name for name in names if name.endswith(".log")]) == 1
    async with EmbeddedStore.open(disk.crash(keep=0.0), DATA) as store:
        assert await store.scan("", "~") == before
        assert await store.barrier() == statistics.revision


async def test_snapshots_do_not_write_more_than_the_log(disk: SimulatedFiles) -> None:
    """R27: a large state is written again only after as much log."""
    async with EmbeddedStore.open(disk, DATA, snapshot_log_bytes=1000) as store:
        await store.commit([Put(f"/{number:03}", bytes(1000)) for number in range(50)])
        await wait_all_tasks_blocked()
        assert store.statistics().extra["snapshots"] == 1
        for number in range(100):
            await store.put(f"/{number:03}", bytes(100))
            await wait_all_tasks_blocked()
        assert store.statistics().extra["snapshots"] == 1


async def test_writes_go_on_while_a_snapshot_is_written(disk: SimulatedFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """R22, R27: a snapshot does not change while the store continues."""
    slices = trio.Event()
    write = snapshots.write

    async def slow(
        files: Files, directory: Path, view: snapshots.View, epoch: int, *, turn: Callable[[], Awaitable[None]]
    ) -> int:
        await slices.wait()
        return await write(files, directory, view, epoch, turn=turn)

    monkeypatch.setattr(snapshots, "write", slow)
    async with EmbeddedStore.open(disk, DATA, snapshot_log_bytes=1000) as store:
        for number in range(50):
            await store.put(f"/{number:02}", bytes(50))
        assert store.statistics().extra["snapshots"] == 0
        held = len([name for name in disk.names(DIRECTORY) if name.endswith("log")])
        assert held == 2
        slices.set()
        await wait_all_tasks_blocked()
        assert store.statistics().extra["snapshots"] == 1
        survivor = disk.crash(keep=0.0)
    assert len(await content(survivor)) == 50


async def test_a_snapshot_takes_turns_with_the_groups(disk: SimulatedFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """R22, R27: one slice is encoded behind each append, and none during it, so it finishes under any load."""
    monkeypatch.setattr(snapshots, "SLICE_RECORDS_MAX", 2)
    appending = False
    appended = slices = appended_meanwhile = 0
    append, next_slice = MetadataLog.append, snapshots.View.next

    def watch_append(log: MetadataLog, bodies: list[Body], *, is_abort: bool = False) -> Appended:
        nonlocal appended
        appended += 1
        return append(log, bodies, is_abort=is_abort)

    def watch_slice(view: snapshots.View, records_max: int) -> list[Record]:
        nonlocal slices, appended_meanwhile
        assert not appending
        slices += 1
        return next_slice(view, records_max)

    class Busy(SlowAppends):
        async def run_urgent(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
            nonlocal appending
            appending = True
            done = await super().run_urgent(call, *args)
            appending = False
            return done

    monkeypatch.setattr(MetadataLog, "append", watch_append)
    monkeypatch.setattr(snapshots.View, "next", watch_slice)
    disk = Busy(seed=1)
    async with EmbeddedStore.open(disk, DATA) as store, trio.open_nursery() as nursery:
        await store.commit([Put(f"/{number:02}", b"") for number in range(60)])

        async def write_on(number: int) -> None:
            while True:
                await store.put(f"/{number:02}", b"again")

        for number in range(4):
            nursery.start_soon(write_on, number)
        await wait_all_but(store)
        before = appended
        await store.take_snapshot()
        appended_meanwhile = appended - before
        nursery.cancel_scope.cancel()
    assert slices >= 30
    # The writers went on, and the snapshot got a slice in behind each of their groups.
    assert 5 <= appended_meanwhile <= 45


async def test_a_snapshot_goes_on_behind_an_abandoned_change_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """R15, R27: the writer of a large change set is cancelled at any moment, and nobody writes after it."""
    monkeypatch.setattr(snapshots, "SLICE_RECORDS_MAX", 2)
    monkeypatch.setattr(transactions, "PIECE_BYTES_MAX", 8 * 1024)
    aborted = 0
    for turns in range(80):
        async with EmbeddedStore.open(SlowAppends(seed=1), DATA) as store, trio.open_nursery() as nursery:
            await store.commit([Put(f"/{number:02}", b"") for number in range(60)])
            nursery.start_soon(store.take_snapshot)
            with trio.CancelScope() as scope:
                nursery.start_soon(cancel_after, turns, scope)
                await store.commit(large())
            await wait_all_tasks_blocked()
            assert store.statistics().extra["snapshots"] == 1
            aborted += int(store.statistics().extra["transactions_aborted"])
    assert aborted > 20


async def cancel_after(turns: int, scope: trio.CancelScope) -> None:
    for _ in range(turns):
        await trio.lowlevel.checkpoint()
    scope.cancel()


async def wait_all_but(store: EmbeddedStore) -> None:
    """Wait until the test's writers have started."""
    while store.statistics().extra["groups"] < 3:
        await trio.lowlevel.checkpoint()


async def test_a_snapshot_is_taken_when_asked_for(disk: SimulatedFiles) -> None:
    """R22, R27: it contains everything answered before; an earlier snapshot in progress does not count."""
    async with EmbeddedStore.open(disk, DATA) as store, trio.open_nursery() as nursery:
        await store.put("/a", b"1")
        taken: list[SnapshotTaken] = []

        async def take() -> None:
            taken.append(await store.take_snapshot())

        def is_begun() -> bool:
            return any("unfinished" in name for name in disk.names(DIRECTORY))

        nursery.start_soon(take)
        while not is_begun():
            await trio.lowlevel.checkpoint()
        await store.put("/b", b"2")
        nursery.start_soon(take)
        await wait_all_tasks_blocked()
        assert [each.revision for each in taken] == [1, 2]
        assert taken[0].sequence == 2
        assert taken[1].sequence in (3, 4), "the second write and the first one's name may share a batch"
        assert taken[1].size_bytes == store.statistics().extra["snapshot_bytes"]
        names = disk.names(DIRECTORY)
        sequence = taken[1].sequence
        assert [name for name in names if "snapshot" in name and name != NOTICE] == [f"{sequence:020}-{1:010}.snapshot"]
        assert [name for name in names if "log" in name] == [f"{sequence + 1:020}-{1:010}.log"]
        # Taking another of the same state is no error. It is behind the batch that names the last one.
        assert await store.take_snapshot() == replace(taken[1], sequence=sequence + 1)
    assert len(await content(disk.crash(keep=0.0))) == 2


async def test_who_waits_for_a_snapshot_learns_of_the_end(disk: SimulatedFiles) -> None:
    """M22: this holds whether the store was closed or its disk failed."""
    for fails in (False, True):
        refused = 0

        async def take(store: EmbeddedStore) -> None:
            nonlocal refused
            with pytest.raises(StoreUnavailable):
                await store.take_snapshot()
            refused += 1

        async with trio.open_nursery() as nursery:
            async with EmbeddedStore.open(disk, DATA) as store:
                if fails:
                    disk.fail("write", where=lambda path: "snapshot" in path.name)
                disk.stop()
                nursery.start_soon(take, store)
                nursery.start_soon(take, store)
                await wait_all_tasks_blocked()
                disk.resume()
            await take(store)
        assert refused == 3
    await content(disk)


async def test_replay_of_any_prefix_and_from_any_snapshot(disk: SimulatedFiles) -> None:
    """R27: after every change set, log from zero and snapshot with tail give the state that was read."""

    @asynccontextmanager
    async def reopened(files: SimulatedFiles, after: int) -> AsyncIterator[EmbeddedStore]:
        async with EmbeddedStore.open(files, DATA, snapshot_log_bytes=after) as store:
            yield store

    def change_set(number: int) -> list[Op]:
        return [
            Put(f"/{number % 5}", b"%d" % number, indexes=(IndexEntry("i", str(number % 3)),)),
            PutSequential("/op", b"", "p"),
        ]

    other = SimulatedFiles(seed=2)
    for number in range(25):
        async with reopened(disk, 10**9) as from_zero, reopened(other, 1 if number % 4 else 10**9) as from_snapshot:
            assert await from_zero.scan("", "~") == await from_snapshot.scan("", "~")
            assert await from_zero.query("i", "", "~") == await from_snapshot.query("i", "", "~")
            assert await from_zero.barrier() == await from_snapshot.barrier() == number
            assert await from_zero.commit(change_set(number)) == await from_snapshot.commit(change_set(number))
            await wait_all_tasks_blocked()
    assert snapshots_in(other.names(DIRECTORY))


async def test_a_snapshot_is_given_up_when_the_store_closes(
    disk: SimulatedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R27: closing does not wait for a snapshot, and the next opening removes its remains."""
    monkeypatch.setattr(snapshots, "SLICE_RECORDS_MAX", 1)
    async with EmbeddedStore.open(disk, DATA, snapshot_log_bytes=1000) as store:
        for number in range(30):
            await store.put(f"/{number:02}", bytes(50))
            if any("unfinished" in name for name in disk.names(DIRECTORY)):
                break
        else:
            pytest.fail("no snapshot was begun")
    assert any("unfinished" in name for name in disk.names(DIRECTORY))
    assert len(await content(disk)) == number + 1
    assert not any("unfinished" in name for name in disk.names(DIRECTORY))
