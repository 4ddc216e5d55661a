"""Bad input gets the protocol's own error, closes at most its connection, and changes nothing."""

import struct
from collections.abc import Callable

import pytest
import trio

from broker.names import TopicName
from broker.pulsar.requests import request_id_of
from storage.position import EARLIEST
from tests.support.rooms import MESSAGE_BYTES_MAX, TOPIC, Rooms, publish, visible
from tests.support.wire import WireClient, connected, message
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import encode_command, encode_payload_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import NO_REQUEST, message_id

Type = pb.BaseCommand.Type
PLAIN = "persistent://public/default/plain"


async def still_works(broker: Rooms, other: WireClient) -> None:
    """Check that another, older connection can publish, and that only its message is stored."""
    await other.publish(1, 7)
    receipt = await other.receive()
    assert (receipt.type, receipt.send_receipt.sequence_id) == (Type.SEND_RECEIPT, 7)
    topic = await broker.topics.get(TopicName.parse(PLAIN))
    assert len(await visible(topic)) == 1


def broken_checksum(payload: bytes) -> bytes:
    return payload[:3] + bytes([payload[3] ^ 1]) + payload[4:]


BREAKING: dict[str, Callable[[], bytes]] = {
    "oversized": lambda: struct.pack(">II", MESSAGE_BYTES_MAX + 10 * 1024 + 1, 10),
    "lengths that contradict": lambda: struct.pack(">II", 8, 100) + bytes(8),
    "too short for a size": lambda: struct.pack(">I", 3) + bytes(3),
    "not a command": lambda: struct.pack(">II", 10, 6) + b"\xff" * 6,
    "a type nobody knows": lambda: struct.pack(">II", 7, 3) + b"\x08\xff\x07",
    "a required field missing": lambda: struct.pack(">II", 6, 2) + b"\x08\x05",
    "a send without payload": lambda: encode_command(commands.send(1, 1)),
}


@pytest.mark.parametrize("name", BREAKING)
async def test_a_broken_frame_is_answered_and_ends_its_connection(
    broker: Rooms, client: WireClient, other: WireClient, name: str
) -> None:
    await other.produce(1, PLAIN)
    await client.stream.send_all(BREAKING[name]())
    answer = await client.receive()
    assert answer.type == Type.ERROR
    assert answer.error.request_id == NO_REQUEST
    assert answer.error.message
    assert await client.receive_frame() is None
    await still_works(broker, other)


async def test_a_frame_cut_off_by_the_end_of_the_connection(
    broker: Rooms, listener: trio.SocketListener, other: WireClient
) -> None:
    await other.produce(1, PLAIN)
    async with connected(listener) as client:
        await client.produce(1, PLAIN, "cut")
        whole = encode_payload_command(commands.send(1, 1), message())
        await client.stream.send_all(whole[:-1])
        await client.socket.send_eof()
        assert await client.receive_frame() is None
    await still_works(broker, other)


async def test_a_command_before_connect_ends_the_connection(
    broker: Rooms, listener: trio.SocketListener, other: WireClient
) -> None:
    await other.produce(1, PLAIN)
    async with connected(listener, greet=False) as client:
        answer = await client.ask(commands.producer(PLAIN, 1, 5))
        assert answer.type == Type.ERROR
        assert "CONNECT" in answer.error.message
        assert await client.receive_frame() is None
    await still_works(broker, other)


async def test_commands_that_are_not_served_say_so(client: WireClient) -> None:
    """The connection continues, and the answers have the ids of the requests."""
    for command in (
        commands.watch_topic_list(4, 1, "public/default", ".*"),
        commands.connect("again"),
        commands.success(4),
    ):
        answer = await client.ask(command)
        assert answer.type == Type.ERROR, command
        assert answer.error.error == pb.NotAllowedError
        assert Type.Name(command.type) in answer.error.message
        assert answer.error.request_id == (NO_REQUEST if command.type == Type.CONNECT else 4)
    await client.receives_nothing_more()


async def test_a_bad_checksum_refuses_that_send_alone(broker: Rooms, client: WireClient, other: WireClient) -> None:
    """At ChecksumError the client may resend it; the sends before and after it are stored."""
    await other.produce(1, PLAIN)
    await client.produce(1, "persistent://public/default/mine")
    await client.publish(1, 0)
    await client.send_payload(commands.send(1, 1), broken_checksum(message()))
    await client.publish(1, 2)
    answers = [await client.receive() for _ in range(3)]
    assert [answer.type for answer in answers] == [Type.SEND_RECEIPT, Type.SEND_ERROR, Type.SEND_RECEIPT]
    assert (answers[1].send_error.sequence_id, answers[1].send_error.error) == (1, pb.ChecksumError)
    mine = await broker.topics.get(TopicName.parse("persistent://public/default/mine"))
    assert len(await visible(mine)) == 2
    await still_works(broker, other)


async def test_a_send_to_a_producer_that_was_never_opened(broker: Rooms, client: WireClient, other: WireClient) -> None:
    await other.produce(1, PLAIN)
    await client.publish(9, 3)
    answer = await client.receive()
    assert (answer.type, answer.send_error.producer_id, answer.send_error.sequence_id) == (Type.SEND_ERROR, 9, 3)
    assert answer.send_error.error == pb.NotAllowedError
    await still_works(broker, other)


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ("segment://public/default/nothing/0000-ffff-0", pb.TopicNotFound),
        ("segment://public/default/orders/0000-7fff-5", pb.TopicNotFound),
        ("topic://public/default/orders", pb.NotAllowedError),
        ("persistent://public/default", pb.InvalidTopicName),
        ("nonsense://public/default/x", pb.InvalidTopicName),
        ("segment://public/default/orders/ffff-0000-1", pb.InvalidTopicName),
        ("persistent://public/default/a\0b", pb.InvalidTopicName),
    ],
)
async def test_topics_that_cannot_be_used(broker: Rooms, client: WireClient, topic: str, code: int) -> None:
    """This holds for producers and consumers, and nothing is created."""
    await broker.controller.create_topic(TOPIC, 1, {})
    before = [record.key for record in await broker.metadata.scan("", "~")]
    for command in (commands.producer(topic, 1, 5), commands.subscribe(topic, "s", 1, 5)):
        answer = await client.ask(command)
        assert answer.type == Type.ERROR
        assert (answer.error.request_id, answer.error.error) == (5, code)
        assert answer.error.message
    assert [record.key for record in await broker.metadata.scan("", "~")] == before
    await client.receives_nothing_more()


@pytest.mark.parametrize("name", ["", "*" * 1_025, "*" * 70_000, "é" * 513], ids=["none", "long", "huge", "two bytes"])
async def test_names_of_which_no_record_can_be_made(broker: Rooms, client: WireClient, name: str) -> None:
    """Such a subscription, once registered, would block every split and the next start."""
    await broker.controller.create_topic(TOPIC, 1, {})
    before = [record.key for record in await broker.metadata.scan("", "~")]
    segment = str(await broker.segment(TOPIC, 0))
    for command in (commands.subscribe(segment, name, 1, 5), commands.subscribe(PLAIN, name, 1, 5)):
        answer = await client.ask(command)
        assert (answer.type, answer.error.request_id, answer.error.error) == (Type.ERROR, 5, pb.NotAllowedError)
    for subscription, consumer in ((name, "c"), ("s", name or "*" * 1_025)):
        registration = commands.scalable_topic_subscribe(6, str(TOPIC), subscription, consumer, 7)
        refused = (await client.ask(registration)).scalable_topic_subscribe_response
        assert (refused.request_id, refused.error) == (6, pb.NotAllowedError)
    assert [record.key for record in await broker.metadata.scan("", "~")] == before
    await client.receives_nothing_more()
    assert (await client.ask(commands.subscribe(PLAIN, "*" * 1_024, 1, 5))).type == Type.SUCCESS


async def test_consumer_commands_for_consumers_that_are_not_there(client: WireClient) -> None:
    await client.send(commands.flow(9, 5), commands.redeliver(9))
    await client.receives_nothing_more()
    answer = await client.ask(commands.ack(9, [message_id(1, 1)], request_id=6))
    assert answer.type == Type.ACK_RESPONSE
    assert answer.ack_response.error == pb.ConsumerNotFound
    for command in (commands.unsubscribe(9, 6), commands.get_last_message_id(9, 6)):
        answer = await client.ask(command)
        assert (answer.type, answer.error.request_id) == (Type.ERROR, 6)
    for command in (commands.close_consumer(9, 6), commands.close_producer(9, 6)):
        assert (await client.ask(command)).type == Type.SUCCESS
    await client.receives_nothing_more()


async def test_a_transaction_is_not_ended_by_a_command_that_does_not_say_how(client: WireClient) -> None:
    """A missing or unknown action would otherwise be read as the first one, which is a commit."""
    opened = (await client.ask(commands.new_txn(1, 0, 60_000))).new_txn_response
    txn = (opened.txnid_most_bits, opened.txnid_least_bits)
    end = commands.end_txn(5, txn, commit=False)
    end.end_txn.ClearField("txn_action")
    refused = (await client.ask(end)).end_txn_response
    assert (refused.request_id, refused.error) == (5, pb.NotAllowedError)
    aborted = (await client.ask(commands.end_txn(6, txn, commit=False))).end_txn_response
    assert not aborted.HasField("error"), "it was open still"


async def test_a_seek_to_nowhere_moves_nothing(broker: Rooms, client: WireClient) -> None:
    topic = await broker.topics.get(TopicName.parse(PLAIN))
    await publish(topic, message())
    assert (await client.ask(commands.subscribe(PLAIN, "s", 1, 5))).type == Type.SUCCESS
    seek = commands.seek(1, 6, publish_time_ms=0)
    seek.seek.ClearField("message_publish_time")
    answer = await client.ask(seek)
    assert (answer.type, answer.error.request_id, answer.error.error) == (Type.ERROR, 6, pb.NotAllowedError)
    assert topic.subscriptions["s"].backlog_entries == 0
    await client.receives_nothing_more()


@pytest.mark.parametrize(
    ("ledger", "entry", "backlog"),
    [
        (2**63, 2**63, 2),
        (2**64 - 5, 0, 2),
        (0, 2**63, 2),
        (0, 2**64 - 5, 2),
        (2**63 - 1, 5, 0),
        (2**63 - 2, 2**63 - 1, 0),
    ],
)
async def test_a_seek_to_a_place_that_cannot_be(
    broker: Rooms, client: WireClient, ledger: int, entry: int, backlog: int
) -> None:
    """A position below or above everything means the beginning or the end. Later messages are delivered."""
    topic = await broker.topics.get(TopicName.parse(PLAIN))
    for _ in range(2):
        await publish(topic, message())
    assert (await client.ask(commands.subscribe(PLAIN, "s", 1, 5))).type == Type.SUCCESS
    place = pb.MessageIdData(ledger_id=ledger, entry_id=entry)
    assert (await client.ask(commands.seek(1, 6, to=place))).type == Type.CLOSE_CONSUMER
    assert (await client.receive()).type == Type.SUCCESS
    assert topic.subscriptions["s"].backlog_entries == backlog
    await publish(topic, message())
    assert topic.subscriptions["s"].backlog_entries == backlog + 1
    reader = commands.subscribe(PLAIN, "r", 2, 7, durable=False, start=place)
    assert (await client.ask(reader)).type == Type.SUCCESS
    await client.send(commands.flow(2, 10))
    await publish(topic, message(b"last"))
    while (delivered := await client.receive_frame()) is not None and not str(delivered.payload).endswith("last'"):
        continue
    assert delivered is not None


async def test_a_last_message_that_cannot_be_read_has_a_place_all_the_same(broker: Rooms, client: WireClient) -> None:
    """A payload is stored as it was sent, and the client that asks for the end did not send it."""
    topic = await broker.topics.get(TopicName.parse(PLAIN))
    await publish(topic, message())
    await publish(topic, b"no metadata")
    assert (await client.ask(commands.subscribe(PLAIN, "s", 1, 5))).type == Type.SUCCESS
    last = (await client.ask(commands.get_last_message_id(1, 6))).get_last_message_id_response.last_message_id
    assert (last.ledger_id, last.entry_id, last.batch_index) == (*topic.readable.value, -1)


@pytest.mark.parametrize("wrong", ["miscounted", "far miscounted", "unreadable", "part of nothing"])
async def test_a_send_whose_payload_is_not_what_it_says(
    broker: Rooms, client: WireClient, other: WireClient, wrong: str
) -> None:
    """Its consumer would pay permits for messages that it never gets, and then receive nothing more."""
    await other.produce(1, PLAIN)
    await broker.controller.create_topic(TOPIC, 1, {})
    await client.produce(1, str(await broker.segment(TOPIC, 0)))
    send = commands.send(
        1, 3, num_messages={"miscounted": 2, "far miscounted": 1_000_000, "unreadable": 2}.get(wrong, 1)
    )
    send.send.is_chunk = wrong == "part of nothing"
    await client.send_payload(send, message() if "miscounted" in wrong else b"no metadata")
    answer = await client.receive()
    assert (answer.type, answer.send_error.sequence_id) == (Type.SEND_ERROR, 3)
    assert answer.send_error.error == pb.NotAllowedError
    await client.publish(1, 4)
    assert (await client.receive()).send_receipt.sequence_id == 4
    await still_works(broker, other)


async def test_a_topic_made_by_name_begins_empty(broker: Rooms, client: WireClient) -> None:
    assert (await client.ask(commands.subscribe(PLAIN, "s", 1, 5))).type == Type.SUCCESS
    topic = await broker.topics.get(TopicName.parse(PLAIN))
    assert topic.subscriptions["s"].cursor.mark_delete == EARLIEST


@pytest.mark.parametrize("name", ["a\nb", "a\x00", "\x1b[2J", "a\x7f", "a\u2028b", "\x85"])
async def test_names_that_cannot_be_shown_are_refused(broker: Rooms, client: WireClient, name: str) -> None:
    """E12: this holds for all kinds of names, because logs and terminals show them unchanged."""
    topic = f"persistent://public/default/{name}"
    for asked in (commands.producer(topic, 1, 5), commands.subscribe(topic, "s", 1, 6)):
        assert (await client.ask(asked)).error.error == pb.InvalidTopicName
    for asked in (
        commands.producer(PLAIN, 2, 7, name=name),
        commands.subscribe(PLAIN, name, 2, 8),
        commands.subscribe(PLAIN, name, 3, 9, durable=False),
        commands.subscribe(PLAIN, "s", 4, 10, name=name),
    ):
        refused = (await client.ask(asked)).error
        assert (refused.error, refused.request_id) == (pb.NotAllowedError, request_id_of(asked))
        assert "control characters" in refused.message
        assert name not in refused.message
    registered = commands.scalable_topic_subscribe(11, str(TOPIC), name, "c", 5)
    answer = (await client.ask(registered)).scalable_topic_subscribe_response
    assert answer.error == pb.NotAllowedError
    assert list(broker.topics) == []
