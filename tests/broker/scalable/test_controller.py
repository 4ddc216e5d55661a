"""Create, split, merge and delete, stopped at every step and continued by the next controller."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import pytest
import structlog.testing
import trio
from trio.testing import wait_all_tasks_blocked

from broker.errors import AutoScalePolicyInvalid, BrokerError, LayoutUnreadable, NotActive, TopicExists
from broker.layouts.autoscale_policy import AutoScaleOverride, AutoScalePolicy
from broker.layouts.checks import wrong_in
from broker.layouts.layout import Layout
from broker.layouts.parts import SegmentState, StartPosition
from broker.layouts.record import from_json
from broker.layouts.store import layout_key
from broker.names import TopicName
from broker.scalable import segment_owner
from storage.entry import EntryFormat
from storage.errors import LedgerSealed
from storage.metadata.store import Op, StoreUnavailable
from storage.position import EARLIEST
from tests.support.disk import SimulatedFiles
from tests.support.draining import drained
from tests.support.outlet import recording_consumer
from tests.support.rooms import TOPIC, Rooms, publish, rooms, segments, subscribe, visible
from tests.support.schedules import every_schedule
from tests.support.steered_store import SteeredStore, Stopped
from txn.states import EndAction

STEPS_MAX = 60


def states(layout: Layout) -> dict[int, SegmentState]:
    return {segment_id: segment.state for segment_id, segment in layout.segments.items()}


A, S = SegmentState.ACTIVE, SegmentState.SEALED


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


async def test_a_split_seals_the_parent_and_gives_the_children_every_cursor(broker: Rooms) -> None:
    """D10: they are at the beginning of each child, whatever the subscription's own start was."""
    await broker.controller.create_topic(TOPIC, 2, {"owner": "me"})
    with pytest.raises(TopicExists):
        await broker.controller.create_topic(TOPIC, 1, {})
    await subscribe(broker, "early")
    await publish((await segments(broker))[0], b"a")
    await subscribe(broker, "late", StartPosition.LATEST)
    layout = await broker.controller.split(TOPIC, 0)
    assert states(layout) == {0: S, 1: A, 2: A, 3: A}
    assert layout.intent is None
    topics = await segments(broker)
    assert topics[0].replaced.is_set()
    with pytest.raises(LedgerSealed):
        await topics[0].publish(b"more", message_count=1, txn=None, entry_format=EntryFormat.PULSAR)
    assert [entry.payload for entry in await visible(topics[0])] == [b"a"]
    for child in (2, 3):
        assert topics[child].subscriptions.keys() == {"early", "late"}
        for subscription in topics[child].subscriptions.values():
            assert subscription.cursor.mark_delete == EARLIEST
        await publish(topics[child], b"b")
        assert topics[child].subscriptions["late"].backlog_entries == 1
    with pytest.raises(NotActive):
        await broker.controller.split(TOPIC, 0)
    assert await broker.layouts.get(TOPIC) == layout, "a refusal changes nothing"


async def test_a_layout_is_not_decoded_once_for_each_segment(broker: Rooms) -> None:
    """E7: otherwise creating a topic of a thousand segments would take a thousand times as long."""
    before = from_json.cache_info().misses
    await broker.controller.create_topic(TOPIC, 32, {})
    assert len(await segments(broker)) == 32
    assert from_json.cache_info().misses - before < 8


async def test_a_merge_joins_two_segments(broker: Rooms) -> None:
    """D10: the child has every cursor."""
    await broker.controller.create_topic(TOPIC, 2, {})
    await subscribe(broker, "s")
    layout = await broker.controller.merge(TOPIC, 0, 1)
    assert states(layout) == {0: S, 1: S, 2: A}
    assert layout.segments[2].parents == (0, 1)
    topics = await segments(broker)
    assert topics[0].replaced.is_set()
    assert topics[1].replaced.is_set()
    assert topics[2].subscriptions.keys() == {"s"}


async def test_a_transaction_lives_through_a_split(broker: Rooms) -> None:
    """T20: it writes to the parent before and to a child after; both writes become visible, or none."""
    await broker.controller.create_topic(TOPIC, 1, {})
    committed, aborted = [await broker.coordinator.new_transaction(0, 1_000) for _ in range(2)]
    parent = (await segments(broker))[0]
    await publish(parent, b"yes 1", committed)
    await publish(parent, b"no 1", aborted)
    await broker.controller.split(TOPIC, 0)
    topics = await segments(broker)
    await publish(topics[1], b"yes 2", committed)
    await publish(topics[1], b"no 2", aborted)
    with pytest.raises(LedgerSealed):
        await parent.publish(b"yes 3", message_count=1, txn=committed, entry_format=EntryFormat.PULSAR)
    assert await visible(parent) == await visible(topics[1]) == []
    await broker.coordinator.end(committed, EndAction.COMMIT)
    await broker.coordinator.end(aborted, EndAction.ABORT)
    await wait_all_tasks_blocked()
    assert [entry.payload for entry in await visible(parent)] == [b"yes 1"]
    assert [entry.payload for entry in await visible(topics[1])] == [b"yes 2"]


async def test_a_sealed_segment_that_ends_in_aborted_entries_drains(broker: Rooms) -> None:
    """D11: no consumer can acknowledge those entries, so the dispatcher does."""
    await broker.controller.create_topic(TOPIC, 1, {})
    await subscribe(broker, "s")
    parent = (await segments(broker))[0]
    txn = await broker.coordinator.new_transaction(0, 1_000)
    for payload in (b"a", b"b"):
        await publish(parent, payload, txn)
    await broker.controller.split(TOPIC, 0)
    subscription = parent.subscriptions["s"]
    consumer, outlet = recording_consumer()
    subscription.add_consumer(consumer)
    subscription.flow(consumer, 10)
    await wait_all_tasks_blocked()
    assert not subscription.is_drained
    await broker.coordinator.end(txn, EndAction.ABORT)
    with trio.fail_after(60):
        await drained(subscription)
    await wait_all_tasks_blocked()
    assert (outlet.deliveries, outlet.ends) == ([], 1)


async def test_the_layout_is_pushed_before_producers_are_told(broker: Rooms, monkeypatch: pytest.MonkeyPatch) -> None:
    """T20: at a refused send, or at the end of its producer, the client already knows the children."""
    monkeypatch.setattr(segment_owner, "LEAVING_SECONDS_MAX", 0)
    await broker.controller.create_topic(TOPIC, 1, {})
    parent = (await segments(broker))[0]
    producer = Producer()
    parent.add_producer(producer)
    pushed: list[tuple[int, list[str]]] = []

    def follower(layout: Layout | None) -> None:
        assert layout is not None
        pushed.append((layout.epoch, list(producer.told)))
        assert not (layout.epoch == 1 and layout.intent is not None and parent.ledger.is_sealed)

    broker.feeds.follow(TOPIC, follower)
    await wait_all_tasks_blocked()
    await broker.controller.split(TOPIC, 0)
    assert (1, []) in pushed
    assert producer.told == ["replaced"]
    broker.feeds.unfollow(TOPIC, follower)


async def test_parents_take_producers_until_the_layout_is_pushed(
    broker: Rooms, store: SteeredStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T20: however late that is, a closed client finds the children."""
    monkeypatch.setattr(segment_owner, "LEAVING_SECONDS_MAX", 0)
    await broker.controller.create_topic(TOPIC, 1, {})
    parent = (await segments(broker))[0]
    pushed: list[int] = []

    def follower(layout: Layout | None) -> None:
        assert layout is not None
        pushed.append(layout.epoch)

    broker.feeds.follow(TOPIC, follower)
    await wait_all_tasks_blocked()
    pushing = store.late[layout_key(TOPIC)] = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.controller.split, TOPIC, 0)
        await wait_all_tasks_blocked()
        assert (await broker.layouts.get(TOPIC)).epoch == 1
        assert max(pushed) == 0
        parent.add_producer(Producer())
        await publish(parent, b"still")
        pushing.set()
    assert max(pushed) == 1
    assert parent.ledger.is_sealed
    broker.feeds.unfollow(TOPIC, follower)


async def test_a_parent_is_sealed_when_its_last_producer_has_left(broker: Rooms) -> None:
    """T20: sends in progress are stored, also in transactions; no other producer may open meanwhile."""
    await broker.controller.create_topic(TOPIC, 1, {})
    await subscribe(broker, "s")
    parent = (await segments(broker))[0]
    producer = Producer()
    parent.add_producer(producer)
    txn = await broker.coordinator.new_transaction(0, 1_000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.controller.split, TOPIC, 0)
        await wait_all_tasks_blocked()
        layout = await broker.layouts.get(TOPIC)
        assert states(layout) == {0: S, 1: A, 2: A}
        assert layout.intent is not None
        await publish(parent, b"late", txn)
        with pytest.raises(LedgerSealed):
            parent.add_producer(Producer())
        assert parent.sealed_end is None
        parent.clients.remove_producer(producer)
    assert producer.told == []
    await broker.coordinator.end(txn, EndAction.COMMIT)
    await wait_all_tasks_blocked()
    await check_whole(broker, {"s"}, [b"late"])


async def test_a_controller_that_dies_while_producers_leave_is_followed_by_one_that_seals(store: SteeredStore) -> None:
    """D10: the children are already active, so the parents must not accept messages any more."""
    files = SimulatedFiles(seed=5)
    async with rooms(store, files) as broker:
        await broker.controller.create_topic(TOPIC, 2, {})
        await subscribe(broker, "s")
        topics = await segments(broker)
        topics[0].add_producer(Producer())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.controller.merge, TOPIC, 0, 1)
            await wait_all_tasks_blocked()
            await publish(topics[0], b"late")
            await publish((await segments(broker))[2], b"new")
            assert topics[0].sealed_end is None
            nursery.cancel_scope.cancel()
    async with rooms(store, files.kill()) as broker:
        await broker.controller.recover()
        await check_whole(broker, {"s"}, [b"late", b"new"])


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


Change = Callable[[Rooms], Awaitable[object]]


@pytest.mark.parametrize(
    "change",
    [lambda broker: broker.controller.split(TOPIC, 0), lambda broker: broker.controller.merge(TOPIC, 0, 1)],
    ids=["split", "merge"],
)
async def test_a_change_that_dies_at_any_write_is_finished_or_was_never_begun(change: Change) -> None:
    """D10: the next controller recovers it: all children have their cursors, nothing is lost, and nothing hangs."""
    for step in range(1, STEPS_MAX):
        store, files = SteeredStore(), SimulatedFiles(seed=5)
        died = False
        try:
            async with rooms(store, files) as broker:
                await broker.controller.create_topic(TOPIC, 2, {})
                await subscribe(broker, "s")
                for segment_id, topic in (await segments(broker)).items():
                    await publish(topic, b"%d" % segment_id)
                store.fail_at(step)
                await change(broker)
        except* (Stopped, BrokerError):
            died = True
        store.fail_at(None)
        async with rooms(store, files.kill()) as broker:
            await broker.controller.recover()
            await check_whole(broker, {"s"}, [b"0", b"1"])
            if (await broker.layouts.get(TOPIC)).epoch == 0:
                await change(broker)
                await check_whole(broker, {"s"}, [b"0", b"1"])
        if not died:
            assert step > 6, "there were steps to die at"
            return
    pytest.fail("the change never ended")


@every_schedule(examples_max=40)
async def test_subscriptions_created_meanwhile_get_cursors_on_the_children() -> None:
    """D10: at each step, either of the two may be faster."""
    async with rooms(SteeredStore(), SimulatedFiles(seed=5)) as broker:
        await broker.controller.create_topic(TOPIC, 1, {})
        await publish((await segments(broker))[0], b"before")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.controller.split, TOPIC, 0)
            nursery.start_soon(subscribe, broker, "a")
            nursery.start_soon(subscribe, broker, "b")
        await check_whole(broker, {"a", "b"}, [b"before"])


async def test_changes_of_one_topic_take_turns(broker: Rooms) -> None:
    await broker.controller.create_topic(TOPIC, 4, {})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.controller.split, TOPIC, 0)
        nursery.start_soon(broker.controller.split, TOPIC, 1)
        nursery.start_soon(broker.controller.merge, TOPIC, 2, 3)
    await check_whole(broker, set(), [])
    assert (await broker.layouts.get(TOPIC)).epoch == 3


async def test_a_cancelled_split_is_finished_all_the_same(broker: Rooms, store: SteeredStore) -> None:
    """D10: the administrator has disconnected, but refused sends must not wait for another administrator."""
    await broker.controller.create_topic(TOPIC, 1, {})
    await subscribe(broker, "s")
    for segment_id in range(4):
        layout = await broker.layouts.get(TOPIC)
        target = max(layout.segments)
        with trio.CancelScope() as scope:
            left = segment_id + 1

            async def hang_up(ops: Sequence[Op], scope: trio.CancelScope = scope) -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    scope.cancel()

            store.before = hang_up
            await broker.controller.split(TOPIC, target)
        store.before = None
        await wait_all_tasks_blocked()
        await check_whole(broker, {"s"}, [])


async def test_a_split_that_fails_when_nobody_waits_for_it_is_logged(broker: Rooms, store: SteeredStore) -> None:
    """D10: the administrator has disconnected and is told nothing."""
    await broker.controller.create_topic(TOPIC, 1, {})
    for hangs_up in (True, False):
        scope = trio.CancelScope()

        async def fail(_ops: Sequence[Op], scope: trio.CancelScope = scope, hangs_up: bool = hangs_up) -> None:
            store.before = None
            if hangs_up:
                scope.cancel()
                await wait_all_tasks_blocked()
            raise StoreUnavailable("away")

        store.before = fail
        with structlog.testing.capture_logs() as logs:
            with scope, suppress(StoreUnavailable):
                await broker.controller.split(TOPIC, 0)
            for _ in range(2):
                # Once together with `fail`, and once for what follows it.
                await wait_all_tasks_blocked()
        said = [entry["event"] for entry in logs]
        assert ("a split, merge or migration did not finish" in said) is hangs_up


async def test_a_sealed_segment_of_an_earlier_run_refuses_sends_at_once(store: SteeredStore) -> None:
    """T20: a producer that reconnects after a restart does not wait for a push that happened long ago."""
    files = SimulatedFiles(seed=5)
    async with rooms(store, files) as broker:
        await broker.controller.create_topic(TOPIC, 1, {})
        await broker.controller.split(TOPIC, 0)
    async with rooms(store, files.kill()) as broker:
        await broker.controller.recover()
        assert (await segments(broker))[0].replaced.is_set()


async def test_a_layout_that_cannot_be_read_makes_its_topic_unavailable_alone(store: SteeredStore) -> None:
    """The broker starts, reports it, and serves the other topics. A repaired record is read."""
    other = TopicName.parse("topic://public/default/other")
    files = SimulatedFiles(seed=5)
    async with rooms(store, files) as broker:
        for topic in (TOPIC, other):
            await broker.controller.create_topic(topic, 1, {})
        await broker.layouts.change(other, lambda layout: layout.begin_split(0))
    record = await store.get(layout_key(TOPIC))
    assert record is not None
    await store.put(layout_key(TOPIC), b'{"version": 2')
    await store.put("/topics/stray", b"")
    async with rooms(store, files.kill()) as broker:
        with structlog.testing.capture_logs() as logs:
            await broker.controller.recover()
        told = [line for line in logs if line["log_level"] == "error"]
        assert {line.get("topic", line.get("key")) for line in told} == {"/topics/stray", str(TOPIC)}
        assert (await broker.layouts.get(other)).intent is None
        for refused in (broker.controller.split(TOPIC, 0), broker.controller.delete_topic(TOPIC, force=True)):
            with pytest.raises(LayoutUnreadable):
                await refused
        with pytest.raises(LayoutUnreadable):
            await broker.topics.get(TopicName.parse("segment://public/default/orders/0000-ffff-0"))
        assert sorted(map(str, await broker.layouts.names())) == [str(TOPIC), str(other)]
        await store.put(layout_key(TOPIC), record.value)
        await broker.controller.split(TOPIC, 0)


async def test_a_follower_outlives_a_damaged_layout(broker: Rooms, store: SteeredStore) -> None:
    """The follower learns that the layout is gone, and later gets the next readable one."""
    await broker.controller.create_topic(TOPIC, 1, {})
    record = await store.get(layout_key(TOPIC))
    assert record is not None
    pushed: list[int | None] = []

    def follower(layout: Layout | None) -> None:
        pushed.append(None if layout is None else layout.epoch)

    broker.feeds.follow(TOPIC, follower)
    await wait_all_tasks_blocked()
    await store.put(layout_key(TOPIC), b"[]")
    await wait_all_tasks_blocked()
    await store.put(layout_key(TOPIC), record.value)
    await wait_all_tasks_blocked()
    assert pushed == [0, None, 0]
    broker.feeds.unfollow(TOPIC, follower)


async def test_nothing_is_remembered_of_topics_that_were_changed(broker: Rooms) -> None:
    for _ in range(3):
        await broker.controller.create_topic(TOPIC, 1, {})
        await broker.controller.split(TOPIC, 0)
        await broker.controller.delete_topic(TOPIC, force=False)
    assert len(broker.controller.locks) == 0


async def test_a_topic_overrides_the_settings_for_automatic_scaling(broker: Rooms) -> None:
    await broker.controller.create_topic(TOPIC, 1, {})
    assert await broker.controller.auto_scale_override(TOPIC) is None
    await broker.controller.set_auto_scale_override(TOPIC, AutoScaleOverride(max_segments=3))
    assert await broker.controller.auto_scale_override(TOPIC) == AutoScaleOverride(max_segments=3)
    assert broker.controller.auto_scale_policy(await broker.layouts.get(TOPIC)) == AutoScalePolicy(max_segments=3)
    with pytest.raises(AutoScalePolicyInvalid):
        await broker.controller.set_auto_scale_override(TOPIC, AutoScaleOverride(min_segments=100))
    await broker.controller.set_auto_scale_override(TOPIC, None)
    assert await broker.controller.auto_scale_override(TOPIC) is None
