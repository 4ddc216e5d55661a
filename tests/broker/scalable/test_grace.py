"""Grace periods: a consumer that returns in time keeps its place, and no timer runs for connected ones."""

from collections.abc import Callable

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.scalable.grace import GracePeriods


async def test_each_runs_out_by_itself(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    expired: list[tuple[str, float]] = []
    start = trio.current_time()
    graces = GracePeriods[str](60, lambda key: expired.append((key, trio.current_time() - start)), nursery)
    graces.begin("a")
    await trio.sleep(10)
    graces.begin("b")
    graces.begin("c")
    await trio.sleep(10)
    graces.end("b")
    graces.begin("a")
    await trio.sleep(1000)
    assert [(key, round(seconds)) for key, seconds in expired] == [("c", 70), ("a", 80)]
    assert not graces


async def test_nothing_runs_while_everybody_is_here(nursery: trio.Nursery) -> None:
    graces = GracePeriods[str](60, lambda key: None, nursery)
    for _ in range(2):
        assert not nursery.child_tasks
        graces.begin("a")
        graces.end("a")
        graces.end("a")
        await wait_all_tasks_blocked()
    assert not nursery.child_tasks


async def test_who_expires_may_begin_and_end_others(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    expired: list[str] = []
    graces: GracePeriods[str]

    def note(key: str) -> None:
        expired.append(key)
        graces.end("b")
        if len(expired) < 3:
            graces.begin(key)

    act: Callable[[str], None] = note
    graces = GracePeriods[str](60, act, nursery)
    graces.begin("a")
    graces.begin("b")
    await trio.sleep(1000)
    assert expired == ["a", "a", "a"]
