"""The console's streams: pushed and not polled, joined when they come fast, bounded, and gone when they are left."""

from contextlib import AsyncExitStack
from math import inf

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.console.feed import HEARD_AT_ONCE, follow
from broker.console.routes import EVENTS, LOCAL, STREAMS_MAX
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Change, Delete, Put
from storage.signal import Signal
from tests.support.console import served, watching
from tests.support.http import request
from tests.support.idle import TaskSteps
from tests.support.rooms import TOPIC, publish

VIEWS = [
    "overview",
    "topics",
    f"topic&name={TOPIC}",
    "subscriptions",
    "transactions",
    "groups",
    "group&name=g",
    "cluster",
]


async def test_a_publish_is_pushed_with_its_counters() -> None:
    async with served("one") as ((broker, address),), watching(address, "view=overview") as frames:
        await frames.until(lambda parts: "told" in parts)
        assert frames.parts["broker"] == "one"
        await broker.controller.create_topic(TOPIC, 1, {})
        await frames.until(lambda parts: parts["topics"]["scalable"] == 1)
        segment = await broker.topics.get(await broker.segment(TOPIC, 0))
        await publish(segment, b"a")
        await frames.until(lambda parts: parts["told"]["one"]["counters"]["topics"] == 1)


@pytest.mark.parametrize("view", [*VIEWS, "metadata&prefix=/", "settings"])
async def test_an_open_view_of_an_idle_broker_costs_nothing(view: str) -> None:
    """The console is told by the same signals and watches as the broker's own tasks, so it has no timer of its own."""
    async with served("one") as ((broker, address),), watching(address, f"view={view}") as frames:
        await broker.controller.create_topic(TOPIC, 1, {})
        await frames.next()
        await wait_all_tasks_blocked()
        with TaskSteps() as steps, trio.CancelScope(deadline=trio.current_time() + 0.05):
            await trio.sleep_forever()
        steps.clear()
        assert steps.counts == {}


async def test_very_many_records_are_heard_in_small_steps() -> None:
    """E7: a view begins with all there are, and other tasks run in between. Each comes once."""
    store, names = MemoryStore(), [f"/a/{number:04}" for number in range(5 * HEARD_AT_ONCE)]
    await store.commit([Put(name, b"x") for name in names])
    others, heard, turns = 0, list[str](), list[int]()

    def hear(change: Change) -> None:
        assert len(change.records) <= HEARD_AT_ONCE
        heard.extend([*change.deleted, *(record.key for record in change.records)])
        turns.append(others)

    async def other() -> None:
        nonlocal others
        while True:
            others += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await nursery.start(follow, store, [("/a/", hear)], Signal())
        assert heard == names
        # Each step of both tasks is in one turn of the event loop, in any order.
        assert len(turns) == 5
        assert turns[-1] - turns[0] >= len(turns) - 2
        heard.clear()
        await store.commit([Delete(name) for name in names[:2]] + [Put(name, b"y") for name in names[2:]])
        while len(heard) < len(names):
            await trio.lowlevel.checkpoint()
        assert heard == names
        nursery.cancel_scope.cancel()


async def test_no_view_has_a_timer() -> None:
    """A cluster that rests has no deadline at all, with a view of it open too. So nothing can wake up by itself.

    The view that is open gets no bytes, and the other broker's stream ends with it.
    """
    async with served("one", "two") as ((broker, address), _other):
        await broker.controller.create_topic(TOPIC, 1, {})
        await wait_all_tasks_blocked()
        while (seconds := trio.lowlevel.current_statistics().seconds_to_next_deadline) != inf:
            # What the change began ends in about a second.
            await trio.sleep(max(0.0, seconds))
            await wait_all_tasks_blocked()
        at_rest = trio.lowlevel.current_statistics().tasks_living
        for view in [*VIEWS, "metadata&prefix=/", "settings"]:
            async with watching(address, f"view={view}") as frames:
                await frames.settle()
                statistics = trio.lowlevel.current_statistics()
                assert statistics.seconds_to_next_deadline == inf, view
                assert statistics.tasks_living > at_rest, view
                with trio.move_on_after(0.02) as quiet:
                    await frames.next()
                assert quiet.cancelled_caught, f"{view} sent something about a cluster that rests"
            while trio.lowlevel.current_statistics().tasks_living > at_rest:
                await wait_all_tasks_blocked(0.01)
            assert trio.lowlevel.current_statistics().seconds_to_next_deadline == inf, view


@pytest.mark.parametrize("view", [*VIEWS, "metadata&prefix=/", "settings"])
async def test_a_closed_view_leaves_nothing(view: str) -> None:
    async with served("one") as ((broker, address),):
        watches = broker.metadata.statistics().watches
        async with watching(address, f"view={view}") as frames:
            await frames.next()
        await wait_all_tasks_blocked()
        assert broker.metadata.statistics().watches == watches
        assert broker.live.changes.is_quiet


async def test_streams_are_bounded() -> None:
    async with served("one") as ((_broker, address),), AsyncExitStack() as stack:
        for _ in range(STREAMS_MAX):
            frames = await stack.enter_async_context(watching(address, "view=settings"))
            await frames.next()
        refused = await request(address, "GET", f"{EVENTS}?view=settings")
        assert refused.status == 503
        assert "Close one" in refused.reason


@pytest.mark.parametrize(
    ("target", "status", "reason"),
    [
        (EVENTS, 412, "view must be one of overview"),
        (f"{EVENTS}?view=nothing", 412, "view must be one of overview"),
        (f"{EVENTS}?view=topics&sort=size", 412, "sort must be name or load"),
        (f"{EVENTS}?view=topics&first=x", 412, "first must be a whole number"),
        (f"{EVENTS}?view=topic&name=", 412, "not a valid name"),
        (f"{LOCAL}?of=everything", 412, "must be broker, subscriptions"),
        (f"{LOCAL}?of=logs", 412, "logs"),
    ],
)
async def test_a_wrong_wish_is_refused_with_a_reason(target: str, status: int, reason: str) -> None:
    async with served("one") as ((_broker, address),):
        answer = await request(address, "GET", target)
        assert answer.status == status
        assert reason in answer.reason


async def test_other_sites_get_no_stream() -> None:
    """A page whose own name resolves to the broker's address is refused, here as everywhere."""
    async with served("one") as ((_broker, address),):
        for target in ("/", f"{EVENTS}?view=settings"):
            assert (await request(address, "GET", target, headers={"host": "evil.example"})).status == 403
