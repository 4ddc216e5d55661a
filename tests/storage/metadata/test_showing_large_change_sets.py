"""A large change set is decided and shown with pauses, and nobody sees part of it (R14)."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
import trio
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from storage.metadata import delta, image_store, snapshots, watches
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.image import Image
from storage.metadata.image_store import ImageStore
from storage.metadata.memory import MemoryStore
from storage.metadata.records import DataRecord
from storage.metadata.store import Change, Delete, DeleteRange, IndexEntry, Op, Put, Record
from tests.support.disk import SimulatedFiles
from tests.support.metadata_log import DATA
from tests.support.schedules import every_schedule

COUNT = 40
AT_ONCE = 4
KEYS = [f"/k/{number:03d}" for number in range(COUNT)]
RANGE = ("/k/", "/k0")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (delta, image_store, watches):
        monkeypatch.setattr(module, "KEYS_AT_ONCE", AT_ONCE)
    monkeypatch.setattr(snapshots, "SLICE_RECORDS_MAX", 2)


def written(value: bytes) -> list[Op]:
    return [Put(key, value, indexes=(IndexEntry("by-value", value.decode()),)) for key in KEYS]


CHANGES: list[Callable[[], list[Op]]] = [
    lambda: written(b"new"),
    lambda: [DeleteRange(*RANGE)],
    lambda: [Delete(key) for key in KEYS],
]


@asynccontextmanager
async def embedded() -> AsyncIterator[ImageStore]:
    async with EmbeddedStore.open(SimulatedFiles(seed=1), DATA) as store:
        yield store


@asynccontextmanager
async def memory() -> AsyncIterator[ImageStore]:
    yield MemoryStore()


STORES: list[Callable[[], AbstractAsyncContextManager[ImageStore]]] = [embedded, memory]


@every_schedule(change=st.sampled_from(CHANGES), opened=st.sampled_from(STORES))
async def test_readers_see_all_or_nothing(
    change: Callable[[], list[Op]], opened: Callable[[], AbstractAsyncContextManager[ImageStore]]
) -> None:
    """R14, M14, E7: get, scan, query, barrier, peek and watches see this at any moment; watches get one revision."""
    async with opened() as store:
        await store.commit(written(b"old"))
        before = await store.barrier()
        is_done = False
        peeked: list[set[bytes | None]] = []
        changes: list[Change] = []
        single: list[Record | None] = []

        def values(records: Sequence[Record | None]) -> set[bytes | None]:
            return {None if record is None else record.value for record in records}

        async def look() -> None:
            while not is_done:
                revision = await store.barrier()
                assert len(await store.scan(*RANGE)) in (0, COUNT)
                assert len(values(await store.scan(*RANGE))) <= 1
                assert len(await store.query("by-value", "old", "old\0")) in (0, COUNT)
                assert (revision > before) <= (values([await store.get(KEYS[-1])]) != {b"old"})

        async def peek() -> None:
            while not is_done:
                peeked.append(values([store.peek(key) for key in KEYS]))
                assert len(peeked[-1]) == 1
                await trio.lowlevel.checkpoint()

        async def begin_again() -> None:
            while not is_done:
                async with store.watch_key(KEYS[0]) as one:
                    now = await one.next()
                    assert values([now]) == values([store.peek(KEYS[-1])])

        async def list_again() -> None:
            while not is_done:
                async with store.watch_range(*RANGE) as watch:
                    listed = await watch.next()
                    assert len(listed.records) in (0, COUNT)
                    assert (listed.revision > before) == (values(listed.records) != {b"old"})

        async def follow(started: trio.Event) -> None:
            async with store.watch_range(*RANGE) as watch, store.watch_key(KEYS[-1]) as one:
                await watch.next()
                await one.next()
                started.set()
                changes.append(await watch.next())
                single.append(await one.next())

        async with trio.open_nursery() as nursery:
            started = trio.Event()
            nursery.start_soon(follow, started)
            await started.wait()
            for reader in (look, peek, begin_again, list_again):
                nursery.start_soon(reader)
            done = await store.commit(change())
            after = values([store.peek(key) for key in KEYS])
            is_done = True
        (told,) = changes
        assert told.revision == done.revision
        assert len(told.records) + len(told.deleted) == COUNT
        assert values(single) == after
        assert after != {b"old"}
        assert {b"old"} in peeked


async def test_no_step_shows_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """E7: a session's end and a range deletion are one record each, but many keys."""
    parts: list[int] = []
    apply_each = Image.apply_each

    async with EmbeddedStore.open(SimulatedFiles(seed=1), DATA) as store:
        session = await store.open_session(10)
        await store.commit(written(b"old"))
        await store.commit([Put(f"/e/{number}", b"", session=session) for number in range(COUNT)])
        in_this_step = 0

        def counted(image: Image, change_set: Sequence[DataRecord]) -> object:
            nonlocal in_this_step
            for each in apply_each(image, change_set):
                in_this_step += 1
                yield each

        class Steps(trio.abc.Instrument):
            def after_task_step(self, task: trio.lowlevel.Task) -> None:
                nonlocal in_this_step
                parts.append(in_this_step)
                in_this_step = 0

        monkeypatch.setattr(Image, "apply_each", counted)
        trio.lowlevel.add_instrument(steps := Steps())
        await session.close()
        await store.commit([DeleteRange(*RANGE)])
        await wait_all_tasks_blocked()
        trio.lowlevel.remove_instrument(steps)
        assert sum(parts) == 2 * COUNT
        assert max(parts) == AT_ONCE
        assert await store.scan("/", "0") == []


@pytest.mark.parametrize("opened", STORES)
@pytest.mark.parametrize(("module", "work"), [(delta, "_text_bytes"), (delta.Delta, "_judge"), (delta, "_trimmed")])
async def test_no_step_decides_all_of_it(
    monkeypatch: pytest.MonkeyPatch,
    opened: Callable[[], AbstractAsyncContextManager[ImageStore]],
    module: object,
    work: str,
) -> None:
    """E7: it is measured, decided and turned into records some operations at a time."""
    plain = getattr(module, work)
    in_this_step = longest = total = 0

    def counted(*arguments: object) -> object:
        nonlocal in_this_step, longest, total
        in_this_step += 1
        total += 1
        longest = max(longest, in_this_step)
        return plain(*arguments)

    class Steps(trio.abc.Instrument):
        def after_task_step(self, task: trio.lowlevel.Task) -> None:
            nonlocal in_this_step
            in_this_step = 0

    async with opened() as store:
        monkeypatch.setattr(module, work, counted)
        trio.lowlevel.add_instrument(steps := Steps())
        await store.commit([Put(key, b"") for key in KEYS])
        trio.lowlevel.remove_instrument(steps)
    assert total == COUNT
    assert longest == AT_ONCE


async def test_proposals_that_wait_for_a_large_one_are_decided_behind_it() -> None:
    """R14, M1: the store in memory decides one change set at a time, even while one of them pauses."""
    store = MemoryStore()
    revisions: list[int] = []

    async def write(value: bytes) -> None:
        done = await store.commit(written(value))
        assert {record.value for record in await store.scan(*RANGE)} <= {b"a", b"b", b"c"}
        assert len({record.version for record in await store.scan(*RANGE)}) == 1
        revisions.append(done.revision)

    async with trio.open_nursery() as nursery:
        for value in (b"a", b"b", b"c"):
            nursery.start_soon(write, value)
        nursery.start_soon(store.put, "/other", b"")
    assert sorted(revisions + [record.version for record in await store.scan("/other", "/p")]) == [1, 2, 3, 4]


@every_schedule(steps=st.integers(0, 60))
async def test_a_cancelled_one_is_whole_or_absent(steps: int) -> None:
    """R14, R15: the store in memory continues."""
    store = MemoryStore()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.commit, written(b"new"))
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    there = await store.scan(*RANGE)
    assert len(there) in (0, COUNT)
    assert await store.put("/k/next", b"") == (2 if there else 1)


@every_schedule(examples_max=20)
async def test_a_snapshot_in_the_middle_is_from_before_or_after() -> None:
    """R14: a snapshot keeps what it has not read yet, part by part."""
    disk = SimulatedFiles(seed=1)
    async with EmbeddedStore.open(disk, DATA) as store:
        await store.commit(written(b"old"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.take_snapshot)
            for _ in range(3):
                await store.commit([Delete(key) for key in KEYS])
                await store.commit(written(b"new"))
        state = await store.scan(*RANGE)
    async with EmbeddedStore.open(disk, DATA) as store:
        assert await store.scan(*RANGE) == state
        assert len(state) == COUNT
