"""Pending acknowledgements while their topic is split, moved, emptied or removed."""

import contextlib

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.cluster.ownership import claim_key
from broker.errors import TopicClosed, TopicNotFound
from broker.topic import Topic
from dispatch.subscription import Acknowledgement, Subscription
from dispatch.subscription_types import SubscriptionType
from storage.cursor import CursorError, cursor_key
from storage.entry import EntryFormat, TxnId
from storage.metadata.memory import MemoryStore
from storage.metadata.store import starting_with
from storage.position import EARLIEST, Position
from storage.ranges import EntryAck
from tests.support.cancellation import cancel_at_each_step
from tests.support.disk import SimulatedFiles
from tests.support.idle import TaskSteps
from tests.support.outlet import RecordingOutlet, recording_consumer
from tests.support.rooms import TOPIC, Rooms, publish, rooms, visible
from tests.support.steered_store import SteeredStore, Stopped
from txn.ops import KEY_PREFIX as OPS
from txn.states import EndAction


async def begin(broker: Rooms) -> TxnId:
    return await broker.coordinator.new_transaction(0, 60_000)


async def end(broker: Rooms, txn: TxnId, action: EndAction = EndAction.COMMIT) -> None:
    await broker.coordinator.end(txn, action)
    await wait_all_tasks_blocked()


async def segment(broker: Rooms, number: int) -> Topic:
    return await broker.topics.get(await broker.segment(TOPIC, number))


async def filled(broker: Rooms, entries: int = 3, segments: int = 1) -> list[tuple[Topic, Subscription]]:
    """Create a topic's segments, each with its entries and the subscription."""
    await broker.controller.create_topic(TOPIC, segments, {})
    made = []
    for number in range(segments):
        topic = await segment(broker, number)
        for entry in range(entries):
            await publish(topic, b"%d" % entry)
        made.append((topic, await topic.subscribe("s", EARLIEST)))
    return made


def last_of(topic: Topic) -> Position:
    return topic.ledger.last_position


async def acknowledge_all(topic: Topic, subscription: Subscription, txn: TxnId) -> None:
    await topic.acknowledge_in_transaction(subscription, txn, [EntryAck(last_of(topic))], cumulative=True)


def consume(subscription: Subscription) -> RecordingOutlet:
    consumer, outlet = recording_consumer()
    subscription.add_consumer(consumer, SubscriptionType.EXCLUSIVE)
    subscription.flow(consumer, 100)
    return outlet


async def op_records(broker: Rooms) -> int:
    return len(await broker.metadata.scan(*starting_with(OPS)))


async def test_a_split_under_pending_acknowledgements() -> None:
    """T20, D11: the sealed parent accepts acknowledgements, and is drained only at the commit, or else read again."""
    for action in EndAction:
        async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker:
            ((parent, subscription),) = await filled(broker)
            outlet = consume(subscription)
            first, second = await begin(broker), await begin(broker)
            positions = [Position(last_of(parent).ledger, entry) for entry in range(3)]
            await parent.acknowledge_in_transaction(subscription, first, [EntryAck(positions[1])], cumulative=True)
            await broker.controller.split(TOPIC, 0)
            assert parent.ledger.is_sealed
            await end(broker, first)
            await acknowledge_all(parent, subscription, second)
            assert not subscription.is_drained, "pending does not count"
            assert outlet.ends == 0
            child = await segment(broker, 1)
            await publish(child, b"in the child", second)
            await end(broker, second, action)
            assert subscription.is_drained is (action is EndAction.COMMIT)
            assert outlet.ends == (1 if action is EndAction.COMMIT else 0)
            assert outlet.positions == positions
            if action is EndAction.ABORT:
                assert outlet.disconnections == 1
                again = consume(subscription)
                await wait_all_tasks_blocked()
                assert again.positions == [positions[2]]
            assert len(await visible(child)) == (1 if action is EndAction.COMMIT else 0)
            assert await op_records(broker) == 0


async def test_all_segments_or_none() -> None:
    """T33: one compare-and-set decides writes and acknowledgements on several segments."""
    for action in EndAction:
        async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker:
            made = await filled(broker, segments=4)
            txn = await begin(broker)
            before = [subscription.cursor.mark_delete for _, subscription in made]
            for topic, subscription in made:
                await acknowledge_all(topic, subscription, txn)
                await publish(topic, b"out", txn)
            assert [subscription.cursor.mark_delete for _, subscription in made] == before
            assert await op_records(broker) == 8
            await end(broker, txn, action)
            for topic, subscription in made:
                expected = 1 if action is EndAction.COMMIT else 3
                outlet = consume(subscription)
                await wait_all_tasks_blocked()
                assert len(outlet.positions) == expected
                assert len(await visible(topic)) == (4 if action is EndAction.COMMIT else 3)
            assert await op_records(broker) == 0
            assert broker.headers.transactions_joined == 0


async def test_every_message_comes_again_after_an_abort_the_last_one_too() -> None:
    """T23: any kind of connected consumer gets them; no later message is needed."""
    for kind in (SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED):
        async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker:
            ((topic, subscription),) = await filled(broker)
            consumer, outlet = recording_consumer()
            subscription.add_consumer(consumer, kind)
            subscription.flow(consumer, 100)
            await wait_all_tasks_blocked()
            sent = outlet.positions
            txn = await begin(broker)
            await topic.acknowledge_in_transaction(subscription, txn, [EntryAck(at) for at in sent])
            await end(broker, txn, EndAction.ABORT)
            assert outlet.positions == [*sent, *sent]


async def test_a_batch_that_is_wholly_spoken_for_keeps_nothing_back() -> None:
    """T24, T16: half of it is in a transaction, half is not, and its consumer left: the messages behind it are sent."""
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker:
        await broker.controller.create_topic(TOPIC, 1, {})
        topic = await segment(broker, 0)
        batch = await topic.publish(b"batch", message_count=2, txn=None, entry_format=EntryFormat.PULSAR)
        subscription = await topic.subscribe("s", EARLIEST)
        first, other = recording_consumer()[0], recording_consumer()
        for consumer in (first, other[0]):
            subscription.add_consumer(consumer, SubscriptionType.SHARED)
        subscription.flow(first, 1)
        await wait_all_tasks_blocked()
        txn = await begin(broker)
        await topic.acknowledge_in_transaction(subscription, txn, [EntryAck(batch, 0b10, 2)])
        subscription.remove_consumer(first)
        subscription.acknowledge([Acknowledgement(batch, (0b01,), 2)])
        await publish(topic, b"behind")
        subscription.flow(other[0], 10)
        with trio.move_on_after(60):
            await wait_all_tasks_blocked()
        assert other[1].positions == [last_of(topic)]
        await end(broker, txn)
        assert subscription.backlog_entries == 1


async def test_a_removed_subscription_takes_its_records_with_it() -> None:
    """D16: a later subscription of the name is another one; the old transaction's commit does not touch it."""
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker:
        ((topic, subscription),) = await filled(broker)
        txn = await begin(broker)
        await acknowledge_all(topic, subscription, txn)
        await topic.unsubscribe("s")
        assert await op_records(broker) == 0
        await wait_all_tasks_blocked()
        new = await topic.subscribe("s", EARLIEST)
        await end(broker, txn)
        outlet = consume(new)
        await wait_all_tasks_blocked()
        assert len(outlet.positions) == 3


async def test_a_seek_forgets_what_is_pending() -> None:
    """D16: acknowledgements before the seek are not applied after it."""
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker:
        ((topic, subscription),) = await filled(broker)
        open_one, committed = await begin(broker), await begin(broker)
        first = EntryAck(Position(last_of(topic).ledger, 0))
        await topic.acknowledge_in_transaction(subscription, committed, [first])
        await acknowledge_all_but_first(topic, subscription, open_one)
        await end(broker, committed)
        await subscription.seek(EARLIEST)
        await wait_all_tasks_blocked()
        assert await op_records(broker) == 0
        await end(broker, open_one)
        outlet = consume(subscription)
        await wait_all_tasks_blocked()
        assert len(outlet.positions) == 3
        # It goes on as any subscription.
        txn = await begin(broker)
        await acknowledge_all(topic, subscription, txn)
        await end(broker, txn)
        assert subscription.backlog_entries == 0


async def test_a_seek_that_is_cut_off_has_happened_or_has_not() -> None:
    """T23, T26: a transaction that commits before or after the crash has all its acknowledgements, or none."""
    for is_committed in (True, False):
        was_stopped, number = True, 0
        while was_stopped:
            number += 1
            was_stopped = False
            metadata, files = SteeredStore(), SimulatedFiles(seed=number)
            try:
                async with rooms(metadata, files) as broker:
                    ((topic, subscription),) = await filled(broker)
                    first = Acknowledgement(Position(last_of(topic).ledger, 0))
                    subscription.acknowledge([first])
                    await subscription.synced()
                    txn = await begin(broker)
                    await acknowledge_all(topic, subscription, txn)
                    if is_committed:
                        # The segment has applied it and had no time to write.
                        await broker.coordinator.end(txn, EndAction.COMMIT)
                        while subscription.cursor.mark_delete < last_of(topic):
                            await trio.lowlevel.checkpoint()
                    metadata.fail_at(number)
                    await subscription.seek(EARLIEST)
                    await wait_all_tasks_blocked()
            except* (Stopped, TopicClosed, CursorError):
                was_stopped = True
            metadata.fail_at(None)
            async with rooms(metadata, files.kill()) as broker:
                topic = await segment(broker, 0)
                if not is_committed:
                    await end(broker, txn)
                outlet = consume(topic.subscriptions["s"])
                await wait_all_tasks_blocked()
                assert len(outlet.positions) in (0, 3), "neither what was before the seek nor what is after it"
                assert await op_records(broker) == 0
        assert number > 1
        assert len(outlet.positions) == 3


async def test_a_removal_that_is_cut_off_has_happened_or_has_not() -> None:
    """T23, D16: a subscription that exists after the crash gets the transaction's acknowledgements."""
    was_stopped, number, outcomes = True, 0, set()
    while was_stopped:
        number += 1
        was_stopped = False
        metadata, files = SteeredStore(), SimulatedFiles(seed=number)
        try:
            async with rooms(metadata, files) as broker:
                ((topic, subscription),) = await filled(broker)
                txn = await begin(broker)
                await acknowledge_all(topic, subscription, txn)
                metadata.fail_at(number)
                await topic.unsubscribe("s")
        except* (Stopped, TopicClosed, CursorError):
            was_stopped = True
        metadata.fail_at(None)
        async with rooms(metadata, files.kill()) as broker:
            topic = await segment(broker, 0)
            await end(broker, txn)
            there = topic.subscriptions.get("s")
            outcomes.add(None if there is None else there.backlog_entries)
            assert await op_records(broker) == 0
    assert outcomes == {0, None}


async def test_a_removal_that_is_given_up_leaves_no_records() -> None:
    """T28, D16: at any step, the subscription is removed anyway, and a later one of the name starts anew."""
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker:
        ((topic, _),) = await filled(broker)

        async def remove() -> None:
            subscription = await topic.subscribe("s", EARLIEST)
            await acknowledge_all(topic, subscription, await begin(broker))
            await topic.unsubscribe("s")

        async def check() -> None:
            await wait_all_tasks_blocked()
            if "s" not in topic.subscriptions:
                assert await op_records(broker) == 0

        assert await cancel_at_each_step(remove, check) > 5
        assert topic.subscriptions == {}


async def acknowledge_all_but_first(topic: Topic, subscription: Subscription, txn: TxnId) -> None:
    ledger = last_of(topic).ledger
    rest = [EntryAck(Position(ledger, entry)) for entry in range(1, 3)]
    await topic.acknowledge_in_transaction(subscription, txn, rest)


async def test_a_deleted_topic_leaves_no_records() -> None:
    """T28: its segments' records are gone, too; the transaction is committed anyway."""
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker:
        made = await filled(broker, segments=2)
        txn = await begin(broker)
        for topic, subscription in made:
            await acknowledge_all(topic, subscription, txn)
        await broker.controller.delete_topic(TOPIC, force=True)
        assert await op_records(broker) == 0
        await end(broker, txn)
        assert broker.headers.transactions_joined == 0
        assert broker.services.counters.op_records_outstanding == 0


async def test_a_deletion_that_is_given_up_is_finished_by_the_next() -> None:
    """T28, D16: at any step, also of the topic's creation, no record of it is left in any room.

    The only exception is this broker's claim as its controller, which ends with the broker's session.
    """
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker:
        controls = claim_key(str(TOPIC))

        async def make_and_delete() -> None:
            ((topic, subscription),) = await filled(broker)
            txn = await begin(broker)
            await acknowledge_all(topic, subscription, txn)
            await publish(topic, b"out", txn)
            await broker.controller.delete_topic(TOPIC, force=True)

        async def check() -> None:
            await wait_all_tasks_blocked()
            with contextlib.suppress(TopicNotFound):
                await broker.controller.delete_topic(TOPIC, force=True)
            await wait_all_tasks_blocked()
            keys = [record.key for record in await broker.metadata.scan("", "\U0010ffff")]
            assert [
                key for key in keys if not key.startswith(("/txn/id/", "/txn/tc-seq/", "/ids/", "/journals/", controls))
            ] == []
            assert broker.headers.transactions_joined == 0
            assert broker.services.counters.op_records_outstanding == 0

        assert await cancel_at_each_step(make_and_delete, check) > 50


async def test_a_subscription_whose_creator_gave_up_can_be_removed() -> None:
    """D16: it may have been open already or not; the segment's next owner does not find it."""
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker:
        ((topic, _),) = await filled(broker)

        async def subscribe() -> None:
            await topic.subscribe("new", EARLIEST)

        async def check() -> None:
            await wait_all_tasks_blocked()
            await topic.unsubscribe("new")
            cursors = await broker.metadata.scan(*starting_with(cursor_key(str(topic.name), "")))
            assert len(cursors) == 1
            assert await broker.topics.get(topic.name) is topic

        assert await cancel_at_each_step(subscribe, check) > 5


async def test_idle_while_transactions_are_open(autojump_clock: MockClock) -> None:
    """T16: with pending acknowledgements, no task of the segment runs until there is work."""
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker:
        ((topic, subscription),) = await filled(broker)
        consume(subscription)
        await acknowledge_all(topic, subscription, await begin(broker))
        await wait_all_tasks_blocked()
        with topic.clients.held(), TaskSteps() as steps:
            await trio.sleep(3_600)
            for name in ("Dispatcher.run", "PendingAcks.run", "Cursor.run", "TransactionBuffer.run", "HeaderWatch.run"):
                assert steps.of(name) == 0
