"""Which broker does a topic's background work."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.cluster.members import DRAINING
from tests.support.rooms import TOPIC
from tests.support.several_rooms import Brokers, several


def turn(brokers: Brokers) -> list[str]:
    return [name for name, broker in brokers.living.items() if broker.turns.is_mine(TOPIC)]


async def test_one_broker_does_the_work_and_the_controller_before_all_others(autojump_clock: MockClock) -> None:
    """C16: all agree without asking each other."""
    async with several("one", "two", "three") as brokers:
        await wait_all_tasks_blocked()
        (first,) = turn(brokers)
        other = next(name for name in brokers.living if name != first)
        await brokers[other].elections.elect(TOPIC)
        await wait_all_tasks_blocked()
        assert turn(brokers) == [other]
        await brokers[other].elections.resign(TOPIC)
        await wait_all_tasks_blocked()
        assert turn(brokers) == [first]


@pytest.mark.parametrize("how", ["dies", "drains", "is elected"])
async def test_whoever_waits_for_its_turn_learns_of_it(how: str, autojump_clock: MockClock) -> None:
    """C16: a broker dies, drains, or becomes the controller. It waits without running."""
    async with several("one", "two") as brokers, trio.open_nursery() as nursery:
        await wait_all_tasks_blocked()
        (first,) = turn(brokers)
        other = next(name for name in brokers.living if name != first)
        done = trio.Event()

        async def wait() -> None:
            await brokers[other].turns.wait_mine(TOPIC)
            done.set()

        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert not done.is_set()
        if how == "dies":
            await brokers.kill(first)
        elif how == "drains":
            await brokers.shared.put(DRAINING + first, b"{}")
        else:
            await brokers[other].elections.elect(TOPIC)
        with trio.fail_after(60):
            await done.wait()


async def test_if_all_drain_the_work_is_done_all_the_same(autojump_clock: MockClock) -> None:
    """C16: otherwise a split that is open when a whole cluster drains would keep its producers waiting."""
    async with several("one", "two") as brokers:
        for name in brokers.living:
            await brokers.shared.put(DRAINING + name, b"{}")
        await wait_all_tasks_blocked()
        assert len(turn(brokers)) == 1
