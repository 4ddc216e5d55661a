"""Splits and merges that fail for a transient reason, and continue by themselves afterwards."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.cluster.ownership import OwnedElsewhere, claim_key
from broker.errors import BrokerError, TopicClosed, TopicNotFound
from broker.layouts.checks import wrong_in
from broker.layouts.layout import Layout
from broker.layouts.parts import LayoutSubscription, StartPosition, SubscriptionKind
from broker.names import TopicName
from broker.store_retry import RETRY_SECONDS
from broker.topic import Topic
from storage.cursor import CursorClosed, CursorError, CursorFailed, CursorLost
from storage.errors import (
    CursorCorrupt,
    Fenced,
    JournalContended,
    LedgerCorrupt,
    LedgerListCorrupt,
    LedgerNotMade,
    LedgerOutOfReach,
    NoSpace,
    WriterAlive,
)
from storage.managed_ledger_record import record_key
from storage.metadata.store import Check, Delete, Op, StoreFull, StoreUnavailable
from storage.writer import Writer
from tests.support.disk import SimulatedFiles
from tests.support.idle import TaskSteps
from tests.support.rooms import TOPIC, Rooms, publish, rooms, visible
from tests.support.several_rooms import several
from tests.support.steered_store import SteeredStore, Stopped
from txn.errors import OwnershipLost

STEPS_MAX = 60
Change = Callable[[Rooms], Awaitable[object]]
changes = pytest.mark.parametrize(
    "change",
    [lambda broker: broker.controller.split(TOPIC, 0), lambda broker: broker.controller.merge(TOPIC, 0, 1)],
    ids=["split", "merge"],
)


async def two_segments(broker: Rooms) -> None:
    """Prepare two segments with a message each, and a subscription."""
    await broker.controller.create_topic(TOPIC, 2, {})
    await broker.controller.subscriptions.add(TOPIC, "s", SubscriptionKind.STREAM, StartPosition.EARLIEST)
    for segment_id in (0, 1):
        await publish(await broker.topics.get(await broker.segment(TOPIC, segment_id)), b"%d" % segment_id)


async def pause(clock: MockClock) -> None:
    await wait_all_tasks_blocked()
    clock.jump(RETRY_SECONDS + 1)
    await wait_all_tasks_blocked()


async def check_whole(broker: Rooms) -> None:
    """Check that nothing is half done, no cursor or seal is missing, and the messages are there."""
    layout = await broker.layouts.get(TOPIC)
    assert not layout.is_half_done
    assert wrong_in(layout) == []
    found = []
    for segment_id, segment in layout.segments.items():
        topic = await broker.topics.get(await broker.segment(TOPIC, segment_id))
        assert topic.subscriptions.keys() == {"s"}
        assert topic.ledger.is_sealed != segment.is_active
        found += [entry.payload for entry in await visible(topic)]
    assert sorted(found) == [b"0", b"1"]


@changes
@pytest.mark.parametrize("made", [True, False])
async def test_a_change_goes_on_after_the_metadata_store_gave_no_answer(
    change: Change, made: bool, mock_clock: MockClock
) -> None:
    """D10, M22: this holds at any write, whether it was made or not, and without another request."""
    finished = 0
    for step in range(1, STEPS_MAX):
        store = SteeredStore()
        async with rooms(store, SimulatedFiles(seed=5)) as broker:
            await two_segments(broker)
            store.leave_unanswered(step, made=made)
            failed = False
            try:
                await change(broker)
            except (StoreUnavailable, BrokerError):
                failed = True
            await pause(mock_clock)
            is_done = store.has_answered_all
            store.leave_unanswered(0, made=False)
            await check_whole(broker)
            finished += failed and (await broker.layouts.get(TOPIC)).epoch == 1
        if is_done:
            assert finished > 2, "there were steps to go on from"
            return
    pytest.fail("the change never ended")


@pytest.mark.parametrize("made", [True, False])
async def test_a_deletion_goes_on_after_the_metadata_store_gave_no_answer(made: bool, mock_clock: MockClock) -> None:
    """D16: otherwise its name would stay taken until another request."""
    for step in range(1, STEPS_MAX):
        store = SteeredStore()
        async with rooms(store, SimulatedFiles(seed=5)) as broker:
            await two_segments(broker)
            store.leave_unanswered(step, made=made)
            with suppress(StoreUnavailable, BrokerError, CursorError):
                await broker.controller.delete_topic(TOPIC, force=True)
            await pause(mock_clock)
            is_done = store.has_answered_all
            store.leave_unanswered(0, made=False)
            with suppress(TopicNotFound):
                # It had not begun.
                assert not (await broker.layouts.stored(TOPIC)).is_deleting
                await broker.controller.delete_topic(TOPIC, force=True)
            await broker.controller.create_topic(TOPIC, 1, {})
        if is_done:
            assert step > 6, "there were steps to go on from"
            return
    pytest.fail("the deletion never ended")


async def test_it_waits_for_as_long_as_the_store_is_away(
    broker: Rooms, store: SteeredStore, mock_clock: MockClock
) -> None:
    await two_segments(broker)

    async def away(ops: object) -> None:
        if store.commits > first:
            raise StoreUnavailable("away")

    # The claim and the intent are taken.
    first = store.commits + 2
    store.before = away
    with pytest.raises((StoreUnavailable, BrokerError)):
        await broker.controller.split(TOPIC, 0)
    for _ in range(3):
        await pause(mock_clock)
        assert (await broker.layouts.get(TOPIC)).intent is not None
    store.before = None
    await pause(mock_clock)
    await check_whole(broker)
    assert (await broker.layouts.get(TOPIC)).epoch == 1


async def test_a_deletion_that_interrupts_who_waits_to_go_on_is_itself_finished_later(
    broker: Rooms, store: SteeredStore, mock_clock: MockClock
) -> None:
    """D16: a deletion by force refuses everybody who waits for the topic. Then it fails, and somebody has to go on."""
    await two_segments(broker)
    await broker.controller.recover()
    parent = await broker.segment(TOPIC, 0)
    await broker.topics.unload(parent)
    claim = claim_key(str(parent))
    await store.put(claim, b'{"broker": "broker-2"}')

    async def split() -> None:
        with pytest.raises(TopicClosed):
            await broker.controller.split(TOPIC, 0)

    async def delete() -> None:
        with pytest.raises(StoreUnavailable):
            await broker.controller.delete_topic(TOPIC, force=True)

    async def away(ops: Sequence[Op]) -> None:
        if Delete(claim) not in ops:
            raise StoreUnavailable("away")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(split)
        await pause(mock_clock)
        # The brokers have changed, so unfinished changes are looked for. This one waits for the split.
        await broker.register()
        await pause(mock_clock)
        nursery.start_soon(delete)
        await pause(mock_clock)
        store.before = away
        await store.delete(claim)
    assert (await broker.layouts.stored(TOPIC)).is_deleting
    store.before = None
    await pause(mock_clock)
    await pause(mock_clock)
    await broker.controller.create_topic(TOPIC, 1, {})


async def test_it_goes_on_when_another_broker_has_let_its_segment_go(
    broker: Rooms, store: SteeredStore, mock_clock: MockClock
) -> None:
    """D4, D10: the task sleeps until then; the other broker may keep segments that the split does not touch."""
    await two_segments(broker)
    parent, another = [await broker.segment(TOPIC, segment_id) for segment_id in (0, 1)]
    for segment in (parent, another):
        await broker.topics.unload(segment)
        await store.put(claim_key(str(segment)), b'{"broker": "broker-2"}')
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.controller.split, TOPIC, 0)
        with TaskSteps() as steps:
            await pause(mock_clock)
            assert steps.of("Controller._run") > 0
            await pause(mock_clock)
            steps.clear()
            await pause(mock_clock)
            assert steps.of("follow_claim") == steps.of("follow_record") == steps.of("Controller._run") == 0
        assert (await broker.layouts.get(TOPIC)).intent is not None
        await store.delete(claim_key(str(parent)))
        await pause(mock_clock)
        assert (await broker.layouts.get(TOPIC)).intent is None
    await store.delete(claim_key(str(another)))
    await check_whole(broker)


@changes
async def test_a_broker_that_starts_outlives_a_store_that_gives_no_answer(
    change: Change, mock_clock: MockClock
) -> None:
    """D10: what it could not finish then, it finishes later."""
    for step in range(1, STEPS_MAX):
        store, files = SteeredStore(), SimulatedFiles(seed=5)
        with suppress(ExceptionGroup):
            async with rooms(store, files) as broker:
                await two_segments(broker)
                store.fail_at(6)
                with pytest.raises((Stopped, BrokerError)):
                    await change(broker)
        store.fail_at(None)
        async with rooms(store, files.kill()) as broker:
            assert (await broker.layouts.get(TOPIC)).intent is not None
            store.leave_unanswered(step, made=False)
            await broker.controller.recover()
            await pause(mock_clock)
            is_done = store.has_answered_all
            store.leave_unanswered(0, made=False)
            await check_whole(broker)
        if is_done:
            assert step > 6, "there were steps to leave unanswered"
            return
    pytest.fail("it never ended")


_WRITER = Writer("folder", "two", 1, 7)


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (NoSpace("the disk is full"), True),
        (LedgerNotMade("the disk refused a file"), True),
        (WriterAlive(_WRITER), True),
        (LedgerOutOfReach(_WRITER, "another folder", Path("/data")), True),
        (JournalContended("two"), True),
        (Fenced("changed by another owner"), True),
        (CursorLost("another owner"), True),
        (CursorFailed("not written"), True),
        (CursorClosed("unloaded"), True),
        (OwnershipLost("taken over"), True),
        (StoreFull("the disk is full"), True),
        (OSError("the disk cannot be read"), True),
        (LedgerCorrupt(Path("l"), 1, "a flipped bit"), False),
        (LedgerListCorrupt("a flipped bit"), False),
        (CursorCorrupt("a flipped bit"), False),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_parent_that_cannot_be_opened_is_opened_later_if_that_can_pass(
    broker: Rooms, error: Exception, passes: bool, mock_clock: MockClock
) -> None:
    """E11, E13: a full disk and a running writer are transient, so the split only waits; damage is permanent."""
    await two_segments(broker)
    parent = await broker.segment(TOPIC, 0)
    await broker.topics.unload(parent)
    open_topic = broker.topics._open_topic

    async def open_later(name: TopicName, claim: Check) -> Topic:
        broker.topics._open_topic = open_topic
        raise error

    broker.topics._open_topic = open_later
    with pytest.raises(BrokerError):
        await broker.controller.split(TOPIC, 0)
    await pause(mock_clock)
    assert ((await broker.layouts.get(TOPIC)).intent is None) is passes


async def test_a_change_is_taken_up_by_whoever_is_left(autojump_clock: MockClock) -> None:
    """C16, D10: an index names the unfinished changes, so nobody has to look at the other topics."""
    async with several("one", "two", "three") as brokers:
        some = brokers["one"]
        await some.controller.create_topic(TOPIC, 1, {})
        await wait_all_tasks_blocked()
        first = next(name for name, broker in brokers.living.items() if broker.turns.is_mine(TOPIC))
        # The change set comes from a controller that nobody has seen.
        await some.layouts.change(TOPIC, lambda layout: layout.begin_split(0))
        assert await some.layouts.unfinished() == [TOPIC]
        await trio.sleep(60)
        assert (await some.layouts.get(TOPIC)).intent is not None
        await brokers.kill(first)
        await trio.sleep(60)
        (left, *_) = brokers.living.values()
        assert (await left.layouts.get(TOPIC)).intent is None
        assert await left.layouts.unfinished() == []


async def test_a_damaged_list_of_ledgers_ends_no_other_topics_changes(broker: Rooms) -> None:
    """E11: a subscription cannot be finished for it. The start goes on, and so does each later broker's."""
    await two_segments(broker)
    half_made = LayoutSubscription(SubscriptionKind.STREAM, "id", StartPosition.LATEST, 1, is_creating=True)
    await broker.layouts.change(TOPIC, lambda layout: layout.add_subscription("new", half_made))
    for segment_id in (0, 1):
        name = await broker.segment(TOPIC, segment_id)
        await broker.topics.unload(name)
        await broker.metadata.put(record_key(str(name)), b"{}")
    await broker.recover()
    other = TopicName.parse("topic://public/default/other")
    await broker.controller.create_topic(other, 1, {})
    await publish(await broker.topics.get(await broker.segment(other, 0)), b"goes on")


async def test_a_broker_outlives_that_another_has_finished_its_change_meanwhile(
    broker: Rooms, store: SteeredStore, mock_clock: MockClock
) -> None:
    """E11, C15: it waited for a segment's owner, and was drained and taken into service again in that time."""
    await two_segments(broker)
    owned = await broker.segment(TOPIC, 1)
    await broker.topics.unload(owned)
    await store.put(claim_key(str(owned)), b'{"broker": "broker-2"}')
    half_made = LayoutSubscription(SubscriptionKind.STREAM, "id", StartPosition.EARLIEST, 1, is_creating=True)
    await broker.layouts.change(TOPIC, lambda layout: layout.add_subscription("new", half_made).begin_split(0))

    def finished(layout: Layout) -> Layout:
        assert layout.intent is not None
        return layout.replace_segments(layout.intent, 1).finish().confirm_subscription("new")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.controller.recover)
        await pause(mock_clock)
        await broker.elections.resign(TOPIC)
        await broker.layouts.change(TOPIC, finished)
        await pause(mock_clock)
    await pause(mock_clock)
    assert not (await broker.layouts.get(TOPIC)).is_half_done


class Staying:
    """A producer that does not leave a replaced segment by itself."""

    name = "p"
    follows_layout = True

    def topic_closed(self, assigned_url: str | None = None) -> None:
        """Ignore it."""

    def topic_replaced(self) -> None:
        """Ignore it."""


@pytest.mark.parametrize("change", ["split", "merge", "migrate"])
@pytest.mark.parametrize("is_changed_again", [False, True])
async def test_a_change_that_another_controller_finished_has_succeeded(
    change: str, is_changed_again: bool, broker: Rooms, mock_clock: MockClock
) -> None:
    """T20, D10: its controller was drained meanwhile. Whoever asked for it would ask again, and be refused."""
    done: list[Layout] = []

    async def run() -> None:
        match change:
            case "split":
                done.append(await broker.controller.split(TOPIC, 0))
            case "merge":
                done.append(await broker.controller.merge(TOPIC, 0, 1))
            case _:
                done.append(await broker.controller.migrate(TOPIC, force=False))

    if change == "migrate":
        parent = await broker.topics.get(TOPIC.as_regular)
    else:
        await two_segments(broker)
        parent = await broker.topics.get(await broker.segment(TOPIC, 0))
    parent.add_producer(Staying())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await wait_all_tasks_blocked()
        await broker.elections.resign(TOPIC)
        await broker.layouts.change(TOPIC, Layout.finish)
        if is_changed_again:
            await broker.layouts.change(TOPIC, lambda layout: layout.begin_split(layout.active()[0].id))
        assert not done
        await pause(mock_clock)
    assert done == [await broker.layouts.get(TOPIC)]


async def test_a_change_that_another_controller_goes_on_with_is_not_passed_on(
    broker: Rooms, store: SteeredStore
) -> None:
    """T20, C21: that broker would refuse it when it has finished it, because the segment is sealed then."""
    await two_segments(broker)

    async def lose(ops: Sequence[Op]) -> None:
        if (await broker.layouts.get(TOPIC)).intent is not None:
            store.after = None
            await broker.elections.resign(TOPIC)
            await store.put(claim_key(str(TOPIC)), b'{"broker": "broker-2", "service_url": "pulsar://two:6650"}')

    store.after = lose
    with pytest.raises(OwnedElsewhere, match="next controller") as refused:
        await broker.controller.split(TOPIC, 0)
    assert (refused.value.owner, refused.value.retriable) == (None, True)
    assert (await broker.layouts.get(TOPIC)).intent is not None
