"""Layout changes that wait for another broker: for one that cannot do its part yet, or that never will."""

from collections.abc import Sequence
from contextlib import suppress

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.administration_contract import MigrationAsked
from broker.cluster.ownership import claim_key
from broker.errors import BrokerError, SubscriptionNotFound
from broker.layouts.layout import Layout
from broker.layouts.parts import LayoutSubscription
from broker.layouts.store import layout_key
from broker.names import TopicName
from broker.store_retry import RETRY_SECONDS
from storage.cursor import cursor_key
from storage.errors import ExpectedError
from storage.managed_ledger_record import record_key
from storage.metadata.store import Delete, Op, Put, StoreUnavailable
from tests.broker.scalable.test_changes_across_brokers import EARLY, STREAM, check_whole, settled, spread
from tests.support.idle import TaskSteps
from tests.support.rooms import TOPIC, Rooms, payloads, publish
from tests.support.several_rooms import Brokers, several
from tests.support.steered_store import SteeredStore


async def split(broker: Rooms) -> None:
    """Split the first segment; the broker may be killed meanwhile."""
    with suppress(BrokerError):
        await broker.controller.split(TOPIC, 0)


async def test_a_claim_that_could_not_be_released_is_released_later(autojump_clock: MockClock) -> None:
    """C14, D10: the store did not answer when an idle segment was unloaded. No change waits for it for ever."""
    async with several("one", "two") as brokers:
        topics = await spread(brokers, "two")
        name = topics[0].name
        store = brokers.store("two")
        await topics[0].close()
        store.fall_silent(claim_key(str(name)))
        await brokers["two"].topics.unload(name)
        store.answer()
        assert await brokers.shared.get(claim_key(str(name))) is not None
        assert brokers["two"].topics.running(name) is None
        with trio.fail_after(60):
            await brokers["one"].controller.split(TOPIC, 0)
        await check_whole(brokers, {"s"}, [b"0"])


async def lose_the_answer_to_a_claim(brokers: Brokers) -> TopicName:
    """Let broker `two` claim a segment without learning so. Return the segment."""
    topics = await spread(brokers, "two")
    name = topics[0].name
    await brokers["two"].topics.unload(name)
    brokers.store("two").lose_answer(claim_key(str(name)))
    with pytest.raises(StoreUnavailable):
        await brokers["two"].topics.get(name)
    return name


async def test_a_claim_whose_answer_was_lost_is_released(autojump_clock: MockClock) -> None:
    """C14, D10: the claim is there, but its owner does not know it. The split waited for that owner for ever."""
    async with several("one", "two") as brokers:
        name = await lose_the_answer_to_a_claim(brokers)
        assert await brokers.shared.get(claim_key(str(name))) is not None
        with trio.fail_after(60):
            await brokers["one"].controller.split(TOPIC, 0)
        await check_whole(brokers, {"s"}, [b"0"])


async def test_a_claim_whose_answer_was_lost_is_taken_by_the_next_request(autojump_clock: MockClock) -> None:
    """It is not released under the owner that took it over."""
    async with several("one", "two") as brokers:
        name = await lose_the_answer_to_a_claim(brokers)
        topic = await brokers["two"].topics.get(name)
        await trio.sleep(10)
        assert brokers["two"].topics.running(name) is topic
        claim = await brokers.shared.get(claim_key(str(name)))
        assert claim is not None
        assert claim.version == topic.claim.expected


async def test_a_start_waits_for_no_other_broker(autojump_clock: MockClock) -> None:
    """C14, C16: a split waits for the owner of its parent, but no start and no other topic does."""
    async with several("one", "two") as brokers, trio.open_nursery() as nursery:
        await spread(brokers, "two")
        brokers.store("two").fall_silent()
        nursery.start_soon(split, brokers["one"])
        await wait_all_tasks_blocked()
        assert (await brokers["one"].layouts.get(TOPIC)).intent is not None
        await brokers.kill("one")
        with trio.fail_after(1):
            for number in range(3):
                await brokers.start(f"late-{number}")
        assert (await brokers["two"].layouts.get(TOPIC)).intent is not None
        brokers.store("two").answer()
        await settled(brokers)
        await check_whole(brokers, {"s"}, [b"0"])
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("at_cursor", [False, True])
async def test_a_deletion_of_a_subscription_goes_on_at_a_broker_without_control(
    autojump_clock: MockClock, *, at_cursor: bool
) -> None:
    """D16: the store did not answer. The controller did not know, and consumers were refused until members changed."""
    async with several("one", "two") as brokers:
        topics = await spread(brokers, "two")
        brokers.store("two").lose_answer(cursor_key(str(topics[0].name), "s") if at_cursor else layout_key(TOPIC))
        try:
            await brokers["two"].controller.subscriptions.delete(TOPIC, "s", force=True)
        except ExpectedError:
            assert (await brokers["one"].layouts.get(TOPIC)).subscriptions["s"].is_deleting
        else:
            # The segment's owner does the same at the same time, and was the one without an answer.
            assert at_cursor
        await trio.sleep(10)
        assert (await brokers["one"].layouts.get(TOPIC)).subscriptions == {}


async def test_a_creation_goes_on_when_another_broker_deletes_the_subscription(autojump_clock: MockClock) -> None:
    """C14, D16: the segment's owner makes no cursor any more. The creation waited for that cursor for ever."""
    async with several("one", "two", "three") as brokers:
        (topic,) = await spread(brokers, "two")
        brokers.store("two").fall_silent(cursor_key(str(topic.name), "late"))
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(brokers["one"].controller.subscriptions.add, TOPIC, "late", STREAM, EARLY)
                await wait_all_tasks_blocked()
                assert (await brokers["one"].layouts.get(TOPIC)).subscriptions["late"].is_creating
                await brokers["three"].controller.subscriptions.delete(TOPIC, "late", force=True)
                brokers.store("two").answer()
        await check_whole(brokers, {"s", "late"}, [b"0"])


async def test_a_cursor_whose_answer_was_lost_is_known_to_its_owner(autojump_clock: MockClock) -> None:
    """E18, E21: the controller sees the record and asks no more. Seeks were refused, and trimming did not spare it."""
    async with several("one", "two") as brokers:
        (topic,) = await spread(brokers, "two")
        brokers.store("two").lose_answer(cursor_key(str(topic.name), "late"))
        await brokers["one"].controller.subscriptions.add(TOPIC, "late", STREAM, EARLY)
        await trio.sleep(20)
        assert brokers["two"].topics.running(topic.name) is topic
        assert topic.subscriptions["late"].backlog_entries == 1


async def test_a_seek_finds_a_cursor_whose_answer_was_lost(autojump_clock: MockClock) -> None:
    """E21: it comes before the owner has looked again."""
    async with several("one", "two") as brokers:
        (topic,) = await spread(brokers, "two")
        brokers.store("two").lose_answer(cursor_key(str(topic.name), "late"))
        await brokers["one"].controller.subscriptions.add(TOPIC, "late", STREAM, EARLY)
        assert "late" not in topic.subscriptions
        assert (await topic.subscribe("late", None)).backlog_entries == 1
        with pytest.raises(SubscriptionNotFound):
            await topic.subscribe("never", None)


@pytest.mark.parametrize("duty", ["cursors", "let go"])
async def test_a_duty_waits_without_a_step_while_the_layout_is_unreadable(
    duty: str, broker: Rooms, store: SteeredStore, autojump_clock: MockClock
) -> None:
    """E11, C14: it is done once the record is repaired, also for a segment that its removal has closed."""
    await broker.controller.create_topic(TOPIC, 1, {})
    name = await broker.segment(TOPIC, 0)
    await publish(await broker.topics.get(name), b"a")
    made = LayoutSubscription(STREAM, "id", EARLY, 1, is_creating=True)
    written = cursor_key(str(name), "new") if duty == "cursors" else record_key(str(name))
    repaired = b""

    async def damage(ops: Sequence[Op]) -> None:
        nonlocal repaired
        if any(isinstance(op, Put | Delete) and op.key == written for op in ops):
            store.before = None
            record = await store.get(layout_key(TOPIC))
            assert record is not None
            repaired = record.value
            await store.put(layout_key(TOPIC), b"damaged")
            raise StoreUnavailable("no answer")

    store.before = damage
    if duty == "cursors":
        await broker.layouts.change(TOPIC, lambda layout: layout.add_subscription("new", made))
    else:
        await broker.layouts.change(TOPIC, Layout.begin_deletion)
    await trio.sleep(3 * RETRY_SECONDS)
    assert repaired
    assert (broker.topics.running(name) is None) == (duty == "let go")
    with TaskSteps() as steps:
        await trio.sleep(10 * RETRY_SECONDS)
        assert steps.of("SegmentOwner._work") == 0
    await store.put(layout_key(TOPIC), repaired)
    await trio.sleep(1)
    if duty == "cursors":
        assert "new" in (await broker.topics.get(name)).subscriptions
    else:
        assert await store.get(record_key(str(name))) is None


async def test_an_owner_that_lost_the_answer_of_a_migration_seals_nevertheless(autojump_clock: MockClock) -> None:
    """M22, D10: it did not know that its regular topic is a segment now, and the controller waited for its seal."""
    async with several("one", "two") as brokers:
        regular = await brokers["two"].topics.get(TOPIC.as_regular)
        await publish(regular, b"a")
        claim = await brokers["one"].elections.elect(TOPIC)
        await wait_all_tasks_blocked()
        asked = MigrationAsked(claim.expected, regular.ledger.creation_id)
        brokers.store("two").lose_answer(layout_key(TOPIC))
        with pytest.raises(StoreUnavailable):
            await brokers["two"].controller.begin_migration(TOPIC, asked, force=False)
        # The controller goes on by itself, as after every change that failed.
        await brokers["one"].controller.recover()
        with trio.fail_after(60):
            await settled(brokers)
        layout = await brokers["one"].layouts.get(TOPIC)
        assert layout.intent is None
        parent = await brokers.load(TOPIC.as_regular)
        assert parent.ledger.is_sealed
        assert parent.scalable_topic == TOPIC
        assert await payloads(parent) == [b"a"]
