"""A subscription passes messages of its backlog, or goes to one of them. Hidden entries are no messages."""

from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.backlog import seek_to_message, skip_messages, skip_older, skip_to
from broker.regular_contract import MessagePlace
from broker.topic import Topic
from dispatch.subscription import Acknowledgement, Subscription
from dispatch.subscription_types import SubscriptionType
from storage.entry import EntryFormat
from storage.metadata.memory import MemoryStore
from storage.position import EARLIEST, LATEST
from tests.broker.test_control_entries import KINDS, PLAIN, connect, payloads, write
from tests.support.disk import SimulatedFiles
from tests.support.outlet import recording_consumer
from tests.support.rooms import TOPIC, Rooms, moving_clock, publish, rooms, visible
from txn.states import EndAction


@pytest.fixture
async def made() -> AsyncIterator[Rooms]:
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker:
        yield broker


@pytest.fixture
async def topic(made: Rooms) -> Topic:
    return await made.topics.get(PLAIN)


async def left(subscription: Subscription) -> str:
    """Return what a new consumer gets."""
    consumer, outlet = connect(subscription, subscription.kind)
    await wait_all_tasks_blocked()
    subscription.remove_consumer(consumer)
    return payloads(outlet)


@pytest.mark.parametrize(("count", "rest"), [(0, "abcde"), (1, "bcde"), (2, "cde"), (4, "e"), (5, ""), (1_000, "")])
async def test_markers_are_no_messages_to_skip(topic: Topic, count: int, rest: str) -> None:
    """K35: they stand before, between and behind the messages."""
    subscription = await topic.subscribe("s", EARLIEST)
    await write(topic, ".a..b.c.d..e.")
    await skip_messages(topic, subscription, count)
    assert subscription.backlog_entries == len(rest)
    assert await left(subscription) == rest


async def test_what_was_aborted_is_no_message_to_skip(made: Rooms) -> None:
    await made.controller.create_topic(TOPIC, 1, {})
    topic = await made.topics.get(await made.segment(TOPIC, 0))
    subscription = await topic.subscribe("s", EARLIEST)
    aborted = await made.coordinator.new_transaction(0, 60_000)
    for payload, txn in ((b"x", aborted), (b"a", None), (b"y", aborted), (b"b", None), (b"c", None)):
        await publish(topic, payload, txn)
    await made.coordinator.end(aborted, EndAction.ABORT)
    await wait_all_tasks_blocked()
    await skip_messages(topic, subscription, 2)
    assert await left(subscription) == "c"


async def test_a_skip_counts_and_keeps_what_is_acknowledged(topic: Topic) -> None:
    subscription = await topic.subscribe("s", EARLIEST)
    positions = await write(topic, "abcdef")
    subscription.acknowledge([Acknowledgement(positions[1]), Acknowledgement(positions[4])])
    await skip_messages(topic, subscription, 2)
    assert subscription.cursor.mark_delete == positions[2]
    assert await left(subscription) == "df"


@pytest.mark.parametrize("kind", KINDS)
async def test_consumers_stay_connected_and_get_the_rest(topic: Topic, kind: SubscriptionType) -> None:
    """What a consumer holds of the skipped messages takes none of its room any more."""
    subscription = await topic.subscribe("s", EARLIEST)
    await write(topic, "abcdef")
    consumer, outlet = recording_consumer()
    subscription.add_consumer(consumer, kind)
    subscription.flow(consumer, 2)
    await wait_all_tasks_blocked()
    assert payloads(outlet) == "ab"
    await skip_messages(topic, subscription, 4)
    assert subscription.unacked_messages == 0
    subscription.flow(consumer, 10)
    await wait_all_tasks_blocked()
    assert payloads(outlet) == "abef"
    subscription.redeliver(consumer)
    await wait_all_tasks_blocked()
    assert payloads(outlet) == "abefef"


async def test_messages_that_wait_to_be_sent_again_are_skipped(topic: Topic) -> None:
    subscription = await topic.subscribe("s", EARLIEST)
    await write(topic, "abc")
    consumer, _outlet = connect(subscription, SubscriptionType.SHARED)
    await wait_all_tasks_blocked()
    subscription.remove_consumer(consumer)
    assert subscription.statistics().entries_to_send_again == 3
    await skip_messages(topic, subscription, 2)
    assert subscription.statistics().entries_to_send_again == 1
    assert await left(subscription) == "c"


async def test_old_messages_are_skipped_by_the_brokers_clock(mock_clock: MockClock) -> None:
    async with rooms(MemoryStore(), SimulatedFiles(seed=1), clock=moving_clock()) as broker:
        topic = await broker.topics.get(PLAIN)
        subscription = await topic.subscribe("s", EARLIEST)
        for letter in "abc":
            await write(topic, letter)
            mock_clock.jump(10)
        for seconds, rest in ((40, "abc"), (25, "bc"), (30, "bc"), (0, "")):
            await skip_older(topic, subscription, seconds)
            assert await left(subscription) == rest


@pytest.mark.parametrize(
    ("index", "is_excluded", "rest"), [(0, False, "bc"), (0, True, "abc"), (1, False, "c"), (2, True, "c")]
)
async def test_a_skip_ends_at_a_message(topic: Topic, index: int, is_excluded: bool, rest: str) -> None:
    subscription = await topic.subscribe("s", EARLIEST)
    positions = await write(topic, "abc")
    await skip_to(subscription, MessagePlace(positions[index], is_excluded=is_excluded))
    assert await left(subscription) == rest


async def test_a_skip_to_an_end_passes_all_or_nothing(topic: Topic) -> None:
    subscription = await topic.subscribe("s", EARLIEST)
    await write(topic, "abc")
    await skip_to(subscription, MessagePlace(EARLIEST))
    assert await left(subscription) == "abc"
    await skip_to(subscription, MessagePlace(LATEST))
    assert await left(subscription) == ""
    await write(topic, "d")
    assert await left(subscription) == "d"


@pytest.mark.parametrize(
    ("index", "is_excluded", "rest"), [(0, False, "abc"), (0, True, "bc"), (2, False, "c"), (2, True, "")]
)
async def test_a_seek_begins_at_a_message(topic: Topic, index: int, is_excluded: bool, rest: str) -> None:
    subscription = await topic.subscribe("s", LATEST)
    positions = await write(topic, "abc")
    await skip_messages(topic, subscription, 3)
    await seek_to_message(topic, subscription, MessagePlace(positions[index], is_excluded=is_excluded))
    assert await left(subscription) == rest
    await seek_to_message(topic, subscription, MessagePlace(EARLIEST))
    assert await left(subscription) == "abc"
    await seek_to_message(topic, subscription, MessagePlace(LATEST))
    assert await left(subscription) == ""


@pytest.mark.parametrize(
    ("batch_index", "is_excluded", "remaining"),
    [(-1, False, None), (0, False, None), (0, True, 0b1110), (1, False, 0b1110), (3, False, 0b1000), (2, True, 0b1000)],
)
async def test_a_seek_begins_within_a_batch(
    topic: Topic, batch_index: int, is_excluded: bool, remaining: int | None
) -> None:
    """The bits name the messages that are still to come."""
    subscription = await topic.subscribe("s", EARLIEST)
    batch = await topic.publish(b"batch", message_count=4, txn=None, entry_format=EntryFormat.PULSAR)
    await topic.ledger.confirmed.wait_for(batch)
    await seek_to_message(topic, subscription, MessagePlace(batch, batch_index, is_excluded))
    assert subscription.cursor.remaining_bits(batch) == remaining
    assert subscription.backlog_entries == 1
    await seek_to_message(topic, subscription, MessagePlace(batch, 3, is_excluded=True))
    assert subscription.backlog_entries == 0


async def test_a_skip_is_durable(made: Rooms, topic: Topic) -> None:
    subscription = await topic.subscribe("s", EARLIEST)
    await write(topic, "abc")
    with trio.fail_after(5):
        await skip_messages(topic, subscription, 2)
    await made.topics.unload(PLAIN)
    again = await made.topics.get(PLAIN)
    assert [entry.payload for entry in await visible(again)] == [b"a", b"b", b"c"]
    assert again.subscriptions["s"].backlog_entries == 1
