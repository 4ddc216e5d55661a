"""The addresses of segments' owners in a layout: which ones, and a push of the same epoch when a segment moves."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.names import TopicName
from storage.metadata.memory import MemoryStore
from storage.writer import Writer
from tests.support.disk import SimulatedFiles
from tests.support.rooms import TOPIC, Rooms, rooms
from tests.support.wire import WireClient, connected, listening
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

Type = pb.BaseCommand.Type


async def alive(_writer: Writer) -> bool:
    return True


@pytest.fixture
async def brokers() -> AsyncIterator[tuple[Rooms, Rooms]]:
    """Two that live, on one store and one disk, and a topic of two segments."""
    store, files = MemoryStore(), SimulatedFiles(seed=5)
    async with (
        rooms(store, files, broker_id="one", is_alive=alive) as one,
        rooms(store, files.process(), broker_id="two", is_alive=alive) as two,
    ):
        await one.controller.create_topic(TOPIC, 2, {})
        yield one, two


async def pushed(client: WireClient) -> tuple[int, dict[int, str]]:
    """The next push: its epoch, and the addresses of active segments."""
    update = await client.receive()
    assert update.type == Type.SCALABLE_TOPIC_UPDATE
    dag = update.scalable_topic_update.dag
    return dag.epoch, {each.segment_id: each.broker_url for each in dag.segment_brokers}


def _own(client: WireClient) -> str:
    return f"pulsar://127.0.0.1:{client.socket.socket.getpeername()[1]}"


async def move(name: TopicName, source: Rooms, target: Rooms) -> None:
    await source.topics.unload(name)
    await target.topics.get(name)


async def test_a_layout_has_the_owners_addresses(brokers: tuple[Rooms, Rooms], autojump_clock: MockClock) -> None:
    """C21: at each broker the other's segments have the other's address; a move is a new push of the same epoch."""
    one, two = brokers
    first, second = await one.segment(TOPIC, 0), await one.segment(TOPIC, 1)
    await two.topics.get(second)
    async with AsyncExitStack() as stack:
        at_one = await stack.enter_async_context(connected(await stack.enter_async_context(listening(one))))
        at_two = await stack.enter_async_context(connected(await stack.enter_async_context(listening(two))))
        for client in (at_one, at_two):
            await client.send(commands.scalable_topic_lookup(5, str(TOPIC)))
        assert await pushed(at_one) == (0, {0: _own(at_one), 1: "pulsar://two:6650"})
        assert await pushed(at_two) == (0, {0: _own(at_two), 1: _own(at_two)}), "nobody has segment 0"
        await one.topics.get(first)
        assert await pushed(at_two) == (0, {0: "pulsar://one:6650", 1: _own(at_two)})
        await at_one.receives_nothing_more()
        await move(second, two, one)
        assert await pushed(at_one) == (0, {0: _own(at_one), 1: _own(at_one)})
        assert await pushed(at_two) == (0, {0: "pulsar://one:6650", 1: "pulsar://one:6650"})


async def test_one_broker_pushes_nothing_when_it_loads_a_segment(broker: Rooms, client: WireClient) -> None:
    """C21: nor when it unloads one: its clients' layouts have had its address from the start."""
    await broker.controller.create_topic(TOPIC, 1, {})
    await client.send(commands.scalable_topic_lookup(5, str(TOPIC)))
    assert await pushed(client) == (0, {0: _own(client)})
    name = await broker.segment(TOPIC, 0)
    for _ in range(2):
        await broker.topics.get(name)
        await wait_all_tasks_blocked()
        await broker.topics.unload(name)
        await wait_all_tasks_blocked()
    await client.receives_nothing_more()


async def test_a_session_that_is_closed_follows_no_owners(broker: Rooms, client: WireClient) -> None:
    """E16: whether the client closes the session or the connection."""
    await broker.controller.create_topic(TOPIC, 1, {})
    await wait_all_tasks_blocked()
    before = broker.metadata.statistics().watches
    for number in (5, 6):
        await client.ask(commands.scalable_topic_lookup(number, str(TOPIC)))
    assert broker.metadata.statistics().watches == before + 2
    await client.send(commands.scalable_topic_close(5))
    await client.receives_nothing_more()
    assert broker.metadata.statistics().watches == before + 2
    await client.close()
    await wait_all_tasks_blocked()
    assert broker.metadata.statistics().watches == before
    assert broker.controller.elections._followers == {}
