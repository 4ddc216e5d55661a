"""Splits, merges, deletions and subscriptions of topics whose segments belong to other brokers than the controller."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.errors import BrokerError, SubscriptionInUse, TopicInUse, TopicNotFound
from broker.layouts.checks import wrong_in
from broker.layouts.layout import Layout
from broker.layouts.parts import StartPosition, SubscriptionKind
from broker.layouts.record import from_json
from broker.layouts.store import layout_key
from broker.topic import Topic
from storage.errors import ExpectedError
from storage.metadata.store import MetadataStore, Op, Put
from storage.position import EARLIEST
from tests.support.outlet import recording_consumer
from tests.support.rooms import TOPIC, Rooms, payloads, publish
from tests.support.several_rooms import Brokers, several
from tests.support.steered_store import SteeredStore

STEPS_MAX = 60
STREAM = SubscriptionKind.STREAM
EARLY, LATE = StartPosition.EARLIEST, StartPosition.LATEST

Change = Callable[[Rooms], Awaitable[object]]
changes = pytest.mark.parametrize(
    "change",
    [lambda broker: broker.controller.split(TOPIC, 0), lambda broker: broker.controller.merge(TOPIC, 0, 1)],
    ids=["split", "merge"],
)


async def spread(brokers: Brokers, *owners: str, controller: str = "one") -> list[Topic]:
    """Make a topic with a message in each segment and the subscription `s`. Each owner gets one segment."""
    one = brokers[controller]
    await one.controller.create_topic(TOPIC, len(owners), {})
    await one.control()
    await one.controller.subscriptions.add(TOPIC, "s", STREAM, EARLY)
    topics = []
    for number, owner in enumerate(owners):
        topic = await brokers[owner].topics.get(await one.segment(TOPIC, number))
        await publish(topic, b"%d" % number)
        topics.append(topic)
    return topics


async def leftovers(store: MetadataStore) -> list[str]:
    return [record.key for record in await store.scan("", "~") if "orders" in record.key]


async def check_whole(brokers: Brokers, subscriptions: set[str], expected: list[bytes]) -> Layout:
    """Check that nothing is half done, and that no cursor, seal or message is missing."""
    some = next(iter(brokers.living.values()))
    layout = await some.layouts.get(TOPIC)
    assert not layout.is_half_done
    assert wrong_in(layout) == []
    assert layout.subscriptions.keys() == subscriptions
    found: list[bytes] = []
    for segment in layout.segments.values():
        topic = await brokers.load(TOPIC.segment_name(segment.descriptor))
        assert topic.subscriptions.keys() == subscriptions, segment.id
        assert topic.ledger.is_sealed != segment.is_active
        assert topic.replaced.is_set() != segment.is_active, "a send that met the seal is answered"
        found += await payloads(topic)
    assert sorted(found) == sorted(expected)
    return layout


async def settled(brokers: Brokers) -> None:
    """Wait until the brokers have finished what is half done."""
    with trio.fail_after(300):
        while True:
            some = next(iter(brokers.living.values()))
            layout = await some.layouts.stored_or_none(TOPIC)
            if layout is None or not layout.is_half_done:
                return
            await trio.sleep(1)


@changes
async def test_a_controller_owns_no_segment(change: Change, autojump_clock: MockClock) -> None:
    """C14: owners seal the parents, and the children belong to nobody before a client comes."""
    async with several("one", "two", "three") as brokers:
        await spread(brokers, "two", "three")
        await change(brokers["one"])
        assert list(brokers["one"].topics) == []
        assert brokers["one"].opened == []
        layout = await check_whole(brokers, {"s"}, [b"0", b"1"])
        assert layout.epoch == 1
        child = TOPIC.segment_name(layout.active()[-1].descriptor)
        assert (await brokers.load(child)).subscriptions["s"].cursor.mark_delete == EARLIEST


@changes
@pytest.mark.parametrize("victim", ["one", "two", "three"])
@pytest.mark.parametrize("made", [True, False])
async def test_a_broker_dies_at_any_write_of_a_change(
    change: Change, victim: str, made: bool, autojump_clock: MockClock
) -> None:
    """C14, D10: controller, owner of a parent, or another. The others finish the change, or it was never begun."""
    for step in range(1, STEPS_MAX):
        async with several("one", "two", "three", seed=step) as brokers, trio.open_nursery() as nursery:
            await spread(brokers, "two", "three")
            store = brokers.store(victim)
            store.die_at(step, made=made)
            done = trio.Event()

            async def run(brokers: Brokers = brokers, done: trio.Event = done) -> None:
                with suppress(BrokerError):
                    await change(brokers["one"])
                done.set()

            nursery.start_soon(run)
            with trio.move_on_after(60):
                await store.died.wait()
                await brokers.kill(victim)
            store.live_on()
            with trio.fail_after(60):
                await done.wait()
            await settled(brokers)
            layout = await check_whole(brokers, {"s"}, [b"0", b"1"])
            if layout.epoch == 0:
                await change(next(iter(brokers.living.values())))
                await check_whole(brokers, {"s"}, [b"0", b"1"])
            died = store.died.is_set()
            nursery.cancel_scope.cancel()
        if not died:
            assert step > {"one": 4, "two": 1, "three": 0}[victim], "there were steps to die at"
            return
    pytest.fail("the change never ended")


@pytest.mark.parametrize("victim", ["one", "two", "three"])
async def test_subscriptions_come_and_go_during_a_split_in_which_a_broker_dies(
    victim: str, autojump_clock: MockClock
) -> None:
    """C14, D10, D16: each living subscription has a cursor on each segment, and no other cursor is left."""
    for step in range(1, STEPS_MAX):
        async with several("one", "two", "three", seed=step) as brokers, trio.open_nursery() as nursery:
            await spread(brokers, "two", "three")
            await brokers["one"].controller.subscriptions.add(TOPIC, "old", STREAM, LATE)
            store = brokers.store(victim)
            store.die_at(step, made=step % 2 == 0)
            requests = {name: trio.CancelScope() for name in ("one", "two", "three")}

            async def run(work: Callable[[], Awaitable[object]], scope: trio.CancelScope) -> None:
                with scope, suppress(ExpectedError):
                    await work()

            one, two, three = (brokers[name] for name in requests)
            for scope, work in zip(
                requests.values(),
                (
                    lambda one=one: one.controller.split(TOPIC, 0),
                    lambda two=two: two.controller.subscriptions.add(TOPIC, "new", STREAM, LATE),
                    lambda three=three: three.controller.subscriptions.delete(TOPIC, "old", force=True),
                ),
                strict=True,
            ):
                nursery.start_soon(run, work, scope)
            with trio.move_on_after(60):
                await store.died.wait()
                # Its request dies with it.
                requests[victim].cancel()
                await brokers.kill(victim)
            store.live_on()
            await settled(brokers)
            some = next(iter(brokers.living.values()))
            left = set((await some.layouts.get(TOPIC)).subscriptions)
            assert {"s"} <= left <= {"s", "old", "new"}
            await check_whole(brokers, left, [b"0", b"1"])
            segments = len((await some.layouts.get(TOPIC)).segments)
            cursors = [key for key in await leftovers(brokers.shared) if key.startswith("/cursors/")]
            assert len(cursors) == segments * len(left)
            died = store.died.is_set()
            nursery.cancel_scope.cancel()
        if not died:
            assert left == {"s", "new"}
            return
    pytest.fail("it never ended")


@pytest.mark.parametrize("name", ["new", "s"], ids=["made", "made again"])
async def test_a_subscription_that_comes_just_before_the_children_has_its_cursors_on_them(
    name: str, autojump_clock: MockClock
) -> None:
    """C14, D10, D16: whoever makes it does so on the parents alone, so the split makes the others."""
    store = SteeredStore()
    async with several("one", "two", shared=store) as brokers:
        await spread(brokers, "two")
        subscriptions = brokers["two"].controller.subscriptions
        came = trio.Event()

        async def come(ops: Sequence[Op]) -> None:
            layouts = [from_json(op.value) for op in ops if isinstance(op, Put) and op.key == layout_key(TOPIC)]
            if any(layout.intent is not None and layout.intent.sealing for layout in layouts):
                store.before = None
                if name == "s":
                    await subscriptions.delete(TOPIC, name, force=True)
                await subscriptions.add(TOPIC, name, STREAM, LATE)
                came.set()

        store.before = come
        await brokers["one"].controller.split(TOPIC, 0)
        assert came.is_set()
        await check_whole(brokers, {"s", name}, [b"0"])


async def test_an_owner_makes_and_removes_cursors_for_others(autojump_clock: MockClock) -> None:
    """C14, D16: at the end of its messages if the subscription asks for that; a later one of the name is new."""
    async with several("one", "two") as brokers:
        topics = await spread(brokers, "two", "one")
        one = brokers["one"].controller.subscriptions
        await one.add(TOPIC, "late", STREAM, LATE)
        await one.add(TOPIC, "early", STREAM, EARLY)
        await publish(topics[0], b"more")
        assert [topics[0].subscriptions[name].backlog_entries for name in ("late", "early")] == [1, 2]
        await one.delete(TOPIC, "late", force=True)
        assert "late" not in topics[0].subscriptions
        await one.add(TOPIC, "late", STREAM, LATE)
        assert topics[0].subscriptions["late"].backlog_entries == 0


async def test_a_consumer_at_another_broker_gets_the_cursor_that_the_owner_has(autojump_clock: MockClock) -> None:
    """D10: whoever subscribes on one segment has a cursor on all."""
    async with several("one", "two") as brokers:
        topics = await spread(brokers, "two", "one")
        segment = await brokers["two"].segment(TOPIC, 0)
        topic, subscription = await brokers["two"].controller.subscriptions.open(segment, "new", STREAM, LATE)
        assert topic is topics[0]
        assert subscription.name == "new"
        assert "new" in topics[1].subscriptions


@pytest.mark.parametrize("victim", ["one", "two", "three"])
async def test_a_broker_dies_at_any_write_of_a_deletion(victim: str, autojump_clock: MockClock) -> None:
    """C14, D16: owners give their segments up; nothing is left of the topic."""
    for step in range(1, STEPS_MAX):
        async with several("one", "two", "three", seed=step) as brokers, trio.open_nursery() as nursery:
            await spread(brokers, "two", "three", "one")
            store = brokers.store(victim)
            store.die_at(step, made=step % 2 == 0)

            async def run(brokers: Brokers = brokers) -> None:
                # The request outlives its broker, whose nursery then takes no task.
                with suppress(ExpectedError, RuntimeError):
                    await brokers["one"].controller.delete_topic(TOPIC, force=True)

            nursery.start_soon(run)
            with trio.move_on_after(60):
                await store.died.wait()
                await brokers.kill(victim)
            store.live_on()
            await settled(brokers)
            some = next(iter(brokers.living.values()))
            with suppress(TopicNotFound):
                await some.layouts.get(TOPIC)
                await some.controller.delete_topic(TOPIC, force=True)
            await wait_all_tasks_blocked()
            assert await leftovers(brokers.shared) == []
            died = store.died.is_set()
            nursery.cancel_scope.cancel()
        if not died:
            return
    pytest.fail("the deletion never ended")


async def test_a_topic_whose_segments_others_serve_is_deleted_by_force_alone(autojump_clock: MockClock) -> None:
    """C14: only their owners know the clients, so the topic counts as in use."""
    async with several("one", "two") as brokers:
        topics = await spread(brokers, "two", "one")
        one = brokers["one"].controller
        with pytest.raises(TopicInUse, match="other brokers serve 1 of its segments"):
            await one.delete_topic(TOPIC, force=False)
        with pytest.raises(SubscriptionInUse, match="other brokers serve 1 of its segments"):
            await one.subscriptions.delete(TOPIC, "s")
        await brokers["two"].topics.unload(topics[0].name)
        await one.subscriptions.delete(TOPIC, "s")
        await one.delete_topic(TOPIC, force=False)
        assert await leftovers(brokers.shared) == []


async def drain(topic: Topic, name: str = "s") -> None:
    cursor = topic.subscriptions[name].cursor
    cursor.acknowledge_cumulative(topic.ledger.last_position)
    await cursor.synced()


async def test_a_drained_segment_of_another_broker_is_pruned(autojump_clock: MockClock) -> None:
    """C14, D11: its owner gives it up, and then it is removed. Its consumers are told."""
    async with several("one", "two") as brokers, trio.open_nursery() as nursery:
        topics = await spread(brokers, "two", "two")
        for broker in brokers.living.values():
            nursery.start_soon(broker.pruner.run)
        told: list[str] = []

        class Client:
            follows_layout = True

            def topic_closed(self, assigned_url: str | None = None) -> None:
                told.append("closed")

        consumer, _outlet = recording_consumer()
        topics[0].subscriptions["s"].add_consumer(consumer)
        topics[0].clients.add_consumer(consumer, Client())
        await brokers["one"].controller.split(TOPIC, 0)
        await drain(topics[0])
        await trio.sleep(1)
        assert told == ["closed"]
        layout = await brokers["one"].layouts.get(TOPIC)
        assert (set(layout.segments), dict(layout.pruned)) == ({1, 2, 3}, {})
        assert [key for key in await leftovers(brokers.shared) if "0000-7fff-0" in key] == []
        assert brokers["one"].opened == []
        nursery.cancel_scope.cancel()


async def test_one_broker_prunes_a_topic_without_a_controller(autojump_clock: MockClock) -> None:
    """C16: all agree which one, and the others take nothing. If it dies, the next one does it."""
    async with several("one", "two", "three") as brokers, trio.open_nursery() as nursery:
        topics = await spread(brokers, "one")
        await brokers["one"].controller.split(TOPIC, 0)
        await brokers["one"].elections.resign(TOPIC)
        for broker in brokers.living.values():
            nursery.start_soon(broker.pruner.run)
        await wait_all_tasks_blocked()
        turn = [name for name, broker in brokers.living.items() if broker.turns.is_mine(TOPIC)]
        assert len(turn) == 1
        before = {name: brokers.store(name).commits for name in brokers.living}
        await drain(topics[0])
        await trio.sleep(1)
        assert set((await brokers["one"].layouts.get(TOPIC)).segments) == {1, 2}
        idle = set(brokers.living) - {*turn, "one"}
        assert [name for name in idle if brokers.store(name).commits != before[name]] == []
        nursery.cancel_scope.cancel()
