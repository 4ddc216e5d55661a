"""The durable subscriptions of a topic: what is left of one that has ended."""

import weakref
from collections.abc import Awaitable, Callable, Container, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker import durable_subscriptions
from broker.cluster.ownership import claim_key
from broker.errors import BrokerError
from broker.names import TopicName
from broker.topic import Topic
from dispatch.errors import SubscriptionClosed
from dispatch.subscription import Acknowledgement, Subscription
from dispatch.subscription_types import SubscriptionType
from storage.cursor import CursorClosed, CursorDeleted, CursorError, CursorLost
from storage.entry import TxnId
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Check, MetadataStore, Op, Put, StoreUnavailable
from storage.position import EARLIEST
from storage.ranges import EntryAck
from tests.support.disk import SimulatedFiles
from tests.support.metadata import keys_left
from tests.support.outlet import recording_consumer
from tests.support.reference_counts import collector_stopped
from tests.support.rooms import TOPIC, Rooms, publish, rooms
from tests.support.steered_store import SteeredStore
from txn.op_removal import remove_strange_acks
from txn.ops import KEY_PREFIX as OPS
from txn.states import EndAction

ENTRIES = 6


@pytest.fixture(autouse=True)
def _no_collections() -> Iterator[None]:
    with collector_stopped():
        yield


async def used(broker: Rooms) -> tuple[TopicName, Topic, Subscription]:
    """Prepare a subscription with a consumer. Recovered acknowledgements were decided; one transaction is open."""
    await broker.controller.create_topic(TOPIC, 1, {})
    name = await broker.segment(TOPIC, 0)
    topic = await broker.topics.get(name)
    await topic.subscribe("s", EARLIEST)
    for entry in range(ENTRIES):
        await publish(topic, b"%d" % entry)
    positions = [entry.position for entry in await topic.read(EARLIEST, entries_max=ENTRIES, bytes_max=1_000)]
    txns = [await broker.coordinator.new_transaction(0, 60_000) for _ in range(3)]
    for number, txn in enumerate(txns):
        await topic.acknowledge_in_transaction(
            topic.subscriptions["s"], txn, [EntryAck(positions[number])], cumulative=False
        )
    await broker.topics.unload(name)
    topic = await broker.topics.get(name)
    subscription = topic.subscriptions["s"]
    consumer, outlet = recording_consumer()
    subscription.add_consumer(consumer, SubscriptionType.SHARED)
    subscription.flow(consumer, 100)
    await topic.acknowledge_in_transaction(subscription, txns[0], [EntryAck(positions[3])], cumulative=False)
    await broker.coordinator.end(txns[0], EndAction.COMMIT)
    await broker.coordinator.end(txns[1], EndAction.ABORT)
    subscription.acknowledge([Acknowledgement(positions[4])])
    await subscription.synced()
    await wait_all_tasks_blocked()
    assert set(outlet.positions) >= {positions[1], positions[5]}
    return name, topic, subscription


async def delete(broker: Rooms, name: TopicName) -> None:
    await (await broker.topics.get(name)).unsubscribe("s")


async def unload(broker: Rooms, name: TopicName) -> None:
    await broker.topics.unload(name)


async def remove(broker: Rooms, name: TopicName) -> None:
    await broker.controller.delete_topic(name.scalable_topic, force=True)


async def lose(broker: Rooms, name: TopicName) -> None:
    """Give the segment to another broker, which this one learns as it writes."""
    topic = await broker.topics.get(name)
    await broker.metadata.put(claim_key(str(name)), b"another")
    topic.subscriptions["s"].acknowledge([Acknowledgement(topic.ledger.last_position)])
    with suppress(CursorLost):
        await topic.subscriptions["s"].synced()


async def ask_late(topic: Topic, subscription: Subscription, txn: TxnId, cause: type[CursorError]) -> None:
    """Use the subscription after it has ended."""
    acks = [EntryAck(topic.ledger.last_position)]
    with pytest.raises(SubscriptionClosed):
        subscription.require_acknowledgeable(acks, cumulative=False)
    with pytest.raises(SubscriptionClosed):
        subscription.add_consumer(recording_consumer()[0])
    with pytest.raises(SubscriptionClosed):
        # Not permanently: the topic's next owner takes it.
        await topic.acknowledge_in_transaction(subscription, txn, acks, cumulative=False)
    with pytest.raises(cause):
        await subscription.seek(EARLIEST)
    subscription.acknowledge([Acknowledgement(EARLIEST)])
    subscription.take([EntryAck(topic.ledger.last_position.before())], cumulative=True)
    with pytest.raises(cause):
        await subscription.synced()
    if cause is CursorDeleted:
        assert await subscription.unsubscribe() == ()
    else:
        with pytest.raises(cause):
            await subscription.unsubscribe()


Ending = Callable[[Rooms, TopicName], Awaitable[None]]


@pytest.mark.parametrize("end", [delete, remove, unload])
async def test_a_subscription_that_has_ended_is_freed_at_once(end: Ending, autojump_clock: MockClock) -> None:
    """E16: no part of it waits for the garbage collector, which rarely visits old objects."""
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker:
        name, topic, subscription = await used(broker)
        freed: list[weakref.ref[Any]] = [weakref.ref(subscription), weakref.ref(topic._durable._pending[subscription])]
        # A closed cursor stays with its topic: what it lacks must be kept.
        cursor = weakref.ref(subscription.cursor)
        await end(broker, name)
        await wait_all_tasks_blocked()
        del subscription
        assert all(ref() is None for ref in freed)
        assert (cursor() is None) == (end is not unload)


@pytest.mark.parametrize(
    ("end", "cause"), [(delete, CursorDeleted), (remove, CursorDeleted), (unload, CursorClosed), (lose, CursorLost)]
)
async def test_who_comes_late_is_told_why_and_holds_nothing(
    end: Ending, cause: type[CursorError], autojump_clock: MockClock
) -> None:
    """E16: a session may hold an ended subscription; the errors that it gets are not kept."""
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker:
        name, topic, subscription = await used(broker)
        txn = await broker.coordinator.new_transaction(0, 60_000)
        await end(broker, name)
        await wait_all_tasks_blocked()
        for _ in range(2):
            await ask_late(topic, subscription, txn, cause)
        gone = weakref.ref(subscription)
        del subscription
        # Of what was lost, the error itself holds where it came by.
        assert gone() is None or end is lose


async def test_a_subscription_that_fails_while_its_topic_loads_keeps_its_op_records(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T26, D3: its cursor cannot be written while the owner looks for records of unknown subscriptions."""
    store, files = SteeredStore(), SimulatedFiles(seed=1)
    async with rooms(store, files) as broker:
        await broker.controller.create_topic(TOPIC, 1, {})
        name = await broker.segment(TOPIC, 0)
        topic = await broker.topics.get(name)
        subscription = await topic.subscribe("s", EARLIEST)
        await publish(topic, b"x")
        txn = await broker.coordinator.new_transaction(0, 60_000)
        acks = [EntryAck(topic.ledger.last_position)]
        await topic.acknowledge_in_transaction(subscription, txn, acks, cumulative=False)
        await broker.topics.unload(name)
        await broker.coordinator.end(txn, EndAction.COMMIT)

        async def refuse(ops: Sequence[Op]) -> None:
            if any(isinstance(op, Put) and op.key.startswith("/cursors/") for op in ops):
                raise StoreUnavailable("no answer")

        async def slowly(segment: str, *, besides: Container[str], metadata: MetadataStore, claim: Check) -> None:
            # The store does all of it, although the topic ends meanwhile.
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
                await remove_strange_acks(segment, besides=besides, metadata=metadata, claim=claim)

        store.before = refuse
        monkeypatch.setattr(durable_subscriptions, "remove_strange_acks", slowly)
        with suppress(BrokerError, CursorError):
            await broker.topics.get(name)
        assert len(await keys_left(store, OPS)) == 1


async def test_a_subscription_that_has_ended_says_no_position() -> None:
    """C19: its next owner applies what was committed, so the old position would be asked for in vain."""
    async with rooms(MemoryStore(), SimulatedFiles(seed=5)) as broker:
        await broker.controller.create_topic(TOPIC, 1, {})
        name = await broker.segment(TOPIC, 0)
        topic = await broker.topics.get(name)
        subscription = await topic.subscribe("s", EARLIEST)
        await publish(topic, b"a")
        txn = await broker.coordinator.new_transaction(0, 60_000)
        last = topic.ledger.last_position
        await topic.acknowledge_in_transaction(subscription, txn, [EntryAck(last)], cumulative=True)
        await broker.topics.unload(name)
        await broker.coordinator.end(txn, EndAction.COMMIT)
        with pytest.raises(SubscriptionClosed):
            await topic.acknowledged(subscription)
        again = await broker.topics.get(name)
        assert await again.acknowledged(again.subscriptions["s"]) == last
