"""The bounds of one command, and fair turns on the event loop for connections that send many (E7, E8)."""

from collections.abc import Callable

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.cluster.segment_owners import Elsewhere
from broker.layouts.layout import Layout
from broker.names import NAME_BYTES_MAX, TopicName
from broker.pulsar import acknowledging, layout_sessions, producer_sessions, sends, session, sizes
from broker.pulsar.requests import CommandHandler
from broker.pulsar.sizes import ACK_SET_WORDS_MAX, IDS_AT_ONCE, SIZES
from storage.position import Position
from tests.support.idle import TaskSteps
from tests.support.rooms import TOPIC, Rooms, publish
from tests.support.wire import WireClient, connected, message
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.building import build_payload
from tidewire.wire.pulsar.frames import encode_command, encode_payload_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import message_id, position
from tidewire.wire.pulsar.messages import BATCH_MESSAGES_MAX

Type = pb.BaseCommand.Type
PLAIN = "persistent://public/default/plain"


async def fill(broker: Rooms, count: int) -> None:
    topic = await broker.topics.get(TopicName.parse(PLAIN))
    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(publish, topic, message(b"%d" % number))


async def consume(client: WireClient, count: int) -> list[pb.MessageIdData]:
    """Receive this many messages of a shared subscription, and hold them."""
    asked = commands.subscribe(
        PLAIN, "s", 1, 1, sub_type=pb.CommandSubscribe.Shared, initial_position=pb.CommandSubscribe.Earliest
    )
    assert (await client.ask(asked)).type == Type.SUCCESS
    await client.send(commands.flow(1, count))
    return [(await client.receive()).message.message_id for _ in range(count)]


class Turns:
    """Counts how often another task runs during a wait."""

    def __init__(self) -> None:
        self.count = 0

    async def run(self) -> None:
        while True:
            self.count += 1
            await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("kind", [Type.FLOW, Type.ACK, Type.SEEK])
async def test_a_command_larger_than_it_can_mean_ends_its_connection(
    client: WireClient, other: WireClient, kind: pb.BaseCommand.Type
) -> None:
    """E8: its first bytes show it, and other connections continue."""
    size = SIZES.of(kind) + 1
    await client.stream.send_all((size + 4).to_bytes(4, "big") + size.to_bytes(4, "big") + bytes((0x08, kind)))
    answer = await client.receive()
    assert answer.type == Type.ERROR
    assert "bytes; at most" in answer.error.message
    assert await client.receive_frame() is None
    await other.receives_nothing_more()


async def test_an_ack_set_has_as_many_words_as_a_batch_may_have(
    monkeypatch: pytest.MonkeyPatch, broker: Rooms, client: WireClient
) -> None:
    """E8: one word more is refused, and nothing of the command is applied."""
    assert ACK_SET_WORDS_MAX * 64 >= BATCH_MESSAGES_MAX > (ACK_SET_WORDS_MAX - 1) * 64
    monkeypatch.setattr(acknowledging, "ACK_SET_WORDS_MAX", 5)
    await fill(broker, 2)
    first, second = await consume(client, 2)
    for words, taken in ((6, False), (5, True)):
        given = [first, message_id(*position(second), ack_set=[1] * words)]
        answer = (await client.ask(commands.ack(1, given, request_id=5))).ack_response
        assert answer.error == (0 if taken else pb.NotAllowedError), answer.message
        topic = await broker.topics.get(TopicName.parse(PLAIN))
        assert topic.subscriptions["s"].cursor.is_acknowledged(Position(*position(first))) == taken


@pytest.mark.parametrize(
    "make",
    [
        lambda name: commands.producer(PLAIN, 1, 7, name=name),
        lambda name: commands.subscribe(PLAIN, "s", 1, 7, name=name),
        lambda name: commands.subscribe(PLAIN, name, 1, 7, durable=False),
    ],
    ids=["producer", "consumer", "reader"],
)
async def test_names_are_bounded(client: WireClient, make: Callable[[str], pb.BaseCommand]) -> None:
    """E8: this includes names that are kept only in memory."""
    assert NAME_BYTES_MAX == 1024
    refused = await client.ask(make("x" * 2049))
    assert (refused.error.request_id, refused.error.error) == (7, pb.NotAllowedError)
    assert (await client.ask(make("x" * 2048))).type in (Type.SUCCESS, Type.PRODUCER_SUCCESS)


async def test_metadata_are_bounded(monkeypatch: pytest.MonkeyPatch, client: WireClient) -> None:
    """E8: the broker must parse properties, but not values."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    metadata.properties.add(key="k", value="v" * 1000)
    monkeypatch.setattr(sends, "METADATA_BYTES_MAX", metadata.ByteSize())
    await client.produce(1, PLAIN)
    await client.send_payload(commands.send(1, 1), build_payload(metadata, b"value" * 1000))
    assert (await client.receive()).type == Type.SEND_RECEIPT
    metadata.properties[0].value += "v"
    await client.send_payload(commands.send(1, 2), build_payload(metadata, b""))
    refused = (await client.receive()).send_error
    assert (refused.sequence_id, refused.error) == (2, pb.NotAllowedError)
    assert f"{metadata.ByteSize()} bytes" in refused.message


async def test_a_batch_has_as_many_messages_as_fit_one(client: WireClient) -> None:
    """E8: a number alone must not make the broker count to it."""
    await client.produce(1, PLAIN)
    for count, kind in ((BATCH_MESSAGES_MAX, Type.SEND_RECEIPT), (BATCH_MESSAGES_MAX + 1, Type.SEND_ERROR)):
        await client.send_payload(commands.send(1, count, num_messages=count), message(batch_of=count))
        assert (await client.receive()).type == kind


async def test_many_small_commands_share_the_event_loop(client: WireClient) -> None:
    """E7: the broker handles a few frames of each read at a time."""
    count = 50 * session.FRAMES_AT_ONCE
    turns = Turns()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.run)
        await client.stream.send_all(encode_command(commands.ping()) * count)
        for _ in range(count):
            assert (await client.receive()).type == Type.PONG
        nursery.cancel_scope.cancel()
    assert turns.count >= 50


def test_a_connections_share_is_counted_in_frames_and_bytes() -> None:
    """E7: the bound that is reached first counts; one large frame uses it up."""
    turn = session._Turn()
    assert not any(turn.is_used_up(number) for number in range(1, session.FRAMES_AT_ONCE))
    assert turn.is_used_up(session.FRAMES_AT_ONCE)
    until = session.FRAMES_AT_ONCE + session.FRAME_BYTES_AT_ONCE
    assert not turn.is_used_up(until - 1), "the bytes are counted from the last pause"
    assert turn.is_used_up(until)
    more = range(1, session.FRAMES_AT_ONCE)
    assert not any(turn.is_used_up(until + number) for number in more), "and so are the frames"


async def test_many_small_sends_share_the_event_loop(monkeypatch: pytest.MonkeyPatch, client: WireClient) -> None:
    """E7: publishing and answering never wait, so a producer with a full inbox pauses by itself."""
    count = 20 * producer_sessions.SENDS_AT_ONCE
    monkeypatch.setattr(session, "FRAMES_AT_ONCE", count + 1)
    monkeypatch.setattr(session, "FRAME_BYTES_AT_ONCE", 2**30)
    await client.produce(1, PLAIN)
    payload = message()
    with TaskSteps() as steps:
        await client.stream.send_all(
            b"".join(encode_payload_command(commands.send(1, number), payload) for number in range(count))
        )
        for number in range(count):
            assert (await client.receive()).send_receipt.sequence_id == number
        assert steps.of("ProducerSession._publish_all") >= 20
        assert steps.of("ProducerSession._answer_all") >= 20


async def test_a_long_acknowledgement_is_taken_in_slices(broker: Rooms, client: WireClient) -> None:
    """E7: it is applied as a whole, and checked completely before."""
    count = 4 * IDS_AT_ONCE
    await fill(broker, count)
    ids = await consume(client, count)
    topic = await broker.topics.get(TopicName.parse(PLAIN))
    cursor = topic.subscriptions["s"].cursor
    turns = Turns()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.run)
        refused = await client.ask(commands.ack(1, [*ids[1:], message_id(99, 99)], request_id=3))
        assert refused.ack_response.error == pb.NotAllowedError
        assert cursor.entries_above == 0
        before = turns.count
        answer = await client.ask(commands.ack(1, ids, request_id=4))
        assert not answer.ack_response.HasField("error")
        nursery.cancel_scope.cancel()
    assert cursor.mark_delete == position(ids[-1])
    assert turns.count - before >= 4 * 4, "read, converted, checked and taken"


async def test_a_long_list_is_sent_again_in_slices(broker: Rooms, client: WireClient) -> None:
    """E7: the whole list is redelivered."""
    count = 3 * IDS_AT_ONCE
    await fill(broker, count)
    ids = await consume(client, count)
    turns = Turns()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.run)
        await wait_until(turns, 1)
        before = turns.count
        await client.send(commands.redeliver(1, ids))
        await client.receives_nothing_more()
        nursery.cancel_scope.cancel()
    assert turns.count - before >= 3
    await client.send(commands.flow(1, count))
    again = [(await client.receive()).message for _ in range(count)]
    assert [position(message.message_id) for message in again] == [position(given) for given in ids]
    assert {message.redelivery_count for message in again} == {1}


async def wait_until(turns: Turns, count: int) -> None:
    while turns.count < count:
        await trio.lowlevel.checkpoint()


async def test_a_move_between_two_slices_is_not_undone(
    monkeypatch: pytest.MonkeyPatch, broker: Rooms, client: WireClient, other: WireClient
) -> None:
    """E7, E21: the rest of a long acknowledgement is refused once its consumer was closed."""
    await fill(broker, 3)
    ids = await consume(client, 3)
    monkeypatch.setattr(sizes, "IDS_AT_ONCE", 1)
    topic = await broker.topics.get(TopicName.parse(PLAIN))
    subscription = topic.subscriptions["s"]
    take = subscription.take
    sought = trio.Event()

    async def seek() -> None:
        await subscription.seek(Position(*position(ids[0])).before())
        sought.set()

    async with trio.open_nursery() as nursery:

        def take_and_seek(acks: object, *, cumulative: bool) -> object:
            monkeypatch.setattr(subscription, "take", take)
            taken = take(acks, cumulative=cumulative)  # type: ignore[arg-type]  # as it was given
            subscription._disconnect_all()
            nursery.start_soon(seek)
            return taken

        monkeypatch.setattr(subscription, "take", take_and_seek)
        answer = await client.ask(commands.ack(1, ids, request_id=4))
        await sought.wait()
    assert answer.ack_response.error == pb.ConsumerNotFound
    await wait_all_tasks_blocked()
    assert subscription.cursor.mark_delete < Position(*position(ids[0]))


def test_the_bounds_are_what_clients_can_rely_on() -> None:
    """E8: clients send 1,000 ids at a time, and a batch of 5 MiB may have this many messages."""
    assert sizes.IDS_BYTES_MAX == 384 * 1024
    assert BATCH_MESSAGES_MAX == 873_813


async def test_a_layout_is_encoded_once_for_all_sessions(
    monkeypatch: pytest.MonkeyPatch, broker: Rooms, client: WireClient, other: WireClient
) -> None:
    """E7: a change reaches thousands of sessions at once."""
    encoded: list[tuple[int, str | None]] = []
    encode = layout_sessions.dag_of

    def noted(
        layout: Layout, service_url: str, *, controller_url: str | None, elsewhere: Elsewhere
    ) -> pb.ScalableTopicDAG:
        encoded.append((layout.epoch, controller_url))
        return encode(layout, service_url, controller_url=controller_url, elsewhere=elsewhere)

    monkeypatch.setattr(layout_sessions, "dag_of", noted)
    await broker.controller.create_topic(TOPIC, 2, {})
    for connection in (client, other):
        for number in range(10):
            update = (await connection.ask(commands.scalable_topic_lookup(number, str(TOPIC)))).scalable_topic_update
            assert (update.session_id, len(update.dag.segments)) == (number, 2)
    await broker.controller.split(TOPIC, 1)
    for connection in (client, other):
        told: set[int] = set()
        while len(told) < 10:
            update = (await connection.receive()).scalable_topic_update
            if update.dag.epoch == 1:
                told.add(update.session_id)
                assert len(update.dag.segments) == 4
    assert len(set(encoded)) == len(encoded)


async def test_a_connection_that_goes_is_cleared_in_slices(
    monkeypatch: pytest.MonkeyPatch, broker: Rooms, listener: trio.SocketListener
) -> None:
    """E7: it may have thousands of producers, consumers and layout sessions."""
    monkeypatch.setattr(session, "CLOSED_AT_ONCE", 1)
    pieces: list[int] = []
    close, pause = session._close, trio.lowlevel.checkpoint

    async def noted(handler: CommandHandler) -> None:
        pauses = 0

        async def count() -> None:
            nonlocal pauses
            pauses += 1
            await pause()

        with monkeypatch.context() as patched:
            patched.setattr(trio.lowlevel, "checkpoint", count)
            await close(handler)
        pieces.append(pauses)

    monkeypatch.setattr(session, "_close", noted)
    await broker.controller.create_topic(TOPIC, 1, {})
    async with connected(listener) as client:
        for number in range(50):
            await client.ask(commands.producer(PLAIN, number, number))
            await client.ask(commands.subscribe(PLAIN, "s", number, number, sub_type=pb.CommandSubscribe.Shared))
            await client.ask(commands.scalable_topic_lookup(number, str(TOPIC)))
        topic = await broker.topics.get(TopicName.parse(PLAIN))
        assert len(topic.clients.producers) == topic.clients.consumer_count == 50
    await wait_all_tasks_blocked()
    assert len(topic.clients.producers) == topic.clients.consumer_count == 0
    # What other tasks pause meanwhile is counted with it.
    assert len([count for count in pieces if count >= 50]) == 3
