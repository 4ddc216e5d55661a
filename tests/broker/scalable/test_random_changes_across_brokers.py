"""A split while subscriptions come and go at two brokers, under many orders of the scheduler."""

from contextlib import suppress
from typing import Final

import trio
from hypothesis import strategies as st
from trio.testing import MockClock

from broker.layouts.parts import StartPosition
from storage.errors import ExpectedError
from tests.broker.scalable.test_changes_across_brokers import (
    EARLY,
    LATE,
    STREAM,
    check_whole,
    leftovers,
    settled,
    spread,
)
from tests.support.rooms import TOPIC, Rooms
from tests.support.schedules import every_schedule
from tests.support.several_rooms import several

Step = tuple[bool, str, StartPosition]
"""Whether the subscription is created or deleted, its name, and where it begins."""

EXAMPLES: Final = 15
"""Each starts three brokers, which takes a third of a second, or more on a machine that is busy."""

steps = st.lists(st.tuples(st.booleans(), st.sampled_from(["a", "b"]), st.sampled_from([EARLY, LATE])), max_size=5)


@every_schedule(examples_max=EXAMPLES, at_two=steps, at_three=steps)
async def test_subscriptions_come_and_go_during_a_split(
    at_two: list[Step], at_three: list[Step], autojump_clock: MockClock
) -> None:
    """C14, D10, D16: each living subscription has a cursor on each segment, and no other cursor is left."""

    async def go(broker: Rooms, wanted: list[Step]) -> None:
        for is_new, name, start in wanted:
            with suppress(ExpectedError):
                if is_new:
                    await broker.controller.subscriptions.add(TOPIC, name, STREAM, start)
                else:
                    await broker.controller.subscriptions.delete(TOPIC, name, force=True)

    async with several("one", "two", "three") as brokers:
        await spread(brokers, "two", "three")
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(brokers["one"].controller.split, TOPIC, 0)
                nursery.start_soon(go, brokers["two"], at_two)
                nursery.start_soon(go, brokers["three"], at_three)
        await settled(brokers)
        left = set((await brokers["one"].layouts.get(TOPIC)).subscriptions)
        layout = await check_whole(brokers, left, [b"0", b"1"])
        cursors = [key for key in await leftovers(brokers.shared) if key.startswith("/cursors/")]
        assert len(cursors) == len(layout.segments) * len(left)
