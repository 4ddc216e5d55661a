"""Whether a sealed segment is drained, if it cannot be read at first."""

from collections.abc import Sequence

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.cluster.ownership import claim_key
from broker.layouts.parts import StartPosition, SubscriptionKind
from broker.names import TopicName
from broker.scalable.draining import follow_drained
from broker.store_retry import RETRY_SECONDS
from storage.metadata.store import Op, Put, StoreUnavailable
from tests.support.rooms import TOPIC, Rooms, publish
from tests.support.steered_store import SteeredStore

NAME = "s"


class Follower:
    def __init__(self, broker: Rooms, segment: TopicName, nursery: trio.Nursery) -> None:
        self.told: list[bool] = []
        self.has_returned = False
        nursery.start_soon(self._run, broker, segment)

    async def _run(self, broker: Rooms, segment: TopicName) -> None:
        await follow_drained(segment, NAME, self.told.append, topics=broker.topics, metadata=broker.metadata)
        self.has_returned = True


async def a_topic(broker: Rooms) -> TopicName:
    await broker.controller.create_topic(TOPIC, 1, {})
    await broker.controller.subscriptions.add(TOPIC, NAME, SubscriptionKind.STREAM, StartPosition.EARLIEST)
    return await broker.segment(TOPIC, 0)


async def a_drained_parent(broker: Rooms) -> TopicName:
    """Prepare a sealed, empty segment, so that its children may be read."""
    parent = await a_topic(broker)
    await broker.controller.split(TOPIC, 0)
    await broker.topics.unload(parent)
    return parent


async def pause(clock: MockClock) -> None:
    await wait_all_tasks_blocked()
    clock.jump(RETRY_SECONDS + 1)
    await wait_all_tasks_blocked()


async def test_a_store_that_gave_no_answer_is_asked_again(
    broker: Rooms, store: SteeredStore, mock_clock: MockClock
) -> None:
    """D11, M22: otherwise the children would wait until the broker restarts."""
    parent = await a_drained_parent(broker)

    async def away(ops: Sequence[Op]) -> None:
        if any(isinstance(op, Put) and op.key == claim_key(str(parent)) for op in ops):
            raise StoreUnavailable("away")

    async with trio.open_nursery() as nursery:
        store.before = away
        follower = Follower(broker, parent, nursery)
        for _ in range(3):
            await pause(mock_clock)
        assert set(follower.told) == {False}
        store.before = None
        await pause(mock_clock)
        assert follower.told[-1]
        nursery.cancel_scope.cancel()


async def test_another_broker_that_lets_the_segment_go_is_waited_for(
    broker: Rooms, store: SteeredStore, mock_clock: MockClock
) -> None:
    """D4, D11: the task sleeps until then."""
    parent = await a_drained_parent(broker)
    await store.put(claim_key(str(parent)), b'{"broker": "broker-2"}')
    async with trio.open_nursery() as nursery:
        follower = Follower(broker, parent, nursery)
        for _ in range(3):
            await pause(mock_clock)
        assert follower.told == [False]
        await store.delete(claim_key(str(parent)))
        await pause(mock_clock)
        assert follower.told[-1]
        nursery.cancel_scope.cancel()


async def test_a_segment_that_is_unloaded_before_its_seal_is_asked_anew(
    broker: Rooms, store: SteeredStore, mock_clock: MockClock
) -> None:
    """D11: the segment is sealed in its next life, and the first object does not learn of that."""
    parent = await a_topic(broker)
    await publish(await broker.topics.get(parent), b"a")
    async with trio.open_nursery() as nursery:
        follower = Follower(broker, parent, nursery)
        await wait_all_tasks_blocked()
        await broker.topics.unload(parent)
        topic = await broker.topics.get(parent)
        await topic.seal()
        topic.subscriptions[NAME].cursor.acknowledge_cumulative(topic.ledger.last_position)
        await topic.subscriptions[NAME].cursor.synced()
        await pause(mock_clock)
        assert follower.told[0] is False
        assert follower.told[-1]
        nursery.cancel_scope.cancel()


async def test_a_segment_that_was_deleted_is_not_asked_again(broker: Rooms, mock_clock: MockClock) -> None:
    parent = await a_topic(broker)
    await broker.controller.delete_topic(TOPIC, force=True)
    async with trio.open_nursery() as nursery:
        follower = Follower(broker, parent, nursery)
        await pause(mock_clock)
        assert follower.told == [False]
        assert follower.has_returned
