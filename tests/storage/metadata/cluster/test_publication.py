"""What followers get of a reign: everything once, in order, and never before the controller's own readers."""

from collections.abc import Awaitable

import pytest
import trio
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from storage.metadata import log, transactions
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.image import Image
from storage.metadata.store import Op, Put, StoreEnded
from tests.support.disk import SimulatedFiles
from tests.support.metadata_log import large
from tests.support.reigns import Follower, leading, state_of
from tests.support.schedules import every_schedule


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "PREALLOCATION_BYTES", 4096)
    monkeypatch.setattr(transactions, "PIECE_BYTES_MAX", 30_000)


@pytest.fixture
def disk() -> SimulatedFiles:
    return SimulatedFiles(seed=1)


def many(number: int) -> list[Op]:
    """Return a change set that fits a batch, but is shown with others in several steps."""
    return [Put(f"/{number}/{key}", b"") for key in range(120)]


CHANGES = st.sampled_from(["small", "many", "large", "abandoned", "attach", "again", "snapshot"])


@every_schedule(examples_max=40, changes=st.lists(CHANGES, min_size=1, max_size=25))
async def test_a_follower_holds_what_the_controller_shows(changes: list[str]) -> None:
    """M17, R12: whenever it attached, with the image or with the log, also amid a group or a transaction."""
    disk = SimulatedFiles(seed=len(changes))
    followers: list[Follower] = []
    async with leading(disk) as store:
        async with trio.open_nursery() as nursery:
            for number, change in enumerate(changes):
                nursery.start_soon(play, store, change, number, followers)
        expected = state_of(store.reign.image)
        for follower in followers:
            assert follower.point == store.reign.point
            assert state_of(follower.replay.image) == expected


async def play(store: EmbeddedStore, change: str, number: int, followers: list[Follower]) -> None:
    if change == "small":
        await store.put(f"/{number}", b"")
    elif change == "many":
        await store.commit(many(number))
    elif change == "large":
        await store.commit(large(prefix=f"/large{number}"))
    elif change == "abandoned":
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.commit, large(prefix=f"/large{number}"))
            for _ in range(20):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    elif change == "snapshot":
        await store.take_snapshot()
    else:
        follower = await Follower.of(store.reign)
        if change == "again":
            store.reign.detach(follower)
            await store.put(f"/{number}", b"")
            assert await follower.attach_again(store.reign)
        followers.append(follower)


async def test_a_link_waits_for_the_end_of_a_transaction(disk: SimulatedFiles) -> None:
    """R12: an image amid it is of no place in the log, and the pieces before would be missing."""
    async with leading(disk) as store, trio.open_nursery() as nursery:
        earlier = await Follower.of(store.reign)
        attached: list[Follower] = []

        async def attach() -> None:
            attached.append(await Follower.of(store.reign))

        moments: list[int] = []

        def begin_at_second_piece(operation: str, _path: object) -> None:
            if operation == "write":
                moments.append(len(earlier.pushed))
                if len(moments) == 2:
                    disk.stop()

        disk.before = begin_at_second_piece
        nursery.start_soon(store.commit, large())
        await wait_all_tasks_blocked()
        assert len(earlier.pushed) == 1, "pieces are pushed when they are durable"
        assert not earlier.replay.image.records
        nursery.start_soon(attach)
        await wait_all_tasks_blocked()
        assert not attached
        disk.before = None
        disk.resume()
        await wait_all_tasks_blocked()
        assert state_of(attached[0].replay.image) == state_of(store.reign.image)
        assert state_of(earlier.replay.image) == state_of(store.reign.image)


async def test_a_view_is_of_its_moment(disk: SimulatedFiles) -> None:
    """M17: the image goes on while it is sent, and the batches behind it make up for that."""
    async with leading(disk) as store:
        for number in range(5):
            await store.commit(many(number))
        before = state_of(store.reign.image)
        image = Image()
        with store.reign.view() as view:
            image.load(view.head)
            while records := view.next(50):
                await store.commit([Put(record.key, b"changed") for record in records])
                image.load(records)
        image.revision = view.revision
        assert state_of(image) == before


async def test_who_left_hears_nothing_more(disk: SimulatedFiles) -> None:
    """M17: leaving twice is harmless."""
    async with leading(disk) as store:
        follower = await Follower.of(store.reign)
        await store.put("/a", b"")
        store.reign.detach(follower)
        store.reign.detach(follower)
        await store.put("/b", b"")
        assert len(follower.pushed) == 1


async def test_a_link_that_waits_learns_of_the_end(disk: SimulatedFiles) -> None:
    """M22: no link waits for a reign that has ended."""
    async with leading(disk) as store, trio.open_nursery() as nursery:
        ended: list[str] = []

        async def expect(call: Awaitable[object]) -> None:
            with pytest.raises(StoreEnded, match="simulated fault") as caught:
                await call
            ended.append(str(caught.value))

        disk.stop()
        nursery.start_soon(expect, store.put("/a", b""))
        await wait_all_tasks_blocked()
        nursery.start_soon(expect, Follower.of(store.reign))
        await wait_all_tasks_blocked()
        disk.fail("sync")
        disk.resume()
        await wait_all_tasks_blocked()
        assert len(ended) == 2
