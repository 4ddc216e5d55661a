"""Deleting topics and subscriptions, also after interruptions."""

import gc
import weakref
from collections.abc import Sequence

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.deduplication.snapshot import KEY_PREFIX, shard_key
from broker.names import TopicName
from storage.metadata.store import Op
from storage.position import EARLIEST
from tests.support.metadata import keys_left
from tests.support.rooms import TOPIC, Rooms, payloads, publish
from tests.support.steered_store import SteeredStore

PLAIN = TopicName.parse("persistent://public/default/plain")


async def test_deleting_removes_every_record_and_all_data(broker: Rooms) -> None:
    """D16: a later topic of the name is empty, without the old subscriptions."""
    topic = await broker.topics.get(PLAIN)
    await publish(topic, b"a")
    await topic.subscribe("s", EARLIEST)
    creation_id = topic.ledger.creation_id
    await broker.topics.delete(PLAIN)
    left = [record.key for record in await broker.metadata.scan("", "~") if "plain" in record.key]
    assert left == []
    again = await broker.topics.get(PLAIN)
    assert again.ledger.creation_id != creation_id
    assert await payloads(again) == []
    assert again.subscriptions == {}


async def test_a_deletion_that_was_interrupted_can_be_repeated(broker: Rooms, store: SteeredStore) -> None:
    """D10: this holds at each of its change sets."""
    for step in range(1, 20):
        topic = await broker.topics.get(PLAIN)
        await publish(topic, b"a")
        await topic.subscribe("s", EARLIEST)
        with trio.CancelScope() as scope:
            left = step

            async def interrupt(ops: Sequence[Op], scope: trio.CancelScope = scope) -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    scope.cancel()
                    await trio.lowlevel.checkpoint()

            store.before = interrupt
            await broker.topics.delete(PLAIN)
        store.before = None
        await wait_all_tasks_blocked()
        await broker.topics.delete(PLAIN)
        assert [record.key for record in await broker.metadata.scan("", "~") if "plain" in record.key] == []
        if not scope.cancelled_caught:
            break
    else:
        pytest.fail("the deletion never ended")
    assert step > 2


@pytest.mark.parametrize("is_loaded", [False, True])
async def test_all_records_of_a_snapshot_of_producers_are_removed(broker: Rooms, is_loaded: bool) -> None:
    """E16: a topic with many producers has several. Those of a topic with a similar name stay."""
    await broker.controller.create_topic(TOPIC, 1, {})
    segment = await broker.segment(TOPIC, 0)
    topic = await broker.topics.get(segment)
    for number in range(4):
        await broker.metadata.put(shard_key(str(segment), number), b"{}")
    await broker.metadata.put(shard_key(f"{segment}0", 0), b"{}")
    if not is_loaded:
        await broker.topics.unload(topic.name)
    await broker.controller.delete_topic(TOPIC, force=True)
    assert await keys_left(broker.metadata, KEY_PREFIX) == [shard_key(f"{segment}0", 0)]


async def test_nothing_stays_of_a_subscription_that_was_deleted(broker: Rooms) -> None:
    """E16: its cursor is removed, too, on a topic whose policy keeps everything."""
    topic = await broker.topics.get(PLAIN)
    subscription = await topic.subscribe("passing", EARLIEST)
    cursor = weakref.ref(subscription.cursor)
    del subscription
    await topic.unsubscribe("passing")
    await wait_all_tasks_blocked()
    gc.collect()
    assert cursor() is None
