"""Scalable topics that are deleted, stopped at every step and continued by the next controller."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.errors import BrokerError, TopicExists, TopicInUse, TopicNotFound
from broker.layouts.checks import wrong_in
from broker.layouts.layout import Layout
from broker.layouts.parts import Child, StartPosition, SubscriptionKind
from broker.layouts.record import from_json
from broker.layouts.store import layout_key
from broker.scalable.children import make_child
from storage.cursor import CursorError
from storage.metadata.store import Delete, Op, Put
from tests.support.disk import SimulatedFiles
from tests.support.rooms import TOPIC, Rooms, publish, rooms, segments, subscribe, visible
from tests.support.steered_store import SteeredStore, Stopped

STEPS_MAX = 60


class Producer:
    """Records what it is told."""

    name = "p"
    follows_layout = True

    def __init__(self) -> None:
        self.told: list[str] = []

    def topic_closed(self, assigned_url: str | None = None) -> None:
        self.told.append("closed")

    def topic_replaced(self) -> None:
        self.told.append("replaced")


async def check_whole(broker: Rooms, subscriptions: set[str], payloads: list[bytes]) -> None:
    """Check that no intent is open, no cursor and no message is missing, and no send hangs."""
    layout = await broker.layouts.get(TOPIC)
    assert layout.intent is None
    assert wrong_in(layout) == []
    assert layout.subscriptions.keys() >= subscriptions
    found: list[bytes] = []
    for segment_id, topic in (await segments(broker)).items():
        assert topic.subscriptions.keys() >= subscriptions, f"segment {segment_id}"
        is_active = layout.segments[segment_id].is_active
        assert topic.ledger.is_sealed != is_active
        if not is_active:
            assert topic.replaced.is_set(), "a send that met the seal is answered"
        found += [entry.payload for entry in await visible(topic)]
        for name in subscriptions:
            assert topic.subscriptions[name].backlog_entries == len(await visible(topic))
    assert sorted(found) == sorted(payloads)


async def prepare_child(broker: Rooms, layout: Layout, child: Child) -> None:
    """Make a child of an unfinished split, with the cursor of `s`."""
    name, claim = TOPIC.segment_name(child.descriptor), await broker.elections.elect(TOPIC)
    await make_child(name, layout.creation_id, ["s"], [claim], broker.metadata)


async def test_deleting_a_topic_removes_everything_of_it(broker: Rooms) -> None:
    """D16: this includes children of an unfinished split; a later topic of the same name is empty."""
    await broker.controller.create_topic(TOPIC, 1, {})
    await subscribe(broker, "s")
    await broker.controller.split(TOPIC, 0)
    layout = await broker.layouts.change(TOPIC, lambda layout: layout.begin_split(1))
    assert layout.intent is not None
    await prepare_child(broker, layout, layout.intent.children[0])
    producer = Producer()
    (await segments(broker))[1].add_producer(producer)
    with pytest.raises(TopicInUse):
        await broker.controller.delete_topic(TOPIC, force=False)
    await broker.controller.delete_topic(TOPIC, force=True)
    assert producer.told == ["closed"]
    assert [record.key for record in await broker.metadata.scan("", "~") if "orders" in record.key] == []
    with pytest.raises(TopicNotFound):
        await broker.controller.delete_topic(TOPIC, force=True)
    await broker.controller.create_topic(TOPIC, 1, {})
    assert await visible((await segments(broker))[0]) == []


async def test_a_client_that_comes_back_at_once_does_not_revive_a_deleted_topic(broker: Rooms) -> None:
    """D16: the deletion disconnected the client, and continues."""
    await broker.controller.create_topic(TOPIC, 1, {})
    name = await broker.segment(TOPIC, 0)

    class Returning(Producer):
        def topic_closed(self, assigned_url: str | None = None) -> None:
            super().topic_closed()
            nursery.start_soon(self.come_back)

        async def come_back(self) -> None:
            for _ in range(30):
                await trio.lowlevel.checkpoint()
                try:
                    topic = await broker.topics.get(name)
                    topic.add_producer(self)
                    await publish(topic, b"too late")
                    self.told.append("back")
                except Exception as error:
                    self.told.append(type(error).__name__)

    async with trio.open_nursery() as nursery:
        producer = Returning()
        (await broker.topics.get(name)).add_producer(producer)
        await broker.controller.delete_topic(TOPIC, force=True)
    await wait_all_tasks_blocked()
    assert "back" not in producer.told
    assert list(broker.topics) == []
    assert [record.key for record in await broker.metadata.scan("", "~") if "orders" in record.key] == []


async def leftovers(store: SteeredStore) -> list[str]:
    """Return the keys of all records of the topic."""
    return [record.key for record in await store.scan("", "~") if "orders" in record.key]


async def test_a_deletion_that_dies_at_any_write_is_finished_or_was_never_begun() -> None:
    """D16: the next controller finishes it, and nothing of the topic is left, not even children of an open split."""
    for step in range(1, STEPS_MAX):
        store, files = SteeredStore(), SimulatedFiles(seed=5)
        died = False
        try:
            async with rooms(store, files) as broker:
                await broker.controller.create_topic(TOPIC, 1, {})
                await subscribe(broker, "s")
                await publish((await segments(broker))[0], b"a")
                await broker.controller.split(TOPIC, 0)
                layout = await broker.layouts.change(TOPIC, lambda layout: layout.begin_split(1))
                assert layout.intent is not None
                for child in layout.intent.children:
                    await prepare_child(broker, layout, child)
                store.fail_at(step)
                await broker.controller.delete_topic(TOPIC, force=True)
        except* (Stopped, BrokerError, CursorError):
            died = True
        store.fail_at(None)
        async with rooms(store, files.kill()) as broker:
            begun = await store.get(layout_key(TOPIC))
            if died and begun is not None and from_json(begun.value).is_deleting:
                with pytest.raises(TopicNotFound):
                    await broker.layouts.get(TOPIC)
                with pytest.raises(TopicNotFound):
                    await broker.topics.get(TOPIC.segment_name(layout.segments[2].descriptor))
                with pytest.raises(TopicExists):
                    await broker.controller.create_topic(TOPIC, 1, {})
                assert await broker.layouts.names() == []
            await broker.controller.recover()
            if await broker.layouts.names():
                await check_whole(broker, {"s"}, [b"a"])
                await broker.controller.delete_topic(TOPIC, force=True)
            assert await leftovers(store) == []
            await broker.controller.create_topic(TOPIC, 1, {})
            await subscribe(broker, "s")
            await check_whole(broker, {"s"}, [])
        if not died:
            assert step > 8, "there were steps to die at"
            return
    pytest.fail("the deletion never ended")


async def test_a_deletion_leaves_a_topic_made_again_meanwhile_alone(broker: Rooms, store: SteeredStore) -> None:
    """D4, D16: two brokers finish the same deletion, and between their last steps a client creates the topic again."""
    await broker.controller.create_topic(TOPIC, 1, {})

    async def be_faster(ops: Sequence[Op]) -> None:
        if any(isinstance(op, Delete) and op.key == layout_key(TOPIC) for op in ops):
            store.before = None
            await store.commit(ops)
            await broker.controller.create_topic(TOPIC, 3, {"new": "yes"})

    store.before = be_faster
    await broker.controller.delete_topic(TOPIC, force=True)
    assert dict((await broker.layouts.get(TOPIC)).properties) == {"new": "yes"}


async def test_an_interrupted_deletion_is_repeated(broker: Rooms, store: SteeredStore) -> None:
    """D16: any later request repeats it, although the topic does not exist any more."""
    await broker.controller.create_topic(TOPIC, 2, {})
    await broker.control()
    with trio.CancelScope() as scope:

        async def hang_up(ops: Sequence[Op]) -> None:
            if store.commits - begun == 2:
                scope.cancel()

        begun, store.before = store.commits, hang_up
        await broker.controller.delete_topic(TOPIC, force=False)
    store.before = None
    assert scope.cancelled_caught
    assert await broker.layouts.names() == []
    await broker.controller.delete_topic(TOPIC, force=False)
    assert await leftovers(store) == []


async def test_a_consumer_that_comes_while_the_topic_is_deleted_leaves_nothing_behind(
    broker: Rooms, store: SteeredStore
) -> None:
    """D16: a cursor that was being created when the deletion began is removed with the others."""
    await broker.controller.create_topic(TOPIC, 1, {})
    name = await broker.segment(TOPIC, 0)
    create_cursor, give_up_claim = trio.Event(), trio.Event()

    async def before(ops: Sequence[Op]) -> None:
        if any(isinstance(op, Put) and op.key.startswith("/cursors/") for op in ops):
            await create_cursor.wait()
        if any(isinstance(op, Delete) and op.key.startswith("/owners/") for op in ops):
            await give_up_claim.wait()

    async def come() -> None:
        with suppress(BrokerError, CursorError):
            await broker.controller.subscriptions.open(name, "s", SubscriptionKind.STREAM, StartPosition.EARLIEST)

    store.before = before
    async with trio.open_nursery() as nursery:
        nursery.start_soon(come)
        await wait_all_tasks_blocked()
        nursery.start_soon(partial(broker.controller.delete_topic, TOPIC, force=True))
        await wait_all_tasks_blocked()
        create_cursor.set()
        await wait_all_tasks_blocked()
        give_up_claim.set()
    assert await leftovers(store) == []
