"""Ordered consumers that lose their connection: what they keep, for how long, and what counts as leaving."""

from collections.abc import Sequence

import trio
from trio.testing import wait_all_tasks_blocked

from storage.metadata.memory import MemoryStore
from tests.support.disk import SimulatedFiles
from tests.support.rooms import TOPIC, Rooms, rooms
from tests.support.wire import WireClient, connected, listening
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

Type = pb.BaseCommand.Type


def segments_of(assignment: pb.ScalableConsumerAssignment) -> set[int]:
    return {segment.segment_id for segment in assignment.segments}


async def register(client: WireClient, name: str) -> set[int]:
    answer = await client.ask(commands.scalable_topic_subscribe(70, str(TOPIC), "s", name, 30))
    assert answer.type == Type.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE
    return segments_of(answer.scalable_topic_subscribe_response.assignment)


async def take(broker: Rooms, client: WireClient, name: str, segments: Sequence[int]) -> None:
    for segment_id in segments:
        topic = str(await broker.segment(TOPIC, segment_id))
        answer = await client.ask(
            commands.subscribe(topic, "s", 200 + segment_id, 300 + segment_id, name=f"{name}-seg-{segment_id}")
        )
        assert answer.type == Type.SUCCESS


async def updated(client: WireClient) -> set[int]:
    update = await client.receive()
    assert update.type == Type.SCALABLE_TOPIC_ASSIGNMENT_UPDATE
    return segments_of(update.scalable_topic_assignment_update.assignment)


async def test_who_comes_back_finds_his_segments(
    broker: Rooms, listener: trio.SocketListener, client: WireClient
) -> None:
    """D11: the other consumers got no news meanwhile."""
    await broker.controller.create_topic(TOPIC, 4, {})
    async with connected(listener) as lost:
        assert len(await register(lost, "a")) == 4
        had = await register(client, "b")
        await take(broker, client, "b", sorted(had))
    await wait_all_tasks_blocked()
    await client.receives_nothing_more()
    async with connected(listener) as back:
        assert await register(back, "a") == {0, 1, 2, 3} - had
        await client.receives_nothing_more()


async def test_without_a_grace_period_the_segments_go_to_the_others_at_once() -> None:
    async with (
        rooms(MemoryStore(), SimulatedFiles(seed=5), consumer_session_grace_seconds=0) as broker,
        listening(broker) as listener,
        connected(listener) as client,
    ):
        await broker.controller.create_topic(TOPIC, 2, {})
        async with connected(listener) as lost:
            await register(lost, "a")
            await take(broker, client, "b", sorted(await register(client, "b")))
        assert await updated(client) == {0, 1}


async def test_closing_the_registration_is_leaving(broker: Rooms, client: WireClient, other: WireClient) -> None:
    """A consumer without segments has no other way to leave. Tidewire's client uses it."""
    client.ignored.add(Type.REACHED_END_OF_TOPIC)
    await broker.controller.create_topic(TOPIC, 1, {})
    await take(broker, client, "a", sorted(await register(client, "a")))
    assert await register(other, "b") == set()
    assert (await other.ask(commands.close_consumer(30, 1))).type == Type.SUCCESS
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.controller.split, TOPIC, 0)
        assert await updated(client) == {0}
    assert await updated(client) == {1, 2}, "nothing is kept for the other"
    await other.receives_nothing_more()


async def test_the_second_of_a_name_stays_when_the_first_ones_connection_ends(
    broker: Rooms, listener: trio.SocketListener, client: WireClient
) -> None:
    """A client often reconnects before the broker notices that its connection was lost."""
    await broker.controller.create_topic(TOPIC, 2, {})
    async with connected(listener) as first:
        assert await register(first, "a") == {0, 1}
        assert await register(client, "a") == {0, 1}
    await take(broker, client, "a", [0, 1])
    await broker.controller.split(TOPIC, 0)
    await wait_all_tasks_blocked()
    client.ignored.add(Type.REACHED_END_OF_TOPIC)
    assert await updated(client) in ({0, 1}, {1, 2, 3})
