import socket
import threading
from collections.abc import Callable, Mapping
from functools import partial

import pytest

from tests.support.blocking_peer import Answer, BlockingPeer
from tidewire.protocol.addresses import BrokerAddress
from tidewire.protocol.errors import (
    ConnectFailed,
    ConnectionLost,
    MessageTooLarge,
    OperationTimedOut,
    ProtocolViolation,
)
from tidewire.protocol.refusals import Refused
from tidewire.protocol.sockets import SOCKET_OPTIONS
from tidewire.spark.connection import BlockingConnection
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import encode_command, encode_payload_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

HERE = BrokerAddress("scripted", 6650)
T = pb.BaseCommand.Type
ask = partial(commands.lookup, "persistent://public/default/x")


def connected(command: pb.BaseCommand) -> list[bytes]:
    return [encode_command(commands.connected("scripted"))]


def owner(command: pb.BaseCommand) -> list[bytes]:
    request_id = command.lookup_topic.request_id
    return [encode_command(commands.lookup_connect(request_id, "pulsar://scripted:6650"))]


def connection_to(peer: BlockingPeer) -> BlockingConnection:
    return BlockingConnection(peer, HERE, timeout_seconds=30, clock=peer.clock)


def asking(answer: Answer) -> tuple[BlockingPeer, Callable[[], pb.CommandLookupTopicResponse]]:
    peer = BlockingPeer({T.LOOKUP: answer})
    return peer, lambda: connection_to(peer).request(ask, pb.CommandLookupTopicResponse)


@pytest.mark.parametrize("piece_bytes_max", [1, 7, 1 << 20])
def test_a_handshake_says_what_we_can_and_keeps_what_the_broker_can(piece_bytes_max: int) -> None:
    peer = BlockingPeer({T.CONNECT: connected}, piece_bytes_max=piece_bytes_max)
    connection = connection_to(peer)
    connection.handshake()
    (said,) = peer.received
    assert said.connect.feature_flags.supports_scalable_topics
    assert not said.connect.HasField("proxy_to_broker_url")
    assert connection.features.supports_scalable_topics


def test_a_proxy_is_told_which_broker_is_meant() -> None:
    peer = BlockingPeer({T.CONNECT: connected})
    BlockingConnection(peer, HERE, timeout_seconds=30, proxied_to=BrokerAddress("::1", 6651)).handshake()
    assert peer.received[0].connect.proxy_to_broker_url == "[::1]:6651"


def test_a_refused_handshake_says_why() -> None:
    refusal = encode_command(commands.error(2**64 - 1, pb.ServerError.AuthenticationError, "who are you?"))
    peer = BlockingPeer({T.CONNECT: lambda command: [refusal]})
    with pytest.raises(Refused, match=rf"^{HERE} refused the connection: who are you\? \[AuthenticationError\]$"):
        connection_to(peer).handshake()


def test_a_peer_that_hangs_up_on_the_greeting_may_be_another_port() -> None:
    """Kafka's port does, because it cannot answer what it does not understand."""
    peer = BlockingPeer({})
    peer.hang_up()
    with pytest.raises(ConnectionLost, match=r"did not greet; check that option service_url names the broker's port"):
        connection_to(peer).handshake()


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        (
            b"HTTP/1.1 400 Bad Request\r\n",
            "pulsar://scripted:6650 does not speak Pulsar's protocol: the first bytes are HTTP",
        ),
        (encode_command(commands.success(1)), "pulsar://scripted:6650 answered CONNECT with SUCCESS"),
    ],
)
def test_who_answers_otherwise_is_no_broker(said: bytes, complaint: str) -> None:
    peer = BlockingPeer({T.CONNECT: lambda command: [said]})
    with pytest.raises(ProtocolViolation, match=complaint):
        connection_to(peer).handshake()


def test_an_answer_is_told_by_its_request_id_and_pings_are_answered_meanwhile() -> None:
    def answer(command: pb.BaseCommand) -> list[bytes]:
        others = commands.lookup_connect(command.lookup_topic.request_id + 1, "pulsar://elsewhere:1")
        unasked = commands.close_consumer(7)
        return [*(encode_command(other) for other in (commands.ping(), others, unasked)), *owner(command)]

    peer, request = asking(answer)
    assert request().broker_service_url == "pulsar://scripted:6650"
    assert [command.type for command in peer.received] == [T.LOOKUP, T.PONG]


def test_an_error_answer_is_refused_with_the_brokers_words_and_code() -> None:
    _, request = asking(
        lambda command: [
            encode_command(commands.error(command.lookup_topic.request_id, pb.ServerError.MetadataError, "no store"))
        ]
    )
    with pytest.raises(Refused, match=r"^pulsar://scripted:6650 refuses LOOKUP: no store \[MetadataError\]$"):
        request()


def test_an_answer_with_an_error_in_it_is_refused_too() -> None:
    _, request = asking(
        lambda command: [
            encode_command(
                commands.lookup_failed(command.lookup_topic.request_id, pb.ServerError.TopicNotFound, "none")
            )
        ]
    )
    with pytest.raises(Refused, match=r"^pulsar://scripted:6650 refuses LOOKUP: none \[TopicNotFound\]$"):
        request()


def test_an_answer_of_another_kind_is_refused() -> None:
    _, request = asking(lambda command: [encode_command(commands.success(command.lookup_topic.request_id))])
    with pytest.raises(ProtocolViolation, match="answered LOOKUP with SUCCESS"):
        request()


def test_a_silent_broker_is_given_up_on() -> None:
    peer, request = asking(lambda command: [])
    with pytest.raises(OperationTimedOut, match=rf"^{HERE} did not send its answer to LOOKUP within 30 s$"):
        request()
    assert peer.now == 30


def test_a_broker_that_talks_of_other_things_only_is_given_up_on() -> None:
    peer = BlockingPeer({}, piece_bytes_max=len(encode_command(commands.ping())), seconds_per_piece=1.0)
    peer.say(*[encode_command(commands.ping())] * 100)
    with pytest.raises(OperationTimedOut):
        connection_to(peer).request(ask, pb.CommandLookupTopicResponse)
    assert peer.now == 30


def test_a_broker_that_does_not_read_is_given_up_on() -> None:
    peer = BlockingPeer({})
    peer.stop_reading()
    with pytest.raises(OperationTimedOut, match="has read nothing for 30 s"):
        connection_to(peer).send(commands.ping())


def listening(answers: Mapping[int, Answer]) -> tuple[BlockingPeer, BlockingConnection]:
    peer = BlockingPeer({T.CONNECT: connected, **answers})
    connection = connection_to(peer)
    connection.handshake()
    return peer, connection


def test_a_broker_that_pushes_nothing_is_asked_for_a_sign_of_life() -> None:
    """C21, D1: a stopped process keeps its connections. Its topics are at other brokers, which push elsewhere."""
    peer, connection = listening({})
    assert connection.silence_seconds_left == 30
    peer.now = 29
    assert list(connection.arrived()) == []
    assert connection.silence_seconds_left == 1
    peer.now = 30
    for _ in range(2):
        assert list(connection.arrived()) == []
    assert [command.type for command in peer.received[1:]] == [T.PING]
    peer.now = 60
    with pytest.raises(ConnectionLost, match="has given no sign of life for 60 s"):
        list(connection.arrived())


def test_a_driver_that_looks_seldom_keeps_a_broker_that_answers() -> None:
    peer, connection = listening({T.PING: lambda _ping: [encode_command(commands.pong())]})
    for hours in range(1, 4):
        peer.now = hours * 3600
        list(connection.arrived())
    assert len(peer.received_of(T.PING)) > 1


@pytest.mark.parametrize("end", [BlockingPeer.hang_up, BlockingPeer.reset])
def test_a_connection_that_ends_is_lost(end: Callable[[BlockingPeer], None]) -> None:
    peer = BlockingPeer({})
    connection = connection_to(peer)
    connection.send(commands.ping())
    end(peer)
    with pytest.raises(ConnectionLost, match=rf"broker at {HERE} (closed the connection|broke: .*reset by peer)"):
        connection.receive(connection.deadline(), "anything")


def test_a_frame_above_what_the_broker_takes_is_not_sent() -> None:
    """It would end the connection without a reason."""
    peer = BlockingPeer({T.CONNECT: lambda command: [encode_command(commands.connected("s", max_message_size=1000))]})
    connection = connection_to(peer)
    connection.handshake()
    frame = encode_payload_command(commands.send(1, 1), bytes(20_000))
    with pytest.raises(MessageTooLarge, match=f"broker at {HERE} accepts messages of at most 1000; send less,"):
        connection.send_encoded(frame[:100], frame[100:])
    assert not peer.received_of(T.SEND)
    connection.send_encoded(encode_payload_command(commands.send(1, 1), bytes(1000)))
    assert len(peer.received_of(T.SEND)) == 1


def test_sending_over_a_broken_connection_says_so() -> None:
    peer = BlockingPeer({})
    peer.reset()
    with pytest.raises(ConnectionLost, match="reset by peer"):
        connection_to(peer).send(commands.ping())


def test_nobody_at_the_address_is_one_sentence() -> None:
    # Nobody else gets a bound port, and who connects to it is refused as long as nothing listens.
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = BrokerAddress(*bound.getsockname())
        with pytest.raises(ConnectFailed, match=rf"^no broker can be reached at {address}: .*refused"):
            BlockingConnection.open(address, timeout_seconds=30)


def test_a_connection_over_tcp_is_closed_when_the_handshake_fails_and_at_the_end_of_its_block() -> None:
    """One peer refuses the first connection, serves the second, and sees both end."""
    answers = [
        encode_command(commands.error(0, pb.ServerError.ServiceNotReady, "starting")),
        *connected(pb.BaseCommand()),
    ]
    ended: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        for answer in answers:
            accepted, _ = listener.accept()
            with accepted:
                accepted.settimeout(30)
                accepted.recv(1 << 16)
                accepted.sendall(answer)
                ended.append(accepted.recv(1 << 16))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        server = threading.Thread(target=serve, args=(listener,))
        server.start()
        address = BrokerAddress(*listener.getsockname())
        with pytest.raises(Refused, match="starting"):
            BlockingConnection.open(address, timeout_seconds=30)
        with BlockingConnection.open(address, timeout_seconds=30) as connection:
            assert connection.features.supports_scalable_topics
            # The kernel finds out when the broker's machine is gone: also while something is unacknowledged.
            assert isinstance(connection._socket, socket.socket)
            for level, option, value in SOCKET_OPTIONS:
                found = connection._socket.getsockopt(getattr(socket, level), getattr(socket, option))
                assert found == value, option
        server.join(30)
    assert ended == [b"", b""]
