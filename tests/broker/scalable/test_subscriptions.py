"""Subscriptions of scalable topics: created, deleted and moved on every segment, stopped at every write."""

from collections.abc import Sequence
from contextlib import AsyncExitStack

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.errors import BrokerError, SubscriptionEnding, SubscriptionInUse, SubscriptionNotFound, TopicNotFound
from broker.layouts.parts import StartPosition, SubscriptionKind
from storage.cursor import CursorError
from storage.metadata.store import Op, Put
from tests.support.disk import SimulatedFiles
from tests.support.outlet import recording_consumer
from tests.support.rooms import TOPIC, Rooms, publish, rooms, segments
from tests.support.schedules import every_schedule
from tests.support.steered_store import SteeredStore, Stopped

STEPS_MAX = 60
STREAM = SubscriptionKind.STREAM


async def backlogs(broker: Rooms, name: str = "s") -> dict[int, int]:
    return {
        segment_id: topic.subscriptions[name].backlog_entries for segment_id, topic in (await segments(broker)).items()
    }


async def cursor_records(store: SteeredStore) -> list[str]:
    return [record.key for record in await store.scan("/cursors/", "/cursors~")]


async def test_deleting_a_subscription_removes_its_cursors_everywhere(broker: Rooms, store: SteeredStore) -> None:
    """D16: this includes sealed segments; a later subscription of the same name is new."""
    await broker.controller.create_topic(TOPIC, 2, {})
    for name in ("s", "kept"):
        await broker.controller.subscriptions.add(TOPIC, name, STREAM, StartPosition.EARLIEST)
    await publish((await segments(broker))[0], b"a")
    await broker.controller.split(TOPIC, 0)
    await broker.controller.subscriptions.delete(TOPIC, "s")
    assert (await broker.layouts.get(TOPIC)).subscriptions.keys() == {"kept"}
    assert {key.rsplit("/", 1)[1] for key in await cursor_records(store)} == {"kept"}
    with pytest.raises(SubscriptionNotFound):
        await broker.controller.subscriptions.delete(TOPIC, "s")
    await broker.controller.subscriptions.add(TOPIC, "s", STREAM, StartPosition.LATEST)
    assert await backlogs(broker) == {0: 0, 1: 0, 2: 0, 3: 0}
    assert await backlogs(broker, "kept") == {0: 1, 1: 0, 2: 0, 3: 0}
    with pytest.raises(TopicNotFound):
        await broker.controller.subscriptions.delete(TOPIC.__class__.parse(f"{TOPIC}2"), "s")


async def test_a_subscription_with_consumers_is_deleted_by_force_alone(broker: Rooms) -> None:
    await broker.controller.create_topic(TOPIC, 1, {})
    await broker.controller.subscriptions.add(TOPIC, "s", STREAM, StartPosition.EARLIEST)
    topic = (await segments(broker))[0]
    consumer, _outlet = recording_consumer()
    topic.subscriptions["s"].add_consumer(consumer)
    told: list[str] = []

    class Client:
        follows_layout = True

        def topic_closed(self, assigned_url: str | None = None) -> None:
            told.append("closed")

    topic.clients.add_consumer(consumer, Client())
    with pytest.raises(SubscriptionInUse):
        await broker.controller.subscriptions.delete(TOPIC, "s")
    assert "s" in topic.subscriptions
    await broker.controller.subscriptions.delete(TOPIC, "s", force=True)
    assert told == ["closed"]
    assert "s" not in topic.subscriptions


async def test_a_deletion_that_dies_at_any_write_is_finished_or_was_never_begun() -> None:
    """D10, D16: the next controller continues; the subscription is completely gone, or completely there."""
    for step in range(1, STEPS_MAX):
        store, files = SteeredStore(), SimulatedFiles(seed=5)
        died = False
        try:
            async with rooms(store, files) as broker:
                await broker.controller.create_topic(TOPIC, 2, {})
                await broker.controller.subscriptions.add(TOPIC, "s", STREAM, StartPosition.EARLIEST)
                await publish((await segments(broker))[0], b"a")
                await broker.controller.split(TOPIC, 0)
                store.fail_at(step)
                await broker.controller.subscriptions.delete(TOPIC, "s")
        except* (Stopped, BrokerError, CursorError):
            died = True
        store.fail_at(None)
        async with rooms(store, files.kill()) as broker:
            await broker.controller.recover()
            layout = await broker.layouts.get(TOPIC)
            assert layout.subscriptions.keys() == layout.living_subscriptions()
            if layout.subscriptions:
                assert await backlogs(broker) == {0: 1, 1: 0, 2: 0, 3: 0}
                await broker.controller.subscriptions.delete(TOPIC, "s")
            assert await cursor_records(store) == []
        if not died:
            assert step > 4, "there were steps to die at"
            return
    pytest.fail("the deletion never ended")


@pytest.mark.parametrize("restarts", [True, False], ids=["a broker that dies", "a client that gives up"])
async def test_a_creation_that_ends_at_any_write_misses_nothing_when_it_is_repeated(restarts: bool) -> None:
    """D10: once a client learns that it exists, the subscription gets all later messages on all segments."""
    for step in range(1, STEPS_MAX):
        store, files = SteeredStore(), SimulatedFiles(seed=5)
        died = False
        async with AsyncExitStack() as stack:
            broker = await stack.enter_async_context(rooms(store, files))
            await broker.controller.create_topic(TOPIC, 2, {})
            for topic in (await segments(broker)).values():
                await publish(topic, b"old")
            store.fail_at(step)
            try:
                await broker.controller.subscriptions.add(TOPIC, "s", STREAM, StartPosition.LATEST)
            except (Stopped, BrokerError, CursorError):
                died = True
            store.fail_at(None)
            if restarts:
                await stack.aclose()
                broker = await stack.enter_async_context(rooms(store, files.kill()))
                await broker.controller.recover()
                layout = await broker.layouts.get(TOPIC)
                assert len(await cursor_records(store)) == 2 * len(layout.subscriptions)
            await broker.controller.subscriptions.add(TOPIC, "s", STREAM, StartPosition.LATEST)
            for topic in (await segments(broker)).values():
                await publish(topic, b"new")
            for segment_id in (0, 1):
                name = await broker.segment(TOPIC, segment_id)
                await broker.controller.subscriptions.open(name, "s", STREAM, StartPosition.LATEST)
            assert await backlogs(broker) == {0: 1, 1: 1}
        if not died:
            assert step > 3, "there were steps to die at"
            return
    pytest.fail("the creation never ended")


async def test_nobody_subscribes_to_what_is_being_deleted(broker: Rooms) -> None:
    """This holds until the deletion is repeated, or finished by the next controller."""
    await broker.controller.create_topic(TOPIC, 1, {})
    await broker.controller.subscriptions.add(TOPIC, "s", STREAM, StartPosition.EARLIEST)
    await broker.layouts.change(TOPIC, lambda layout: layout.begin_removing_subscription("s"))
    with pytest.raises(SubscriptionEnding):
        await broker.controller.subscriptions.add(TOPIC, "s", STREAM, StartPosition.EARLIEST)
    with pytest.raises(SubscriptionNotFound):
        await broker.controller.subscriptions.skip_all(TOPIC, "s")
    await broker.controller.split(TOPIC, 0)
    assert "s" not in (await segments(broker))[1].subscriptions, "a child gets no cursor of it"
    await broker.controller.subscriptions.delete(TOPIC, "s")
    await broker.controller.subscriptions.add(TOPIC, "s", STREAM, StartPosition.EARLIEST)


@every_schedule(examples_max=40)
async def test_whatever_meets_a_deletion_leaves_every_cursor_or_none() -> None:
    """D10, D16: consumers subscribe, and a split happens, at the same moment."""
    store = SteeredStore()
    async with rooms(store, SimulatedFiles(seed=5)) as broker:
        await broker.controller.create_topic(TOPIC, 1, {})
        await broker.controller.subscriptions.add(TOPIC, "s", STREAM, StartPosition.EARLIEST)
        segment = await broker.segment(TOPIC, 0)

        async def open_it() -> None:
            await broker.controller.subscriptions.open(segment, "s", STREAM, StartPosition.EARLIEST)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(open_it)
            nursery.start_soon(broker.controller.split, TOPIC, 0)
            nursery.start_soon(broker.controller.subscriptions.delete, TOPIC, "s")
        layout = await broker.layouts.get(TOPIC)
        assert layout.subscriptions.keys() == layout.living_subscriptions()
        assert len(await cursor_records(store)) == (3 if layout.subscriptions else 0)


async def test_a_split_makes_no_cursor_behind_a_deletions_back(broker: Rooms, store: SteeredStore) -> None:
    """D16: the split is held between the cursors of its children, and still has the subscription on its list."""
    await broker.controller.create_topic(TOPIC, 1, {})
    await broker.controller.subscriptions.add(TOPIC, "s", STREAM, StartPosition.EARLIEST)
    gate = trio.Event()

    async def hold(ops: Sequence[Op]) -> None:
        if any(isinstance(op, Put) and op.key.startswith("/cursors/") for op in ops):
            await gate.wait()

    store.before = hold
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.controller.split, TOPIC, 0)
        await wait_all_tasks_blocked()
        nursery.start_soon(broker.controller.subscriptions.delete, TOPIC, "s")
        await wait_all_tasks_blocked()
        gate.set()
    layout = await broker.layouts.get(TOPIC)
    assert (set(layout.segments), dict(layout.subscriptions)) == ({0, 1, 2}, {})
    assert await cursor_records(store) == []


async def test_skip_all_passes_over_everything_on_sealed_segments_too(broker: Rooms) -> None:
    await broker.controller.create_topic(TOPIC, 2, {})
    await broker.controller.subscriptions.add(TOPIC, "s", STREAM, StartPosition.EARLIEST)
    for topic in (await segments(broker)).values():
        await publish(topic, b"old")
    await broker.controller.merge(TOPIC, 0, 1)
    await publish((await segments(broker))[2], b"old")
    assert await backlogs(broker) == {0: 1, 1: 1, 2: 1}
    await broker.controller.subscriptions.skip_all(TOPIC, "s")
    assert await backlogs(broker) == {0: 0, 1: 0, 2: 0}
    topics = await segments(broker)
    assert topics[0].subscriptions["s"].is_drained
    await publish(topics[2], b"new")
    assert await backlogs(broker) == {0: 0, 1: 0, 2: 1}
    with pytest.raises(SubscriptionNotFound):
        await broker.controller.subscriptions.skip_all(TOPIC, "other")


async def test_seeking_by_time_goes_back_on_every_segment(broker: Rooms) -> None:
    await broker.controller.create_topic(TOPIC, 1, {})
    await broker.controller.subscriptions.add(TOPIC, "s", STREAM, StartPosition.EARLIEST)
    await publish((await segments(broker))[0], b"a")
    await broker.controller.split(TOPIC, 0)
    await publish((await segments(broker))[1], b"b")
    await broker.controller.subscriptions.skip_all(TOPIC, "s")
    now_ms = 1_000_000
    await broker.controller.subscriptions.seek_to_time(TOPIC, "s", now_ms + 1)
    assert await backlogs(broker) == {0: 0, 1: 0, 2: 0}
    await broker.controller.subscriptions.seek_to_time(TOPIC, "s", now_ms)
    assert await backlogs(broker) == {0: 1, 1: 1, 2: 0}
    with pytest.raises(SubscriptionNotFound):
        await broker.controller.subscriptions.seek_to_time(TOPIC, "other", 0)
