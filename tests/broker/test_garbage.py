"""The garbage collector's duty: what is garbage goes in the end, and nothing looks at everything at a bad moment."""

import gc
import weakref
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from broker import garbage
from broker.garbage import GarbageDuty


class Cycle:
    """Garbage that only a collector finds, once nobody holds it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    assert gc.get_threshold() == before


@pytest.fixture
def duty(monkeypatch: pytest.MonkeyPatch) -> GarbageDuty:
    made = GarbageDuty()
    made.look_at_all()
    # As if the process were small: this one holds what all tests imported.
    monkeypatch.setattr(garbage, "YOUNG_MAX", 2_000)
    monkeypatch.setattr(garbage, "YOUNG_LOOKS", 1)
    return made


def test_a_portion_takes_what_came_and_went(duty: GarbageDuty) -> None:
    """E7, E16: cycles among what is young."""
    cycle = Cycle()
    gone = weakref.ref(cycle)
    del cycle
    duty.take_portion()
    assert gone() is None


def test_what_survived_is_not_visited_again(duty: GarbageDuty) -> None:
    """E7: a portion's time does not depend on what the process holds."""
    kept = [Cycle() for _ in range(1000)]
    duty.take_portion()
    assert gc.get_count()[0] < 1000
    visited = {id(found) for found in gc.get_objects()}
    assert not visited & {id(cycle) for cycle in kept}


def test_what_was_set_aside_goes_once_as_much_has_come_as_was_alive(
    monkeypatch: pytest.MonkeyPatch, duty: GarbageDuty
) -> None:
    """E16: memory is bounded by what is live."""
    monkeypatch.setattr(garbage, "LOOK_AT_ALL_MIN", 10_000)
    duty._alive = gc.get_freeze_count()
    cycle = Cycle()
    gone = weakref.ref(cycle)
    duty.take_portion()
    del cycle
    kept: list[list[int]] = []
    looked: list[int] = []
    look = duty.look_at_all

    def noted() -> None:
        looked.append(len(kept))
        look()

    monkeypatch.setattr(duty, "look_at_all", noted)
    enough = duty._alive
    while gone() is not None:
        assert len(kept) < 2 * enough, "everything is looked at when twice as much is there"
        kept += [[number] for number in range(2_000)]
        duty.take_portion()
    assert len(looked) == 1
    assert looked[0] >= enough * 0.9, "and not before"


async def test_it_works_by_itself(monkeypatch: pytest.MonkeyPatch, duty: GarbageDuty) -> None:
    """E7: the collector calls for it, and never makes a full collection itself."""
    taken = trio.Event()
    monkeypatch.setattr(duty, "take_portion", taken.set)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(duty.run)
        await trio.testing.wait_all_tasks_blocked()
        assert gc.get_threshold() == (2_000, 1, garbage.NEVER)
        kept = [[number] for number in range(10_000)]
        await taken.wait()
        nursery.cancel_scope.cancel()
    assert len(kept) == 10_000
    assert duty._collected not in gc.callbacks
