"""Regular topics that become scalable: what they keep, which clients prevent it, and a crash at every step."""

from collections.abc import Collection, Sequence

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.administration_contract import MigrationAsked
from broker.cluster.ownership import Claims, OwnedElsewhere, claim_key
from broker.errors import (
    BrokerError,
    IncompatibleSchema,
    OldClientsConnected,
    TopicClosed,
    TopicExists,
    TopicNotFound,
    TransactionsOpen,
)
from broker.layouts.checks import wrong_in
from broker.layouts.layout import Layout
from broker.layouts.parts import SegmentState, StartPosition, SubscriptionKind
from broker.layouts.store import layout_key
from broker.names import TopicName
from broker.schemas.registry import Schemas, owner_of
from broker.schemas.schema import Schema, SchemaType
from broker.topic import Topic
from dispatch.subscription_types import SubscriptionType
from storage.cursor import CursorError
from storage.entry import EntryFormat
from storage.errors import LedgerSealed
from storage.metadata.store import Fresh, Op, Put, StoreFull, StoreUnavailable
from storage.position import EARLIEST, LATEST, Position
from tests.support.disk import SimulatedFiles
from tests.support.kafka_batches import batch, marker
from tests.support.outlet import recording_consumer
from tests.support.rooms import TOPIC, Rooms, now_ms, publish, rooms, visible
from tests.support.steered_store import SteeredStore, Stopped
from txn.kafka_coordination import InitProducerId
from txn.kafka_errors import ProducerIdMismatch
from txn.kafka_transaction import Producer, transaction_key
from txn.marked_log import Ended
from txn.partition_transactions import Sender
from txn.producer_states import Batch, EndMarker

REGULAR = TOPIC.as_regular
CHILD = "segment://public/default/orders/0000-ffff-1"
STEPS_MAX = 80

RECORD = b'{"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}%s]}'
MORE = b', {"name": "b", "type": "int", "default": 0}'


class Client:
    """A producer or consumer that records what it is told."""

    name = "p"

    def __init__(self, *, follows_layout: bool) -> None:
        self.follows_layout = follows_layout
        self.told: list[str] = []

    def topic_closed(self, assigned_url: str | None = None) -> None:
        self.told.append("closed")

    def topic_replaced(self) -> None:
        self.told.append("replaced")


async def child_of(broker: Rooms) -> Topic:
    return await broker.topics.get(TopicName.parse(CHILD))


async def regular_topic(broker: Rooms) -> Topic:
    """Prepare a topic with three messages. "half" has acknowledged the first and the last one, "none" nothing."""
    topic = await broker.topics.get(REGULAR)
    half = await topic.subscribe("half", EARLIEST)
    await topic.subscribe("none", EARLIEST)
    for payload in (b"a", b"b", b"c"):
        await publish(topic, payload)
    last = topic.ledger.last_position
    for entry in (0, 2):
        half.cursor.acknowledge(Position(last.ledger, entry))
    await half.cursor.synced()
    return topic


async def left_of(topic: Topic, name: str) -> list[bytes]:
    """Return what a consumer of the subscription gets."""
    consumer, outlet = recording_consumer()
    subscription = topic.subscriptions[name]
    subscription.add_consumer(consumer, SubscriptionType.SHARED)
    subscription.flow(consumer, 100)
    await wait_all_tasks_blocked()
    subscription.remove_consumer(consumer)
    return [delivery.entry.payload for delivery in outlet.deliveries]


async def check_migrated(broker: Rooms, subscriptions: set[str]) -> None:
    """Check that all messages and cursors are kept, and that new messages go to the child."""
    layout = await broker.layouts.get(TOPIC)
    assert wrong_in(layout) == []
    assert (layout.epoch, layout.next_segment_id, layout.intent) == (1, 2, None)
    assert [segment.state for segment in layout.segments.values()] == [SegmentState.SEALED, SegmentState.ACTIVE]
    assert layout.segments[0].legacy_topic_name == str(REGULAR)
    assert layout.segments[1].parents == (0,)
    assert layout.subscriptions.keys() == subscriptions
    parent, child = await broker.topics.get(REGULAR), await child_of(broker)
    assert parent.ledger.is_sealed
    assert parent.replaced.is_set()
    assert parent.scalable_topic == child.scalable_topic == TOPIC
    with pytest.raises(LedgerSealed):
        await parent.publish(b"late", message_count=1, txn=None, entry_format=EntryFormat.PULSAR)
    assert await left_of(parent, "half") == [b"b"]
    assert "none" not in subscriptions or await left_of(parent, "none") == [b"a", b"b", b"c"]
    assert parent.subscriptions.keys() == child.subscriptions.keys() == subscriptions
    assert {subscription.cursor.mark_delete for subscription in child.subscriptions.values()} == {EARLIEST}
    assert await visible(child) == []


async def leftovers(store: SteeredStore) -> list[str]:
    """Return the keys of all records of the topic, except its claim."""
    records = await store.scan("", "~")
    return [record.key for record in records if "orders" in record.key and not record.key.startswith("/owners/")]


async def test_a_migrated_topic_keeps_its_messages_and_cursors(broker: Rooms) -> None:
    """D10: acknowledged messages stay acknowledged, and none is lost; the topic can be split like any other."""
    topic = await regular_topic(broker)
    await broker.controller.migrate(TOPIC, force=False)
    assert await broker.topics.get(REGULAR) is topic, "it is not even unloaded"
    await check_migrated(broker, {"half", "none"})
    await publish(await child_of(broker), b"d")
    layout = await broker.controller.split(TOPIC, 1)
    assert layout.segments[1].children == (2, 3)
    with pytest.raises(TopicExists):
        await broker.controller.migrate(TOPIC, force=True)
    assert len(broker.controller.locks) == 0


async def test_kinds_of_subscriptions_are_those_of_their_last_consumers(broker: Rooms) -> None:
    topic = await regular_topic(broker)
    consumer, _outlet = recording_consumer()
    topic.subscriptions["half"].add_consumer(consumer, SubscriptionType.SHARED)
    topic.subscriptions["half"].remove_consumer(consumer)
    layout = await broker.controller.migrate(TOPIC, force=False)
    kinds = {name: subscription.kind for name, subscription in layout.subscriptions.items()}
    assert kinds == {"half": SubscriptionKind.QUEUE, "none": SubscriptionKind.STREAM}


async def test_a_topic_that_is_not_there_or_is_scalable(broker: Rooms, store: SteeredStore) -> None:
    with pytest.raises(TopicNotFound):
        await broker.controller.migrate(TOPIC, force=True)
    assert await leftovers(store) == []
    await broker.controller.create_topic(TOPIC, 1, {})
    with pytest.raises(TopicExists):
        await broker.controller.migrate(TOPIC, force=True)


async def test_clients_that_cannot_follow_are_in_the_way(broker: Rooms, store: SteeredStore) -> None:
    """The refusal counts them, and nothing is changed; clients that follow the layout do not prevent it."""
    topic = await regular_topic(broker)
    follower, old = Client(follows_layout=True), Client(follows_layout=False)
    consumer, _outlet = recording_consumer()
    topic.add_producer(follower)
    topic.clients.add_consumer(consumer, old)
    before = await leftovers(store)
    with pytest.raises(OldClientsConnected, match="has 1 "):
        await broker.controller.migrate(TOPIC, force=False)
    assert await leftovers(store) == before
    await publish(topic, b"d")
    topic.clients.remove_consumer(consumer)
    topic.clients.remove_producer(follower)
    await broker.controller.migrate(TOPIC, force=False)
    assert (follower.told, old.told) == ([], [])


async def test_force_does_not_wait_for_them(broker: Rooms, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their producers are closed once other clients know the layout; their consumers read to the end."""
    monkeypatch.setattr("broker.scalable.segment_owner.LEAVING_SECONDS_MAX", 0)
    topic = await regular_topic(broker)
    producer, reader = Client(follows_layout=False), Client(follows_layout=False)
    consumer, outlet = recording_consumer()
    topic.add_producer(producer)
    topic.clients.add_consumer(consumer, reader)
    subscription = topic.subscriptions["half"]
    subscription.add_consumer(consumer, SubscriptionType.SHARED)
    pushed: list[tuple[int | None, list[str]]] = []

    def follower(layout: Layout | None) -> None:
        pushed.append((None if layout is None else layout.epoch, list(producer.told)))

    broker.feeds.follow(TOPIC, follower)
    await wait_all_tasks_blocked()
    await broker.controller.migrate(TOPIC, force=True)
    broker.feeds.unfollow(TOPIC, follower)
    assert pushed[:2] == [(None, []), (1, [])]
    assert (producer.told, reader.told) == (["replaced"], [])
    subscription.flow(consumer, 10)
    await wait_all_tasks_blocked()
    assert [delivery.entry.payload for delivery in outlet.deliveries] == [b"b"]
    subscription.cursor.acknowledge(outlet.positions[0])
    await subscription.cursor.synced()
    await wait_all_tasks_blocked()
    assert outlet.ends == 1


async def test_a_migration_that_dies_at_any_write_is_finished_or_was_never_begun() -> None:
    """D10: the next broker finds the regular topic unchanged, or the complete scalable one."""
    found = set()
    for step in range(1, STEPS_MAX):
        store, files = SteeredStore(), SimulatedFiles(seed=5)
        died = False
        try:
            async with rooms(store, files) as broker:
                await regular_topic(broker)
                store.fail_at(step)
                await broker.controller.migrate(TOPIC, force=False)
        except* (Stopped, BrokerError, CursorError):
            died = True
        store.fail_at(None)
        async with rooms(store, files.kill()) as broker:
            await broker.controller.recover()
            try:
                await broker.layouts.get(TOPIC)
            except TopicNotFound:
                found.add("old")
                topic = await broker.topics.get(REGULAR)
                assert topic.scalable_topic is None
                with pytest.raises(TopicNotFound):
                    await child_of(broker)
                # What was prepared for a subscription that is gone since must not come back.
                await topic.unsubscribe("none")
                await broker.controller.migrate(TOPIC, force=False)
                await check_migrated(broker, {"half"})
            else:
                found.add("new")
                await check_migrated(broker, {"half", "none"})
            await publish(await child_of(broker), b"d")
            await broker.controller.delete_topic(TOPIC, force=True)
            assert await leftovers(store) == []
        if not died:
            assert step > 6, "there were steps to die at"
            assert found == {"old", "new"}
            return
    pytest.fail("the migration never ended")


async def test_power_lost_under_a_migration_loses_nothing() -> None:
    """D10, T35: whatever unsynced writes survive, the result is one topic or the other."""
    for operations in range(1, 12):
        store, files = SteeredStore(), SimulatedFiles(seed=operations)
        with trio.CancelScope() as scope:
            async with rooms(store, files) as broker:
                await regular_topic(broker)
                files.lose_power_after(operations)
                try:
                    await broker.controller.migrate(TOPIC, force=False)
                except* Exception:
                    pass
                scope.cancel()
        async with rooms(store, files.crash()) as broker:
            await broker.controller.recover()
            if await broker.layouts.names() == []:
                await broker.controller.migrate(TOPIC, force=False)
            await check_migrated(broker, {"half", "none"})


async def test_no_subscription_comes_between_its_cursors_and_the_layout(broker: Rooms, store: SteeredStore) -> None:
    """D10: a new one waits, and then belongs to the scalable topic; each one in the layout has all its cursors."""
    topic = await regular_topic(broker)
    came: list[str] = []

    async def come(name: str) -> None:
        await topic.subscribe(name, EARLIEST)
        came.append(name)

    async with trio.open_nursery() as nursery:

        async def before(ops: Sequence[Op]) -> None:
            keys = {op.key for op in ops if isinstance(op, Put)}
            if any(key.startswith("/cursors/segment") for key in keys) or layout_key(TOPIC) in keys:
                assert came == []
                nursery.start_soon(come, f"late {store.commits}")
                await wait_all_tasks_blocked()
                if layout_key(TOPIC) in keys:
                    store.before = None

        store.before = before
        layout = await broker.controller.migrate(TOPIC, force=False)
    assert len(came) == 2
    assert layout.subscriptions.keys() == (await child_of(broker)).subscriptions.keys() == {"half", "none"}


async def test_a_client_that_comes_while_a_migration_is_prepared(broker: Rooms, store: SteeredStore) -> None:
    """It prevents the migration like any other client, and what was prepared is removed."""
    topic = await regular_topic(broker)
    records = await leftovers(store)

    async def before(ops: Sequence[Op]) -> None:
        if any(isinstance(op, Put) and op.key.startswith("/cursors/segment") for op in ops):
            store.before = None
            topic.add_producer(Client(follows_layout=False))

    store.before = before
    with pytest.raises(OldClientsConnected):
        await broker.controller.migrate(TOPIC, force=False)
    assert await leftovers(store) == records
    assert [loaded.name for loaded in broker.topics] == [REGULAR]


async def test_a_broker_that_has_lost_the_topic_does_not_migrate_it(broker: Rooms, store: SteeredStore) -> None:
    """D4: the claim is a condition of the layout's write, because another broker may write to the topic."""
    topic = await regular_topic(broker)

    async def before(ops: Sequence[Op]) -> None:
        if any(isinstance(op, Put) and op.key == layout_key(TOPIC) for op in ops):
            store.before = None
            await store.delete(topic.claim.key)

    store.before = before
    with pytest.raises(TopicClosed):
        await broker.controller.migrate(TOPIC, force=False)
    assert await broker.layouts.names() == []


async def controlled_elsewhere(store: SteeredStore, topic: Topic) -> MigrationAsked:
    """Let another broker control TOPIC. Return what it asks the topic's owner."""
    session = await store.open_session(60)
    elsewhere = Claims(store, session, broker_id="other", service_url="pulsar://other:6650")
    return MigrationAsked((await elsewhere.claim(str(TOPIC))).expected, topic.ledger.creation_id)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_nothing_is_migrated_for_a_broker_that_is_the_controller_no_more(
    broker: Rooms, store: SteeredStore, when: str
) -> None:
    """C14, D10: nobody would finish the migration."""
    topic = await regular_topic(broker)
    asked = await controlled_elsewhere(store, topic)
    records = await leftovers(store)

    async def before(ops: Sequence[Op]) -> None:
        if any(isinstance(op, Put) and op.key == layout_key(TOPIC) for op in ops):
            store.before = None
            await store.delete(claim_key(str(TOPIC)))

    if when == "before":
        await store.delete(claim_key(str(TOPIC)))
    else:
        store.before = before
    with pytest.raises(OwnedElsewhere, match="does not control it any more"):
        await broker.controller.begin_migration(TOPIC, asked, force=False)
    assert await leftovers(store) == [key for key in records if key != claim_key(str(TOPIC))]
    assert [loaded.name for loaded in broker.topics] == [REGULAR]


async def test_nothing_is_migrated_in_place_of_a_topic_that_was_deleted(broker: Rooms, store: SteeredStore) -> None:
    """E1: the one of now has other messages, and nobody asked for its migration."""
    topic = await regular_topic(broker)
    asked = (await controlled_elsewhere(store, topic))._replace(creation_id="of the one before")
    with pytest.raises(TopicNotFound, match="has been deleted, and this is a new one"):
        await broker.controller.begin_migration(TOPIC, asked, force=True)
    assert await broker.layouts.names() == []


async def test_a_begin_of_a_migration_may_come_again(broker: Rooms, store: SteeredStore) -> None:
    """M22: while the migration is open, and not behind its end."""
    asked = await controlled_elsewhere(store, await regular_topic(broker))
    for _ in range(2):
        await broker.controller.begin_migration(TOPIC, asked, force=False)
        assert (await broker.layouts.get(TOPIC)).intent is not None
    await store.delete(claim_key(str(TOPIC)))
    await wait_all_tasks_blocked()
    await broker.controller.recover()
    await wait_all_tasks_blocked()
    await check_migrated(broker, {"half", "none"})
    with pytest.raises(TopicExists, match="already a scalable topic"):
        await broker.controller.begin_migration(TOPIC, asked, force=False)


async def test_a_migration_whose_answer_was_lost_is_finished_by_asking_again(
    broker: Rooms, store: SteeredStore
) -> None:
    """M22: the migration may have happened; a repeated request continues it."""
    await regular_topic(broker)

    async def after(ops: Sequence[Op]) -> None:
        if any(isinstance(op, Put) and op.key == layout_key(TOPIC) for op in ops):
            store.after = None
            raise StoreUnavailable("no answer")

    store.after = after
    with pytest.raises(StoreUnavailable):
        await broker.controller.migrate(TOPIC, force=False)
    assert (await broker.layouts.get(TOPIC)).intent is not None
    await broker.controller.migrate(TOPIC, force=False)
    await check_migrated(broker, {"half", "none"})


async def test_a_migration_whose_answer_was_lost_is_finished_without_asking_again(
    broker: Rooms, store: SteeredStore, autojump_clock: MockClock
) -> None:
    """M22, D10: its owner has the regular topic loaded, and does not know that it became a segment."""
    await regular_topic(broker)

    async def after(ops: Sequence[Op]) -> None:
        if any(isinstance(op, Put) and op.key == layout_key(TOPIC) for op in ops):
            store.after = None
            raise StoreUnavailable("no answer")

    store.after = after
    with pytest.raises(StoreUnavailable):
        await broker.controller.migrate(TOPIC, force=False)
    await trio.sleep(60)
    await check_migrated(broker, {"half", "none"})


async def test_a_subscription_that_is_made_before_a_migration_has_its_answer(
    broker: Rooms, store: SteeredStore, nursery: trio.Nursery
) -> None:
    """D10: the layout is there, so others act on it. The topic's owner hears of its own write later."""
    await regular_topic(broker)

    async def after(ops: Sequence[Op]) -> None:
        if any(isinstance(op, Put) and op.key == layout_key(TOPIC) for op in ops):
            store.after = None
            add = broker.controller.subscriptions.add
            nursery.start_soon(add, TOPIC, "new", SubscriptionKind.STREAM, StartPosition.EARLIEST)
            for _ in range(50):
                await trio.lowlevel.checkpoint()

    store.after = after
    await broker.controller.migrate(TOPIC, force=False)
    await wait_all_tasks_blocked()
    await check_migrated(broker, {"half", "none", "new"})


async def test_the_schema_goes_along(broker: Rooms, store: SteeredStore) -> None:
    """The next schema is compared with it. Existing messages keep the topic that they are in."""
    topic = await broker.topics.get(REGULAR)
    schemas = Schemas(broker.metadata, now_ms)
    text, encoded = Schema(SchemaType.AVRO, RECORD % b"", {}), Schema(SchemaType.AVRO, RECORD % MORE, {})
    number = Schema(SchemaType.INT32, b"", {})
    assert await schemas.add(owner_of(REGULAR), text, topic.claim) == 0

    async def before(ops: Sequence[Op]) -> None:
        # A version that is added in the last moment goes along too.
        if any(isinstance(op, Put) and op.key == layout_key(TOPIC) for op in ops):
            store.before = None
            assert await schemas.add(owner_of(REGULAR), encoded, topic.claim) == 1

    store.before = before
    await broker.controller.migrate(TOPIC, force=False)
    assert await schemas.latest(owner_of(REGULAR)) == await schemas.latest(TOPIC)
    child = await child_of(broker)
    with pytest.raises(IncompatibleSchema):
        await schemas.add(owner_of(child.name), number, child.claim)
    assert await schemas.add(owner_of(child.name), encoded, child.claim) == 1


async def test_what_was_migrated_is_pruned_when_it_is_drained(broker: Rooms, store: SteeredStore) -> None:
    """The name is not free then: a v4 client is refused, and nothing is created beside the scalable topic."""
    topic = await regular_topic(broker)
    await broker.controller.migrate(TOPIC, force=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.pruner.run)
        for subscription in topic.subscriptions.values():
            subscription.cursor.acknowledge_cumulative(topic.ledger.last_position)
            await subscription.cursor.synced()
        await wait_all_tasks_blocked()
        assert set((await broker.layouts.get(TOPIC)).segments) == {1}
        nursery.cancel_scope.cancel()
    assert not await broker.layouts.is_made(REGULAR)
    with pytest.raises(TopicNotFound, match="topic://public/default/orders"):
        await broker.topics.get(REGULAR)
    await broker.controller.delete_topic(TOPIC, force=False)
    assert await leftovers(store) == []
    await publish(await broker.topics.get(REGULAR), b"a new one")


async def test_one_name_is_not_two_topics(broker: Rooms) -> None:
    """Neither is created beside the other, because v5 clients of the regular topic would lose its messages."""
    await publish(await broker.topics.get(REGULAR), b"a")
    with pytest.raises(TopicExists, match="Migrate"):
        await broker.controller.create_topic(TOPIC, 1, {})
    other = TopicName.parse("topic://public/default/other")
    await broker.controller.create_topic(other, 1, {})
    with pytest.raises(TopicNotFound, match="v5"):
        await broker.topics.get(other.as_regular)


async def test_a_migrated_topic_is_loaded_as_what_it_is(broker: Rooms) -> None:
    """This also holds if it was unloaded meanwhile."""
    await regular_topic(broker)
    await broker.controller.migrate(TOPIC, force=False)
    await broker.topics.unload(REGULAR)
    await check_migrated(broker, {"half", "none"})


async def test_subscriptions_of_a_migrated_topic_are_those_of_all_segments(broker: Rooms) -> None:
    """One opened on the old segment also exists on the new one; deleting one deletes it everywhere."""
    topic = await regular_topic(broker)
    await broker.controller.migrate(TOPIC, force=False)
    opened, subscription = await broker.controller.subscriptions.open(
        REGULAR, "new", SubscriptionKind.QUEUE, StartPosition.EARLIEST
    )
    assert (opened, subscription.backlog_entries) == (topic, 3)
    child = await child_of(broker)
    assert child.subscriptions.keys() == {"half", "none", "new"}
    await broker.controller.subscriptions.delete(TOPIC, "none")
    assert topic.subscriptions.keys() == child.subscriptions.keys() == {"half", "new"}
    await broker.controller.subscriptions.skip_all(TOPIC, "new")
    assert topic.subscriptions["new"].backlog_entries == 0
    assert topic.subscriptions["half"].cursor.mark_delete < LATEST


async def test_a_topic_with_an_open_transaction_of_kafkas_clients_is_not_migrated(broker: Rooms) -> None:
    """Its marker could not be written to the sealed topic, and its readers would wait for good (K32)."""
    topic = await regular_topic(broker)
    await topic.markers.admit_producer()
    begun = Batch(9, 0, 0, 0, is_transactional=True)
    topic.markers.append_batch(batch(9, 0, 0, in_txn=True), begun, 1)
    for force in (False, True):
        with pytest.raises(TransactionsOpen, match="1 transactions"):
            await broker.controller.migrate(TOPIC, force=force)
    assert await broker.layouts.stored_or_none(TOPIC) is None
    assert not await broker.layouts.is_made(TopicName.parse(CHILD))
    sender = Sender("tid", Producer(8, 0), 2)
    ended = Ended(EndMarker(9, 0, 0, bumps_epoch=False), is_commit=True)
    topic.markers.append_marker(marker(9, 0, is_commit=True), ended)
    with pytest.raises(ProducerIdMismatch):
        await topic.markers.transactions.admit(sender)
    await broker.controller.migrate(TOPIC, force=False)
    with pytest.raises(LedgerSealed, match="scalable"):
        await topic.markers.transactions.admit(sender)


async def test_no_transaction_begins_while_a_topic_is_migrated(broker: Rooms, store: SteeredStore) -> None:
    """K32: also one that was admitted while the layout was written."""
    topic = await regular_topic(broker)
    refused = 0

    async def begin(_ops: Sequence[Op]) -> None:
        nonlocal refused
        if any(isinstance(op, Put) and op.key == layout_key(TOPIC) for op in _ops):
            store.before = None
            with pytest.raises(LedgerSealed):
                await topic.markers.transactions.admit(Sender("tid", Producer(8, 0), 2))
            refused += 1

    store.before = begin
    await broker.controller.migrate(TOPIC, force=False)
    assert refused == 1


async def test_a_transaction_that_asked_before_a_migration_does_not_join_behind_it(
    broker: Rooms, store: SteeredStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K32: it asked the store whether it may write, and the topic was migrated meanwhile."""
    topic = await regular_topic(broker)
    producer = await broker.kafka_transactions.coordinator.initialise("tid", InitProducerId(60_000))
    fresh, asked = store.fresh, False

    async def migrated_first(keys: Collection[str]) -> Fresh:
        nonlocal asked
        if not asked and transaction_key("tid") in keys:
            asked = True
            await broker.controller.migrate(TOPIC, force=False)
        return await fresh(keys)

    monkeypatch.setattr(store, "fresh", migrated_first)
    with pytest.raises(LedgerSealed, match="scalable"):
        await topic.markers.transactions.admit(Sender("tid", producer, 2))
    assert asked


async def test_after_a_refused_migration_transactions_are_taken_again(broker: Rooms, store: SteeredStore) -> None:
    """The topic stays what it was."""
    topic = await regular_topic(broker)
    producer = await broker.kafka_transactions.coordinator.initialise("tid", InitProducerId(60_000))

    async def full(ops: Sequence[Op]) -> None:
        if any(isinstance(op, Put) and op.key == layout_key(TOPIC) for op in ops):
            raise StoreFull("the disk is full")

    store.before = full
    with pytest.raises(StoreFull):
        await broker.controller.migrate(TOPIC, force=False)
    store.before = None
    await topic.markers.transactions.admit(Sender("tid", producer, 2))
