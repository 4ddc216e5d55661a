"""Layout sessions and ordered consumers over the wire: when an assignment is pushed, and what counts as leaving."""

import gc

import trio
from trio.testing import wait_all_tasks_blocked

from broker.layouts.layout import Layout
from broker.layouts.parts import StartPosition, SubscriptionKind
from broker.layouts.store import layout_key
from broker.names import TopicName
from broker.pulsar.layout_sessions import DAGS_KEPT_MAX
from tests.support.rooms import TOPIC, Rooms, publish
from tests.support.wire import WireClient, message
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

Type = pb.BaseCommand.Type
NAME = "s"
EARLIEST = pb.CommandSubscribe.Earliest


async def register(client: WireClient, consumer_id: int, name: str = "c") -> set[int]:
    """Register, and return the segments of the first assignment, which is in the answer."""
    client.ignored.add(Type.REACHED_END_OF_TOPIC)
    answer = await client.ask(commands.scalable_topic_subscribe(70, str(TOPIC), NAME, name, consumer_id))
    assert answer.type == Type.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE
    response = answer.scalable_topic_subscribe_response
    assert not response.HasField("error"), response
    assert response.request_id == 70
    return {segment.segment_id for segment in response.assignment.segments}


async def take(broker: Rooms, client: WireClient, segment_id: int) -> None:
    """Subscribe to a segment, as the client does for each assigned one."""
    topic = str(await broker.segment(TOPIC, segment_id))
    await client.send(commands.subscribe(topic, NAME, 200 + segment_id, 300 + segment_id, initial_position=EARLIEST))
    answer = await client.receive()
    assert (answer.type, answer.success.request_id) == (Type.SUCCESS, 300 + segment_id)


async def assignment(client: WireClient) -> tuple[int, set[int]]:
    """Return the next push: the consumer's id and its segments."""
    update = await client.receive()
    assert update.type == Type.SCALABLE_TOPIC_ASSIGNMENT_UPDATE
    content = update.scalable_topic_assignment_update
    return content.consumer_id, {segment.segment_id for segment in content.assignment.segments}


async def two_segments(broker: Rooms) -> None:
    await broker.controller.create_topic(TOPIC, 2, {})


async def test_the_newest_assignment_is_repeated_when_the_first_is_taken_up(broker: Rooms, client: WireClient) -> None:
    """The Java client hears none before that. None waits for that, because it may never come."""
    await two_segments(broker)
    assert await register(client, 30) == {0, 1}
    await take(broker, client, 0)
    await broker.controller.split(TOPIC, 0)
    await broker.controller.split(TOPIC, 1)
    while await assignment(client) != (30, {2, 3, 4, 5}):
        pass
    await client.receives_nothing_more()
    await take(broker, client, 1)
    assert await assignment(client) == (30, {2, 3, 4, 5})
    await client.receives_nothing_more()


async def test_closing_every_assigned_segment_is_leaving(broker: Rooms, client: WireClient, other: WireClient) -> None:
    """There is no other way to leave; the others get the segments at once."""
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
    """The consumer closes what it is no longer assigned, and continues with the rest."""
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


async def test_the_same_name_again_replaces_the_registration(broker: Rooms, client: WireClient) -> None:
    """The client has reconnected, with the same id or another one."""
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
    """D11: over the wire: its messages are delivered and acknowledged, and one update comes without the parent."""
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
    """The Java client waits for the first update without a time limit, and never listens again after an error."""
    refused = await client.ask(commands.scalable_topic_lookup(5, str(TOPIC)))
    assert refused.scalable_topic_update.error == pb.TopicNotFound
    for text in ("persistent://public/default/x-partition-0", "topic://a", str(TOPIC.as_regular) + "/0000-ffff-0"):
        code = pb.InvalidTopicName
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


async def test_all_layout_sessions_of_a_topic_hold_the_same_layout(broker: Rooms, client: WireClient) -> None:
    """E16: otherwise each session keeps its first layout, which names every subscription of that time."""
    await broker.controller.create_topic(TOPIC, 1, {})
    sessions = 2 * DAGS_KEPT_MAX
    for number in range(sessions):
        await broker.controller.subscriptions.add(TOPIC, f"s-{number}", SubscriptionKind.QUEUE, StartPosition.EARLIEST)
        await client.ask(commands.scalable_topic_lookup(number, str(TOPIC)))
    await wait_all_tasks_blocked()
    gc.collect()
    # Other tests of this process may hold layouts of their own.
    topic = (await broker.layouts.get(TOPIC)).creation_id
    held = [found for found in gc.get_objects() if isinstance(found, Layout) and found.creation_id == topic]
    assert 0 < len(held) <= DAGS_KEPT_MAX + 2


async def test_a_layout_session_of_a_topic_deleted_just_then_is_answered(broker: Rooms, client: WireClient) -> None:
    """The Java client waits for the first update without a time limit."""
    await broker.controller.create_topic(TOPIC, 1, {})
    read = broker.layouts.get

    async def read_and_lose(topic: TopicName) -> Layout:
        layout = await read(topic)
        await broker.layouts.remove(topic, layout.creation_id)
        return layout

    broker.layouts.get = read_and_lose  # type: ignore[method-assign]
    refused = (await client.ask(commands.scalable_topic_lookup(5, str(TOPIC)))).scalable_topic_update
    assert (refused.session_id, refused.error) == (5, pb.TopicNotFound)
    broker.layouts.get = read  # type: ignore[method-assign]
    # Refused, it is not open: the client may ask anew under the same number.
    await broker.controller.create_topic(TOPIC, 1, {})
    await wait_all_tasks_blocked()
    await client.receives_nothing_more()
    assert (await client.ask(commands.scalable_topic_lookup(5, str(TOPIC)))).scalable_topic_update.HasField("dag")


async def test_a_topic_made_again_under_its_name_is_pushed(broker: Rooms, client: WireClient) -> None:
    """Its first epoch equals the old one's, but everything else differs."""
    await broker.controller.create_topic(TOPIC, 1, {})
    await broker.control()
    await client.ask(commands.scalable_topic_lookup(5, str(TOPIC)))
    await broker.controller.delete_topic(TOPIC, force=True)
    await broker.controller.create_topic(TOPIC, 4, {})
    await wait_all_tasks_blocked()
    update = (await client.receive()).scalable_topic_update
    assert (update.session_id, len(update.dag.segments)) == (5, 4)
    await client.receives_nothing_more()


async def test_consumers_of_topics_that_are_not_there(client: WireClient) -> None:
    for number in range(3):
        answer = await client.ask(commands.scalable_topic_subscribe(70, str(TOPIC), NAME, f"c-{number}", 30))
        assert answer.scalable_topic_subscribe_response.error == pb.TopicNotFound


async def test_a_damaged_layout_is_refused_by_the_protocols_error(broker: Rooms, client: WireClient) -> None:
    """Every command that needs it is answered, and the connection continues."""
    await two_segments(broker)
    segment = str(await broker.segment(TOPIC, 0))
    await broker.metadata.put(layout_key(TOPIC), b"{}")
    lookup = await client.ask(commands.scalable_topic_lookup(5, str(TOPIC)))
    assert lookup.scalable_topic_update.error == pb.MetadataError
    subscribe = await client.ask(commands.scalable_topic_subscribe(70, str(TOPIC), NAME, "c", 30))
    assert subscribe.scalable_topic_subscribe_response.error == pb.MetadataError
    for command in (
        commands.producer(segment, 1, 1),
        commands.subscribe(segment, NAME, 2, 2, initial_position=EARLIEST),
    ):
        assert (await client.ask(command)).error.error == pb.MetadataError
    await client.receives_nothing_more()


async def test_both_parents_of_a_merge_are_read_before_the_child(broker: Rooms, client: WireClient) -> None:
    """D10, D11: over the wire: the client sees the layout, producers that are closed, then messages in order."""
    await two_segments(broker)
    names = [str(await broker.segment(TOPIC, segment_id)) for segment_id in (0, 1)]
    assert await register(client, 30) == {0, 1}
    for segment_id in (0, 1):
        await take(broker, client, segment_id)
        await client.produce(segment_id, names[segment_id])
        await client.publish(segment_id, 0, b"first %d" % segment_id)
        assert (await client.receive()).type == Type.SEND_RECEIPT
    update = (await client.ask(commands.scalable_topic_lookup(5, str(TOPIC)))).scalable_topic_update
    assert update.dag.epoch == 0

    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.controller.merge, TOPIC, 0, 1)
        pushed = {command.type: command for command in [await client.receive(), await client.receive()]}
        dag = pushed[Type.SCALABLE_TOPIC_UPDATE].scalable_topic_update.dag
        assert {segment.segment_id: list(segment.parent_ids) for segment in dag.segments} == {0: [], 1: [], 2: [0, 1]}
        assert [segment.segment_id for segment in dag.segments if segment.state == pb.ACTIVE] == [2]
        assigned = pushed[Type.SCALABLE_TOPIC_ASSIGNMENT_UPDATE].scalable_topic_assignment_update.assignment
        assert {segment.segment_id for segment in assigned.segments} == {0, 1}, "the child waits"
        # What was under way to a parent is taken until its producer leaves.
        await client.publish(0, 1, b"second 0")
        assert (await client.receive()).type == Type.SEND_RECEIPT
        for producer_id in (0, 1):
            assert (await client.ask(commands.close_producer(producer_id, 50 + producer_id))).type == Type.SUCCESS
    child = str(await broker.segment(TOPIC, 2))
    assert (await client.produce(0, names[0])).error.error == pb.TopicTerminatedError
    await client.produce(2, child)
    await client.publish(2, 0, b"third")
    assert (await client.receive()).type == Type.SEND_RECEIPT

    ids: dict[int, list[pb.MessageIdData]] = {200: [], 201: []}
    await client.send(commands.flow(200, 10), commands.flow(201, 10))
    for _ in range(3):
        delivered = (await client.receive()).message
        ids[delivered.consumer_id].append(delivered.message_id)
    assert {consumer_id: len(found) for consumer_id, found in ids.items()} == {200: 2, 201: 1}
    await client.send(commands.ack(200, [ids[200][-1]], cumulative=True))
    await wait_all_tasks_blocked()
    assert await assignment(client) == (30, {1}), "one parent is drained, the other is not"
    await client.send(commands.ack(201, [ids[201][-1]], cumulative=True))
    assert await assignment(client) == (30, {2})
    await take(broker, client, 2)
    await client.send(commands.flow(202, 10))
    last = await client.receive()
    assert (last.type, last.message.consumer_id) == (Type.MESSAGE, 202)


async def test_a_second_consumer_gets_a_segment_of_its_own(
    broker: Rooms, client: WireClient, other: WireClient, nursery: trio.Nursery
) -> None:
    """D11: the only segment splits by itself, and once it is drained each consumer has a child."""
    nursery.start_soon(broker.auto_scaler.run)
    await broker.controller.create_topic(TOPIC, 1, {})
    parent = await broker.topics.get(await broker.segment(TOPIC, 0))
    await publish(parent, message())
    assert await register(client, 30, "a") == {0}
    await take(broker, client, 0)
    await client.send(commands.flow(200, 10))
    delivered = (await client.receive()).message
    assert await register(other, 40, "b") == set()
    assert await assignment(client) == (30, {0})
    await client.send(commands.ack(200, [delivered.message_id], cumulative=True))
    _, first = await assignment(client)
    while not (second := (await assignment(other))[1]):
        continue
    assert sorted(first | second) == [1, 2]
    assert len(first) == 1
