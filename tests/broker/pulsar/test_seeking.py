"""SEEK over the wire: the order of its answers, and where readers and consumers continue."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.names import TopicName
from broker.reader_positions import ReaderId
from storage.entry import EntryFormat
from tests.broker.pulsar.test_consuming import PLAIN, fill, frame_of, subscribe
from tests.support.rooms import TOPIC, Rooms, publish
from tests.support.wire import WireClient, connected, message
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import message_id, position

Type = pb.BaseCommand.Type
EARLIEST, LATEST = message_id(-1, -1), message_id(2**63 - 1, 2**63 - 1)


async def seek(client: WireClient, number: int = 1, **to: object) -> None:
    """Seek, and check that the consumer is closed before the answer."""
    answers = [await client.ask(commands.seek(number, 900 + number, **to)), await client.receive()]  # type: ignore[arg-type]
    assert [answer.type for answer in answers] == [Type.CLOSE_CONSUMER, Type.SUCCESS]
    assert answers[0].close_consumer.consumer_id == number


async def entries(client: WireClient, number: int, count: int) -> list[int]:
    """Check that these entries arrive, and no others."""
    await client.send(commands.flow(number, 100))
    found = [(await frame_of(client)).command.message.message_id.entry_id for _ in range(count)]
    await client.receives_nothing_more()
    return found


async def reader(client: WireClient, start: pb.MessageIdData | None, number: int = 1, name: str = "r") -> None:
    assert (await subscribe(client, number, name, durable=False, start=start)).type == Type.SUCCESS


async def ids_of(client: WireClient, count: int) -> list[pb.MessageIdData]:
    await client.send(commands.flow(1, 100))
    return [(await frame_of(client)).command.message.message_id for _ in range(count)]


@pytest.mark.parametrize("start_on_return", [EARLIEST, LATEST, None, message_id(1, 4)])
async def test_a_reader_goes_on_where_it_sought(
    broker: Rooms, client: WireClient, start_on_return: pb.MessageIdData | None
) -> None:
    """E21: clients name their own start when they return after a seek; the seek's position counts."""
    await fill(broker, 6)
    await reader(client, EARLIEST)
    ids = await ids_of(client, 6)
    await seek(client, to=ids[2])
    await reader(client, start_on_return)
    answer = await client.ask(commands.get_last_message_id(1, 5))
    place = answer.get_last_message_id_response.consumer_mark_delete_position
    assert position(place) == position(ids[1]), "by this clients tell whether there is a message after a seek"
    assert await entries(client, 1, 4) == [2, 3, 4, 5]


async def test_a_reader_seeks_to_the_ends_and_to_a_time(broker: Rooms, client: WireClient) -> None:
    """E21: messages published between a seek to the end and the reader's return are delivered."""
    await fill(broker, 3)
    topic = await broker.topics.get(TopicName.parse(PLAIN))
    later = broker.services.now_ms() + 5_000
    topic.ledger._now_ms = lambda: later
    await fill(broker, 2)
    await reader(client, LATEST)
    await seek(client, to=EARLIEST)
    await reader(client, LATEST)
    assert await entries(client, 1, 5) == [0, 1, 2, 3, 4]
    await seek(client, publish_time_ms=later)
    await reader(client, EARLIEST)
    assert await entries(client, 1, 2) == [3, 4]
    await seek(client, to=LATEST)
    await publish(topic, message(b"new"))
    await reader(client, LATEST)
    assert await entries(client, 1, 1) == [5]


async def test_a_sought_place_outlives_connection_and_topic(
    broker: Rooms, listener: trio.SocketListener, client: WireClient
) -> None:
    """E21: the connection or the topic is lost between the seek and the reader's first message."""
    await fill(broker, 4)
    await reader(client, EARLIEST)
    ids = await ids_of(client, 4)
    await seek(client, to=ids[2])
    await client.close()
    async with connected(listener) as again:
        await reader(again, EARLIEST)
        await broker.topics.unload(TopicName.parse(PLAIN))
        assert (await again.receive()).type == Type.CLOSE_CONSUMER
        await reader(again, EARLIEST)
        assert await entries(again, 1, 2) == [2, 3]
    async with connected(listener) as further:
        await reader(further, EARLIEST)
        assert await entries(further, 1, 2) == [2, 3], "of these none was taken: the client names the same start"
    async with connected(listener) as last:
        await reader(last, ids[2])
        assert await entries(last, 1, 2) == [2, 3], "it goes on behind what it has read, and drops entry 2"


async def test_a_connected_readers_place_is_not_one_of_those_that_may_be_forgotten(
    broker: Rooms, listener: trio.SocketListener, client: WireClient
) -> None:
    """E21: the time limit of a remembered position begins when the reader leaves."""
    await fill(broker, 4)
    await reader(client, EARLIEST)
    ids = await ids_of(client, 4)
    await seek(client, to=ids[2])
    await reader(client, EARLIEST)
    # As others that leave meanwhile do to it.
    broker.topics.reader_positions.forget(ReaderId(TopicName.parse(PLAIN), "r", ""))
    await client.close()
    await wait_all_tasks_blocked()
    async with connected(listener) as again:
        await reader(again, EARLIEST)
        assert await entries(again, 1, 2) == [2, 3]


async def test_a_closed_readers_place_is_forgotten(broker: Rooms, client: WireClient) -> None:
    """E21: a later reader of the same name begins where it says."""
    await fill(broker, 3)
    await reader(client, EARLIEST)
    ids = await ids_of(client, 3)
    await seek(client, to=ids[2])
    await reader(client, EARLIEST)
    await client.ask(commands.close_consumer(1, 7))
    await reader(client, EARLIEST, 2)
    assert await entries(client, 2, 3) == [0, 1, 2]


async def test_a_reader_of_a_segment_goes_on_where_it_sought(broker: Rooms, client: WireClient) -> None:
    """E21: this holds on scalable topics, too."""
    await broker.controller.create_topic(TOPIC, 1, {})
    name = await broker.segment(TOPIC, 0)
    topic = await broker.topics.get(name)
    for number in range(3):
        await publish(topic, message(b"%d" % number))
    made = commands.subscribe(str(name), "r", 1, 101, durable=False, start=EARLIEST)
    await client.ask(made)
    ids = await ids_of(client, 3)
    await seek(client, to=ids[1])
    await client.ask(made)
    assert await entries(client, 1, 2) == [1, 2]


async def test_a_seek_into_a_batch_leaves_out_what_stands_before(broker: Rooms, client: WireClient) -> None:
    """E21: in the seek's ack set, the Java client marks the messages of the batch that it does not want."""
    topic = await broker.topics.get(TopicName.parse(PLAIN))
    stored = await topic.publish(
        message(b"batch", batch_of=5), message_count=5, txn=None, entry_format=EntryFormat.PULSAR
    )
    await topic.ledger.confirmed.wait_for(stored)
    await subscribe(client)
    await client.send(commands.flow(1, 100))
    whole = (await frame_of(client)).command.message
    assert list(whole.ack_set) == []
    to = message_id(*position(whole.message_id))
    to.ack_set.append(0b11000)
    await seek(client, to=to)
    await subscribe(client)
    await client.send(commands.flow(1, 100))
    assert list((await frame_of(client)).command.message.ack_set) == [0b11000]
    cursor = topic.subscriptions["s"].cursor
    assert cursor.remaining_bits(stored) == 0b11000


async def test_a_seek_that_names_no_place_is_refused(broker: Rooms, client: WireClient) -> None:
    await fill(broker, 1)
    await reader(client, EARLIEST)
    nowhere = pb.BaseCommand(type=Type.SEEK, seek=pb.CommandSeek(consumer_id=1, request_id=5))
    assert (await client.ask(nowhere)).error.error == pb.NotAllowedError
    assert await entries(client, 1, 1) == [0]
