"""The embedded store when the power is lost, the process dies, or the disk fails."""

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from storage.files import Files
from storage.metadata import log
from storage.metadata.cluster import proposals
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.store import IndexEntry, Put, PutSequential, StoreUnavailable
from tests.support.disk import SimulatedFiles

DATA = Path("/data")
DIRECTORY = DATA / "metadata"
FIRST_LOG = DIRECTORY / f"{1:020}-{1:010}.log"


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "PREALLOCATION_BYTES", 4096)


@pytest.fixture
def disk() -> SimulatedFiles:
    return SimulatedFiles(seed=1)


async def content(files: Files) -> dict[str, bytes]:
    async with EmbeddedStore.open(files, DATA) as store:
        return {record.key: record.value for record in await store.scan("", "~")}


class Story:
    """Writers that record their answers, and what must hold after a crash."""

    def __init__(self) -> None:
        self.answered: dict[str, int] = {}
        self.sequential: set[str] = set()
        self.tried: dict[str, int] = {}

    async def write(self, store: EmbeddedStore, writer: int, *, rounds: int = 6) -> None:
        session = await store.open_session(5)
        for number in range(1, rounds + 1):
            key = str(writer)
            value = b"%d" % number
            self.tried[key] = self.tried.get(key, 0) + 1
            done = await store.commit(
                [
                    Put(f"/a/{key}", value, indexes=(IndexEntry("i", key),)),
                    PutSequential(f"/op/{key}", value, key),
                    Put(f"/b/{key}", value * 400),
                    Put(f"/e/{key}", value, session=session),
                ]
            )
            self.answered[key] = done.revision
            assert done.keys[1] is not None
            self.sequential.add(done.keys[1])

    async def check(self, store: EmbeddedStore) -> None:
        first = {record.key[3:]: record for record in await store.scan("/a/", "/a0")}
        second = {record.key[3:]: record for record in await store.scan("/b/", "/b0")}
        assert set(first) == set(second) == {hit.index_key for hit in await store.query("i", "", "~")}
        for key, record in first.items():
            assert second[key].version == record.version <= store.statistics().revision
            assert second[key].value == record.value * 400
        for key, revision in self.answered.items():
            assert first[key].version >= revision
        operations = {record.key for record in await store.scan("/op/", "/op0")}
        assert self.sequential <= operations
        # A prefix: whatever has a lower revision than something that is there was there at that moment.
        assert sum(int(record.value) for record in first.values()) == len(operations)
        assert await store.scan("/e/", "/e0") == []
        (fresh,) = (await store.commit([PutSequential("/op/9", b"9", "9")])).keys
        assert fresh is not None
        assert all(fresh[-20:] > key[-20:] for key in operations)
        await store.delete(fresh)


async def crash_story(seed: int, operations: int, snapshot_log_bytes: int) -> int:
    """Work, and lose the power at some operation, twice. Return the operations of a whole story.

    The second time only the process dies, and the power is lost after the store was opened again.
    """
    disk = SimulatedFiles(seed=seed)
    story = Story()
    for only_the_process in (False, True):
        disk.lose_power_after(operations)
        start = disk.operations
        try:
            async with EmbeddedStore.open(disk, DATA, snapshot_log_bytes=snapshot_log_bytes) as store:
                await store.commit([])
                async with trio.open_nursery() as nursery:
                    for writer in range(3):
                        nursery.start_soon(story.write, store, writer)
        except* (OSError, StoreUnavailable):
            pass
        taken = disk.operations - start
        if only_the_process:
            disk = disk.kill()
            async with EmbeddedStore.open(disk, DATA) as store:
                await store.put("/after", b"")
            disk = disk.crash(keep=0.0)
            assert "/after" in await content(disk)
        else:
            disk = disk.crash()
        async with EmbeddedStore.open(disk, DATA) as store:
            await forgetting_rounds(story, store)
    return taken


async def forgetting_rounds(story: Story, store: EmbeddedStore) -> None:
    await story.check(store)
    # The next round counts from one again, so what the last left is cleared away.
    for record in [*await store.scan("/a/", "/b0"), *await store.scan("/op/", "/op0")]:
        await store.delete(record.key)
    story.answered.clear()
    story.sequential.clear()


@pytest.mark.parametrize("snapshot_log_bytes", [3_000, 1_000_000])
async def test_power_loss_at_every_operation(snapshot_log_bytes: int) -> None:
    """M23, R9, R27: answered change sets are there and whole, the rest is a prefix, also during snapshots."""
    whole = await crash_story(0, 10_000, snapshot_log_bytes)
    assert whole > 20
    for seed in range(2):
        for operations in range(whole + 5):
            await crash_story(seed * 1000 + operations, operations, snapshot_log_bytes)


@pytest.mark.parametrize("operation", ["write", "sync"])
async def test_a_failed_write_ends_the_store(disk: SimulatedFiles, operation: str) -> None:
    """M22, M23: waiting writers get an unknown outcome, later ones are refused, and that file is not used again."""
    writes = 0

    def count(name: str, _path: Path) -> None:
        nonlocal writes
        writes += name == "write"

    async with EmbeddedStore.open(disk, DATA) as store:
        await store.put("/before", b"")
        session = await store.open_session(5)
        unavailable = 0

        async def expect(call: Callable[[], object]) -> None:
            nonlocal unavailable
            with pytest.raises(StoreUnavailable) as caught:
                await call()  # type: ignore[misc]
            assert caught.value.retriable
            assert not caught.value.definite
            assert "simulated fault" in str(caught.value)
            unavailable += 1

        async with (
            trio.open_nursery() as nursery,
            store.watch_key("/before") as key_watch,
            store.watch_range("", "~") as range_watch,
        ):
            await key_watch.next()
            await range_watch.next()
            nursery.start_soon(expect, key_watch.next)
            nursery.start_soon(expect, range_watch.next)
            await wait_all_tasks_blocked()
            disk.fail(operation, where=lambda path: path.suffix == ".log")
            disk.before = count
            for number in range(5):
                nursery.start_soon(expect, lambda number=number: store.put(f"/{number}", b""))
            await session.wait_lost()
            await wait_all_tasks_blocked()
            assert unavailable == 7
        for call in (
            lambda: store.get("/before"),
            lambda: store.scan("", "~"),
            lambda: store.query("i", "", "~"),
            lambda: store.put("/after", b""),
            lambda: store.put("/after", b"", session=session),
            lambda: store.open_session(5),
            store.barrier,
            session.close,
        ):
            await expect(call)
        peeked = store.peek("/before")
        assert peeked is not None
    assert writes == 1
    disk.before = None
    found = await content(disk.crash())
    assert "/before" in found
    assert "/after" not in found


async def test_who_waits_for_room_learns_of_the_end(disk: SimulatedFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """M22: no task is left waiting for a store that has ended."""
    monkeypatch.setattr(proposals, "PROPOSALS_WAITING_MAX", 1)
    unavailable = 0

    async def put() -> None:
        nonlocal unavailable
        with pytest.raises(StoreUnavailable):
            await store.put("/a", b"")
        unavailable += 1

    async with EmbeddedStore.open(disk, DATA) as store, trio.open_nursery() as nursery:
        disk.fail("sync")
        disk.stop()
        for _ in range(5):
            nursery.start_soon(put)
        await wait_all_tasks_blocked()
        disk.resume()
    assert unavailable == 5


async def test_a_failed_snapshot_ends_the_store(disk: SimulatedFiles) -> None:
    """M23: a disk that refuses writes is not trusted with the next one."""
    async with EmbeddedStore.open(disk, DATA, snapshot_log_bytes=500) as store:
        disk.fail("sync", where=lambda path: "snapshot" in path.name)
        made = 0

        async def write() -> None:
            nonlocal made
            while made < 100:
                await store.put(f"/{made:03}", bytes(100))
                made += 1

        with pytest.raises(StoreUnavailable):
            await write()
    assert 0 < made < 100
    assert len(await content(disk.crash())) >= made
