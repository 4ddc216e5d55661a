"""Load reports: rates of the last minute, written when they have changed, and no wake-up without traffic."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.cluster.broker_load import BROKER_LOADS, BrokerLoad
from broker.names import TopicName
from broker.scalable.autoscale import SegmentLoad
from broker.scalable.load_reports import decode_load, segment_of
from broker.topic import Topic
from broker.topics import IDLE_SECONDS_MAX
from broker.traffic import load_key
from storage.metadata.store import Delete, Op, Put, StoreUnavailable
from tests.support.disk import SimulatedFiles
from tests.support.idle import TaskSteps
from tests.support.rooms import TOPIC, Rooms, moving_clock, now_ms, publish, rooms
from tests.support.steered_store import SteeredStore


@pytest.fixture
async def broker(mock_clock: MockClock, nursery: trio.Nursery) -> AsyncIterator[Rooms]:
    clock = moving_clock()
    async with rooms(SteeredStore(), SimulatedFiles(seed=5), clock=clock) as made:
        await made.controller.create_topic(TOPIC, 1, {})
        nursery.start_soon(made.load_reporter.run)
        await wait_all_tasks_blocked()
        yield made


async def topic_of(broker: Rooms, segment_id: int = 0) -> Topic:
    return await broker.topics.get(await broker.segment(TOPIC, segment_id))


@asynccontextmanager
async def kept(broker: Rooms) -> AsyncIterator[Topic]:
    """Keep the first segment loaded during the block."""
    topic = await topic_of(broker)
    with topic.clients.held():
        yield topic


async def reported(broker: Rooms, segment_id: int = 0) -> SegmentLoad | None:
    record = await broker.metadata.get(load_key(await broker.segment(TOPIC, segment_id)))
    return None if record is None else decode_load(record.value)


async def jump(mock_clock: MockClock, seconds: float) -> None:
    """Jump in steps, so that every timer on the way fires."""
    await wait_all_tasks_blocked()
    for _ in range(round(seconds / 10)):
        mock_clock.jump(10)
        await wait_all_tasks_blocked()


def stir(topic: Topic, messages: int, payload_bytes: int = 0) -> None:
    """Count this much outgoing traffic."""
    topic.delivered(messages, payload_bytes)


async def test_rates_are_those_of_the_last_minute(broker: Rooms, mock_clock: MockClock) -> None:
    topic = await topic_of(broker)
    for _ in range(3):
        await publish(topic, b"x" * 200)
    stir(topic, 6_000, 60_000_000)
    await jump(mock_clock, 10)
    assert await reported(broker) == SegmentLoad(3 / 60, 600 / 60, 100, 1_000_000, now_ms() + 10_000)


async def test_steady_traffic_is_reported_once(broker: Rooms, mock_clock: MockClock) -> None:
    async with kept(broker) as topic:
        writes = 0

        async def count(ops: object) -> None:
            nonlocal writes
            writes += 1

        assert isinstance(broker.metadata, SteeredStore)
        broker.metadata.before = count
        for _ in range(30):
            stir(topic, 1_000)
            await jump(mock_clock, 10)
        load = await reported(broker)
        assert load is not None
        assert 75 < load.msg_rate_out <= 100
        assert writes <= 6, "while the first minute fills"
        assert load.since_ms <= now_ms() + 60_000


async def test_hardly_any_traffic_is_reported_once_and_its_end_not_at_all(broker: Rooms, mock_clock: MockClock) -> None:
    async with kept(broker) as topic:
        for _ in range(5):
            stir(topic, 2)
            await jump(mock_clock, 20)
        first = await reported(broker)
        assert first is not None
        assert first.since_ms == now_ms() + 10_000
        await jump(mock_clock, 100)
        assert await reported(broker) == first


async def test_load_that_ends_is_reported_as_none(broker: Rooms, mock_clock: MockClock) -> None:
    async with kept(broker) as topic:
        stir(topic, 60_000)
        await jump(mock_clock, 10)
        load = await reported(broker)
        assert load is not None
        assert load.msg_rate_out == 1_000
        await jump(mock_clock, 60)
        assert await reported(broker) == SegmentLoad(0, 0, 0, 0, now_ms() + 70_000)


async def test_nothing_runs_without_traffic(broker: Rooms, mock_clock: MockClock) -> None:
    """An idle broker does not wake up. The sampler goes to sleep a minute after the last message."""
    topic = await topic_of(broker)
    with TaskSteps() as steps:
        steps.clear()
        await jump(mock_clock, 3_600)
        assert steps.of("LoadReporter.run") == 0
        stir(topic, 1)
        await jump(mock_clock, 100)
        assert steps.of("LoadReporter.run") > 0
        steps.clear()
        await jump(mock_clock, 3_600)
        assert steps.of("LoadReporter.run") == 0


async def test_a_segment_that_is_sealed_or_gone_is_not_reported_any_more(broker: Rooms, mock_clock: MockClock) -> None:
    parent = await topic_of(broker)
    stir(parent, 60_000)
    await jump(mock_clock, 10)
    assert await reported(broker) is not None
    await broker.controller.split(TOPIC, 0)
    await jump(mock_clock, 10)
    assert await reported(broker) is None
    stir(await topic_of(broker, 1), 60_000)
    await jump(mock_clock, 10)
    assert await reported(broker, 1) is not None
    assert await reported(broker, 2) is None, "it had no traffic"


async def test_a_store_that_does_not_take_a_report_ends_nothing(broker: Rooms, mock_clock: MockClock) -> None:
    topic = await topic_of(broker)
    await broker.session.close()
    stir(topic, 60_000)
    await jump(mock_clock, 10)
    assert await reported(broker) is None
    await publish(topic, b"goes on")


def leave_a_report_unanswered(broker: Rooms, key: str, *, made: bool) -> None:
    """Do not answer the next change set that touches this report. `made` says whether it is made."""
    store = broker.metadata
    assert isinstance(store, SteeredStore)

    async def steer(ops: Sequence[Op]) -> None:
        if any(isinstance(op, Put | Delete) and op.key == key for op in ops):
            store.before = store.after = None
            raise StoreUnavailable("no answer")

    if made:
        store.after = steer
    else:
        store.before = steer


@pytest.mark.parametrize("made", [False, True])
async def test_a_report_without_an_answer_is_repeated(broker: Rooms, mock_clock: MockClock, made: bool) -> None:
    """E11: the load does not change afterwards, so no later change would report it."""
    async with kept(broker) as topic:
        leave_a_report_unanswered(broker, load_key(topic.name), made=made)
        stir(topic, 60_000)
        await jump(mock_clock, 10)
        assert (await reported(broker) is not None) == made
        await jump(mock_clock, 10)
        assert await reported(broker) == SegmentLoad(0, 0, 1_000, 0, now_ms() + 20_000)
        # That it has ended is the last report. Without it nothing would be sampled any more.
        leave_a_report_unanswered(broker, load_key(topic.name), made=made)
        await jump(mock_clock, 100)
        assert await reported(broker) == SegmentLoad(0, 0, 0, 0, now_ms() + 80_000)


@pytest.mark.parametrize("made", [False, True])
async def test_a_removal_of_a_report_without_an_answer_is_repeated(
    broker: Rooms, mock_clock: MockClock, made: bool
) -> None:
    """E11, E16: nothing else would remove the report while the broker runs."""
    topic = await topic_of(broker)
    stir(topic, 60_000)
    await jump(mock_clock, 10)
    await broker.controller.split(TOPIC, 0)
    leave_a_report_unanswered(broker, load_key(topic.name), made=made)
    await jump(mock_clock, 10)
    assert (await reported(broker) is None) == made
    with TaskSteps() as steps:
        await jump(mock_clock, 20)
        assert await reported(broker) is None
        # Once it is gone, what another broker may report there is left alone.
        await broker.metadata.put(load_key(topic.name), b"another's")
        stir(await topic_of(broker, 1), 60_000)
        await jump(mock_clock, 20)
        assert await broker.metadata.get(load_key(topic.name)) is not None
        await jump(mock_clock, 100)
        steps.clear()
        await jump(mock_clock, 100)
        assert steps.of("LoadReporter.run") == 0


async def test_a_segment_that_is_unloaded_stays_known_as_cold(broker: Rooms, mock_clock: MockClock) -> None:
    """E16: unused segments can still be merged; their reports are removed with their data."""
    topic = await broker.topics.get(await broker.segment(TOPIC, 0))
    stir(topic, 60_000)
    await jump(mock_clock, 2 * IDLE_SECONDS_MAX)
    assert list(broker.topics) == []
    assert await reported(broker) == SegmentLoad(0, 0, 0, 0, now_ms() + 70_000)
    await broker.controller.delete_topic(TOPIC, force=True)
    assert await broker.metadata.get(load_key(topic.name)) is None


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"msgRateIn": "x"}', b"1"])
def test_what_is_no_report_is_ignored(value: bytes) -> None:
    assert decode_load(value) is None


def test_keys() -> None:
    segment = TopicName.parse("segment://public/default/a%2Fb/0000-ffff-0")
    assert segment_of(load_key(segment)) == segment
    assert segment_of(load_key(TOPIC)) is None
    assert segment_of("/segment-load/x") is None


async def test_the_brokers_own_load_is_reported_too(broker: Rooms, mock_clock: MockClock) -> None:
    """C21: with its busiest minute, once while it is steady, and again when it is idle. Regular topics count, too."""
    key = BROKER_LOADS + broker.foundation.settings.broker_id
    traffic = broker.foundation.traffic
    versions = set()
    broker.services.activity.set()
    await wait_all_tasks_blocked()
    record = None
    for _ in range(20):
        traffic.bytes_out += 10_000_000
        await jump(mock_clock, 10)
        record = await broker.metadata.get(key)
        assert record is not None
        versions.add(record.version)
    assert record is not None
    load = BrokerLoad.decode(record.value)
    assert load is not None
    assert 750_000 <= load.bytes_out <= 1_000_000
    # It rises for a minute.
    assert len(versions) <= 6
    await jump(mock_clock, 80)
    record = await broker.metadata.get(key)
    assert record is not None
    ended = BrokerLoad.decode(record.value)
    assert ended is not None
    assert ended.bytes_out == 0
    with TaskSteps() as steps:
        await jump(mock_clock, 3_600)
        assert steps.of("LoadReporter.run") == 0
