"""Layout sessions and ordered consumers on the wire: when an assignment is pushed, and what counts as leaving."""

import trio
from trio.testing import wait_all_tasks_blocked

from broker.names import TopicName
from tests.support.rooms import TOPIC, Rooms, publish
from tests.support.wire import WireClient, connected, message
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

Type = pb.BaseCommand.Type
NAME = "s"
EARLIEST = pb.CommandSubscribe.Earliest


async def register(client: WireClient, consumer_id: int, name: str = "c") -> set[int]:
    """The segments of the first assignment, which stands in the answer."""
    client.ignored.add(Type.REACHED_END_OF_TOPIC)
    answer = await client.ask(commands.scalable_topic_subscribe(70, str(TOPIC), NAME, name, consumer_id))
    assert answer.type == Type.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE
    response = answer.scalable_topic_subscribe_response
    assert not response.HasField("error"), response
    assert response.request_id == 70
    return {segment.segment_id for segment in response.assignment.segments}


async def take(broker: Rooms, client: WireClient, segment_id: int) -> None:
    """Subscribe to a segment, as the client does for each that it is assigned."""
    topic = str(await broker.segment(TOPIC, segment_id))
    await client.send(commands.subscribe(topic, NAME, 200 + segment_id, 300 + segment_id, initial_position=EARLIEST))
    answer = await client.receive()
    assert (answer.type, answer.success.request_id) == (Type.SUCCESS, 300 + segment_id)


async def assignment(client: WireClient) -> tuple[int, set[int]]:
    """The next push: the consumer's id and its segments."""
    update = await client.receive()
    assert update.type == Type.SCALABLE_TOPIC_ASSIGNMENT_UPDATE
    content = update.scalable_topic_assignment_update
    return content.consumer_id, {segment.segment_id for segment in content.assignment.segments}


async def two_segments(broker: Rooms) -> None:
    await broker.controller.create_topic(TOPIC, 2, {})


async def test_an_assignment_is_kept_back_until_the_one_before_is_taken_up(broker: Rooms, client: WireClient) -> None:
    """The Java client forgets what comes earlier; of several only the newest is pushed."""
    await two_segments(broker)
    assert await register(client, 30) == {0, 1}
    await take(broker, client, 0)
    await broker.controller.split(TOPIC, 0)
    await broker.controller.split(TOPIC, 1)
    await wait_all_tasks_blocked()
    await client.receives_nothing_more()
    await take(broker, client, 1)
    assert await assignment(client) == (30, {2, 3, 4, 5})
    await client.receives_nothing_more()


async def test_closing_every_assigned_segment_is_leaving(broker: Rooms, client: WireClient, other: WireClient) -> None:
    """There is no other word for it; the others get the segments at once."""
    await two_segments(broker)
    assert await register(client, 30, "a") == {0, 1}
    await take(broker, client, 0)
    await take(broker, client, 1)
    (segment,) = await register(other, 40, "b")
    _, kept = await assignment(client)
    assert kept == {0, 1} - {segment}
    await client.ask(commands.close_consumer(200 + segment, 1))
    await take(broker, other, segment)
    await other.receives_nothing_more()
    await client.ask(commands.close_consumer(200 + kept.pop(), 2))
    assert await assignment(other) == (40, {0, 1})
    await client.receives_nothing_more()


async def test_giving_up_a_segment_that_moved_is_not_leaving(
    broker: Rooms, client: WireClient, other: WireClient
) -> None:
    """It closes what it is no longer assigned, and goes on with the rest."""
    await two_segments(broker)
    await register(client, 30, "a")
    await take(broker, client, 0)
    await take(broker, client, 1)
    (moved,) = await register(other, 40, "b")
    await assignment(client)
    busy = await other.ask(
        commands.subscribe(str(await broker.segment(TOPIC, moved)), NAME, 9, 9, initial_position=EARLIEST)
    )
    assert (busy.type, busy.error.error) == (Type.ERROR, pb.ServiceNotReady), "worth another try"
    await client.ask(commands.close_consumer(200 + moved, 1))
    await take(broker, other, moved)
    await client.receives_nothing_more()
    await other.receives_nothing_more()


async def test_a_lost_connection_hands_its_segments_over(
    broker: Rooms, listener: trio.SocketListener, other: WireClient
) -> None:
    await two_segments(broker)
    async with connected(listener) as client:
        await register(client, 30, "a")
        (segment,) = await register(other, 40, "b")
        await take(broker, other, segment)
    assert await assignment(other) == (40, {0, 1})


async def test_the_same_name_again_replaces_the_registration(broker: Rooms, client: WireClient) -> None:
    """After a reconnect on the client's side, with the same or another id."""
    await two_segments(broker)
    assert await register(client, 30) == {0, 1}
    assert await register(client, 31) == {0, 1}
    await take(broker, client, 0)
    await take(broker, client, 1)
    await broker.controller.split(TOPIC, 0)
    updates = {(await assignment(client))[0]}
    await wait_all_tasks_blocked()
    await client.send(commands.ping())
    while (command := await client.receive()).type != Type.PONG:
        updates.add(command.scalable_topic_assignment_update.consumer_id)
    assert updates == {31}


async def test_a_drained_parent_leaves_and_its_children_come(broker: Rooms, client: WireClient) -> None:
    """D11: over the wire: delivered, acknowledged, and one update without the parent."""
    await broker.controller.create_topic(TOPIC, 1, {})
    parent = await broker.topics.get(TopicName.parse(str(await broker.segment(TOPIC, 0))))
    await publish(parent, message())
    assert await register(client, 30) == {0}
    await take(broker, client, 0)
    await client.send(commands.flow(200, 10))
    delivered = (await client.receive()).message
    await broker.controller.split(TOPIC, 0)
    assert await assignment(client) == (30, {0})
    await client.send(commands.ack(200, [delivered.message_id], cumulative=True))
    assert await assignment(client) == (30, {1, 2})


async def test_layout_sessions_are_answered_always(broker: Rooms, client: WireClient) -> None:
    """The Java client waits for the first update without a bound, and never listens again after an error."""
    refused = await client.ask(commands.scalable_topic_lookup(5, str(TOPIC)))
    assert refused.scalable_topic_update.error == pb.TopicNotFound
    for text, code in (("persistent://public/default/x", pb.NotAllowedError), ("topic://a", pb.InvalidTopicName)):
        refused = await client.ask(commands.scalable_topic_lookup(6, text))
        assert (refused.scalable_topic_update.session_id, refused.scalable_topic_update.error) == (6, code)
    await broker.controller.create_topic(TOPIC, 1, {})
    update = (await client.ask(commands.scalable_topic_lookup(5, str(TOPIC)))).scalable_topic_update
    assert (update.session_id, update.dag.epoch, update.resolved_topic_name) == (5, 0, str(TOPIC))
    again = await client.ask(commands.scalable_topic_lookup(5, str(TOPIC)))
    assert again.scalable_topic_update.error == pb.NotAllowedError
    await client.send(commands.scalable_topic_close(5))
    await broker.controller.split(TOPIC, 0)
    await wait_all_tasks_blocked()
    await client.receives_nothing_more()


async def test_consumers_of_topics_that_are_not_there(client: WireClient) -> None:
    for number in range(3):
        answer = await client.ask(commands.scalable_topic_subscribe(70, str(TOPIC), NAME, f"c-{number}", 30))
        assert answer.scalable_topic_subscribe_response.error == pb.TopicNotFound
