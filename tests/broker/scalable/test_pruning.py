"""Pruning: when a sealed segment is removed, when it stays, and what is left after a crash at any write."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.cluster.ownership import claim_key
from broker.errors import BrokerError, TopicNotFound
from broker.layouts.checks import wrong_in
from broker.layouts.layout import Layout
from broker.layouts.parts import LayoutSubscription, StartPosition, SubscriptionKind
from broker.layouts.record import to_json
from broker.layouts.store import layout_key
from broker.names import TopicName
from broker.scalable import pruning
from broker.store_retry import RETRY_SECONDS
from broker.topic import Topic
from storage.cursor import CursorError
from storage.managed_ledger_record import record_key
from storage.metadata.store import Check, Op, Put
from storage.position import EARLIEST
from tests.support.disk import SimulatedFiles
from tests.support.idle import TaskSteps
from tests.support.rooms import TOPIC, Rooms, moving_clock, now_ms, publish, rooms, visible
from tests.support.schedules import every_schedule
from tests.support.steered_store import SteeredStore, Stopped
from txn.errors import OwnershipLost
from txn.states import EndAction

STEPS_MAX = 80
STREAM = SubscriptionKind.STREAM


@pytest.fixture
async def keeping(store: SteeredStore, mock_clock: MockClock) -> AsyncIterator[Rooms]:
    """A broker that keeps drained segments for an hour. A test may jump its clock."""
    async with rooms(store, SimulatedFiles(seed=5), clock=moving_clock(), segment_retention_seconds=3600) as made:
        yield made


async def subscribe(broker: Rooms, name: str) -> None:
    await broker.controller.subscriptions.add(TOPIC, name, STREAM, StartPosition.EARLIEST)


async def topic_of(broker: Rooms, segment_id: int) -> Topic:
    return await broker.topics.get(await broker.segment(TOPIC, segment_id))


async def drain(broker: Rooms, segment_id: int, name: str = "s") -> None:
    """Acknowledge everything in a segment, durably."""
    topic = await topic_of(broker, segment_id)
    cursor = topic.subscriptions[name].cursor
    cursor.acknowledge_cumulative(topic.ledger.last_position)
    await cursor.synced()
    await wait_all_tasks_blocked()


async def ids(broker: Rooms) -> set[int]:
    return set((await broker.layouts.get(TOPIC)).segments)


async def traces(store: SteeredStore, descriptor: str) -> list[str]:
    """Return the keys of all records of a segment."""
    return [record.key for record in await store.scan("", "~") if descriptor in record.key]


async def split_topic(broker: Rooms) -> None:
    """Prepare segment 0 with two messages, and split it; `s` and `t` read it."""
    await broker.controller.create_topic(TOPIC, 1, {})
    for name in ("s", "t"):
        await subscribe(broker, name)
    for payload in (b"a", b"b"):
        await publish(await topic_of(broker, 0), payload)
    await broker.controller.split(TOPIC, 0)


async def test_a_parent_goes_when_every_subscription_has_drained_it(
    broker: Rooms, store: SteeredStore, nursery: trio.Nursery
) -> None:
    """D11: its data and cursors go with it; clients get a layout in which the children have no parent."""
    nursery.start_soon(broker.pruner.run)
    pushed: list[tuple[int, set[int]]] = []

    def follower(layout: Layout | None) -> None:
        assert layout is not None
        pushed.append((layout.epoch, set(layout.segments)))

    await split_topic(broker)
    broker.feeds.follow(TOPIC, follower)
    await drain(broker, 0, "s")
    assert await ids(broker) == {0, 1, 2}
    segment = await broker.segment(TOPIC, 0)
    await drain(broker, 0, "t")
    layout = await broker.layouts.get(TOPIC)
    assert layout.segments.keys() == {1, 2}
    assert [child.parents for child in layout.segments.values()] == [(), ()]
    assert (layout.epoch, layout.pruned) == (2, {})
    assert pushed[-1] == (2, {1, 2})
    assert await traces(store, "0000-ffff-0") == []
    with pytest.raises(TopicNotFound):
        await broker.topics.get(segment)
    await broker.controller.split(TOPIC, 1)
    broker.feeds.unfollow(TOPIC, follower)


async def test_data_goes_when_clients_know_that_the_segment_has_gone(
    broker: Rooms, store: SteeredStore, nursery: trio.Nursery
) -> None:
    """However late clients learn of it, requests in progress still find the data."""
    nursery.start_soon(broker.pruner.run)
    await split_topic(broker)
    await drain(broker, 0, "s")
    segment = await broker.segment(TOPIC, 0)

    def follower(layout: Layout | None) -> None:
        """Does nothing."""

    broker.feeds.follow(TOPIC, follower)
    await wait_all_tasks_blocked()
    pushing = store.late[layout_key(TOPIC)] = trio.Event()
    await drain(broker, 0, "t")
    assert await ids(broker) == {1, 2}
    assert len(await visible(await broker.topics.get(segment))) == 2
    pushing.set()
    await wait_all_tasks_blocked()
    assert await traces(store, "0000-ffff-0") == []
    broker.feeds.unfollow(TOPIC, follower)


async def test_a_subscription_that_is_being_made_holds_a_segment(
    broker: Rooms, store: SteeredStore, nursery: trio.Nursery
) -> None:
    """D10, D11: it is in the layout before it has a cursor, and must get the messages that others have drained."""
    await split_topic(broker)
    made = LayoutSubscription(STREAM, "n", StartPosition.EARLIEST, 0, is_creating=True)
    await broker.layouts.change(TOPIC, lambda layout: layout.add_subscription("new", made))
    nursery.start_soon(broker.pruner.run)
    for name in ("s", "t"):
        await drain(broker, 0, name)
    assert await ids(broker) == {0, 1, 2}
    await subscribe(broker, "new")
    assert (await topic_of(broker, 0)).subscriptions["new"].backlog_entries == 2
    await drain(broker, 0, "new")
    assert await ids(broker) == {1, 2}


async def test_a_subscription_whose_creation_is_withdrawn_holds_no_segment(
    broker: Rooms, nursery: trio.Nursery
) -> None:
    """D11: it never had a cursor on the segment, so no cursor tells that it has gone."""
    await split_topic(broker)
    for name in ("s", "t"):
        await drain(broker, 0, name)
    # Nobody owns the segment, so nobody makes the cursor.
    await broker.topics.unload(await broker.segment(TOPIC, 0))
    made = LayoutSubscription(STREAM, "n", StartPosition.EARLIEST, 0, is_creating=True)
    await broker.layouts.change(TOPIC, lambda layout: layout.add_subscription("new", made))
    nursery.start_soon(broker.pruner.run)
    await wait_all_tasks_blocked()
    assert await ids(broker) == {0, 1, 2}
    await broker.controller.subscriptions.delete(TOPIC, "new")
    await wait_all_tasks_blocked()
    assert await ids(broker) == {1, 2}


async def test_without_subscriptions_everything_is_kept(broker: Rooms, nursery: trio.Nursery) -> None:
    """No subscription has drained it, and a reader may come."""
    nursery.start_soon(broker.pruner.run)
    await broker.controller.create_topic(TOPIC, 1, {})
    await broker.controller.split(TOPIC, 0)
    await wait_all_tasks_blocked()
    assert await ids(broker) == {0, 1, 2}
    await subscribe(broker, "s")
    await wait_all_tasks_blocked()
    assert await ids(broker) == {1, 2}, "an empty segment is drained from the start"


async def test_deleting_the_last_subscription_that_holds_a_segment_prunes_it(
    broker: Rooms, nursery: trio.Nursery
) -> None:
    """Only its cursor was in the way. The deletion of the very last subscription prunes nothing."""
    nursery.start_soon(broker.pruner.run)
    await split_topic(broker)
    await drain(broker, 0, "s")
    await broker.controller.subscriptions.delete(TOPIC, "t")
    await wait_all_tasks_blocked()
    assert await ids(broker) == {1, 2}
    await publish(await topic_of(broker, 1), b"c")
    await broker.controller.split(TOPIC, 1)
    await broker.controller.subscriptions.delete(TOPIC, "s")
    await wait_all_tasks_blocked()
    assert await ids(broker) == {1, 2, 3, 4}


async def test_ancestors_go_first_and_then_their_heirs(broker: Rooms, nursery: trio.Nursery) -> None:
    """D11: an empty segment in between waits for its parent, so that nothing is assigned too early."""
    nursery.start_soon(broker.pruner.run)
    await split_topic(broker)
    await broker.controller.merge(TOPIC, 1, 2)
    await wait_all_tasks_blocked()
    assert await ids(broker) == {0, 1, 2, 3}
    for name in ("s", "t"):
        await drain(broker, 0, name)
    await wait_all_tasks_blocked()
    layout = await broker.layouts.get(TOPIC)
    assert layout.segments.keys() == {3}
    assert layout.segments[3].merges == 1


async def test_messages_of_an_open_transaction_keep_their_segment(broker: Rooms, nursery: trio.Nursery) -> None:
    """T20: a subscription that has acknowledged everything readable has not drained it yet."""
    nursery.start_soon(broker.pruner.run)
    await broker.controller.create_topic(TOPIC, 1, {})
    await subscribe(broker, "s")
    txn = await broker.coordinator.new_transaction(0, 1_000)
    await publish(await topic_of(broker, 0), b"a", txn)
    await broker.controller.split(TOPIC, 0)
    await wait_all_tasks_blocked()
    assert await ids(broker) == {0, 1, 2}
    await broker.coordinator.end(txn, EndAction.COMMIT)
    await wait_all_tasks_blocked()
    assert [entry.payload for entry in await visible(await topic_of(broker, 0))] == [b"a"]
    await drain(broker, 0)
    assert await ids(broker) == {1, 2}


@pytest.mark.parametrize("action", EndAction)
async def test_a_seek_beyond_an_open_transaction_does_not_remove_its_messages(
    broker: Rooms, nursery: trio.Nursery, action: EndAction
) -> None:
    """T20, E18: the subscription skips them, and readers still see the whole transaction when it is committed."""
    nursery.start_soon(broker.pruner.run)
    await broker.controller.create_topic(TOPIC, 1, {})
    await subscribe(broker, "s")
    txn = await broker.coordinator.new_transaction(0, 1_000)
    await publish(await topic_of(broker, 0), b"a", txn)
    await broker.controller.split(TOPIC, 0)
    await broker.controller.subscriptions.seek_to_time(TOPIC, "s", now_ms() + 1_000)
    await wait_all_tasks_blocked()
    assert await ids(broker) == {0, 1, 2}
    await broker.coordinator.end(txn, action)
    await wait_all_tasks_blocked()
    assert await ids(broker) == {1, 2}


async def test_a_segment_is_kept_for_its_time(keeping: Rooms, nursery: trio.Nursery, mock_clock: MockClock) -> None:
    """No task runs meanwhile: the pruner sleeps."""
    with TaskSteps() as steps:
        nursery.start_soon(keeping.pruner.run)
        await split_topic(keeping)
        for name in ("s", "t"):
            await drain(keeping, 0, name)
        steps.clear()
        mock_clock.jump(3_599)
        await wait_all_tasks_blocked()
        assert steps.of("Pruner._watch") == 0
        assert await ids(keeping) == {0, 1, 2}
        mock_clock.jump(2)
        await wait_all_tasks_blocked()
    assert await ids(keeping) == {1, 2}


async def test_a_topic_that_was_made_anew_keeps_its_segments_for_their_own_time(
    keeping: Rooms, store: SteeredStore, nursery: trio.Nursery, mock_clock: MockClock
) -> None:
    """D16: a watch may show the new layout without the deletion, and the segments have the same numbers."""
    nursery.start_soon(keeping.pruner.run)
    await split_topic(keeping)
    for name in ("s", "t"):
        await drain(keeping, 0, name)
    mock_clock.jump(3_000)
    before = await keeping.layouts.get(TOPIC)
    sealed = replace(before.segments[0], sealed_at_ms=keeping.services.now_ms())
    anew = replace(before, creation_id="anew", segments={**before.segments, 0: sealed})
    await store.put(layout_key(TOPIC), to_json(anew))
    await wait_all_tasks_blocked()
    mock_clock.jump(3_000)
    await wait_all_tasks_blocked()
    assert await ids(keeping) == {0, 1, 2}
    mock_clock.jump(1_000)
    await wait_all_tasks_blocked()
    assert await ids(keeping) == {1, 2}


async def test_a_segment_whose_record_is_damaged_is_kept(
    broker: Rooms, store: SteeredStore, nursery: trio.Nursery
) -> None:
    """E11: it affects no other segment. A repaired record counts."""
    await split_topic(broker)
    for name in ("s", "t"):
        await drain(broker, 0, name)
    parent = await broker.segment(TOPIC, 0)
    await broker.topics.unload(parent)
    record = await store.get(record_key(str(parent)))
    assert record is not None
    await store.put(record.key, b"damaged")
    nursery.start_soon(broker.pruner.run)
    await wait_all_tasks_blocked()
    assert await ids(broker) == {0, 1, 2}
    await publish(await topic_of(broker, 1), b"goes on")
    await store.put(record.key, record.value)
    await wait_all_tasks_blocked()
    assert await ids(broker) == {1, 2}


async def test_a_segment_that_cannot_be_opened_is_pruned(broker: Rooms, nursery: trio.Nursery) -> None:
    """C14, C16: pruning opens no segment, and owns one only while it removes it."""
    await split_topic(broker)
    for name in ("s", "t"):
        await drain(broker, 0, name)
    await broker.topics.unload(await broker.segment(TOPIC, 0))

    async def broken(name: object, claim: Check) -> Topic:
        raise OwnershipLost("not to be had")

    broker.topics._open_topic = broken
    nursery.start_soon(broker.pruner.run)
    await wait_all_tasks_blocked()
    assert await ids(broker) == {1, 2}


async def test_the_data_of_a_segment_that_another_broker_has_goes_when_that_lets_it_go(
    broker: Rooms, store: SteeredStore, nursery: trio.Nursery, mock_clock: MockClock
) -> None:
    """C14, D11: this holds however long it takes, without a change of the layout."""
    await split_topic(broker)
    for name in ("s", "t"):
        await drain(broker, 0, name)
    parent = await broker.segment(TOPIC, 0)
    await broker.topics.unload(parent)
    await broker.metadata.put(claim_key(str(parent)), b'{"broker": "broker-2", "service_url": "pulsar://two"}')
    nursery.start_soon(broker.pruner.run)
    await wait_all_tasks_blocked()
    assert await ids(broker) == {1, 2}
    for _ in range(3):
        mock_clock.jump(RETRY_SECONDS + 1)
        await wait_all_tasks_blocked()
    assert (await broker.layouts.get(TOPIC)).pruned
    assert record_key(str(parent)) in await traces(store, "0000-ffff-0")
    await broker.metadata.delete(claim_key(str(parent)))
    await wait_all_tasks_blocked()
    assert not (await broker.layouts.get(TOPIC)).pruned
    assert await traces(store, "0000-ffff-0") == []


async def test_a_topic_may_go_in_the_moment_in_which_its_segment_cannot_be_looked_at() -> None:
    """D16: the scheduler decides which of the two the pruner meets first."""
    for _ in range(20):
        store = SteeredStore()
        async with rooms(store, SimulatedFiles(seed=5)) as broker, trio.open_nursery() as nursery:
            await split_topic(broker)
            for name in ("s", "t"):
                await drain(broker, 0, name)
            fail = trio.Event()

            async def elect(topic: object, fail: trio.Event = fail) -> Check:
                await fail.wait()
                raise TopicNotFound(f"{topic} is gone")

            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(broker.elections, "elect", elect)
                nursery.start_soon(broker.pruner.run)
                await wait_all_tasks_blocked()
                await store.delete(layout_key(TOPIC))
                fail.set()
                await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("made", [True, False])
async def test_pruning_goes_on_after_the_metadata_store_gave_no_answer(made: bool, mock_clock: MockClock) -> None:
    """D4, D11: this holds at any write, whether it was made or not, and without a change by anybody else."""
    for step in range(1, STEPS_MAX):
        store = SteeredStore()
        async with rooms(store, SimulatedFiles(seed=5)) as broker, trio.open_nursery() as nursery:
            await split_topic(broker)
            for name in ("s", "t"):
                await drain(broker, 0, name)
            parent = await broker.segment(TOPIC, 0)
            await broker.topics.unload(parent)
            await broker.elections.resign(TOPIC)
            store.leave_unanswered(step, made=made)
            nursery.start_soon(broker.pruner.run)
            await wait_all_tasks_blocked()
            mock_clock.jump(RETRY_SECONDS + 1)
            await wait_all_tasks_blocked()
            assert await ids(broker) == {1, 2}, step
            # A claim that was to be given up goes with the broker's session.
            assert set(await traces(store, "0000-ffff-0")) <= {claim_key(str(parent))}
            is_done = store.has_answered_all
            nursery.cancel_scope.cancel()
        if is_done:
            assert step > 6, "there were steps to leave unanswered"
            return
    pytest.fail("pruning never ended")


async def test_pruning_that_dies_at_any_write_is_finished_or_was_never_begun() -> None:
    """D10: nothing of a pruned segment is left, and segments that are not drained stay."""
    for step in range(1, STEPS_MAX):
        store, files = SteeredStore(), SimulatedFiles(seed=5)
        died = False
        try:
            async with rooms(store, files) as broker, trio.open_nursery() as nursery:
                await split_topic(broker)
                await publish(await topic_of(broker, 1), b"c")
                for name in ("s", "t"):
                    await drain(broker, 0, name)
                store.fail_at(step)
                nursery.start_soon(broker.pruner.run)
                await wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
        except* (Stopped, BrokerError, CursorError):
            died = True
        store.fail_at(None)
        async with rooms(store, files.kill()) as broker, trio.open_nursery() as nursery:
            await broker.controller.recover()
            nursery.start_soon(broker.pruner.run)
            await wait_all_tasks_blocked()
            layout = await broker.layouts.get(TOPIC)
            assert (set(layout.segments), layout.pruned) == ({1, 2}, {})
            assert wrong_in(layout) == []
            assert await traces(store, "0000-ffff-0") == []
            assert [entry.payload for entry in await visible(await topic_of(broker, 1))] == [b"c"]
            nursery.cancel_scope.cancel()
        if not died:
            assert step > 4, "there were steps to die at"
            return
    pytest.fail("pruning never ended")


@every_schedule(examples_max=40)
async def test_a_subscription_made_meanwhile_has_all_its_cursors() -> None:
    """D10, D16: it has them on the remaining segments; nobody waits for a segment that is gone."""
    store = SteeredStore()
    async with rooms(store, SimulatedFiles(seed=5)) as broker, trio.open_nursery() as nursery:
        await split_topic(broker)
        await drain(broker, 0, "s")
        async with trio.open_nursery() as racing:
            nursery.start_soon(broker.pruner.run)
            racing.start_soon(drain, broker, 0, "t")
            racing.start_soon(subscribe, broker, "new")
        await wait_all_tasks_blocked()
        layout = await broker.layouts.get(TOPIC)
        for segment_id in layout.segments:
            assert (await topic_of(broker, segment_id)).subscriptions.keys() == {"s", "t", "new"}
        if 0 not in layout.segments:
            assert await traces(store, "0000-ffff-0") == []
        nursery.cancel_scope.cancel()


async def test_deleting_the_topic_removes_what_was_pruned_too(broker: Rooms, store: SteeredStore) -> None:
    """D16: this holds whether their data was already removed or not."""
    await split_topic(broker)
    await broker.layouts.change(TOPIC, lambda layout: layout.prune(0))
    assert await traces(store, "0000-ffff-0") != []
    await broker.controller.delete_topic(TOPIC, force=True)
    assert await traces(store, "orders") == []


async def test_many_layouts_are_looked_at_in_slices(
    broker: Rooms, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E7: all topics come at once when a broker starts."""
    await split_topic(broker)
    for number in range(8):
        await broker.controller.create_topic(TopicName.parse(f"topic://public/default/t{number}"), 1, {})
    for name in ("s", "t"):
        await drain(broker, 0, name)
    monkeypatch.setattr(pruning, "LAYOUTS_AT_ONCE", 2)
    with TaskSteps() as steps:
        nursery.start_soon(broker.pruner.run)
        await wait_all_tasks_blocked()
        # To begin, for what the watch has, and a pause after every second layout.
        assert steps.of("Pruner.run") >= 2 + 4
    assert await ids(broker) == {1, 2}


async def test_a_seek_back_before_the_pruning_is_decided_keeps_the_segment(
    broker: Rooms, nursery: trio.Nursery
) -> None:
    """E18, E21: the pruner has waited for the topic's lock, and a subscription has gone back meanwhile."""
    nursery.start_soon(broker.pruner.run)
    await split_topic(broker)
    await drain(broker, 0, "s")
    async with broker.controller.locks.hold(TOPIC):
        await drain(broker, 0, "t")
        await broker.controller.subscriptions.seek_to_time(TOPIC, "t", 0)
    await wait_all_tasks_blocked()
    assert await ids(broker) == {0, 1, 2}
    assert (await topic_of(broker, 0)).subscriptions["t"].backlog_entries == 2
    await drain(broker, 0, "t")
    assert await ids(broker) == {1, 2}


async def test_a_seek_back_in_the_moment_of_the_decision_keeps_the_segment(
    broker: Rooms, store: SteeredStore, nursery: trio.Nursery
) -> None:
    """E18, E21: of the pruning and the seek, the one that is durable first counts."""
    nursery.start_soon(broker.pruner.run)
    await split_topic(broker)
    await drain(broker, 0, "s")
    topic = await topic_of(broker, 0)
    sought: list[bool] = []

    async def seek_first(ops: Sequence[Op]) -> None:
        if any(isinstance(op, Put) and op.key == layout_key(TOPIC) for op in ops) and not sought:
            sought.append(True)
            await topic.seek(topic.subscriptions["t"], EARLIEST)

    store.before = seek_first
    await drain(broker, 0, "t")
    assert sought, "the pruner has decided"
    assert await ids(broker) == {0, 1, 2}
    await drain(broker, 0, "t")
    assert await ids(broker) == {1, 2}
