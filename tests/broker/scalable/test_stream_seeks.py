"""A subscription is moved while its ordered consumers read. Redelivery starts with the parents."""

from collections.abc import Sequence

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.errors import SubscriptionNotFound
from broker.layouts.layout import Layout
from broker.layouts.parts import StartPosition, SubscriptionKind
from broker.layouts.registrations import GroupId
from broker.topic import Topic
from storage.cursor import cursor_key
from storage.metadata.store import Op, Put
from tests.support.group_members import QuietMember
from tests.support.rooms import TOPIC, Rooms, publish
from tests.support.steered_store import SteeredStore
from tests.support.wire import WireClient, connected, listening, message
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

Type = pb.BaseCommand.Type
GROUP = GroupId(TOPIC, "s")


class Member(QuietMember):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.told: list[set[int]] = []

    def assigned(self, layout: Layout, segments: frozenset[int]) -> None:
        self.told.append(set(segments))


async def topic_of(broker: Rooms, segment_id: int) -> Topic:
    return await broker.topics.get(await broker.segment(TOPIC, segment_id))


async def drain(broker: Rooms, segment_id: int) -> None:
    topic = await topic_of(broker, segment_id)
    cursor = topic.subscriptions["s"].cursor
    cursor.acknowledge_cumulative(topic.ledger.last_position)
    await cursor.synced()
    await wait_all_tasks_blocked()


async def split_and_drained(broker: Rooms) -> None:
    """Prepare segment 0, read to its end, and children with messages."""
    await broker.controller.create_topic(TOPIC, 1, {})
    await broker.controller.subscriptions.add(TOPIC, "s", SubscriptionKind.STREAM, StartPosition.EARLIEST)
    await publish(await topic_of(broker, 0), message(b"first"))
    await broker.controller.split(TOPIC, 0)
    for segment_id in (1, 2):
        await publish(await topic_of(broker, segment_id), message(b"second"))
    await drain(broker, 0)


class Held:
    """Delays the move of one segment's cursor."""

    def __init__(self, store: SteeredStore, key: str) -> None:
        self.go_on = trio.Event()

        async def before(ops: Sequence[Op]) -> None:
            if any(isinstance(op, Put) and op.key == key for op in ops):
                await self.go_on.wait()

        store.before = before


async def held(broker: Rooms, store: SteeredStore, segment_id: int) -> Held:
    return Held(store, cursor_key(str(await broker.segment(TOPIC, segment_id)), "s"))


async def test_nobody_reads_a_child_that_has_moved_before_its_parent(broker: Rooms, store: SteeredStore) -> None:
    """D11: this holds however long the move takes, and for consumers that join meanwhile."""
    await split_and_drained(broker)
    member, late = Member("a"), Member("b")
    await broker.groups.join(GROUP, member)
    assert member.told == [{1, 2}]
    parent = await held(broker, store, 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.controller.subscriptions.seek_to_time, TOPIC, "s", 0)
        await wait_all_tasks_blocked()
        assert member.told == [{1, 2}, set()]
        nursery.start_soon(broker.groups.join, GROUP, late)
        await wait_all_tasks_blocked()
        assert late.told == [], "what it is to read is not known yet"
        parent.go_on.set()
    await wait_all_tasks_blocked()
    assert sorted([member.told[-1], late.told[-1]], key=len) == [set(), {0}]
    assert all(1 not in segments for segments in member.told[1:] + late.told)
    await drain(broker, 0)
    assert member.told[-1] | late.told[-1] == {1, 2}


async def test_nor_before_anybody_has_heard_where_the_parent_stands(broker: Rooms, store: SteeredStore) -> None:
    """D11: the news about the parent's cursor may arrive late."""
    await split_and_drained(broker)
    member = Member("a")
    await broker.groups.join(GROUP, member)
    heard = store.late[cursor_key(str(await broker.segment(TOPIC, 0)), "s")] = trio.Event()
    await broker.controller.subscriptions.seek_to_time(TOPIC, "s", 0)
    await wait_all_tasks_blocked()
    assert member.told == [{1, 2}, set()]
    heard.set()
    await wait_all_tasks_blocked()
    assert member.told == [{1, 2}, set(), {0}]


async def test_a_seek_to_the_end_gives_everybody_his_segments_back(broker: Rooms) -> None:
    await split_and_drained(broker)
    members = [Member("a"), Member("b")]
    for member in members:
        await broker.groups.join(GROUP, member)
    had = [member.told[-1] for member in members]
    await broker.controller.subscriptions.skip_all(TOPIC, "s")
    await wait_all_tasks_blocked()
    assert [member.told[-2:] for member in members] == [[set(), segments] for segments in had]


async def test_a_move_that_is_given_up_leaves_nobody_without_segments(broker: Rooms, store: SteeredStore) -> None:
    """The administrator disconnects; segments that were already moved are read again, in order."""
    await split_and_drained(broker)
    member = Member("a")
    await broker.groups.join(GROUP, member)
    child = await held(broker, store, 1)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.controller.subscriptions.seek_to_time, TOPIC, "s", 0)
            await wait_all_tasks_blocked()
            scope.cancel()
    child.go_on.set()
    await wait_all_tasks_blocked()
    assert member.told == [{1, 2}, set(), {0}]


async def test_subscriptions_without_consumers_are_moved_all_the_same(broker: Rooms) -> None:
    await split_and_drained(broker)
    await broker.controller.subscriptions.seek_to_time(TOPIC, "s", 0)
    await wait_all_tasks_blocked()
    assert broker.groups._groups == {}
    with pytest.raises(SubscriptionNotFound):
        await broker.controller.subscriptions.seek_to_time(TOPIC, "none", 0)
    member = Member("a")
    await broker.groups.join(GROUP, member)
    assert member.told == [{0}]


async def test_the_client_hears_that_it_has_none_before_it_is_sent_away(broker: Rooms, store: SteeredStore) -> None:
    """D11: otherwise it would subscribe to the child again and continue there."""
    await split_and_drained(broker)
    async with listening(broker) as listener, connected(listener) as client:
        assert await registered(client) == {1, 2}
        for segment_id in (1, 2):
            await take(broker, client, segment_id)
        parent = await held(broker, store, 0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.controller.subscriptions.seek_to_time, TOPIC, "s", 0)
            await wait_all_tasks_blocked()
            assert await updated(client) == set()
            assert {(await client.receive()).close_consumer.consumer_id for _ in range(2)} == {201, 202}
            parent.go_on.set()
        assert await updated(client) == {0}
        await client.receives_nothing_more()


async def registered(client: WireClient) -> set[int]:
    answer = await client.ask(commands.scalable_topic_subscribe(70, str(TOPIC), "s", "c", 30))
    return {segment.segment_id for segment in answer.scalable_topic_subscribe_response.assignment.segments}


async def take(broker: Rooms, client: WireClient, segment_id: int) -> None:
    topic = str(await broker.segment(TOPIC, segment_id))
    answer = await client.ask(
        commands.subscribe(topic, "s", 200 + segment_id, 300 + segment_id, name=f"c-seg-{segment_id}")
    )
    assert answer.type == Type.SUCCESS


async def updated(client: WireClient) -> set[int]:
    update = await client.receive()
    assert update.type == Type.SCALABLE_TOPIC_ASSIGNMENT_UPDATE, update
    return {segment.segment_id for segment in update.scalable_topic_assignment_update.assignment.segments}
