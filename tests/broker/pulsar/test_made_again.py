"""A topic that is deleted, and made again under its name, while our client's ordered consumer is connected."""

import anyio
import trio

from broker.layouts.parts import StartPosition, SubscriptionKind
from tests.support.rooms import TOPIC, Rooms
from tests.support.wire import WireClient, listening
from tidewire.client.client import open_client
from tidewire.client.network import Settings, dial_tcp
from tidewire.protocol.addresses import BrokerAddress
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

Type = pb.BaseCommand.Type
MESSAGES = 20
SEGMENTS = str(TOPIC).replace("topic://", "segment://")


async def test_our_ordered_consumer_reads_it(broker: Rooms) -> None:
    """D16: the epochs of its layouts begin again. The client drops shares of older layouts, so it waited for ever."""
    await broker.controller.create_topic(TOPIC, 1, {})
    async with listening(broker) as listener:
        host, port = listener.socket.getsockname()[:2]
        here = BrokerAddress(host, port)

        async def dial(_address: BrokerAddress) -> anyio.abc.ByteStream:
            return await dial_tcp(here)

        async with (
            open_client([here], Settings(reconnect_seconds_max=0.1), dial=dial) as client,
            client.stream_consumer(str(TOPIC), "s", initial="earliest") as consumer,
        ):
            await broker.controller.split(TOPIC, 0)
            await broker.controller.delete_topic(TOPIC, force=True)
            await broker.controller.create_topic(TOPIC, 2, {})
            await broker.controller.subscriptions.add(TOPIC, "s", SubscriptionKind.STREAM, StartPosition.EARLIEST)
            async with client.producer(str(TOPIC)) as producer:
                for number in range(MESSAGES):
                    await producer.send(b"%d" % number, key=str(number))
            with trio.fail_after(30):
                seen = {(await consumer.receive()).message_id.segment_id for _ in range(MESSAGES)}
            assert seen == {0, 1}


async def test_its_epochs_do_not_fall_and_no_id_is_of_two_segments(broker: Rooms, client: WireClient) -> None:
    """The Java client drops an older assignment, and keeps the consumer of an id that it knows."""
    await broker.controller.create_topic(TOPIC, 1, {})
    subscribe = commands.scalable_topic_subscribe(70, str(TOPIC), "s", "a", 30)
    assert (await client.ask(subscribe)).type == Type.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE
    await broker.controller.split(TOPIC, 0)
    assert await updated(client) == (1, [f"{SEGMENTS}/0000-ffff-0"])
    await broker.controller.delete_topic(TOPIC, force=True)
    await broker.controller.create_topic(TOPIC, 2, {})
    assert await updated(client) == (1, [])
    assert await updated(client) == (1, [f"{SEGMENTS}/0000-7fff-0", f"{SEGMENTS}/8000-ffff-1"])
    await broker.controller.split(TOPIC, 0)
    assert await updated(client) == (1, [f"{SEGMENTS}/0000-7fff-0", f"{SEGMENTS}/8000-ffff-1"])
    await client.receives_nothing_more()


async def updated(client: WireClient) -> tuple[int, list[str]]:
    """Return the epoch of the next assignment, and its segments."""
    update = await client.receive()
    assert update.type == Type.SCALABLE_TOPIC_ASSIGNMENT_UPDATE, update
    assignment = update.scalable_topic_assignment_update.assignment
    return assignment.layout_epoch, sorted(segment.segment_topic for segment in assignment.segments)
