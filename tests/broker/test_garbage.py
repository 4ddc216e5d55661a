"""The garbage collector: garbage is freed eventually, and no full collection runs at a bad moment."""

import gc
import weakref
from collections.abc import AsyncIterator, Iterator

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker import garbage
from broker.garbage import NEVER, YOUNG_LOOKS, YOUNG_MAX, GarbageCollector


class Cycle:
    """Garbage that only a collector finds, once nothing refers to it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    assert gc.get_threshold() == before


@pytest.fixture
async def collector() -> AsyncIterator[GarbageCollector]:
    made = GarbageCollector()
    made.look_at_all()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run)
        await wait_all_tasks_blocked()
        yield made
        nursery.cancel_scope.cancel()
    assert made.collected not in gc.callbacks


async def test_no_full_collection_comes_by_itself(collector: GarbageCollector) -> None:
    """E7: the process's own settings are restored (see the fixture)."""
    assert gc.get_threshold() == (YOUNG_MAX, YOUNG_LOOKS, NEVER)
    before = gc.get_stats()[2]["collections"]
    kept = [[number] for number in range(300_000)]
    assert len(kept) == 300_000
    assert gc.get_stats()[2]["collections"] == before


async def test_young_garbage_goes(collector: GarbageCollector) -> None:
    """E16: a cycle is found among the newest objects."""
    gone = weakref.ref(Cycle())
    kept: list[list[int]] = []
    while gone() is not None:
        assert len(kept) < 10 * YOUNG_MAX
        kept.append([0])


async def test_what_survived_is_not_visited_again(collector: GarbageCollector) -> None:
    """E7: a collection's time does not depend on the process's live objects."""
    kept = [Cycle() for _ in range(20 * YOUNG_MAX)]
    still_visited = {id(found) for found in gc.get_objects()}
    assert sum(id(cycle) in still_visited for cycle in kept) <= 3 * YOUNG_MAX


async def test_what_was_set_aside_goes_once_as_much_has_come_as_was_alive(
    monkeypatch: pytest.MonkeyPatch, collector: GarbageCollector
) -> None:
    """E16: memory is bounded by the live objects, and full collections are rare."""
    monkeypatch.setattr(garbage, "LOOK_AT_ALL_MIN", 100_000)
    looks: list[int] = []
    look = collector.look_at_all
    kept: list[list[int]] = []

    def noted() -> None:
        looks.append(len(kept))
        look()

    monkeypatch.setattr(collector, "look_at_all", noted)
    enough = max(collector._alive, 100_000)
    cycle = Cycle()
    gone = weakref.ref(cycle)
    kept += [[number] for number in range(5 * YOUNG_MAX)]
    del cycle
    while gone() is not None:
        assert len(kept) < 2 * enough, "everything is looked at when twice as much is there"
        kept += [[number] for number in range(YOUNG_MAX)]
        await trio.lowlevel.checkpoint()
    assert len(looks) == 1
    assert looks[0] >= enough * 0.9, "and not before"


async def test_a_collection_in_another_thread_wakes_the_duty(
    monkeypatch: pytest.MonkeyPatch, collector: GarbageCollector
) -> None:
    """E16: Python collects in any thread that makes objects, including the disk's threads."""
    looked = trio.Event()
    monkeypatch.setattr(garbage, "LOOK_AT_ALL_MIN", 1)
    monkeypatch.setattr(collector, "look_at_all", looked.set)
    monkeypatch.setattr(collector, "_alive", -(2**40))
    await trio.to_thread.run_sync(gc.collect, 1)
    await looked.wait()
