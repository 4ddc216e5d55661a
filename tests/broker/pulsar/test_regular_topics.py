"""Regular topics (persistent://) as clients of scalable topics use them: one segment, which is that very topic."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.errors import TopicNotFound
from tests.support.rooms import TOPIC, Rooms, visible
from tests.support.wire import WireClient, connected
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

Type = pb.BaseCommand.Type
REGULAR = str(TOPIC.as_regular)
EARLIEST = pb.CommandSubscribe.Earliest


async def look(client: WireClient, topic: str = REGULAR, session_id: int = 5) -> pb.CommandScalableTopicUpdate:
    """The first layout of a session."""
    update = (await client.ask(commands.scalable_topic_lookup(session_id, topic))).scalable_topic_update
    assert not update.HasField("error"), update
    return update


async def register(client: WireClient, consumer_id: int, name: str) -> list[str]:
    """The topics of the first assignment."""
    answer = await client.ask(commands.scalable_topic_subscribe(70, REGULAR, "s", name, consumer_id))
    response = answer.scalable_topic_subscribe_response
    assert not response.HasField("error"), response
    return [segment.segment_topic for segment in response.assignment.segments]


async def take(client: WireClient, consumer_id: int, name: str) -> None:
    """Subscribe to the one segment, as the ordered consumer of that name does."""
    command = commands.subscribe(REGULAR, "s", consumer_id, 300, initial_position=EARLIEST, name=name)
    assert (await client.ask(command)).type == Type.SUCCESS


@pytest.mark.parametrize("asked", [REGULAR, TOPIC.local])
async def test_a_regular_topic_is_its_own_only_segment(broker: Rooms, client: WireClient, asked: str) -> None:
    """T35: nothing is stored for it, and the topic is not even made by asking."""
    update = await look(client, asked)
    assert update.resolved_topic_name == str(TOPIC)
    assert update.dag.epoch == 0
    (segment,) = update.dag.segments
    assert (segment.segment_id, segment.hash_start, segment.hash_end, segment.state) == (0, 0, 0xFFFF, pb.ACTIVE)
    assert segment.legacy_topic_name == REGULAR
    assert broker.opened == []
    with pytest.raises(TopicNotFound):
        await broker.layouts.get(TOPIC)


async def test_the_scalable_topic_of_the_name_comes_first(broker: Rooms, client: WireClient) -> None:
    """Whoever asks for a topic by its old name or a short one gets the layout that there is."""
    await broker.controller.create_topic(TOPIC, 2, {})
    for session_id, name in enumerate((REGULAR, TOPIC.local, str(TOPIC))):
        update = await look(client, name, session_id)
        assert update.resolved_topic_name == str(TOPIC)
        assert [segment.legacy_topic_name for segment in update.dag.segments] == ["", ""]


async def test_a_layout_that_comes_later_is_pushed(broker: Rooms, client: WireClient) -> None:
    """Though its epoch is that of the one before."""
    await look(client)
    await broker.controller.create_topic(TOPIC, 2, {})
    update = (await client.receive()).scalable_topic_update
    assert (update.session_id, update.dag.epoch, len(update.dag.segments)) == (5, 0, 2)
    await broker.controller.delete_topic(TOPIC, force=False)
    await wait_all_tasks_blocked()
    await client.receives_nothing_more()


async def test_ordered_consumers_take_turns_on_it(broker: Rooms, client: WireClient, other: WireClient) -> None:
    """One has the topic, by its own name; when he leaves, the next one has it."""
    await look(client)
    assert await register(client, 30, "a") == [REGULAR]
    await take(client, 200, "a-seg-0")
    assert await register(other, 40, "b") == []
    busy = commands.subscribe(REGULAR, "s", 9, 9, initial_position=EARLIEST, name="b-seg-0")
    assert (await other.ask(busy)).error.error == pb.ServiceNotReady, "worth another try"
    await client.ask(commands.close_consumer(200, 1))
    update = (await other.receive()).scalable_topic_assignment_update
    assert [segment.segment_topic for segment in update.assignment.segments] == [REGULAR]
    await take(other, 201, "b-seg-0")
    await client.receives_nothing_more()


async def test_old_and_new_clients_see_the_same_messages(broker: Rooms, client: WireClient, other: WireClient) -> None:
    """What an older client sends and acknowledges is sent and acknowledged for newer ones, and the other way round."""
    await look(client)
    await client.produce(1, REGULAR)
    await other.produce(2, REGULAR)
    for producer, sender in ((1, client), (2, other)):
        await sender.publish(producer, 0, b"from %d" % producer)
        assert (await sender.receive()).type == Type.SEND_RECEIPT
    assert len(await visible(await broker.topics.get(TOPIC.as_regular))) == 2
    assert await register(client, 30, "a") == [REGULAR]
    await take(client, 200, "a-seg-0")
    await client.send(commands.flow(200, 10))
    first, second = [(await client.receive()).message for _ in range(2)]
    assert (await client.ask(commands.ack(200, [first.message_id], cumulative=True, request_id=8))).type == (
        Type.ACK_RESPONSE
    )
    await client.ask(commands.close_consumer(200, 1))
    await take(other, 77, "plain")
    await other.send(commands.flow(77, 10))
    assert (await other.receive()).message.message_id == second.message_id
    await other.receives_nothing_more()


async def test_after_a_lost_connection_the_segment_may_come_first(
    broker: Rooms, listener: trio.SocketListener, client: WireClient
) -> None:
    """The Java client opens its consumer of a segment again before it registers anew; its assignment is the same."""
    assert await register(client, 30, "a") == [REGULAR]
    await take(client, 200, "a-seg-0")
    await client.close()
    async with connected(listener) as again:
        await wait_all_tasks_blocked()
        await take(again, 200, "a-seg-0")
        assert await register(again, 30, "a") == [REGULAR]
        await again.receives_nothing_more()


async def test_transactions_are_refused_and_change_nothing(broker: Rooms, client: WireClient) -> None:
    """T21, T33, T35: v5 transactions write and acknowledge on segments; on regular topics that is to be by markers."""
    await look(client)
    txn = (3, (await broker.coordinator.new_transaction(3, 1_000)).least)
    await client.produce(1, REGULAR)
    await client.publish(1, 0, b"in it", txn)
    assert (await client.receive()).send_error.error == pb.NotAllowedError
    await client.publish(1, 1, b"plain")
    assert (await client.receive()).type == Type.SEND_RECEIPT
    assert await register(client, 30, "a") == [REGULAR]
    await take(client, 200, "a-seg-0")
    await client.send(commands.flow(200, 10))
    delivered = (await client.receive()).message
    refused = await client.ask(commands.ack(200, [delivered.message_id], request_id=9, txn=txn))
    assert refused.ack_response.error == pb.NotAllowedError
    topic = await broker.topics.get(TOPIC.as_regular)
    assert topic.subscriptions["s"].backlog_entries == 1
    assert len(await visible(topic)) == 1
