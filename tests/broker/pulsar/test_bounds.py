"""The most that one connection may have open. More is refused by the protocol, and changes nothing."""

from collections.abc import Callable

import pytest
import trio

from broker.pulsar import consuming, producing, registry, scalable
from storage.metadata.store import MetadataStore
from tests.support.rooms import TOPIC, Rooms
from tests.support.wire import connected
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

Type = pb.BaseCommand.Type
BOUND = 2


@pytest.fixture(autouse=True)
def low_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (producing, "PRODUCERS_MAX"),
        (consuming, "CONSUMERS_MAX"),
        (scalable, "LAYOUT_SESSIONS_MAX"),
        (registry, "REGISTRATIONS_MAX"),
    ):
        assert getattr(module, name) == 10_000
        monkeypatch.setattr(module, name, BOUND)


async def keys(store: MetadataStore) -> set[str]:
    return {record.key for record in await store.scan("", "~")}


def regular(number: int) -> str:
    return f"persistent://public/default/regular-{number}"


def open_producer(number: int) -> pb.BaseCommand:
    return commands.producer(regular(number), number, number)


def open_consumer(number: int) -> pb.BaseCommand:
    return commands.subscribe(regular(number), "s", number, number)


@pytest.mark.parametrize(
    ("make", "made", "close"),
    [
        (open_producer, Type.PRODUCER_SUCCESS, commands.close_producer(1, 9)),
        (open_consumer, Type.SUCCESS, commands.close_consumer(1, 9)),
    ],
    ids=["producers", "consumers"],
)
async def test_producers_and_consumers(
    broker: Rooms,
    listener: trio.SocketListener,
    make: Callable[[int], pb.BaseCommand],
    made: int,
    close: pb.BaseCommand,
) -> None:
    """A closed object makes room, and another connection has its own bound."""
    async with connected(listener) as client, connected(listener) as other:
        await client.send(make(1), make(2))
        assert {(await client.receive()).type for _ in range(BOUND)} == {made}
        before = await keys(broker.metadata)
        refused = await client.ask(make(3))
        assert (refused.error.request_id, refused.error.error) == (3, pb.NotAllowedError)
        assert "already has 2 " in refused.error.message
        assert await keys(broker.metadata) == before
        assert (await other.ask(make(3))).type == made
        assert (await client.ask(close)).type == Type.SUCCESS
        assert (await client.ask(make(4))).type == made
        assert (await client.ask(make(5))).error.error == pb.NotAllowedError


async def test_what_is_on_its_way_has_its_place(broker: Rooms, listener: trio.SocketListener) -> None:
    async with connected(listener) as client:
        await client.send(*map(open_producer, range(1, 4)))
        answers = [await client.receive() for _ in range(3)]
        assert sorted(answer.type == Type.PRODUCER_SUCCESS for answer in answers) == [False, True, True]
        assert [answer.error.request_id for answer in answers if answer.type == Type.ERROR] == [3]


async def test_layout_sessions(broker: Rooms, listener: trio.SocketListener) -> None:
    await broker.controller.create_topic(TOPIC, 1, {})
    async with connected(listener) as client:
        for session_id in (1, 2):
            answer = await client.ask(commands.scalable_topic_lookup(session_id, str(TOPIC)))
            assert answer.scalable_topic_update.HasField("dag")
        refused = await client.ask(commands.scalable_topic_lookup(3, str(TOPIC)))
        assert refused.scalable_topic_update.session_id == 3
        assert refused.scalable_topic_update.error == pb.NotAllowedError
        await client.send(commands.scalable_topic_close(1))
        answer = await client.ask(commands.scalable_topic_lookup(3, str(TOPIC)))
        assert answer.scalable_topic_update.HasField("dag")


async def test_registered_consumers(broker: Rooms, listener: trio.SocketListener) -> None:
    """A consumer that reconnects under its name takes its old place."""
    await broker.controller.create_topic(TOPIC, 1, {})

    def register(number: int, name: str) -> pb.BaseCommand:
        return commands.scalable_topic_subscribe(
            number, topic=str(TOPIC), subscription=name, consumer_name=name, consumer_id=number
        )

    async with connected(listener) as client:
        for number, name in ((1, "a"), (2, "b"), (3, "b")):
            answer = await client.ask(register(number, name))
            assert not answer.scalable_topic_subscribe_response.HasField("error")
        before = await keys(broker.metadata)
        refused = (await client.ask(register(4, "c"))).scalable_topic_subscribe_response
        assert (refused.request_id, refused.error) == (4, pb.NotAllowedError)
        assert await keys(broker.metadata) == before
        assert (await client.ask(commands.close_consumer(1, 9))).type == Type.SUCCESS
        assert not (await client.ask(register(4, "c"))).scalable_topic_subscribe_response.HasField("error")
