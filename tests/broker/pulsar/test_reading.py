"""What readers may request besides messages."""

from tests.broker.pulsar.test_transactions import begin
from tests.support.rooms import TOPIC, Rooms
from tests.support.wire import WireClient
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.checksums import verify_payload
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import message_id, position
from tidewire.wire.pulsar.messages import broker_metadata, split_messages

Type = pb.BaseCommand.Type
UNCOMMITTED = {"tidewire.isolation": "read_uncommitted"}


async def segment_with_an_open_transaction(broker: Rooms, client: WireClient) -> str:
    """Prepare a committed message, one of an open transaction, and another committed one."""
    await broker.controller.create_topic(TOPIC, 1, {})
    name = str(await broker.segment(TOPIC, 0))
    await client.ask(commands.producer(name, 1, 1))
    txn = await begin(client)
    for number, (value, of) in enumerate([(b"a", None), (b"open", txn), (b"b", None)]):
        await client.publish(1, number, value, of)
        await client.receive()
    return name


async def read(client: WireClient, name: str, properties: dict[str, str]) -> list[tuple[bytes, int | None]]:
    """Return what a reader gets: the value, and the index if it is sent."""
    made = commands.subscribe(name, "r", 7, 70, durable=False, start=message_id(-1, -1), properties=properties)
    assert (await client.ask(made)).type == Type.SUCCESS
    last = (await client.ask(commands.get_last_message_id(7, 71))).get_last_message_id_response.last_message_id
    await client.send(commands.flow(7, 100))
    found = []
    while True:
        frame = await client.receive_frame()
        assert frame is not None
        assert frame.payload is not None
        verify_payload(frame.payload)
        known = broker_metadata(frame.payload)
        (message,) = split_messages(frame.payload)
        found.append((message.value, None if known is None else known.index))
        if position(frame.command.message.message_id) == position(last):
            break
    await client.ask(commands.close_consumer(7, 72))
    return found


async def test_a_reader_is_sent_the_index_when_it_asks_for_it(broker: Rooms, client: WireClient) -> None:
    name = await segment_with_an_open_transaction(broker, client)
    assert await read(client, name, {}) == [(b"a", None)]
    assert await read(client, name, {"tidewire.indexed": "true"}) == [(b"a", 0)]


async def test_a_reader_sees_uncommitted_messages_when_it_asks_for_them(broker: Rooms, client: WireClient) -> None:
    """T14: other readers do not see them."""
    name = await segment_with_an_open_transaction(broker, client)
    asked = {**UNCOMMITTED, "tidewire.indexed": "true"}
    assert await read(client, name, asked) == [(b"a", 0), (b"open", 1), (b"b", 2)]
    assert await read(client, name, {"tidewire.isolation": "read_committed"}) == [(b"a", None)]


async def test_what_there_is_not_is_refused(broker: Rooms, client: WireClient) -> None:
    name = await segment_with_an_open_transaction(broker, client)
    durable = await client.ask(commands.subscribe(name, "s", 8, 80, properties=UNCOMMITTED))
    assert durable.error.error == pb.NotAllowedError
    assert "only committed messages" in durable.error.message
    strange = commands.subscribe(name, "s", 9, 90, durable=False, properties={"tidewire.isolation": "dirty"})
    assert "no isolation level 'dirty'" in (await client.ask(strange)).error.message


async def test_a_stretch_is_measured_up_to_what_the_reader_may_see(broker: Rooms, client: WireClient) -> None:
    """T14: an open transaction ends the range, as it ends delivery."""
    name = await segment_with_an_open_transaction(broker, client)
    for number, (properties, messages) in enumerate([({}, 1), (UNCOMMITTED, 3)], 10):
        made = commands.subscribe(name, "r", number, 1, durable=False, properties=properties)
        assert (await client.ask(made)).type == Type.SUCCESS
        wanted = pb.BacklogRangeRequest(after=message_id(-1, -1))
        answer = (
            await client.ask(commands.get_last_message_id(number, 2, backlog_range=wanted))
        ).get_last_message_id_response
        assert (answer.backlog_range.first_index, answer.backlog_range.messages) == (0, messages)
        assert position(answer.backlog_range.end) == position(answer.last_message_id)
    wanted = pb.BacklogRangeRequest(since_ms=0, messages_max=2)
    answer = (await client.ask(commands.get_last_message_id(11, 3, backlog_range=wanted))).get_last_message_id_response
    assert (answer.backlog_range.messages, position(answer.backlog_range.after)) == (2, (-1, -1))
    plain = (await client.ask(commands.get_last_message_id(11, 4))).get_last_message_id_response
    assert not plain.HasField("backlog_range")


async def test_a_stretch_is_final_once_nothing_can_follow(broker: Rooms, client: WireClient) -> None:
    """T20: a sealed segment's range is final once its last transaction is decided, also by an abort."""
    await broker.controller.create_topic(TOPIC, 1, {})
    name = str(await broker.segment(TOPIC, 0))
    await client.ask(commands.producer(name, 1, 1))
    txn = await begin(client)
    for number, (value, of) in enumerate([(b"a", None), (b"open", txn)]):
        await client.publish(1, number, value, of)
        await client.receive()
    await client.ask(commands.close_producer(1, 2))
    await client.ask(commands.subscribe(name, "r", 7, 70, durable=False))

    async def measured(**wanted: int) -> tuple[int, bool]:
        asked = pb.BacklogRangeRequest(after=message_id(-1, -1), **wanted)
        answer = await client.ask(commands.get_last_message_id(7, 71, backlog_range=asked))
        backlog_range = answer.get_last_message_id_response.backlog_range
        return backlog_range.messages, backlog_range.is_final

    client.ignored.add(Type.REACHED_END_OF_TOPIC)
    assert await measured() == (1, False)
    await broker.controller.split(TOPIC, 0)
    assert await measured() == (1, False)
    await client.ask(commands.end_txn(3, txn, commit=False))
    assert await measured() == (1, True)
