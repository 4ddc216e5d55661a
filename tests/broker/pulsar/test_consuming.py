"""Consumers over the wire: flow, acknowledgement, slow peers, lost connections."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker import outbox
from broker.names import TopicName
from storage import cursor_record, ranges
from storage.entry import EntryFormat
from storage.position import EARLIEST, Position
from tests.support.rooms import Rooms, publish
from tests.support.wire import WireClient, connected, message
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import Frame
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import message_id

Type = pb.BaseCommand.Type
PLAIN = "persistent://public/default/plain"
SHARED, EXCLUSIVE = pb.CommandSubscribe.Shared, pb.CommandSubscribe.Exclusive


async def subscribe(client: WireClient, number: int = 1, name: str = "s", **options: object) -> pb.BaseCommand:
    options.setdefault("initial_position", pb.CommandSubscribe.Earliest)
    return await client.ask(commands.subscribe(PLAIN, name, number, 100 + number, **options))  # type: ignore[arg-type]


async def fill(broker: Rooms, count: int, size: int = 5) -> list[bytes]:
    topic = await broker.topics.get(TopicName.parse(PLAIN))
    payloads = [message(b"%d" % number + b"." * size) for number in range(count)]
    for payload in payloads:
        await publish(topic, payload)
    return payloads


async def frame_of(client: WireClient) -> Frame:
    frame = await client.receive_frame()
    assert frame is not None
    assert frame.command.type == Type.MESSAGE
    return frame


async def test_messages_come_as_they_were_stored_and_no_more_than_permitted(broker: Rooms, client: WireClient) -> None:
    payloads = await fill(broker, 5)
    assert (await subscribe(client)).type == Type.SUCCESS
    await client.receives_nothing_more()
    await client.send(commands.flow(1, 2))
    assert [(await frame_of(client)).payload for _ in range(2)] == payloads[:2]
    await client.receives_nothing_more()
    await client.send(commands.flow(1, 100))
    assert [(await frame_of(client)).payload for _ in range(3)] == payloads[2:]


@pytest.mark.parametrize("kind", [SHARED, EXCLUSIVE])
async def test_bytes_that_cannot_be_converted_are_never_sent_as_a_message(
    broker: Rooms, client: WireClient, kind: pb.CommandSubscribe.SubType
) -> None:
    """E3: the consumer gets an error, then its own messages, and the entry stays in the backlog."""
    topic = await broker.topics.get(TopicName.parse(PLAIN))
    for entry_format in (EntryFormat.KAFKA, EntryFormat.PULSAR):
        position = await topic.publish(message(b"x"), message_count=1, txn=None, entry_format=entry_format)
        await topic.ledger.confirmed.wait_for(position)
    await subscribe(client, sub_type=kind)
    await client.send(commands.flow(1, 10))
    told = await client.receive()
    assert told.type == Type.ERROR
    assert "a batch of a Kafka client that cannot be converted" in told.error.message
    assert (await frame_of(client)).command.message.message_id.entry_id == position.entry
    await client.receives_nothing_more()
    assert topic.subscriptions["s"].backlog_entries == 2
    assert topic.traffic.messages_out == 1


async def test_an_acknowledgement_is_answered_when_it_is_durable(broker: Rooms, client: WireClient) -> None:
    """The answer means durable. Messages that were never sent are refused and move nothing (outside transactions)."""
    await fill(broker, 3)
    await subscribe(client)
    await client.send(commands.flow(1, 10))
    frames = [await frame_of(client) for _ in range(3)]
    ids = [frame.command.message.message_id for frame in frames]
    refused = await client.ask(commands.ack(1, [message_id(99, 99)], request_id=3))
    assert (refused.ack_response.request_id, refused.ack_response.error) == (3, pb.NotAllowedError)
    answer = await client.ask(commands.ack(1, ids[1:2], cumulative=True, request_id=4))
    assert (answer.type, answer.ack_response.request_id) == (Type.ACK_RESPONSE, 4)
    assert not answer.ack_response.HasField("error")
    topic = await broker.topics.get(TopicName.parse(PLAIN))
    cursor = topic.subscriptions["s"].cursor
    assert cursor.durable.value == cursor.mark_delete == (ids[1].ledger_id, ids[1].entry_id)
    await client.close()
    await wait_all_tasks_blocked()
    assert topic.clients.consumer_count == 0


async def holes(broker: Rooms, client: WireClient, count: int) -> list[pb.MessageIdData]:
    """Return the ids of this many messages that the consumer of a shared subscription holds."""
    await fill(broker, count)
    await subscribe(client, sub_type=SHARED)
    await client.send(commands.flow(1, count))
    return [(await frame_of(client)).command.message.message_id for _ in range(count)]


async def test_what_does_not_fit_the_record_is_refused(
    broker: Rooms, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E8, E13: a request for an answer gets the protocol's error, and later acknowledgements that fit are answered."""
    monkeypatch.setattr(cursor_record, "STORED_MAX", 2)
    ids = await holes(broker, client, 9)
    answer = await client.ask(commands.ack(1, [ids[1], ids[3]], request_id=3))
    assert not answer.ack_response.HasField("error")
    refused = await client.ask(commands.ack(1, [ids[5]], request_id=4))
    assert (refused.ack_response.request_id, refused.ack_response.error) == (4, pb.TooManyRequests)
    assert "too many gaps" in refused.ack_response.message
    answer = await client.ask(commands.ack(1, [ids[0]], request_id=5))
    assert (answer.ack_response.request_id, answer.ack_response.HasField("error")) == (5, False), "it fills a hole"
    answer = await client.ask(commands.ack(1, [ids[5]], request_id=6))
    assert (answer.ack_response.request_id, answer.ack_response.HasField("error")) == (6, False), "now there is room"


async def test_bits_that_do_not_fit_the_record_are_refused(
    broker: Rooms, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E8: the words of partly acknowledged batches are bounded, as entries are."""
    monkeypatch.setattr(cursor_record, "STORED_WORDS_MAX", 1)
    ids = await holes(broker, client, 3)
    ids[1].ack_set.append(0b110)
    ids[2].ack_set.append(0b110)
    answer = await client.ask(commands.ack(1, [ids[1]], request_id=3))
    assert not answer.ack_response.HasField("error")
    refused = await client.ask(commands.ack(1, [ids[2]], request_id=4))
    assert (refused.ack_response.request_id, refused.ack_response.error) == (4, pb.TooManyRequests)


async def test_what_cannot_be_remembered_is_refused(
    broker: Rooms, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D3: the acknowledgement was not accepted, so an answer without error would be false; the consumer keeps it."""
    monkeypatch.setattr(ranges, "RANGES_MAX", 1)
    ids = await holes(broker, client, 5)
    refused = await client.ask(commands.ack(1, [ids[1], ids[3]], request_id=3))
    assert (refused.ack_response.request_id, refused.ack_response.error) == (3, pb.TooManyRequests)
    topic = await broker.topics.get(TopicName.parse(PLAIN))
    third = (ids[3].ledger_id, ids[3].entry_id)
    assert not topic.subscriptions["s"].cursor.is_acknowledged(Position(*third))
    answer = await client.ask(commands.ack(1, ids[:4], request_id=4))
    assert not answer.ack_response.HasField("error")


async def test_an_acknowledgement_is_answered_though_its_consumer_closes(client: WireClient, broker: Rooms) -> None:
    """The acknowledgement was accepted and will be durable. Without an answer its client would wait forever."""
    await fill(broker, 1)
    await subscribe(client)
    await client.send(commands.flow(1, 10))
    first = (await frame_of(client)).command.message.message_id
    await client.send(commands.ack(1, [first], request_id=3), commands.close_consumer(1, 4))
    answers = {(await client.receive()).type for _ in range(2)}
    assert answers == {Type.ACK_RESPONSE, Type.SUCCESS}
    topic = await broker.topics.get(TopicName.parse(PLAIN))
    assert topic.subscriptions["s"].cursor.durable.value == (first.ledger_id, first.entry_id)


async def test_a_lost_connection_gives_everything_back(broker: Rooms, client: WireClient, other: WireClient) -> None:
    """Its unacknowledged messages go to others, and an exclusive subscription is free again."""
    payloads = await fill(broker, 4)
    await subscribe(client, sub_type=SHARED)
    await client.send(commands.flow(1, 100))
    held = [await frame_of(client) for _ in range(4)]
    await client.ask(commands.ack(1, [held[1].command.message.message_id], request_id=3))
    await subscribe(other, 5, sub_type=SHARED)
    await subscribe(client, 2, "alone")
    assert (await subscribe(other, 6, "alone")).error.error == pb.ConsumerBusy
    await other.send(commands.flow(5, 100))
    await other.receives_nothing_more()
    await client.close()
    again = [await frame_of(other) for _ in range(3)]
    assert sorted(frame.payload or b"" for frame in again) == sorted([payloads[0], *payloads[2:]])
    assert (await subscribe(other, 6, "alone")).type == Type.SUCCESS


async def test_a_consumer_that_does_not_read_holds_nobody_up(
    broker: Rooms, client: WireClient, other: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 8: its waiting messages are bounded; other consumers of the subscription get the rest at once."""
    monkeypatch.setattr(outbox, "BYTES_HIGH", 256 * 1024)
    monkeypatch.setattr(outbox, "BYTES_LOW", 64 * 1024)
    count = 200
    await fill(broker, count, size=60_000)
    await subscribe(client, sub_type=SHARED)
    await client.send(commands.flow(1, 10_000))
    await wait_all_tasks_blocked()
    topic = await broker.topics.get(TopicName.parse(PLAIN))
    sent = topic.subscriptions["s"].statistics().consumers[0].messages_sent
    assert 0 < sent < count, "the socket's buffers and the outbox, not the backlog"
    await subscribe(other, 2, sub_type=SHARED)
    await other.send(commands.flow(2, 10_000))
    got = [await frame_of(other) for _ in range(count - sent)]
    assert len({frame.command.message.message_id.entry_id for frame in got}) == count - sent


async def test_consumers_of_kinds_that_are_not_served(client: WireClient) -> None:
    for kind in (pb.CommandSubscribe.Failover, pb.CommandSubscribe.Key_Shared):
        answer = await subscribe(client, sub_type=kind)
        assert (answer.type, answer.error.error) == (Type.ERROR, pb.NotAllowedError)
    assert (await subscribe(client)).type == Type.SUCCESS
    assert (await subscribe(client)).error.error == pb.NotAllowedError, "the id is in use"


async def test_unsubscribing_removes_the_subscription(broker: Rooms, client: WireClient, other: WireClient) -> None:
    """D16: if other consumers are connected, it must be forced, and they are told."""
    await subscribe(client, sub_type=SHARED)
    await subscribe(other, 2, sub_type=SHARED)
    refused = await client.ask(commands.unsubscribe(1, 9))
    assert (refused.type, refused.error.error) == (Type.ERROR, pb.ConsumerBusy)
    assert (await client.ask(commands.unsubscribe(1, 10, force=True))).type == Type.SUCCESS
    closed = await other.receive()
    assert (closed.type, closed.close_consumer.consumer_id) == (Type.CLOSE_CONSUMER, 2)
    topic = await broker.topics.get(TopicName.parse(PLAIN))
    assert topic.subscriptions == {}
    assert [record.key for record in await broker.metadata.scan("/cursors", "/cursors~")] == []


async def test_a_close_right_behind_its_subscribe(listener: trio.SocketListener, broker: Rooms) -> None:
    """Both commands arrive in one write. In any order of the tasks, nobody keeps the subscription."""
    for _ in range(20):
        async with connected(listener) as client:
            await client.send(commands.subscribe(PLAIN, "s", 1, 5), commands.close_consumer(1, 6))
            kinds = {(await client.receive()).type for _ in range(2)}
            assert Type.SUCCESS in kinds
            assert kinds <= {Type.SUCCESS, Type.ERROR}
            answer = await client.ask(commands.subscribe(PLAIN, "s", 2, 7))
            assert answer.type == Type.SUCCESS


async def test_an_unloaded_topic_tells_its_consumers(broker: Rooms, client: WireClient) -> None:
    await subscribe(client)
    await broker.topics.unload(TopicName.parse(PLAIN))
    closed = await client.receive()
    assert (closed.type, closed.close_consumer.consumer_id) == (Type.CLOSE_CONSUMER, 1)
    assert (await subscribe(client)).type == Type.SUCCESS


async def test_an_acknowledgement_on_its_way_does_not_undo_a_seek(broker: Rooms, client: WireClient) -> None:
    """The client acknowledges older messages before it learns of the seek."""
    payloads = await fill(broker, 3)
    await subscribe(client)
    await client.send(commands.flow(1, 10))
    ids = [(await frame_of(client)).command.message.message_id for _ in payloads]
    topic = await broker.topics.get(TopicName.parse(PLAIN))
    await topic.subscriptions["s"].seek(EARLIEST)
    refused = await client.ask(commands.ack(1, ids[2:], cumulative=True, request_id=3))
    assert (refused.ack_response.request_id, refused.ack_response.error) == (3, pb.ConsumerNotFound)
    topic.clients.tell_disconnected()
    assert (await client.receive()).type == Type.CLOSE_CONSUMER
    await subscribe(client)
    await client.send(commands.flow(1, 10))
    assert [(await frame_of(client)).payload for _ in payloads] == payloads


async def test_a_reader_may_begin_with_what_came_at_most_so_long_ago(broker: Rooms, client: WireClient) -> None:
    payloads = await fill(broker, 3)
    reader = {"durable": False, "start": message_id(-1, -1)}
    assert (await subscribe(client, 1, "r1", start_seconds_ago=1, **reader)).type == Type.SUCCESS
    await client.send(commands.flow(1, 10))
    assert [(await frame_of(client)).payload for _ in range(3)] == payloads
    topic = await broker.topics.get(TopicName.parse(PLAIN))
    later = broker.services.now_ms() + 5_000
    topic.ledger._now_ms = lambda: later
    new = message(b"new")
    await publish(topic, new)
    assert (await frame_of(client)).payload == new
    assert (await subscribe(client, 2, "r2", start_seconds_ago=2, **reader)).type == Type.SUCCESS
    await client.send(commands.flow(2, 10))
    assert (await frame_of(client)).payload == new
    await client.receives_nothing_more()


@pytest.mark.parametrize("durable", [True, False])
async def test_a_consumer_that_creates_no_topic_is_told_that_there_is_none(
    broker: Rooms, client: WireClient, durable: bool
) -> None:
    """The refusal is that of Pulsar's brokers. Nothing of the topic is created. Once it exists, it is consumed."""

    async def ask(number: int) -> pb.BaseCommand:
        command = commands.subscribe(PLAIN, "s", number, 100 + number, durable=durable)
        command.subscribe.force_topic_creation = False
        return await client.ask(command)

    refused = await ask(1)
    assert (refused.type, refused.error.error, refused.error.request_id) == (Type.ERROR, pb.TopicNotFound, 101)
    assert list(broker.topics) == []
    assert not await broker.layouts.is_made(TopicName.parse(PLAIN))
    await fill(broker, 1)
    assert (await ask(2)).type == Type.SUCCESS
    await broker.topics.unload(TopicName.parse(PLAIN))
    await client.receive()
    assert (await ask(3)).type == Type.SUCCESS


INDEXED = {"tidewire.indexed": "true"}


@pytest.mark.parametrize(
    ("batch_index", "properties", "first"), [(0, {}, 0), (-1, {}, 0), (0, INDEXED, 0), (-1, INDEXED, 1)]
)
async def test_a_reader_gets_the_entry_that_its_start_names(
    broker: Rooms, client: WireClient, batch_index: int, properties: dict[str, str], first: int
) -> None:
    """E21: its client drops what it does not want. A start behind the entry would lose the rest of a batch.

    Spark's readers ask for indexes. They name the entry that they have read, and get nothing of it.
    """
    await fill(broker, 3)
    topic = await broker.topics.get(TopicName.parse(PLAIN))
    start = message_id(*topic.next_after(EARLIEST), batch_index=batch_index)
    await subscribe(client, 1, "r", durable=False, start=start, properties=properties)
    await client.send(commands.flow(1, 10))
    entries = [(await frame_of(client)).command.message.message_id.entry_id for _ in range(first, 3)]
    assert entries == list(range(first, 3))
    await client.receives_nothing_more()
