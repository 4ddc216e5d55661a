"""What a controller says once another process has taken over: nothing, whenever it learns of it."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from storage.metadata import log, transactions
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.epochs import Deposed
from storage.metadata.store import Check, Conflict, Delete, Put, StoreFull, StoreUnavailable
from storage.metadata.take_over import Started
from tests.support.disk import SimulatedFiles
from tests.support.metadata_log import DIRECTORY, large, snapshots_in
from tests.support.reigns import Follower, Successor, leading, leading_on, state_of, take_over_at
from txn.read_barriers import ReadBarriers


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "PREALLOCATION_BYTES", 4096)
    monkeypatch.setattr(transactions, "PIECE_BYTES_MAX", 30_000)


@pytest.fixture
def disk() -> SimulatedFiles:
    return SimulatedFiles(seed=1)


async def operations_of(change: Callable[[EmbeddedStore], Awaitable[object]]) -> int:
    """Return how many operations of the disk a call takes, up to the last one of its last append."""
    disk = SimulatedFiles(seed=1)
    done: list[str] = []
    async with leading(disk) as store:
        await store.put("/before", b"")
        disk.before = lambda operation, _path: done.append(operation)
        await change(store)
        disk.before = None
    return len(done)


def put(store: EmbeddedStore) -> Awaitable[object]:
    return store.put("/after", b"")


def put_much(store: EmbeddedStore) -> Awaitable[object]:
    return store.commit([*large(), Put("/after", b"")])


# -- writes


@pytest.mark.parametrize("change", [put, put_much])
async def test_nothing_is_shown_without_a_check_behind_its_sync(
    change: Callable[[EmbeddedStore], Awaitable[object]],
) -> None:
    """C3: whichever operation of its write the successor comes before, nobody sees, hears or follows the write."""
    operations = await operations_of(change)
    assert operations > 3
    for left in range(operations):
        disk = SimulatedFiles(seed=1)
        async with leading(disk) as store, store.watch_range("", "~") as watch:
            await store.put("/before", b"")
            await watch.next()
            follower = await Follower.of(store.reign)
            successor = Successor(disk, left)
            with pytest.raises(StoreUnavailable):
                await change(store)
            assert successor.started is not None
            assert store.peek("/after") is None
            assert follower.replay.image.records.get("/after") is None
            with pytest.raises(StoreUnavailable), trio.fail_after(1):
                await watch.next()
            with pytest.raises(StoreUnavailable):
                await store.get("/after")
        disk.before = None
        async with leading_on(disk, successor.started) as next_store:
            assert await next_store.get("/before") is not None


async def test_a_refusal_in_the_group_of_a_write_that_does_not_count_is_none(disk: SimulatedFiles) -> None:
    """D13, C4: it may rest on that write."""
    async with leading(disk) as store, trio.open_nursery() as nursery:
        ended: list[type[Exception]] = []

        async def expect(change: Awaitable[object]) -> None:
            with pytest.raises(StoreUnavailable) as caught:
                await change
            ended.append(caught.type)

        # Behind the look of the group's write at the fence, nothing looks again.
        Successor(disk, 0)
        nursery.start_soon(expect, store.put("/a", b"", expected=0))
        nursery.start_soon(expect, store.put("/a", b"", expected=0))
        await wait_all_tasks_blocked()
        assert ended == [Deposed, Deposed]


async def test_a_write_that_the_successor_counts_is_all_the_same_not_answered(disk: SimulatedFiles) -> None:
    """C3, M22: its outcome is unknown to the writer, and the successor has it."""
    async with leading(disk) as store:
        synced: list[Started] = []

        def before(operation: str, path: Path) -> None:
            if operation == "exists" and not synced:
                synced.append(take_over_at(disk.process()))

        disk.before = before
        with pytest.raises(Deposed) as caught:
            await store.put("/a", b"1")
        assert not caught.value.definite
        assert store.peek("/a") is None
        disk.before = None
        async with leading_on(disk, synced[0]) as successor:
            assert await successor.get("/a") is not None


# -- everything else that rests on the image


async def read(store: EmbeddedStore) -> object:
    return await store.get("/a")


async def list_all(store: EmbeddedStore) -> object:
    return await store.scan("", "~")


async def query(store: EmbeddedStore) -> object:
    return await store.query("i", "", "~")


async def ask_fresh(store: EmbeddedStore) -> object:
    return await store.fresh(["/a"])


async def pass_barrier(store: EmbeddedStore) -> object:
    return await store.barrier()


async def check_publish(store: EmbeddedStore) -> object:
    barriers = ReadBarriers(store)
    await barriers.wait_passed(barriers.next())
    return None


async def be_refused(store: EmbeddedStore) -> object:
    with pytest.raises(Conflict):
        await store.put("/a", b"", expected=0)
    return None


async def only_check(store: EmbeddedStore) -> object:
    return await store.commit([Check("/absent", 0)])


async def change_nothing(store: EmbeddedStore) -> object:
    return await store.commit([Delete("/absent")])


async def attach(store: EmbeddedStore) -> object:
    return await Follower.of(store.reign)


async def open_session(store: EmbeddedStore) -> object:
    return await store.open_session(5)


async def snapshot(store: EmbeddedStore) -> object:
    return await store.take_snapshot()


CALLS = [
    read,
    list_all,
    query,
    ask_fresh,
    pass_barrier,
    check_publish,
    be_refused,
    only_check,
    change_nothing,
    attach,
    open_session,
    snapshot,
]


@pytest.mark.parametrize("call", CALLS)
async def test_a_deposed_controller_answers_nothing(
    disk: SimulatedFiles, call: Callable[[EmbeddedStore], Awaitable[object]]
) -> None:
    """C4: no read, barrier, publish check or refusal, though it was idle and its image is whole."""
    async with leading(disk) as store:
        await store.put("/a", b"old")
        await call(store)
        take_over_at(disk.process())
        with pytest.raises(StoreUnavailable), trio.fail_after(1):
            await call(store)
        # It has learned of it, and says so from now on.
        with pytest.raises(StoreUnavailable):
            await store.put("/b", b"")


@pytest.mark.parametrize("call", CALLS)
async def test_a_controller_whose_folder_cannot_be_read_answers_nothing(
    disk: SimulatedFiles, call: Callable[[EmbeddedStore], Awaitable[object]]
) -> None:
    """C4: a look at the fence that fails proves nothing, so the store ends."""
    async with leading(disk) as store:
        await store.put("/a", b"old")
        disk.fail("exists")
        with pytest.raises(StoreUnavailable, match="simulated fault"), trio.fail_after(1):
            await call(store)
        with pytest.raises(StoreUnavailable, match="simulated fault"):
            await store.get("/a")


async def test_a_deposed_controller_names_and_removes_no_snapshot(disk: SimulatedFiles) -> None:
    """C2: its successor may need what the snapshot would replace."""
    async with leading(disk) as store:
        await store.put("/a", b"1")
        taken: list[Started] = []

        def before(operation: str, path: Path) -> None:
            if operation == "sync" and path.name.endswith(".snapshot-unfinished") and not taken:
                taken.append(take_over_at(disk.process()))

        disk.before = before
        with pytest.raises(StoreUnavailable):
            await store.take_snapshot()
        disk.before = None
        await wait_all_tasks_blocked()
        assert not snapshots_in(disk.names(DIRECTORY))
    async with leading_on(disk, taken[0]) as successor:
        assert await successor.get("/a") is not None


async def test_a_deposed_controller_may_follow_its_successor(disk: SimulatedFiles) -> None:
    """C2: it has shown nothing that its successor does not have, so its image is on the chain."""
    async with leading(disk) as store:
        await store.commit(large())
        await store.put("/a", b"1")
        successor = take_over_at(disk.process())
        with pytest.raises(Deposed):
            await store.put("/b", b"1")
        follower = Follower(store.reign.image, store.reign.point)
    async with leading_on(disk, successor) as second:
        assert await follower.attach_again(second.reign)
        await second.put("/c", b"1")
        assert state_of(follower.replay.image) == state_of(second.reign.image)


async def test_a_deposed_controller_does_not_even_say_that_the_disk_is_full(disk: SimulatedFiles) -> None:
    """C4, C24: that is a refusal, too. The write may be on record by now."""
    async with leading(disk) as store:
        disk.set_capacity(disk.used_bytes)
        with suppress(StoreFull):
            for number in range(100):
                await store.put(f"/{number}", bytes(1000))
        with pytest.raises(StoreFull):
            await store.put("/a", bytes(1000))
        disk.set_capacity(None)
        take_over_at(disk.process())
        disk.set_capacity(disk.used_bytes)
        with pytest.raises(Deposed):
            await store.put("/a", bytes(1000))


async def test_a_controller_without_its_files_is_deposed(disk: SimulatedFiles) -> None:
    """C2: its successor has removed them. So this process goes on as a follower, and does not end."""
    async with leading(disk) as store:
        await store.put("/a", b"1")
        other = disk.process()
        async with leading_on(other, take_over_at(other)) as successor:
            await successor.take_snapshot()
        with pytest.raises(Deposed):
            await store.take_snapshot()
