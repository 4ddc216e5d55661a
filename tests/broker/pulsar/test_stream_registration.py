"""An ordered consumer registers, and its consumers of segments come and go. The client chooses the order."""

from tests.support.rooms import TOPIC, Rooms
from tests.support.wire import WireClient
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

Type = pb.BaseCommand.Type


async def subscribe(broker: Rooms, client: WireClient, segment_id: int) -> None:
    name = str(await broker.segment(TOPIC, segment_id))
    answer = await client.ask(
        commands.subscribe(
            name, "s", 10 + segment_id, 100 + segment_id, initial_position=pb.CommandSubscribe.InitialPosition.Earliest
        )
    )
    assert answer.type == Type.SUCCESS


async def register(client: WireClient) -> list[int]:
    """Register, and return the assigned segments."""
    answer = await client.ask(
        commands.scalable_topic_subscribe(5, topic=str(TOPIC), subscription="s", consumer_name="c", consumer_id=1)
    )
    assert answer.type == Type.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE
    return [segment.segment_id for segment in answer.scalable_topic_subscribe_response.assignment.segments]


async def updated(client: WireClient) -> list[int]:
    update = await client.receive()
    while update.type == Type.REACHED_END_OF_TOPIC:
        update = await client.receive()
    assert update.type == Type.SCALABLE_TOPIC_ASSIGNMENT_UPDATE
    return [segment.segment_id for segment in update.scalable_topic_assignment_update.assignment.segments]


async def test_segments_subscribed_to_before_registering_count(broker: Rooms, client: WireClient) -> None:
    """D10: after a lost connection, consumers of segments may return first; later assignments still reach them."""
    await broker.controller.create_topic(TOPIC, 1, {})
    await subscribe(broker, client, 0)
    assert await register(client) == [0]
    # Empty, so drained as soon as it is sealed; the news of the split alone changes nothing.
    await broker.controller.split(TOPIC, 0)
    assert await updated(client) == [0]
    assert await updated(client) == [1, 2]


async def test_an_assignment_is_repeated_behind_the_segments_of_the_first(broker: Rooms, client: WireClient) -> None:
    client.ignored.add(Type.REACHED_END_OF_TOPIC)
    await broker.controller.create_topic(TOPIC, 1, {})
    assert await register(client) == [0]
    await broker.controller.split(TOPIC, 0)
    assert await updated(client) == [0]
    await client.receives_nothing_more()
    earliest = pb.CommandSubscribe.InitialPosition.Earliest
    await client.send(commands.subscribe(str(await broker.segment(TOPIC, 0)), "s", 10, 100, initial_position=earliest))
    # Empty, so drained as soon as there is a subscription.
    assert await updated(client) == [1, 2]
    assert (await client.receive()).type == Type.SUCCESS
    assert await updated(client) == [1, 2]
    await client.receives_nothing_more()


async def test_two_ordered_consumers_share_a_connection(broker: Rooms, client: WireClient) -> None:
    """One consumer closes a moved segment, and the other one subscribes to it. Neither has left."""
    await broker.controller.create_topic(TOPIC, 2, {})
    names = [str(await broker.segment(TOPIC, number)) for number in range(2)]

    async def assigned(consumer: str, consumer_id: int) -> list[int]:
        answer = await client.ask(commands.scalable_topic_subscribe(5, str(TOPIC), "s", consumer, consumer_id))
        segments = answer.scalable_topic_subscribe_response.assignment.segments
        return [segment.segment_id for segment in segments]

    async def subscribe_as(consumer: str, segment_id: int, consumer_id: int) -> None:
        answer = await client.ask(
            commands.subscribe(
                names[segment_id],
                "s",
                consumer_id,
                consumer_id,
                name=f"{consumer}-seg-{segment_id}",
                initial_position=pb.CommandSubscribe.InitialPosition.Earliest,
            )
        )
        assert answer.type == Type.SUCCESS

    assert await assigned("a", 1) == [0, 1]
    await subscribe_as("a", 0, 10)
    await subscribe_as("a", 1, 11)
    await client.send(commands.scalable_topic_subscribe(5, str(TOPIC), "s", "b", 2))
    answers = {}
    for _ in range(2):
        command = await client.receive()
        answers[command.type] = command
    kept = answers[Type.SCALABLE_TOPIC_ASSIGNMENT_UPDATE].scalable_topic_assignment_update
    assert kept.consumer_id == 1
    (stays,) = [segment.segment_id for segment in kept.assignment.segments]
    moves = 1 - stays
    assert (await client.ask(commands.close_consumer(10 + moves, 50))).type == Type.SUCCESS
    await subscribe_as("b", moves, 20)
    await client.receives_nothing_more()


async def test_a_consumer_is_told_again_that_a_segment_is_anothers(
    broker: Rooms, client: WireClient, other: WireClient
) -> None:
    """The segment moved before its consumer subscribed. A client that did not hear of it would retry for ever."""
    await broker.controller.create_topic(TOPIC, 2, {})
    names = [str(await broker.segment(TOPIC, number)) for number in range(2)]
    assert await register(client) == [0, 1]
    await subscribe(broker, client, 0)
    answer = await other.ask(commands.scalable_topic_subscribe(5, str(TOPIC), "s", "d", 2))
    (moved,) = [one.segment_id for one in answer.scalable_topic_subscribe_response.assignment.segments]
    assert moved == 1
    assert await updated(client) == [0]
    answer = await other.ask(commands.subscribe(names[1], "s", 3, 3, name="d-seg-1"))
    assert answer.type == Type.SUCCESS
    await client.receives_nothing_more()
    await client.send(commands.subscribe(names[1], "s", 11, 111, name="c-seg-1"))
    told = {command.type: command for command in [await client.receive() for _ in range(2)]}
    assert told[Type.ERROR].error.error == pb.ServiceNotReady
    update = told[Type.SCALABLE_TOPIC_ASSIGNMENT_UPDATE].scalable_topic_assignment_update
    assert [segment.segment_id for segment in update.assignment.segments] == [0]


async def test_a_consumer_takes_the_place_of_one_that_its_client_forgot(broker: Rooms, client: WireClient) -> None:
    """The Java client never closes consumers that it opens while it is being closed itself."""
    await broker.controller.create_topic(TOPIC, 1, {})
    name = str(await broker.segment(TOPIC, 0))
    for consumer_id in (1, 2):
        answer = await client.ask(commands.subscribe(name, "s", consumer_id, consumer_id, name="c-seg-0"))
        assert answer.type == Type.SUCCESS
    answer = await client.ask(commands.subscribe(name, "s", 3, 3, name="other-seg-0"))
    assert answer.error.error == pb.ServiceNotReady
    assert (await client.ask(commands.close_consumer(1, 4))).type == Type.SUCCESS
    answer = await client.ask(commands.subscribe(name, "s", 5, 5, name="other-seg-0"))
    assert answer.error.error == pb.ServiceNotReady
    await client.receives_nothing_more()


async def test_what_was_subscribed_to_once_does_not_count_for_a_registration(broker: Rooms, client: WireClient) -> None:
    """E9: a consumer that has unsubscribed is forgotten; the next assignment is repeated when the client subscribes."""
    regular = str(TOPIC.as_regular)
    earliest = pb.CommandSubscribe.InitialPosition.Earliest
    subscription = commands.subscribe(regular, "s", 10, 100, name="c-seg-0", initial_position=earliest)
    assert (await client.ask(subscription)).type == Type.SUCCESS
    assert (await client.ask(commands.unsubscribe(10, 101))).type == Type.SUCCESS
    answer = await client.ask(commands.scalable_topic_subscribe(5, regular, "s", "c", 1))
    assert answer.type == Type.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE
    await broker.controller.migrate(TOPIC, force=False)
    assert await updated(client) == [0]
    await client.receives_nothing_more()
    await client.send(subscription)
    # The old segment is empty.
    assert await updated(client) == [1]
    assert (await client.receive()).type == Type.SUCCESS
    assert await updated(client) == [1]
