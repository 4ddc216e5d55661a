"""Questions how far the log is: who waits for which, and for how long."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from storage.metadata.cluster.barriers import ANSWER_SECONDS_MAX, Barriers
from storage.metadata.cluster.messages import Barrier
from storage.metadata.store import StoreEnded, StoreUnavailable


class Asking:
    """Barriers with a link, and callers that wait."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.barriers = Barriers()
        self.sent: list[int] = []
        self.passed: list[str] = []
        self._nursery = nursery
        self._link = trio.CancelScope()

    async def call(self, name: str) -> None:
        """Let a caller wait."""

        async def wait() -> None:
            await self.barriers.passed()
            self.passed.append(name)

        self._nursery.start_soon(wait)
        await wait_all_tasks_blocked()

    async def link(self) -> None:
        """Begin a new link in place of the present one."""
        self._link.cancel()
        await wait_all_tasks_blocked()
        self._link = trio.CancelScope()
        self._nursery.start_soon(self._ask)
        await wait_all_tasks_blocked()

    async def _ask(self) -> None:
        async def send(barrier: Barrier) -> None:
            self.sent.append(barrier.id)
            await trio.lowlevel.checkpoint()

        with self._link:
            await self.barriers.ask(send)


async def test_an_answer_waits_for_the_image(autojump_clock: MockClock) -> None:
    """M2, C6: the controller may answer before the batches that it has decided are pushed and shown."""
    async with trio.open_nursery() as nursery:
        asking = Asking(nursery)
        await asking.link()
        await asking.call("a")
        asking.barriers.shown(4)
        asking.barriers.answered(1, 5)
        await wait_all_tasks_blocked()
        assert asking.passed == []
        asking.barriers.shown(5)
        await wait_all_tasks_blocked()
        assert asking.passed == ["a"]
        nursery.cancel_scope.cancel()


async def test_later_callers_share_the_next_question(autojump_clock: MockClock) -> None:
    """M2, C20: an answer covers only what was decided before its question was sent."""
    async with trio.open_nursery() as nursery:
        asking = Asking(nursery)
        await asking.link()
        for name in "abc":
            await asking.call(name)
        assert asking.sent == [1]
        asking.barriers.answered(1, 0)
        await wait_all_tasks_blocked()
        assert (asking.passed, asking.sent) == (["a"], [1, 2])
        asking.barriers.answered(2, 0)
        await wait_all_tasks_blocked()
        assert sorted(asking.passed) == ["a", "b", "c"]
        nursery.cancel_scope.cancel()


async def test_a_question_is_asked_again_on_the_next_link(autojump_clock: MockClock) -> None:
    """C5: a lost answer costs a repeat. What comes late for the earlier one is ignored."""
    async with trio.open_nursery() as nursery:
        asking = Asking(nursery)
        await asking.call("a")
        await asking.link()
        await asking.link()
        assert asking.sent == [1, 2]
        asking.barriers.answered(1, 0)
        await wait_all_tasks_blocked()
        assert asking.passed == []
        asking.barriers.answered(2, 0)
        await wait_all_tasks_blocked()
        assert asking.passed == ["a"]
        asking.barriers.answered(2, 9)
        nursery.cancel_scope.cancel()


async def test_nobody_answers(autojump_clock: MockClock) -> None:
    """E5: each caller waits for its own time, and learns of the end of the store at once."""
    barriers = Barriers()
    for _ in range(2):
        asked = trio.current_time()
        with pytest.raises(StoreUnavailable):
            await barriers.passed()
        assert trio.current_time() - asked == pytest.approx(ANSWER_SECONDS_MAX)
    with pytest.RaisesGroup(StoreEnded):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(barriers.passed)
            await wait_all_tasks_blocked()
            barriers.close(StoreEnded(OSError("the disk failed")))
    with pytest.raises(StoreEnded):
        await barriers.passed()
