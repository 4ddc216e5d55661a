"""Regular topics (persistent://) for clients of scalable topics: one segment, which is the topic itself."""

from collections.abc import Sequence

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.errors import TopicNotFound
from broker.layouts.store import layout_key
from storage.metadata.store import Op, Put
from tests.support.disk import SimulatedFiles
from tests.support.rooms import TOPIC, Rooms, rooms, visible
from tests.support.steered_store import SteeredStore
from tests.support.wire import WireClient, connected, listening
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

Type = pb.BaseCommand.Type
REGULAR = str(TOPIC.as_regular)
EARLIEST = pb.CommandSubscribe.Earliest


async def look(client: WireClient, topic: str = REGULAR, session_id: int = 5) -> pb.CommandScalableTopicUpdate:
    """Return the first layout of a session."""
    update = (await client.ask(commands.scalable_topic_lookup(session_id, topic))).scalable_topic_update
    assert not update.HasField("error"), update
    return update


async def register(client: WireClient, consumer_id: int, name: str) -> list[str]:
    """Register, and return the topics of the first assignment."""
    # That somebody controls the topic now.
    client.ignored.add(Type.SCALABLE_TOPIC_UPDATE)
    answer = await client.ask(commands.scalable_topic_subscribe(70, REGULAR, "s", name, consumer_id))
    client.ignored.discard(Type.SCALABLE_TOPIC_UPDATE)
    response = answer.scalable_topic_subscribe_response
    assert not response.HasField("error"), response
    return [segment.segment_topic for segment in response.assignment.segments]


async def take(client: WireClient, consumer_id: int, name: str) -> None:
    """Subscribe to the one segment, as the ordered consumer of that name does."""
    command = commands.subscribe(REGULAR, "s", consumer_id, 300, initial_position=EARLIEST, name=name)
    assert (await client.ask(command)).type == Type.SUCCESS


@pytest.mark.parametrize("asked", [REGULAR, TOPIC.local])
async def test_a_regular_topic_is_its_own_only_segment(broker: Rooms, client: WireClient, asked: str) -> None:
    """T35: nothing is stored for it, and a lookup does not even create the topic."""
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
    """A lookup by the topic's old name, or by a short name, gets the existing layout."""
    await broker.controller.create_topic(TOPIC, 2, {})
    for session_id, name in enumerate((REGULAR, TOPIC.local, str(TOPIC))):
        update = await look(client, name, session_id)
        assert update.resolved_topic_name == str(TOPIC)
        assert [segment.legacy_topic_name for segment in update.dag.segments] == ["", ""]


async def test_a_layout_that_comes_later_is_pushed(broker: Rooms, client: WireClient) -> None:
    """This holds although its epoch is that of the layout before."""
    await broker.control()
    await look(client)
    await broker.controller.create_topic(TOPIC, 2, {})
    update = (await client.receive()).scalable_topic_update
    assert (update.session_id, update.dag.epoch, len(update.dag.segments)) == (5, 0, 2)
    await broker.controller.delete_topic(TOPIC, force=False)
    await wait_all_tasks_blocked()
    await client.receives_nothing_more()


async def test_ordered_consumers_take_turns_on_it(broker: Rooms, client: WireClient, other: WireClient) -> None:
    """One consumer has the topic, by its own name; when it leaves, the next one gets it."""
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
    """Sends and acknowledgements of older clients count for newer ones, and the other way round."""
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
    """The Java client reopens its consumer of a segment before it registers again; its assignment is the same."""
    assert await register(client, 30, "a") == [REGULAR]
    await take(client, 200, "a-seg-0")
    await client.close()
    async with connected(listener) as again:
        await wait_all_tasks_blocked()
        await take(again, 200, "a-seg-0")
        assert await register(again, 30, "a") == [REGULAR]
        await again.receives_nothing_more()


async def test_transactions_are_refused_and_change_nothing(broker: Rooms, client: WireClient) -> None:
    """T21, T33, T35: v5 transactions work on segments; on regular topics they would need markers."""
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


async def layout_pushed(client: WireClient) -> dict[int, tuple[bool, str]]:
    """Return the next layout: for each segment, whether it is active, and its old name."""
    update = await client.receive()
    assert update.type == Type.SCALABLE_TOPIC_UPDATE, update
    segments = update.scalable_topic_update.dag.segments
    return {segment.segment_id: (segment.state == pb.ACTIVE, segment.legacy_topic_name) for segment in segments}


MIGRATED = {0: (False, REGULAR), 1: (True, "")}
MANAGED = {"__pulsar.v5.managed": "true"}


async def migrate(broker: Rooms, *, force: bool = False) -> None:
    await broker.controller.migrate(TOPIC, force=force)


async def test_clients_go_along_when_a_topic_is_migrated(broker: Rooms, client: WireClient) -> None:
    """T20: they get the layout first; sends in progress are stored; old messages are read before new ones."""
    await look(client)
    await client.ask(commands.producer(REGULAR, 1, 11, properties=MANAGED))
    assert await register(client, 30, "a") == [REGULAR]
    await take(client, 200, "a-seg-0")
    await client.publish(1, 0, b"before")
    assert (await client.receive()).type == Type.SEND_RECEIPT
    async with trio.open_nursery() as nursery:
        nursery.start_soon(migrate, broker)
        client.ignored.add(Type.SCALABLE_TOPIC_ASSIGNMENT_UPDATE)
        assert await layout_pushed(client) == MIGRATED
        await client.publish(1, 1, b"under way")
        assert (await client.receive()).type == Type.SEND_RECEIPT
        assert (await client.ask(commands.close_producer(1, 12))).type == Type.SUCCESS
    client.ignored.clear()
    assert (await client.produce(2, REGULAR)).error.error == pb.TopicTerminatedError
    child = str(await broker.segment(TOPIC, 1))
    await client.produce(3, child)
    await client.publish(3, 0, b"after")
    assert (await client.receive()).type == Type.SEND_RECEIPT
    await client.send(commands.flow(200, 10))
    _, last = [(await client.receive()).message for _ in range(2)]
    client.ignored.add(Type.REACHED_END_OF_TOPIC)
    await client.send(commands.ack(200, [last.message_id], cumulative=True))
    assigned = (await client.receive()).scalable_topic_assignment_update.assignment
    assert [(segment.segment_id, segment.segment_topic) for segment in assigned.segments] == [(1, child)]
    assert (
        await client.ask(commands.subscribe(child, "s", 201, 301, initial_position=EARLIEST, name="a-seg-1"))
    ).type == Type.SUCCESS
    await client.send(commands.flow(201, 10))
    assert (await client.receive()).message.consumer_id == 201


async def test_who_is_in_the_way_of_a_migration(broker: Rooms, client: WireClient, other: WireClient) -> None:
    """Clients that say they follow, or whose connection follows the layout, are not counted; all others are."""
    await look(client)
    await client.ask(commands.producer(REGULAR, 1, 11, properties=MANAGED))
    assert await register(client, 30, "a") == [REGULAR]
    await take(client, 200, "a-seg-0")
    await client.ask(commands.subscribe(REGULAR, "reader-1", 201, 301, durable=False, initial_position=EARLIEST))
    shared = pb.CommandSubscribe.Shared
    managed = commands.subscribe(REGULAR, "q", 5, 5, sub_type=shared, properties=MANAGED)
    assert (await other.ask(managed)).type == Type.SUCCESS
    topic = await broker.topics.get(TOPIC.as_regular)
    assert (topic.clients.consumer_count, len(topic.clients.producers), topic.clients.old_client_count) == (3, 1, 0)
    await other.ask(commands.subscribe(REGULAR, "q", 6, 6, sub_type=shared))
    await other.produce(7, REGULAR)
    assert topic.clients.old_client_count == 2


async def test_old_clients_of_a_migrated_topic(
    broker: Rooms, client: WireClient, other: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With force, nothing more is written under the old name; its messages can be read, and nothing new is opened."""
    monkeypatch.setattr("broker.scalable.segment_owner.LEAVING_SECONDS_MAX", 0)
    await client.produce(1, REGULAR)
    await client.publish(1, 0)
    assert (await client.receive()).type == Type.SEND_RECEIPT
    await client.ask(commands.subscribe(REGULAR, "old", 2, 2, initial_position=EARLIEST))
    await migrate(broker, force=True)
    assert (await client.receive()).type == Type.CLOSE_PRODUCER
    assert (await client.produce(1, REGULAR)).error.error == pb.TopicTerminatedError
    await client.send(commands.flow(2, 10))
    delivered = (await client.receive()).message
    await client.send(commands.ack(2, [delivered.message_id]))
    assert (await client.receive()).type == Type.REACHED_END_OF_TOPIC
    again = commands.subscribe(REGULAR, "new", 3, 3, initial_position=EARLIEST)
    refused = await client.ask(again)
    assert (refused.error.error, "migrated to topic://" in refused.error.message) == (pb.NotAllowedError, True)
    assert "new" not in (await broker.layouts.get(TOPIC)).subscriptions
    unsubscribed = await client.ask(commands.unsubscribe(2, 4))
    assert unsubscribed.error.error == pb.NotAllowedError, "it is one of all segments"
    # A v5 client may: it reads the rest as well.
    await look(other)
    assert (await other.ask(again)).type == Type.SUCCESS
    assert "new" in (await broker.layouts.get(TOPIC)).subscriptions
    child = await broker.topics.get(await broker.segment(TOPIC, 1))
    assert child.subscriptions.keys() == {"old", "new"}


async def test_a_consumer_that_comes_during_a_migration() -> None:
    """D10: it waits, and then its subscription covers all segments."""
    store = SteeredStore()
    async with rooms(store, SimulatedFiles(seed=5)) as broker, listening(broker) as listener:
        async with connected(listener) as client:
            topic = await broker.topics.get(TOPIC.as_regular)
            await look(client)
            client.ignored.add(Type.SCALABLE_TOPIC_UPDATE)

            async def before(ops: Sequence[Op]) -> None:
                if any(isinstance(op, Put) and op.key == layout_key(TOPIC) for op in ops):
                    store.before = None
                    await client.send(commands.subscribe(REGULAR, "new", 1, 1, initial_position=EARLIEST))
                    await wait_all_tasks_blocked()

            store.before = before
            await migrate(broker)
            assert (await client.receive()).type == Type.SUCCESS
        layout = await broker.layouts.get(TOPIC)
        child = await broker.topics.get(await broker.segment(TOPIC, 1))
        assert topic.subscriptions.keys() == child.subscriptions.keys() == layout.subscriptions.keys() == {"new"}
