"""Groups of checkpoint consumers over the wire: they share the segments, and the broker keeps no positions for them."""

import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.rooms import TOPIC, Rooms, publish
from tests.support.wire import WireClient, connected, message
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

Type = pb.BaseCommand.Type


def segments_of(assignment: pb.ScalableConsumerAssignment) -> set[int]:
    return {segment.segment_id for segment in assignment.segments}


async def register(client: WireClient, name: str, consumer_id: int, group: str = "g") -> set[int]:
    command = commands.scalable_topic_subscribe(70, str(TOPIC), group, name, consumer_id)
    command.scalable_topic_subscribe.consumer_type = pb.CHECKPOINT
    answer = await client.ask(command)
    assert answer.type == Type.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE
    response = answer.scalable_topic_subscribe_response
    assert not response.HasField("error"), response
    return segments_of(response.assignment)


async def read(broker: Rooms, client: WireClient, name: str, segment_id: int, consumer_id: int) -> None:
    """Read an assigned segment as the Java client does: under its own subscription."""
    topic = str(await broker.segment(TOPIC, segment_id))
    answer = await client.ask(
        commands.subscribe(
            topic, f"reader-{consumer_id}", consumer_id, 300, name=f"{name}-seg-{segment_id}", durable=False
        )
    )
    assert answer.type == Type.SUCCESS, answer


async def updated(client: WireClient) -> tuple[int, set[int]]:
    update = await client.receive()
    assert update.type == Type.SCALABLE_TOPIC_ASSIGNMENT_UPDATE, update
    content = update.scalable_topic_assignment_update
    return content.consumer_id, segments_of(content.assignment)


async def test_members_share_all_segments_through_a_split(broker: Rooms, client: WireClient, other: WireClient) -> None:
    """Children are assigned at once, because the broker does not know what was read; sealed segments stay assigned."""
    await broker.controller.create_topic(TOPIC, 2, {})
    await publish(await broker.topics.get(await broker.segment(TOPIC, 0)), message())
    assert await register(client, "one", 1) == {0, 1}
    await read(broker, client, "one", 0, 10)
    await read(broker, client, "one", 1, 11)
    assert await register(other, "two", 1) == {1}
    assert await updated(client) == (1, {0})
    await client.ask(commands.close_consumer(11, 9))
    await read(broker, other, "two", 1, 11)
    await broker.controller.split(TOPIC, 0)
    (_, mine), (_, theirs) = await updated(client), await updated(other)
    assert mine | theirs == {0, 1, 2, 3}
    assert not mine & theirs
    assert 0 in mine
    assert (await broker.layouts.get(TOPIC)).subscriptions == {}


async def test_closing_all_of_them_is_leaving(broker: Rooms, client: WireClient, other: WireClient) -> None:
    await broker.controller.create_topic(TOPIC, 2, {})
    assert await register(client, "one", 1) == {0, 1}
    await read(broker, client, "one", 0, 10)
    await read(broker, client, "one", 1, 11)
    assert await register(other, "two", 1) == {1}
    await read(broker, other, "two", 1, 11)
    assert await updated(client) == (1, {0})
    for consumer_id in (11, 10):
        await client.ask(commands.close_consumer(consumer_id, 9))
    assert await updated(other) == (1, {0, 1})


async def test_members_come_back_to_their_segments(
    broker: Rooms, listener: trio.SocketListener, client: WireClient
) -> None:
    """This holds even if their readers reconnect first."""
    await broker.controller.create_topic(TOPIC, 2, {})
    async with connected(listener) as lost:
        assert await register(lost, "one", 1) == {0, 1}
        await read(broker, lost, "one", 0, 10)
        await read(broker, lost, "one", 1, 11)
        assert await register(client, "two", 1) == {1}
        await read(broker, client, "two", 1, 11)
    await wait_all_tasks_blocked()
    async with connected(listener) as back:
        await read(broker, back, "one", 0, 10)
        assert await register(back, "one", 1) == {0}
        await client.receives_nothing_more()
        await back.ask(commands.close_consumer(10, 9))
        assert await updated(client) == (1, {0, 1})


async def test_groups_and_readers_do_not_meet(broker: Rooms, client: WireClient, other: WireClient) -> None:
    """A group's name is not a subscription's name, and other readers are not members."""
    await broker.controller.create_topic(TOPIC, 1, {})
    assert await register(client, "one", 1) == {0}
    assert await register(client, "one", 2, "another") == {0}
    stream = await client.ask(commands.scalable_topic_subscribe(70, str(TOPIC), "g", "one", 3))
    assert segments_of(stream.scalable_topic_subscribe_response.assignment) == {0}
    await read(broker, other, "one", 0, 10)
    await other.ask(commands.close_consumer(10, 9))
    topic = str(await broker.segment(TOPIC, 0))
    await client.ask(commands.subscribe(topic, "reader-x", 20, 300, durable=False))
    await client.ask(commands.close_consumer(20, 9))
    assert await register(other, "two", 1) == set(), "the one segment is read"


async def test_a_pruned_segment_is_not_waited_for(broker: Rooms, client: WireClient) -> None:
    """The client skips it silently, so nothing says that it has accepted its share. The newest one comes once more."""
    await broker.controller.create_topic(TOPIC, 1, {})
    await broker.controller.split(TOPIC, 0)
    assert await register(client, "one", 1) == {0, 1, 2}
    await broker.layouts.change(TOPIC, lambda layout: layout.prune(0))
    assert await updated(client) == (1, {1, 2})
    await read(broker, client, "one", 1, 11)
    await client.receives_nothing_more()
    await read(broker, client, "one", 2, 12)
    assert await updated(client) == (1, {1, 2})
