"""What clients may make the broker hold: the pure bookkeeping, and a flood over real connections."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.budgets import FRAME_SECONDS_MAX, SHARE_BYTES, Budgets, ReceiveBudget, ReceiveShare, SendBudget
from broker.outbox import BYTES_HIGH, Outbox
from tests.support.cancellation import cancel_at_each_step

LARGE = 10 * SHARE_BYTES


class Taking:
    """Records who is granted how much, in order."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.granted: list[str] = []
        self._nursery = nursery

    async def start(self, name: str, share: ReceiveShare, size: int) -> None:
        async def take() -> None:
            await share.take(size)
            self.granted.append(name)

        self._nursery.start_soon(take)
        await wait_all_tasks_blocked()


async def test_at_the_bound_those_who_hold_much_wait_in_order_and_others_go_on(nursery: trio.Nursery) -> None:
    """E9: the flood gets back-pressure, the others do not."""
    budget = ReceiveBudget(2 * LARGE)
    flood, other, quiet = budget.share(), budget.share(), budget.share()
    taking = Taking(nursery)
    await taking.start("flood", flood, 2 * LARGE)
    await taking.start("flood again", flood, LARGE)
    await taking.start("other", other, LARGE)
    assert taking.granted == ["flood"]
    await taking.start("quiet", quiet, SHARE_BYTES)
    assert taking.granted == ["flood", "quiet"]
    assert budget.waiting == 2
    flood.give(LARGE)
    quiet.give(SHARE_BYTES)
    await wait_all_tasks_blocked()
    assert taking.granted == ["flood", "quiet", "flood again"]
    flood.close()
    await wait_all_tasks_blocked()
    assert taking.granted[-1] == "other"
    assert budget.held_bytes == LARGE


async def test_many_who_hold_little_starve_no_large_frame(nursery: trio.Nursery) -> None:
    """E9: together they always hold more than the budget, each for a moment, and more arrive than leave."""
    budget = ReceiveBudget(2 * LARGE)
    taking = Taking(nursery)
    many = [budget.share() for _ in range(100)]
    for share in many:
        await share.take(SHARE_BYTES)
    await taking.start("large", budget.share(), LARGE)
    flood = budget.share()
    await taking.start("flood", flood, LARGE)
    await taking.start("next", budget.share(), LARGE)
    for share in many:
        share.give(SHARE_BYTES)
        await share.take(SHARE_BYTES)
        await wait_all_tasks_blocked()
    assert taking.granted == ["large", "flood"], "first come, first served"
    flood.give(LARGE)
    await wait_all_tasks_blocked()
    assert taking.granted == ["large", "flood", "next"]
    assert budget.held_bytes == 100 * SHARE_BYTES + 2 * LARGE


async def test_what_is_larger_than_the_budget_goes_alone() -> None:
    budget = ReceiveBudget(SHARE_BYTES)
    share = budget.share()
    with trio.fail_after(1):
        await share.take(LARGE)
    share.give(LARGE)
    assert budget.held_bytes == 0


async def test_a_client_that_stops_in_its_frame_is_disconnected_when_others_wait(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """E9: parts of frames that never end must not occupy the broker's memory."""
    budget = ReceiveBudget(2 * LARGE)
    stopped = [budget.share(), budget.share()]
    for share in stopped:
        await share.reserve(LARGE)
    await trio.sleep(100 * FRAME_SECONDS_MAX)
    assert not any(share.is_overdue for share in stopped), "nobody waits"
    waiting = budget.share()
    nursery.start_soon(waiting.reserve, LARGE)
    await trio.sleep(1)
    assert all(share.is_overdue and share.receiving.cancel_called for share in stopped)
    for share in stopped:
        share.close()
    await wait_all_tasks_blocked()
    assert waiting.held_bytes == LARGE


async def test_a_frame_that_is_completed_in_time_is_not_disturbed(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    budget = ReceiveBudget(LARGE)
    slow, waiting = budget.share(), budget.share()
    await slow.reserve(LARGE)
    nursery.start_soon(waiting.reserve, LARGE)
    await trio.sleep(FRAME_SECONDS_MAX - 1)
    slow.arrived()
    await slow.take(LARGE - 100)
    slow.complete()
    await trio.sleep(10 * FRAME_SECONDS_MAX)
    assert not slow.is_overdue
    assert (slow.held_bytes, waiting.held_bytes) == (LARGE - 100, 0)
    slow.give(LARGE - 100)
    await wait_all_tasks_blocked()
    assert (slow.held_bytes, waiting.held_bytes, budget.held_bytes) == (0, LARGE, LARGE)


async def test_a_reservation_holds_for_one_frame() -> None:
    budget = ReceiveBudget(10 * LARGE)
    share = budget.share()
    for _ in range(3):
        await share.reserve(LARGE)
        await share.reserve(LARGE)
        assert share.held_bytes == LARGE
        await share.take(LARGE)
        share.complete()
        share.give(LARGE)
        assert budget.held_bytes == 0
    await share.reserve(LARGE)
    share.complete()
    assert budget.held_bytes == 0, "of a frame that was no message"
    await share.reserve(SHARE_BYTES)
    assert budget.held_bytes == 0, "small frames reserve nothing"


async def test_who_gives_up_waiting_holds_nothing_and_keeps_nobody_waiting() -> None:
    """E9: it is cancelled at every step."""
    budget = ReceiveBudget(LARGE)
    share, other = budget.share(), budget.share()

    async def story() -> None:
        await share.take(LARGE)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other.take, LARGE)
            await wait_all_tasks_blocked()
            share.give(LARGE)

    async def check() -> None:
        assert budget.waiting == 0
        assert budget.held_bytes == share.held_bytes + other.held_bytes
        share.give(share.held_bytes)
        other.give(other.held_bytes)
        with trio.fail_after(1):
            await budget.share().take(0)
        assert budget.held_bytes == 0

    assert await cancel_at_each_step(story, check) > 1


async def test_who_is_granted_while_it_gives_up_gives_it_back(nursery: trio.Nursery) -> None:
    """E9: the grant comes in the step after the cancellation, before the task continues."""
    budget = ReceiveBudget(LARGE)
    share, other = budget.share(), budget.share()
    await share.take(LARGE)
    with trio.CancelScope() as scope:

        async def give_up() -> None:
            await wait_all_tasks_blocked()
            scope.cancel()
            share.give(LARGE)
            assert other.held_bytes == LARGE

        nursery.start_soon(give_up)
        await other.take(LARGE)
    assert scope.cancelled_caught
    assert (other.held_bytes, budget.held_bytes) == (0, 0)


async def test_who_gives_up_lets_those_behind_it_go_on(nursery: trio.Nursery) -> None:
    """E9: nobody overtakes the first in the queue, but when it leaves, the next one may fit."""
    budget = ReceiveBudget(LARGE)
    held, first, second = budget.share(), budget.share(), budget.share()
    taking = Taking(nursery)
    await taking.start("held", held, LARGE // 2)
    with trio.CancelScope() as scope:

        async def give_up() -> None:
            await wait_all_tasks_blocked()
            await taking.start("second", second, LARGE // 2)
            assert taking.granted == ["held"]
            scope.cancel()

        nursery.start_soon(give_up)
        await first.take(LARGE)
    await wait_all_tasks_blocked()
    assert taking.granted == ["held", "second"]
    assert (first.held_bytes, budget.held_bytes) == (0, LARGE)


def test_while_the_budget_is_short_an_outbox_takes_its_share_only() -> None:
    """E9: clients that do not read cannot take all memory; a client that reads continues."""
    budget = SendBudget(2 * BYTES_HIGH)
    slow = [Outbox(budget) for _ in range(3)]
    for outbox in slow:
        outbox.put(bytes(BYTES_HIGH - 1))
    assert budget.is_short
    reading = Outbox(budget)
    welcome = []
    for size in (SHARE_BYTES - 1, 1):
        reading.put(bytes(size))
        welcome.append(reading.writable)
    assert welcome == [True, False]
    held = budget.held_bytes
    reading.close()
    reading.put(b"too late")
    assert budget.held_bytes == held - SHARE_BYTES
    for outbox in slow:
        outbox.close()
    assert budget.held_bytes == 0


@pytest.mark.parametrize("bytes_max", [1, 1 << 20])
def test_half_of_the_memory_is_for_each_direction(bytes_max: int) -> None:
    budgets = Budgets.of(bytes_max, 5)
    assert budgets.connections_max == 5
    assert budgets.sending.is_short is (bytes_max == 1)
