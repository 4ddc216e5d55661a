"""Topics that split and merge by themselves: the causes, the rate, and that waiting costs nothing."""

from collections.abc import AsyncIterator

import orjson
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.errors import NotSupported
from broker.layouts.autoscale_policy import AutoScaleOverride
from broker.layouts.layout import Layout
from broker.layouts.parts import StartPosition, SubscriptionKind
from broker.layouts.registrations import GroupId
from broker.names import TopicName
from broker.scalable import autoscaler
from broker.scalable.autoscaler import AutoScaler
from broker.traffic import LOAD_PREFIX, load_key
from storage.clock import WallClock
from storage.metadata.memory import MemoryStore
from storage.metadata.store import StoreUnavailable, starting_with
from tests.support.disk import SimulatedFiles
from tests.support.group_members import QuietMember
from tests.support.idle import TaskSteps
from tests.support.rooms import TOPIC, Rooms, moving_clock, rooms

NAME = "s"


@pytest.fixture
def clock(mock_clock: MockClock) -> list[WallClock]:
    return []


@pytest.fixture
async def broker(mock_clock: MockClock, clock: list[WallClock], nursery: trio.Nursery) -> AsyncIterator[Rooms]:
    clock.append(moving_clock())
    async with rooms(MemoryStore(), SimulatedFiles(seed=5), clock=clock[0]) as made:
        nursery.start_soon(made.auto_scaler.run)
        await wait_all_tasks_blocked()
        yield made


class Member(QuietMember):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.segments: frozenset[int] = frozenset()

    def assigned(self, layout: Layout, segments: frozenset[int]) -> None:
        self.segments = segments


async def create(broker: Rooms, segments: int) -> None:
    await broker.controller.create_topic(TOPIC, segments, {})
    await broker.controller.subscriptions.add(TOPIC, NAME, SubscriptionKind.STREAM, StartPosition.EARLIEST)


async def active(broker: Rooms) -> list[int]:
    return [segment.id for segment in (await broker.layouts.get(TOPIC)).active()]


async def report(broker: Rooms, segment_id: int, clock: list[WallClock], msg_rate_in: float = 0) -> None:
    """Report the load as the segment's owner does."""
    rates = {"msgRateIn": msg_rate_in, "bytesRateIn": 0, "msgRateOut": 0, "bytesRateOut": 0, "sinceMs": clock[0]()}
    await broker.metadata.put(load_key(await broker.segment(TOPIC, segment_id)), orjson.dumps(rates))
    await wait_all_tasks_blocked()


async def jump(mock_clock: MockClock, seconds: float) -> None:
    mock_clock.jump(seconds)
    await wait_all_tasks_blocked()


async def test_every_consumer_of_a_group_gets_a_segment(broker: Rooms, mock_clock: MockClock) -> None:
    """One split happens at once, the others as the cool-down allows. In the end each consumer has a segment."""
    await create(broker, 1)
    members = [Member(name) for name in "abcd"]
    for member in members:
        await broker.groups.join(GroupId(TOPIC, NAME), member)
    await wait_all_tasks_blocked()
    counts = [len(await active(broker))]
    for _ in range(4):
        await jump(mock_clock, 60)
        counts.append(len(await active(broker)))
    assert counts == [2, 3, 4, 4, 4]
    assert sorted(len(member.segments) for member in members) == [1, 1, 1, 1]


async def test_a_hot_segment_is_split_when_it_is_reported(
    broker: Rooms, mock_clock: MockClock, clock: list[WallClock]
) -> None:
    await create(broker, 2)
    await report(broker, 1, clock, 9_000)
    assert await active(broker) == [0, 1]
    await report(broker, 1, clock, 11_000)
    assert await active(broker) == [0, 2, 3]
    await report(broker, 3, clock, 11_000)
    assert await active(broker) == [0, 2, 3], "within the cool-down"
    await jump(mock_clock, 60)
    assert await active(broker) == [0, 2, 4, 5]


async def test_cold_segments_are_merged_one_pair_at_a_time(
    broker: Rooms, mock_clock: MockClock, clock: list[WallClock]
) -> None:
    """Merging stops when each of the topic's consumers has one segment."""
    await create(broker, 4)
    await broker.controller.set_auto_scale_override(TOPIC, AutoScaleOverride(min_segments=1))
    for name in "ab":
        await broker.groups.join(GroupId(TOPIC, NAME), Member(name))
    for segment_id in range(4):
        await report(broker, segment_id, clock, 10)
    counts = []
    for _ in range(8):
        await jump(mock_clock, 150)
        counts.append(len(await active(broker)))
    assert counts == [4, 3, 3, 2, 2, 2, 2, 2]


async def test_nothing_is_merged_below_what_was_asked_for(
    broker: Rooms, mock_clock: MockClock, clock: list[WallClock]
) -> None:
    """The number of segments at a topic's creation is a floor; only what splits added is merged."""
    await create(broker, 2)
    await broker.controller.split(TOPIC, 0)
    for segment_id in (1, 2, 3):
        await report(broker, segment_id, clock, 10)
    counts = []
    for _ in range(8):
        await jump(mock_clock, 150)
        counts.append(len(await active(broker)))
    assert counts[-1] == 2
    assert counts == sorted(counts, reverse=True)


async def test_segments_that_are_cold_but_not_steady_are_merged(
    broker: Rooms, mock_clock: MockClock, clock: list[WallClock]
) -> None:
    """They must only stay below the thresholds during the window, because light traffic arrives in bursts."""
    await create(broker, 2)
    await broker.controller.set_auto_scale_override(TOPIC, AutoScaleOverride(min_segments=1))
    await report(broker, 1, clock, 10)
    counts = []
    for minute in range(8):
        # Above the threshold in the second minute, so the window begins with the third.
        await report(broker, 0, clock, 1_500 if minute == 1 else 50 + 50 * (minute % 2))
        await jump(mock_clock, 60)
        counts.append(len(await active(broker)))
    assert counts == [2, 2, 2, 2, 2, 2, 1, 1]


async def test_waiting_for_a_moment_costs_nothing(broker: Rooms, mock_clock: MockClock, clock: list[WallClock]) -> None:
    """An idle broker does not wake up, neither for quiet topics nor for topics without a possible merge."""
    for number in range(20):
        await broker.controller.create_topic(TopicName.parse(f"topic://public/default/quiet-{number}"), 4, {})
    await create(broker, 1)
    await report(broker, 0, clock, 10)
    await wait_all_tasks_blocked()
    with TaskSteps() as steps:
        steps.clear()
        for _ in range(24):
            await jump(mock_clock, 3_600)
        assert {name: count for name, count in steps.counts.items() if "AutoScaler" in name} == {}
    names = await broker.layouts.names()
    assert {len((await broker.layouts.get(name)).active()) for name in names} == {1, 4}


async def test_a_topic_may_want_it_otherwise(broker: Rooms, clock: list[WallClock]) -> None:
    """The policy takes effect when it is set, not at the next report."""
    await create(broker, 1)
    await broker.controller.set_auto_scale_override(TOPIC, AutoScaleOverride(enabled=False))
    await report(broker, 0, clock, 20_000)
    assert await active(broker) == [0]
    await broker.controller.set_auto_scale_override(TOPIC, None)
    await wait_all_tasks_blocked()
    assert await active(broker) == [1, 2]
    await broker.controller.set_auto_scale_override(TOPIC, AutoScaleOverride(split_cooldown_seconds=0, max_segments=3))
    await report(broker, 1, clock, 20_000)
    assert await active(broker) == [3, 4, 2]
    await report(broker, 2, clock, 20_000)
    assert await active(broker) == [3, 4, 2]


async def test_a_split_that_fails_is_tried_again_later(
    broker: Rooms, mock_clock: MockClock, clock: list[WallClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(broker, 1)
    asked = 0

    async def refuse(topic: TopicName, segment_id: int) -> Layout:
        nonlocal asked
        asked += 1
        raise NotSupported("not now")

    with monkeypatch.context() as patched:
        patched.setattr(broker.controller, "split", refuse)
        await report(broker, 0, clock, 20_000)
        assert asked == 1
        await jump(mock_clock, 60)
        assert asked == 2
    await jump(mock_clock, 60)
    assert await active(broker) == [1, 2]


async def test_a_topic_whose_layout_is_not_to_be_had_is_looked_at_again(
    broker: Rooms, mock_clock: MockClock, clock: list[WallClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """E11: an unavailable metadata store ends neither the scaler nor the broker, and the scaler tries again."""
    await create(broker, 1)

    get, asked = broker.layouts.get, 0

    async def unanswered(topic: TopicName) -> Layout:
        nonlocal asked
        asked += 1
        if asked == 1:
            # The test's own question.
            return await get(topic)
        raise StoreUnavailable("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(broker.layouts, "get", unanswered)
        await report(broker, 0, clock, 20_000)
        assert asked == 2
    assert await active(broker) == [0]
    await jump(mock_clock, 5)
    await jump(mock_clock, 60)
    assert await active(broker) == [1, 2]


async def test_a_topic_that_is_deleted_and_made_again_begins_anew(
    broker: Rooms, mock_clock: MockClock, clock: list[WallClock]
) -> None:
    """D16: the old topic's long cold time does not merge the new one."""
    await create(broker, 2)
    for segment_id in range(2):
        await report(broker, segment_id, clock, 10)
    reports = await broker.metadata.scan(*starting_with(LOAD_PREFIX))
    await broker.controller.delete_topic(TOPIC, force=True)
    await jump(mock_clock, 299)
    await create(broker, 2)
    await broker.controller.set_auto_scale_override(TOPIC, AutoScaleOverride(min_segments=1))
    for late in reports:
        await broker.metadata.put(late.key, late.value)
    await jump(mock_clock, 200)
    assert len(await active(broker)) == 2
    await jump(mock_clock, 100)
    assert len(await active(broker)) == 1


@pytest.mark.parametrize("record", [b"", b"{}"])
async def test_damaged_reports_are_ignored(broker: Rooms, record: bytes) -> None:
    await create(broker, 1)
    await broker.metadata.put(load_key(await broker.segment(TOPIC, 0)), record)
    await broker.metadata.put("/segment-load/none", record)
    await wait_all_tasks_blocked()
    assert await active(broker) == [0]


async def test_many_layouts_and_reports_are_heard_of_in_slices(
    broker: Rooms, nursery: trio.Nursery, clock: list[WallClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """E7: all of them come at once when a broker starts."""
    await create(broker, 9)
    for number in range(8):
        await broker.controller.create_topic(TopicName.parse(f"topic://public/default/t{number}"), 1, {})
    for segment_id in range(9):
        await report(broker, segment_id, clock, 1_000)
    scaler = AutoScaler(broker.controller, broker.layouts, broker.groups, metadata=broker.metadata, now_ms=clock[0])
    monkeypatch.setattr(autoscaler, "RECORDS_AT_ONCE", 2)
    with TaskSteps() as steps:
        nursery.start_soon(scaler.run)
        await wait_all_tasks_blocked()
        # To begin, for what the watch has, and a pause after every second record.
        assert steps.of("AutoScaler._watch_layouts") >= 2 + 4
        assert steps.of("AutoScaler._watch_loads") >= 2 + 4
