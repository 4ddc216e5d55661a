"""Entries that a broker writes for brokers. They are in the log, but no consumer gets them.

No room writes any yet. These tests write to the ledger directly, as a buffer with markers will do.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from trio.testing import wait_all_tasks_blocked

from broker.backlog_ranges import measure
from broker.names import TopicName
from broker.read_uncommitted import ReadUncommitted
from broker.topic import Topic
from dispatch.consumer import Consumer
from dispatch.subscription import Acknowledgement, Subscription
from dispatch.subscription_types import SubscriptionType
from storage.entry import EntryFormat
from storage.metadata.memory import MemoryStore
from storage.position import EARLIEST, Position
from tests.support.disk import SimulatedFiles
from tests.support.outlet import RecordingOutlet, recording_consumer
from tests.support.rooms import TOPIC, publish, rooms, visible
from tidewire.wire.pulsar.building import build_payload
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

PLAIN = TopicName.parse("persistent://public/default/plain")
MARKER = build_payload(pb.MessageMetadata(producer_name="marker", sequence_id=1, publish_time=1), b"")
KINDS = [SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED]


@asynccontextmanager
async def served(
    metadata: MemoryStore, files: SimulatedFiles, *, segment: bool = False, retention_minutes: int = -1
) -> AsyncIterator[Topic]:
    """Run a regular topic, or a segment."""
    async with rooms(
        metadata, files, deduplication=True, retention_minutes=retention_minutes, retention_megabytes=retention_minutes
    ) as broker:
        if segment and not await broker.layouts.names():
            await broker.controller.create_topic(TOPIC, 1, {})
        yield await broker.topics.get(await broker.segment(TOPIC, 0) if segment else PLAIN)


@pytest.fixture(params=["regular", "segment"])
async def topic(request: pytest.FixtureRequest) -> AsyncIterator[Topic]:
    async with served(MemoryStore(), SimulatedFiles(seed=1), segment=request.param == "segment") as made:
        yield made


async def mark(topic: Topic) -> Position:
    """Write a control entry."""
    position = topic.ledger.append(MARKER, is_control=True)
    await topic.ledger.confirmed.wait_for(position)
    return position


async def write(topic: Topic, story: str) -> list[Position]:
    """Write entries: a letter is a message, `.` a control entry."""
    written = []
    for letter in story:
        if letter == ".":
            written.append(await mark(topic))
        else:
            await publish(topic, letter.encode())
            written.append(topic.ledger.last_position)
    await wait_all_tasks_blocked()
    return written


def connect(subscription: Subscription, kind: SubscriptionType) -> tuple[Consumer, RecordingOutlet]:
    consumer, outlet = recording_consumer()
    subscription.add_consumer(consumer, kind)
    subscription.flow(consumer, 1_000)
    return consumer, outlet


def payloads(outlet: RecordingOutlet) -> str:
    return b"".join(delivery.entry.payload for delivery in outlet.deliveries).decode()


@pytest.mark.parametrize("kind", KINDS)
async def test_consumers_get_the_messages_and_the_cursor_passes_all(topic: Topic, kind: SubscriptionType) -> None:
    """K35: it may be the first entry, the last one, or one of many in a row."""
    positions = await write(topic, ".a..b.c.")
    assert topic.readable.value == positions[-1]
    subscription = await topic.subscribe("s", EARLIEST)
    _, outlet = connect(subscription, kind)
    await wait_all_tasks_blocked()
    assert payloads(outlet) == "abc"
    subscription.acknowledge([Acknowledgement(position) for position in outlet.positions])
    await wait_all_tasks_blocked()
    assert subscription.cursor.mark_delete == positions[-1]
    late = await mark(topic)
    await wait_all_tasks_blocked()
    assert (subscription.cursor.mark_delete, subscription.backlog_entries) == (late, 0)


async def test_a_backlog_does_not_count_them(topic: Topic) -> None:
    """K35: this includes those that nobody has passed yet, and those that were passed above the mark-delete."""
    subscription = await topic.subscribe("s", EARLIEST)
    positions = await write(topic, "a.b.c..")
    assert subscription.backlog_entries == subscription.statistics().backlog_entries == 3
    subscription.acknowledge([Acknowledgement(positions[2])])
    assert subscription.backlog_entries == 2
    _consumer, outlet = connect(subscription, SubscriptionType.SHARED)
    await wait_all_tasks_blocked()
    # All four are passed, and the first message still holds the mark-delete back.
    assert payloads(outlet) == "ac"
    assert subscription.cursor.mark_delete < positions[0]
    assert subscription.backlog_entries == 2
    subscription.acknowledge([Acknowledgement(positions[0])])
    assert subscription.backlog_entries == 1
    subscription.acknowledge([Acknowledgement(positions[4])])
    assert (subscription.backlog_entries, subscription.cursor.mark_delete) == (0, positions[-1])


async def test_what_is_acknowledged_is_the_same_with_and_without_them(topic: Topic) -> None:
    """A cumulative acknowledgement passes them. An acknowledgement of a control entry changes no message."""
    subscription = await topic.subscribe("s", EARLIEST)
    positions = await write(topic, "a.b.c")
    subscription.acknowledge([Acknowledgement(positions[2])], cumulative=True)
    assert subscription.backlog_entries == 1
    subscription.acknowledge([Acknowledgement(positions[3])])
    assert subscription.backlog_entries == 1
    _, outlet = connect(subscription, SubscriptionType.EXCLUSIVE)
    await wait_all_tasks_blocked()
    assert payloads(outlet) == "c"


async def test_a_seek_to_any_place_leads_to_the_next_message(topic: Topic) -> None:
    subscription = await topic.subscribe("s", EARLIEST)
    positions = await write(topic, ".a.b.")
    for place, wanted in zip(positions, ["ab", "ab", "b", "b", ""], strict=True):
        await topic.seek(subscription, place.before())
        consumer, outlet = connect(subscription, SubscriptionType.EXCLUSIVE)
        await wait_all_tasks_blocked()
        assert payloads(outlet) == wanted
        subscription.remove_consumer(consumer)


async def test_a_place_in_time_is_found_among_them(topic: Topic) -> None:
    positions = await write(topic, ".a.")
    assert await topic.ledger.position_at_time(0) == positions[0]


@pytest.mark.parametrize(("story", "last"), [("a.b..", b"b"), ("...", None), ("", None), ("a" + "." * 600, b"a")])
async def test_the_last_message_is_not_one_of_them(topic: Topic, story: str, last: bytes | None) -> None:
    """K35: this holds for committed and uncommitted readers."""
    await write(topic, story)
    for shown in (topic, ReadUncommitted(topic)):
        entry = await shown.last_visible()
        assert (None if entry is None else entry.payload) == last


async def test_a_reader_of_what_is_uncommitted_is_sent_none(topic: Topic) -> None:
    await write(topic, ".a.")
    subscription = topic.subscribe_reader("r", EARLIEST, ReadUncommitted(topic))
    _, outlet = connect(subscription, SubscriptionType.EXCLUSIVE)
    await wait_all_tasks_blocked()
    assert payloads(outlet) == "a"
    assert subscription.backlog_entries == 1


async def test_indexes_go_on_behind_them_and_they_are_no_traffic(topic: Topic) -> None:
    """K9: as in Kafka, a marker takes an index, so offsets of messages have gaps; it counts as no traffic."""
    await write(topic, "a.b")
    entries = await visible(topic)
    assert [entry.first_index for entry in entries] == [0, 2]
    assert topic.traffic.messages_in == 2
    found = await measure(topic.ledger, await topic.last_visible(), EARLIEST)
    assert (found.first_index, found.messages) == (0, 3)


async def test_a_sealed_topic_that_ends_with_one_is_drained_without_consumers(topic: Topic) -> None:
    positions = await write(topic, "a..")
    subscription = await topic.subscribe("s", EARLIEST)
    subscription.acknowledge([Acknowledgement(positions[0])])
    await subscription.synced()
    await topic.seal()
    await wait_all_tasks_blocked()
    await subscription.synced()
    assert subscription.is_drained


async def test_ledgers_that_hold_only_control_entries_behind_the_mark_delete_are_trimmed() -> None:
    async with served(MemoryStore(), SimulatedFiles(seed=1), retention_minutes=0) as topic:
        subscription = await topic.subscribe("s", EARLIEST)
        _, outlet = connect(subscription, SubscriptionType.SHARED)
        await write(topic, "a.")
        topic.ledger.request_roll()
        await wait_all_tasks_blocked()
        await write(topic, ".b")
        assert len(topic.ledger.closed) == 1
        subscription.acknowledge([Acknowledgement(outlet.positions[0])])
        await subscription.synced()
        await wait_all_tasks_blocked()
        assert not topic.ledger.closed
        # What is known of the ledger that takes entries is still known.
        late = await topic.subscribe("late", EARLIEST)
        assert (subscription.backlog_entries, late.backlog_entries) == (1, 1)


@pytest.mark.parametrize("segment", [False, True])
async def test_a_new_owner_hides_them_and_remembers_no_send_of_them(segment: bool) -> None:
    """K35, E6: it reads the log in order after a crash, and a marker's payload is no producer's send."""
    metadata, files = MemoryStore(), SimulatedFiles(seed=1)
    async with served(metadata, files, segment=segment) as topic:
        await topic.subscribe("s", EARLIEST)
        await write(topic, "a.b.")
    async with served(metadata, files.crash(), segment=segment) as topic:
        assert [entry.payload for entry in await visible(topic)] == [b"a", b"b"]
        assert topic.deduplication is not None
        assert not topic.deduplication.knows("marker")
        subscription = topic.subscriptions["s"]
        _, outlet = connect(subscription, SubscriptionType.SHARED)
        await wait_all_tasks_blocked()
        assert payloads(outlet) == "ab"
        # Those of an earlier owner count until the subscription has passed them, which it has.
        assert subscription.backlog_entries == 2


async def test_a_clients_entry_is_never_one(topic: Topic) -> None:
    """A client cannot set the flag: what it publishes is a message."""
    position = await topic.publish(b"a", message_count=1, txn=None, entry_format=EntryFormat.PULSAR)
    await topic.readable.wait_for(position)
    assert [entry.is_control for entry in await visible(topic)] == [False]
