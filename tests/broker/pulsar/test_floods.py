"""Many clients that demand more than their share, over real connections: the others continue (E9)."""

import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.budgets import FRAME_SECONDS_MAX, SHARE_BYTES, Budgets
from broker.pulsar import acknowledging, producer_sessions
from broker.pulsar.session import HANDSHAKE_SECONDS_MAX
from storage.metadata.store import Op
from tests.support.disk import SimulatedFiles
from tests.support.rooms import TOPIC, Rooms, rooms
from tests.support.steered_store import SteeredStore
from tests.support.wire import connected, listening, message
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import encode_payload_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

Type = pb.BaseCommand.Type
PLAIN = "persistent://public/default/plain"
LARGE = message(bytes(SHARE_BYTES + 10_000))


async def test_a_client_that_never_says_connect_is_disconnected(broker: Rooms, mock_clock: MockClock) -> None:
    """E9: this includes a client that sends it byte by byte; after CONNECT a client may stay silent."""
    async with listening(broker) as listener, connected(listener) as silent:
        async with connected(listener, greet=False) as mute:
            await mute.stream.send_all(b"\0\0")
            await wait_all_tasks_blocked()
            mock_clock.jump(HANDSHAKE_SECONDS_MAX - 1)
            await mute.stream.send_all(b"\0")
            await wait_all_tasks_blocked(0.01)
            mock_clock.jump(2)
            answer = await mute.receive()
            assert "CONNECT did not arrive in time" in answer.error.message
            assert await mute.receive_frame() is None
        mock_clock.jump(1_000)
        await silent.receives_nothing_more()


async def test_one_connection_too_many_is_told_and_a_free_place_is_taken(broker: Rooms) -> None:
    """E9: the refusal is clear, and clients retry after it."""
    async with listening(broker, Budgets.of(1 << 30, 2)) as listener, connected(listener) as first:
        async with connected(listener) as second, connected(listener, greet=False) as third:
            refused = await third.receive()
            assert refused.error.error == pb.ServiceNotReady
            assert "2 connections" in refused.error.message
            assert await third.receive_frame() is None
            await second.receives_nothing_more()
        await first.receives_nothing_more()
        await wait_all_tasks_blocked(0.01)
        async with connected(listener) as fourth:
            await fourth.receives_nothing_more()


async def test_parts_of_large_frames_keep_nobody_from_publishing(mock_clock: MockClock) -> None:
    """E9: more clients stop in a large frame than memory allows; all messages of other clients are stored."""
    budgets = Budgets.of(6 * len(LARGE), 100)
    async with (
        rooms(SteeredStore(), SimulatedFiles(seed=1)) as broker,
        listening(broker, budgets) as listener,
        AsyncExitStack() as stack,
    ):
        frame = encode_payload_command(commands.send(1, 0), LARGE)
        stopped = [await stack.enter_async_context(connected(listener)) for _ in range(10)]
        for client in stopped:
            await client.stream.send_all(frame[: SHARE_BYTES // 2])
        await wait_all_tasks_blocked(0.01)
        assert budgets.receiving.held_bytes <= 3 * len(LARGE)
        assert budgets.receiving.waiting >= 7

        polite = await stack.enter_async_context(connected(listener))
        await polite.produce(1, PLAIN)
        await polite.publish(1, 0)
        assert (await polite.receive()).type == Type.SEND_RECEIPT
        await polite.stream.send_all(encode_payload_command(commands.send(1, 1), LARGE))
        for _ in range(5):
            await wait_all_tasks_blocked(0.01)
            mock_clock.jump(FRAME_SECONDS_MAX)
        assert (await polite.receive()).type == Type.SEND_RECEIPT
        assert await _was_closed(stopped[0].stream)


async def test_a_complete_frame_that_waits_for_the_broker_costs_no_connection(
    broker: Rooms, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E9: only clients with incomplete frames are disconnected, however long the broker takes for a frame."""
    monkeypatch.setattr(producer_sessions, "INBOX_BYTES_MAX", 1000)
    budgets = Budgets.of(3 * len(LARGE), 100)
    await broker.controller.create_topic(TOPIC, 1, {})
    async with listening(broker, budgets) as listener, connected(listener) as client, connected(listener) as other:
        await client.produce(1, str(await broker.segment(TOPIC, 0)))
        (topic,) = broker.topics
        await topic.ledger.seal()
        for number in range(2):
            await client.publish(1, number, b"x" * 600)
        await client.send_payload(commands.send(1, 2), LARGE)
        await wait_all_tasks_blocked(0.01)
        await other.stream.send_all(encode_payload_command(commands.send(1, 0), LARGE)[: SHARE_BYTES // 2])
        await wait_all_tasks_blocked(0.01)
        assert budgets.receiving.waiting == 1
        mock_clock.jump(FRAME_SECONDS_MAX + 1)
        await wait_all_tasks_blocked(0.01)
        topic.clients.send_away()
        await client.send(commands.ping())
        assert [(await client.receive()).type for _ in range(2)] == [Type.CLOSE_PRODUCER, Type.PONG]


async def test_who_reads_no_answers_keeps_the_bytes_of_a_frame_from_nobody(
    broker: Rooms, mock_clock: MockClock
) -> None:
    """E9: a frame that waits because its client does not read has a time limit, too."""
    budgets = Budgets.of(3 * len(LARGE), 100)
    async with listening(broker, budgets) as listener, connected(listener) as client, connected(listener) as other:
        await other.produce(1, PLAIN)
        for number in range(200):
            await other.publish(1, number, LARGE)
            assert (await other.receive()).type == Type.SEND_RECEIPT
        start = pb.CommandSubscribe.Earliest
        await client.produce(1, PLAIN)
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SHARE_BYTES)
        await client.ask(commands.subscribe(PLAIN, "s", 1, 1, initial_position=start))
        await client.send(commands.flow(1, 1000))
        await wait_all_tasks_blocked(0.01)
        assert budgets.sending.is_short
        await client.send_payload(commands.send(1, 0), LARGE)
        await wait_all_tasks_blocked(0.01)
        assert budgets.receiving.held_bytes > len(LARGE)

        await other.stream.send_all(encode_payload_command(commands.send(1, 200), LARGE))
        await wait_all_tasks_blocked(0.01)
        assert budgets.receiving.waiting == 1
        for _ in range(3):
            mock_clock.jump(FRAME_SECONDS_MAX + 1)
            await wait_all_tasks_blocked(0.01)
        assert (await other.receive()).type == Type.SEND_RECEIPT


async def test_requests_under_way_count_with_what_is_not_stored_yet() -> None:
    """E9: a schema counts until it is answered, as a message does."""
    budgets, store, go = Budgets.of(1 << 30, 100), SteeredStore(), trio.Event()
    schema = pb.Schema(name="s", schema_data=bytes(SHARE_BYTES), type=pb.Schema.String)
    async with (
        rooms(store, SimulatedFiles(seed=1)) as broker,
        listening(broker, budgets) as listener,
        connected(listener) as client,
    ):

        async def hold(_ops: Sequence[Op]) -> None:
            await go.wait()

        store.before = hold
        await client.send(commands.get_or_create_schema(1, PLAIN, schema))
        await wait_all_tasks_blocked(0.01)
        assert budgets.receiving.held_bytes >= SHARE_BYTES
        go.set()
        assert (await client.receive()).type == Type.GET_OR_CREATE_SCHEMA_RESPONSE
        await wait_all_tasks_blocked(0.01)
        assert budgets.receiving.held_bytes == 0


async def test_acknowledgements_that_wait_for_the_store_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """E9: each counts until it is answered, and the broker stops reading a connection that has its share."""
    monkeypatch.setattr(acknowledging, "ANSWER_BYTES", SHARE_BYTES // 3)
    budgets, store, go = Budgets.of(1, 100), SteeredStore(), trio.Event()
    async with (
        rooms(store, SimulatedFiles(seed=1)) as broker,
        listening(broker, budgets) as listener,
        connected(listener) as client,
    ):
        await broker.controller.create_topic(TOPIC, 1, {})
        segment = str(await broker.segment(TOPIC, 0))
        await client.produce(1, segment)
        for number in range(10):
            await client.publish(1, number)
            assert (await client.receive()).type == Type.SEND_RECEIPT
        opened = (await client.ask(commands.new_txn(1, 3, 60_000))).new_txn_response
        txn = opened.txnid_most_bits, opened.txnid_least_bits
        start = pb.CommandSubscribe.Earliest
        shared = pb.CommandSubscribe.Shared
        await client.ask(commands.subscribe(segment, "s", 1, 1, sub_type=shared, initial_position=start))
        await client.send(commands.flow(1, 10))
        ids = [(await client.receive()).message.message_id for _ in range(10)]
        await wait_all_tasks_blocked(0.01)

        async def hold(_ops: Sequence[Op]) -> None:
            await go.wait()

        store.before = hold
        await client.send(commands.ack(1, ids[:1], txn=txn, request_id=20))
        await wait_all_tasks_blocked(0.01)
        assert budgets.receiving.held_bytes > 0
        await client.send(*(commands.ack(1, [one], request_id=number) for number, one in enumerate(ids[1:6], 30)))
        await client.send(commands.ping())
        await wait_all_tasks_blocked(0.01)
        go.set()
        answers = [await client.receive() for _ in range(7)]
        assert answers[0].type != Type.PONG, "what follows the acknowledgements was not read meanwhile"
        assert sorted(a.ack_response.request_id for a in answers if a.type == Type.ACK_RESPONSE) == [20, *range(30, 35)]
        assert not any(a.ack_response.HasField("error") for a in answers)
        await wait_all_tasks_blocked(0.01)
        assert budgets.receiving.held_bytes == 0


async def test_what_is_granted_is_given_back_when_connections_end(broker: Rooms) -> None:
    """E9: after any flood the whole budget is free again."""
    budgets = Budgets.of(1 << 30, 100)
    async with listening(broker, budgets) as listener:
        for _ in range(5):
            async with connected(listener) as client:
                await client.produce(1, PLAIN)
                for number in range(20):
                    await client.send_payload(commands.send(1, number), LARGE if number % 2 else message())
                await client.stream.send_all(encode_payload_command(commands.send(1, 99), LARGE)[:5_000])
                await wait_all_tasks_blocked(0.01)
        await wait_all_tasks_blocked(0.01)
        assert budgets.receiving.held_bytes == 0
        assert budgets.sending.held_bytes == 0


async def _was_closed(stream: trio.abc.Stream) -> bool:
    with trio.fail_after(5):
        try:
            while await stream.receive_some(1000):
                pass
        except trio.BrokenResourceError:
            pass
    return True
