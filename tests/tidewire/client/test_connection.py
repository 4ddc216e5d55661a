"""One connection, against a peer that the test controls byte by byte."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
import trio
import trio.lowlevel
import trio.testing

from tests.support.backends import on_both_backends, on_trio
from tests.support.cancellation import cancel_at_each_step
from tests.support.memory_network import MemoryByteStream, memory_stream_pair
from tidewire.client import connection as connection_module
from tidewire.client.connection import WRITE_BUFFER_BYTES_MAX, Connection
from tidewire.client.errors import Closed
from tidewire.protocol.addresses import BrokerAddress
from tidewire.protocol.errors import ConnectFailed, ConnectionLost, OperationTimedOut, ProtocolViolation, TidewireError
from tidewire.protocol.listeners import Kind
from tidewire.protocol.refusals import Refused, TopicNotFound
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import Frame, FrameDecoder, encode_command, encode_payload_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

T = pb.BaseCommand.Type
ADDRESS = BrokerAddress("broker", 6650)


class Peer:
    """The other end: reads frames, writes commands."""

    def __init__(self, stream: MemoryByteStream) -> None:
        self.stream = stream
        self._decoder = FrameDecoder()

    async def next_frame(self) -> Frame:
        while (frame := self._decoder.next_frame()) is None:
            self._decoder.feed(await self.stream.receive())
        return frame

    async def expect(self, kind: int) -> pb.BaseCommand:
        frame = await self.next_frame()
        assert frame.command.type == kind
        return frame.command

    async def send(self, *sent: pb.BaseCommand) -> None:
        await self.stream.send(b"".join(encode_command(command) for command in sent))


class Listener:
    """Records what it is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[pb.BaseCommand, bytes | None]] = []
        self.lost: list[TidewireError] = []
        self.complaint: ProtocolViolation | None = None

    def received(self, command: pb.BaseCommand, payload: bytes | None) -> None:
        self.heard.append((command, payload))
        if self.complaint is not None:
            raise self.complaint

    def connection_lost(self, error: TidewireError) -> None:
        self.lost.append(error)


def make(stream: MemoryByteStream, **seconds: float) -> Connection:
    timeouts = {
        "connect_timeout_seconds": 10.0,
        "operation_timeout_seconds": 30.0,
        "keep_alive_seconds": 30.0,
        **seconds,
    }
    return Connection(stream, ADDRESS, **timeouts)  # type: ignore[arg-type]


@asynccontextmanager
async def connected(**seconds: float) -> AsyncIterator[tuple[Connection, Peer]]:
    near, far = memory_stream_pair()
    connection, peer = make(near, **seconds), Peer(far)
    async with far, anyio.create_task_group() as tasks:
        tasks.start_soon(greet, peer)
        await tasks.start(connection.run)
        try:
            yield connection, peer
        finally:
            # Nothing else ends it: it serves the whole client.
            with anyio.CancelScope() as scope:
                scope.cancel()
                await connection.aclose()


async def greet(peer: Peer) -> None:
    await peer.expect(T.CONNECT)
    await peer.send(commands.connected("peer", max_message_size=1000))


# ------------------------------------------------------------------------------------------------------ the handshake


@on_both_backends
async def test_the_handshake_says_what_we_can_and_hears_what_the_broker_can() -> None:
    near, far = memory_stream_pair()
    connection, peer = make(near), Peer(far)
    async with far, anyio.create_task_group() as tasks:

        async def check() -> None:
            connect = (await peer.expect(T.CONNECT)).connect
            assert connect.protocol_version == 21
            assert connect.auth_method_name == "none"
            assert connect.feature_flags.supports_scalable_topics
            assert connect.feature_flags.supports_tc_metadata_discovery
            assert connect.feature_flags.supports_broker_entry_metadata
            # A PING together with the answer must not be lost between handshake and reading.
            await peer.send(commands.connected("peer", max_message_size=1000), commands.ping())
            await peer.expect(T.PONG)
            await peer.stream.aclose()

        tasks.start_soon(check)
        await tasks.start(connection.run)
        assert connection.features.supports_scalable_topics
        assert connection.is_open
    assert not connection.is_open


@on_both_backends
async def test_a_connection_that_serves_is_not_cancelled_with_the_program() -> None:
    near, far = memory_stream_pair()
    connection, peer = make(near), Peer(far)
    async with far, anyio.create_task_group() as tasks:
        tasks.start_soon(greet, peer)
        await tasks.start(connection.run)
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await peer.send(commands.ping())
            await peer.expect(T.PONG)
            await connection.aclose()


@on_both_backends
async def test_a_handshake_is_cancelled_with_who_wants_it() -> None:
    near, far = memory_stream_pair()
    connection = make(near)
    async with far:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:

                async def cancel_soon() -> None:
                    await far.receive()
                    scope.cancel()

                tasks.start_soon(cancel_soon)
                await tasks.start(connection.run)
        with pytest.raises(anyio.EndOfStream):
            await far.receive()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (encode_command(commands.error(0, pb.ServerError.AuthenticationError, "who?")), Refused),
        (encode_command(commands.ping()), ProtocolViolation),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ProtocolViolation),
        (b"\x00\x00\x00\x01", ProtocolViolation),
        (None, ConnectFailed),
    ],
)
@on_both_backends
async def test_a_handshake_that_fails_says_how(answer: bytes | None, expected: type[TidewireError]) -> None:
    near, far = memory_stream_pair()
    connection = make(near)

    async def respond() -> None:
        await far.receive()
        if answer is not None:
            await far.send(answer)
        await far.aclose()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(respond)
        with pytest.raises(expected):
            await tasks.start(connection.run)
    assert not connection.is_open


@on_trio
async def test_a_silent_peer_fails_the_handshake_at_the_deadline() -> None:
    near, far = memory_stream_pair()
    async with far:
        before = trio.current_time()
        async with anyio.create_task_group() as tasks:
            with pytest.raises(ConnectFailed, match="within 10"):
                await tasks.start(make(near).run)
        assert 10 <= trio.current_time() - before < 10.1


# --------------------------------------------------------------------------------------------- questions and answers


@on_both_backends
async def test_answers_find_their_questions_in_any_order() -> None:
    async with connected() as (connection, peer):
        answers: dict[str, int] = {}

        async def ask(topic: str) -> None:
            answer = await connection.request(
                lambda request_id: commands.partitioned_metadata(topic, request_id),
                pb.CommandPartitionedTopicMetadataResponse,
            )
            answers[topic] = answer.partitions

        async with anyio.create_task_group() as tasks:
            for topic in "abc":
                tasks.start_soon(ask, topic)
            asked = [(await peer.expect(T.PARTITIONED_METADATA)).partition_metadata for _ in range(3)]
            assert connection.statistics().requests_waiting == 3
            for request in reversed(asked):
                await peer.send(commands.partitioned_metadata_response(request.request_id, ord(request.topic)))
        assert answers == {topic: ord(topic) for topic in "abc"}
        assert connection.statistics().requests_waiting == 0


@on_both_backends
async def test_both_ways_of_refusing_become_the_same_error() -> None:
    async with connected() as (connection, peer):

        async def refuse() -> None:
            request = (await peer.expect(T.LOOKUP)).lookup_topic
            await peer.send(commands.lookup_failed(request.request_id, pb.ServerError.TopicNotFound, "none"))
            request = (await peer.expect(T.LOOKUP)).lookup_topic
            await peer.send(commands.error(request.request_id, pb.ServerError.TopicNotFound, "none"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(refuse)
            for _ in range(2):
                with pytest.raises(TopicNotFound, match="none"):
                    await connection.request(
                        lambda request_id: commands.lookup("t", request_id), pb.CommandLookupTopicResponse
                    )
        assert connection.is_open


@on_both_backends
async def test_the_wrong_kind_of_answer_breaks_the_protocol() -> None:
    async with connected() as (connection, peer):

        async def respond() -> None:
            request = (await peer.expect(T.LOOKUP)).lookup_topic
            await peer.send(commands.success(request.request_id))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(respond)
            with pytest.raises(ProtocolViolation, match="answered LOOKUP with SUCCESS"):
                await connection.request(
                    lambda request_id: commands.lookup("t", request_id), pb.CommandLookupTopicResponse
                )


@on_both_backends
async def test_answers_and_events_for_nobody_are_dropped() -> None:
    async with connected() as (connection, peer):
        await peer.send(
            commands.success(999),
            commands.error(999, pb.ServerError.UnknownError, "x"),
            commands.send_receipt(9, 9, 9, 9),
            commands.reached_end_of_topic(9),
            commands.ping(),
        )
        await peer.expect(T.PONG)
        assert connection.is_open


@on_trio
async def test_an_unanswered_question_fails_at_the_deadline_and_its_late_answer_is_dropped() -> None:
    async with connected(operation_timeout_seconds=5.0) as (connection, peer):
        before = trio.current_time()
        with pytest.raises(OperationTimedOut, match="did not answer LOOKUP within 5"):
            await connection.request(lambda request_id: commands.lookup("t", request_id), pb.CommandLookupTopicResponse)
        assert 5 <= trio.current_time() - before < 5.1
        request = (await peer.expect(T.LOOKUP)).lookup_topic
        await peer.send(commands.lookup_connect(request.request_id, "pulsar://x"), commands.ping())
        await peer.expect(T.PONG)
        assert connection.statistics().requests_waiting == 0


async def test_a_question_cancelled_at_any_step_leaves_the_connection_whole() -> None:
    async with connected() as (connection, peer):

        async def respond() -> None:
            while True:
                request = (await peer.expect(T.LOOKUP)).lookup_topic
                await peer.send(commands.lookup_connect(request.request_id, request.topic))

        async def ask() -> None:
            answer = await connection.request(
                lambda request_id: commands.lookup("url", request_id), pb.CommandLookupTopicResponse
            )
            assert answer.broker_service_url == "url"

        async def check() -> None:
            assert connection.statistics().requests_waiting == 0
            await ask()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(respond)
            assert await cancel_at_each_step(ask, check) > 2
            tasks.cancel_scope.cancel()


# ----------------------------------------------------------------------------------------------------------- events


@on_both_backends
async def test_events_go_to_their_listener_until_it_is_detached() -> None:
    async with connected() as (connection, peer):
        first, second = Listener(), Listener()
        ids = [connection.attach(Kind.CONSUMER, listener) for listener in (first, second)]
        assert ids[0] != ids[1]
        await peer.stream.send(encode_payload_command(commands.message(ids[1], 1, 2), b"payload"))
        await peer.send(commands.reached_end_of_topic(ids[0]), commands.ping())
        await peer.expect(T.PONG)
        assert [command.type for command, _ in first.heard] == [T.REACHED_END_OF_TOPIC]
        assert [payload for _, payload in second.heard] == [b"payload"]
        connection.detach(Kind.CONSUMER, ids[0])
        await peer.send(commands.reached_end_of_topic(ids[0]), commands.ping())
        await peer.expect(T.PONG)
        assert len(first.heard) == 1


# ------------------------------------------------------------------------------------------------------------- loss


@pytest.mark.parametrize(
    ("ending", "expected"), [(None, ConnectionLost), (b"\xff\xff\xff\xff", ProtocolViolation)], ids=["end", "garbage"]
)
@on_both_backends
async def test_a_lost_connection_fails_everything_that_waits_on_it_once(
    ending: bytes | None, expected: type[TidewireError]
) -> None:
    async with connected() as (connection, peer):
        listener, gone = Listener(), Listener()
        connection.attach(Kind.PRODUCER, listener)
        connection.detach(Kind.PRODUCER, connection.attach(Kind.PRODUCER, gone))

        async def end() -> None:
            await peer.expect(T.LOOKUP)
            if ending is not None:
                await peer.stream.send(ending)
            await peer.stream.aclose()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(end)
            with pytest.raises(expected) as raised:
                await connection.request(
                    lambda request_id: commands.lookup("t", request_id), pb.CommandLookupTopicResponse
                )
        assert [type(error) for error in listener.lost] == [expected]
        assert gone.lost == []
        assert raised.value is not listener.lost[0]
        assert not connection.is_open
        for _ in range(2):
            with pytest.raises(expected):
                connection.attach(Kind.PRODUCER, listener)
            with pytest.raises(expected):
                await connection.writable()
        connection.write(b"this goes nowhere")
        assert connection.statistics().write_buffer_bytes == 0


@on_trio
async def test_a_broker_that_gives_no_sign_of_life_is_given_up() -> None:
    """C21, D1: a stopped process keeps its connections, and its topics are at other brokers."""
    async with connected(keep_alive_seconds=30.0) as (connection, peer):
        listener = Listener()
        connection.attach(Kind.CONSUMER, listener)
        before = trio.current_time()
        await peer.expect(T.PING)
        assert 30 <= trio.current_time() - before < 30.1
        assert connection.is_open
        with pytest.raises(anyio.EndOfStream):
            await peer.next_frame()
        assert 60 <= trio.current_time() - before < 60.1
        assert "no sign of life for 60 s" in str(listener.lost[0])
        assert isinstance(listener.lost[0], ConnectionLost)


@on_trio
async def test_a_broker_that_reads_nothing_either_is_given_up() -> None:
    async with connected(keep_alive_seconds=30.0) as (connection, _peer):
        listener = Listener()
        connection.attach(Kind.PRODUCER, listener)
        for _ in range(100):
            connection.write(encode_command(commands.flow(1, 1)))
            await trio.lowlevel.checkpoint()
        await trio.sleep(61)
        assert not connection.is_open
        assert len(listener.lost) == 1


@on_trio
async def test_an_idle_broker_that_answers_is_kept() -> None:
    async with connected(keep_alive_seconds=30.0) as (connection, peer):
        before = trio.current_time()
        for number in range(1, 6):
            await peer.expect(T.PING)
            assert number * 30 <= trio.current_time() - before < number * 30 + 0.1
            await peer.send(commands.pong())
        assert connection.is_open


@on_trio
async def test_a_broker_that_sends_anything_is_not_asked() -> None:
    async with connected(keep_alive_seconds=30.0) as (connection, peer):
        for _ in range(10):
            await trio.sleep(29)
            await peer.send(commands.reached_end_of_topic(9))
        await trio.testing.wait_all_tasks_blocked()
        await peer.send(commands.ping())
        await peer.expect(T.PONG)
        assert connection.is_open


@on_trio
async def test_a_program_that_held_up_its_loop_reads_before_it_judges() -> None:
    """The answer had arrived in time. Only the program did not look."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)
    async with connected(keep_alive_seconds=30.0) as (connection, peer):
        for _ in range(20):
            await peer.expect(T.PING)
            await peer.send(commands.pong())
            clock.jump(40)
        assert connection.is_open


@on_both_backends
async def test_a_listener_that_finds_nonsense_ends_the_connection() -> None:
    async with connected() as (connection, peer):
        listener = Listener()
        listener.complaint = ProtocolViolation("no such thing")
        identity = connection.attach(Kind.CONSUMER, listener)
        await peer.send(commands.reached_end_of_topic(identity))
        with pytest.raises(anyio.EndOfStream):
            await peer.stream.receive()
        assert "no such thing" in str(listener.lost[0])


@on_both_backends
async def test_a_payload_where_there_can_be_none_ends_the_connection() -> None:
    """Listeners do not get the command."""
    async with connected() as (connection, peer):
        listener = Listener()
        identity = connection.attach(Kind.PRODUCER, listener)
        await peer.stream.send(encode_payload_command(commands.send_receipt(identity, 1, 2, 3), b"more"))
        with pytest.raises(anyio.EndOfStream):
            await peer.stream.receive()
        assert not listener.heard
        assert isinstance(listener.lost[0], ProtocolViolation)


# ----------------------------------------------------------------------------------------------------------- writing


@on_both_backends
async def test_small_commands_leave_together_and_in_order() -> None:
    async with connected() as (connection, peer):
        for permits in range(100):
            connection.write(encode_command(commands.flow(1, permits)))
        for permits in range(100):
            assert (await peer.expect(T.FLOW)).flow.message_permits == permits


@on_both_backends
async def test_who_writes_waits_for_a_peer_that_does_not_read() -> None:
    async with connected() as (connection, peer):
        frame = bytes(300_000)
        written = 0

        async def write() -> None:
            nonlocal written
            while True:
                await connection.writable()
                connection.write(frame)
                written += len(frame)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            await anyio.wait_all_tasks_blocked()
            assert not connection.is_writable
            assert connection.statistics().write_buffer_bytes <= WRITE_BUFFER_BYTES_MAX + len(frame)
            before = written
            for _ in range(20):
                await peer.stream.receive(1_000_000)
            await anyio.wait_all_tasks_blocked()
            assert written > before
            tasks.cancel_scope.cancel()


@on_both_backends
async def test_a_peer_that_only_asks_and_never_reads_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "WRITE_BUFFER_BYTES_LIMIT", 20_000)
    async with connected() as (connection, peer):
        listener = Listener()
        connection.attach(Kind.PRODUCER, listener)
        pings = encode_command(commands.ping()) * 1000
        with pytest.raises(anyio.BrokenResourceError):  # noqa: PT012 - which of the sends fails is up to buffers
            for _ in range(100):
                await peer.stream.send(pings)
        assert "has stopped reading" in str(listener.lost[0])


@on_both_backends
async def test_closing_sends_what_is_left_first() -> None:
    async with connected() as (connection, peer):
        connection.write(encode_command(commands.flow(1, 7)))
        await connection.aclose()
        assert (await peer.expect(T.FLOW)).flow.message_permits == 7
        with pytest.raises(anyio.EndOfStream):
            await peer.stream.receive()
        with pytest.raises(Closed):
            await connection.writable()


@on_both_backends
async def test_a_cancelled_close_closes_at_once() -> None:
    async with connected() as (connection, _):
        connection.write(bytes(1_000_000))
        with anyio.CancelScope() as scope:
            scope.cancel()
            await connection.aclose()
        assert not connection.is_open
