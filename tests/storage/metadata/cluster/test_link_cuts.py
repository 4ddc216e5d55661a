"""A link that is cut at any frame, in either direction, costs nobody anything but time."""

from collections.abc import Callable

import pytest
import trio
import trio.testing
from hypothesis import strategies as st

from storage.metadata.cluster import image_transfer, ops_codec
from storage.metadata.store import Change, Conflict, Put, PutSequential, starting_with
from tests.support.led_store import LedStore, led
from tests.support.linked_stores import Line, LinkedStore, LinkNetwork
from tests.support.schedules import every_schedule

EVERYTHING = ("", "\U0010ffff")
LARGE = [Put(f"/large/{number:04d}", bytes(100)) for number in range(300)]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops_codec, "PART_BYTES_MAX", 4096)
    monkeypatch.setattr(image_transfer, "SLICE_RECORDS_MAX", 8)


class Watched:
    """The state that a range watch tells of, and its revisions."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.revisions: list[int] = []

    def take(self, change: Change) -> None:
        """Apply one change."""
        assert not self.revisions or change.revision > self.revisions[-1], "revisions rise"
        self.revisions.append(change.revision)
        for record in change.records:
            self.values[record.key] = record.value
        for key in change.deleted:
            del self.values[key]

    async def follow(
        self, store: LinkedStore, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Watch everything until cancelled."""
        async with store.watch_range(*EVERYTHING) as watch:
            self.take(await watch.next())
            task_status.started()
            async for change in watch:
                self.take(change)


async def story(reign: LedStore, store: LinkedStore) -> None:
    """Everything that a broker does with the store. Each write is made exactly once, whatever happens to the link."""
    session = await store.open_session(5)
    await store.put("/e", b"mine", session=session)
    numbered = [(await store.commit([PutSequential("/n", b"", "p")])).keys[0] for _ in range(3)]
    assert len(await store.scan(*starting_with("/n"))) == 3
    assert [record.key for record in await reign.scan(*starting_with("/n"))] == numbered
    version = await store.put("/counter", b"1")
    await reign.put("/counter", b"2", expected=version)
    with pytest.raises(Conflict) as conflict:
        await store.put("/counter", b"lost", expected=version)
    seen = store.peek("/counter")
    assert seen is not None
    assert seen.version == conflict.value.actual
    await store.commit(LARGE)
    assert len(await store.scan(*starting_with("/large/"))) == len(LARGE)
    assert not session.has_ended
    await session.close()
    assert await store.get("/e") is None
    assert await reign.get("/e") is None


async def run(cut: Callable[[LinkNetwork], None], ring_bytes: int) -> LinkNetwork:
    """Tell the story, with a link that `cut` prepares. Returns the network."""
    async with led() as reign, LinkNetwork(reign.reign).running() as network:
        reign.ring_bytes = ring_bytes
        for number in range(50):
            await reign.put(f"/old/{number}", bytes(100))
        cut(network)
        async with network.follower("b2") as store, trio.open_nursery() as nursery:
            watched = Watched()
            await nursery.start(watched.follow, store)
            with trio.fail_after(60):
                await story(reign, store)
                await reign.put("/last", b"")
                await store.barrier()
                await trio.testing.wait_all_tasks_blocked()
            assert watched.values == {record.key: record.value for record in await reign.scan(*EVERYTHING)}
            assert watched.values == {record.key: record.value for record in await store.scan(*EVERYTHING)}
            assert len(reign.image.sessions) == 1, "the link's own"
            nursery.cancel_scope.cancel()
    return network


@pytest.mark.parametrize("ring_bytes", [1 << 20, 2000])
@pytest.mark.parametrize("direction", ["to_follower", "to_controller"])
async def test_a_link_is_cut_at_every_frame(
    direction: str, ring_bytes: int, autojump_clock: trio.testing.MockClock
) -> None:
    """C5, M22: each write is made once and answered, and no watch breaks, misses or repeats a change."""

    def line(network: LinkNetwork) -> Line:
        found = getattr(network.lines_of("b2"), direction)
        assert isinstance(found, Line)
        return found

    frames = len(line(await run(lambda network: None, ring_bytes)).seen)
    assert frames > 15
    for number in range(frames):

        def cut(network: LinkNetwork, number: int = number) -> None:
            line(network).cuts.append(number)

        network = await run(cut, ring_bytes)
        assert not line(network).cuts, "it was cut"


@every_schedule(
    cuts=st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=6), ring_bytes=st.sampled_from([2000, 1 << 20])
)
async def test_a_link_is_cut_again_and_again(
    cuts: list[tuple[bool, int]], ring_bytes: int, autojump_clock: trio.testing.MockClock
) -> None:
    """C5, M22: the same with several cuts, in any order of tasks."""

    def cut(network: LinkNetwork) -> None:
        lines = network.lines_of("b2")
        for is_down, after in cuts:
            (lines.to_follower if is_down else lines.to_controller).cuts.append(after)

    await run(cut, ring_bytes)
