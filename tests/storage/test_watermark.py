"""A watermark wakes exactly the tasks whose position it has reached, and forgets tasks that left."""

import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from storage.position import EARLIEST, Position
from storage.watermark import Watermark


def at(entry: int) -> Position:
    return Position(1, entry)


class Waiters:
    """Tasks that wait for positions; each may be cancelled."""

    def __init__(self, watermark: Watermark, nursery: trio.Nursery) -> None:
        self.reached: list[int] = []
        self._watermark = watermark
        self._nursery = nursery

    def start(self, entry: int) -> trio.CancelScope:
        scope = trio.CancelScope()

        async def wait() -> None:
            with scope:
                await self._watermark.wait_for(at(entry))
                self.reached.append(entry)

        self._nursery.start_soon(wait)
        return scope


@example(entries=[1, 10, 2], gone={0}, rises=[2])
@given(
    entries=st.lists(st.integers(0, 20), max_size=12),
    gone=st.sets(st.integers(0, 11)),
    rises=st.lists(st.integers(0, 21)),
)
def test_those_who_wait_are_woken_and_no_others(entries: list[int], gone: set[int], rises: list[int]) -> None:
    """T16: in any order of positions, whoever gave up in between."""

    async def story() -> None:
        watermark = Watermark(EARLIEST)
        async with trio.open_nursery() as nursery:
            waiters = Waiters(watermark, nursery)
            scopes = []
            for entry in entries:
                scopes.append(waiters.start(entry))
                await wait_all_tasks_blocked()
            for number, scope in enumerate(scopes):
                if number in gone:
                    scope.cancel()
            await wait_all_tasks_blocked()
            waiting = [entry for number, entry in enumerate(entries) if number not in gone]
            for rise in rises:
                watermark.raise_to(at(rise))
                await wait_all_tasks_blocked()
                highest = watermark.value.entry
                assert sorted(waiters.reached) == sorted(entry for entry in waiting if entry <= highest)
            nursery.cancel_scope.cancel()

    trio.run(story)


async def test_who_gives_up_is_forgotten() -> None:
    """E16: a watermark that never rises keeps nothing of tasks that no longer wait."""
    watermark = Watermark(EARLIEST)
    async with trio.open_nursery() as nursery:
        waiters = Waiters(watermark, nursery)
        for _ in range(10):
            scope = waiters.start(1)
            await wait_all_tasks_blocked()
            scope.cancel()
            await wait_all_tasks_blocked()
    assert watermark._waiting == []


async def test_a_failure_is_told_to_all_who_wait_now_or_later() -> None:
    """What was reached before stays reached. Derived watermarks fail, too. Each task gets its own error."""
    watermark = Watermark(at(3))
    derived = watermark.derive(lambda position: position)
    told: list[BaseException] = []

    async def wait(mark: Watermark) -> None:
        with pytest.raises(ValueError, match="ended") as caught:
            await mark.wait_for(at(4))
        told.append(caught.value)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, watermark)
        nursery.start_soon(wait, derived)
        await wait_all_tasks_blocked()
        cause = ValueError("ended")
        watermark.fail(cause)
    await wait(watermark)
    await watermark.wait_for(at(3))
    assert [str(error) for error in told] == ["ended"] * 3
    assert len({id(error) for error in (cause, *told)}) == 4
    assert cause.__traceback__ is None


async def test_a_released_watermark_rises_no_more() -> None:
    """Another one that was derived from the same watermark still does."""
    watermark = Watermark(at(3))
    released, kept = (watermark.derive(lambda position: position) for _ in range(2))
    watermark.release(released)
    watermark.raise_to(at(4))
    assert (released.value, kept.value) == (at(3), at(4))
