"""The listener: where it listens, how it stops, and that no peer can do more than lose its own connection."""

import math
import socket
from functools import partial

import pytest
import trio
from starlette.types import Receive, Scope, Send
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.addresses import Address
from broker.http import listener as module
from broker.http.application import build_application
from broker.http.listener import CONNECTION_SECONDS_MAX, IDLE_SECONDS_MAX, REQUESTS_MAX, STOP_SECONDS_MAX, serve_http
from tests.support.http import FakeMonitor, FakeTopics, connect, request

HEALTH = "/admin/v2/brokers/health"
LAYOUT = "/admin/v2/scalable/public/default/x"
GET = b"GET / HTTP/1.1\r\nhost: a\r\n"


async def is_closed(stream: trio.abc.Stream) -> bool:
    """Whether the server hung up: the stream ends, whatever came before. Closes this end too."""
    async with stream:
        try:
            while await stream.receive_some():
                pass
        except trio.BrokenResourceError:
            pass
    return True


async def still_serves(server: Address) -> bool:
    return (await request(server, "GET", HEALTH)).status == 200


async def test_the_address_says_the_port_that_was_picked(server: Address, listener: trio.SocketListener) -> None:
    assert server == Address("127.0.0.1", listener.socket.getsockname()[1])
    assert server.port != 0


async def test_ipv6_addresses_are_told_too(topics: FakeTopics, monitor: FakeMonitor, nursery: trio.Nursery) -> None:
    try:
        listeners = await trio.open_tcp_listeners(0, host="::1")
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    server: Address = await nursery.start(serve_http, build_application(topics, monitor), listeners[0])
    assert str(server) == f"[::1]:{server.port}"
    assert await still_serves(server)


async def test_a_connection_carries_many_requests_and_says_when_it_closes(server: Address) -> None:
    connection = await connect(server)
    async with connection.stream:
        closing = []
        for _ in range(REQUESTS_MAX):
            answer = await connection.request("GET", HEALTH)
            assert answer.status == 200
            closing.append(answer.headers.get("connection") == "close")
        assert closing == [False] * (REQUESTS_MAX - 1) + [True]
        assert await is_closed(connection.stream)


class Stoppable:
    """A server with its stop button."""

    def __init__(self, topics: FakeTopics, monitor: FakeMonitor) -> None:
        self.stop = trio.Event()
        self.stopped = trio.Event()
        self._application = build_application(topics, monitor)

    async def start(self, nursery: trio.Nursery, listener: trio.SocketListener) -> Address:
        address: Address = await nursery.start(self._run, listener)
        return address

    async def _run(self, listener: trio.SocketListener, *, task_status: trio.TaskStatus[Address]) -> None:
        await serve_http(self._application, listener, stop=self.stop, task_status=task_status)
        self.stopped.set()


@pytest.fixture
def stoppable(topics: FakeTopics, monitor: FakeMonitor) -> Stoppable:
    return Stoppable(topics, monitor)


async def test_stopping_closes_idle_connections_and_the_socket_at_once(
    stoppable: Stoppable, listener: trio.SocketListener, nursery: trio.Nursery, mock_clock: MockClock
) -> None:
    server = await stoppable.start(nursery, listener)
    connection = await connect(server)
    await connection.request("GET", HEALTH)
    unused = await connect(server)
    stoppable.stop.set()
    await stoppable.stopped.wait()
    assert mock_clock.current_time() == 0
    assert await is_closed(connection.stream)
    assert await is_closed(unused.stream)
    with pytest.raises(OSError, match="connect"):
        await connect(server)


async def test_stopping_waits_for_a_request_that_is_being_handled(
    stoppable: Stoppable, topics: FakeTopics, listener: trio.SocketListener, nursery: trio.Nursery
) -> None:
    server = await stoppable.start(nursery, listener)
    topics.gate = trio.Event()
    connection = await connect(server)
    async with trio.open_nursery() as asking:

        async def ask() -> None:
            assert (await connection.request("PUT", LAYOUT)).status == 204

        asking.start_soon(ask)
        await topics.waiting.wait()
        stoppable.stop.set()
        await wait_all_tasks_blocked()
        assert not stoppable.stopped.is_set()
        topics.gate.set()
    await stoppable.stopped.wait()
    assert len(topics.layouts) == 1
    assert await is_closed(connection.stream)


async def test_stopping_does_not_wait_forever(
    stoppable: Stoppable,
    topics: FakeTopics,
    listener: trio.SocketListener,
    nursery: trio.Nursery,
    mock_clock: MockClock,
) -> None:
    server = await stoppable.start(nursery, listener)
    topics.gate = trio.Event()
    connection = await connect(server)
    await connection.stream.send_all(f"GET {LAYOUT} HTTP/1.1\r\nhost: a\r\n\r\n".encode())
    await topics.waiting.wait()
    stoppable.stop.set()
    await wait_all_tasks_blocked()
    mock_clock.jump(STOP_SECONDS_MAX)
    await stoppable.stopped.wait()
    assert await is_closed(connection.stream)


async def test_cancelling_ends_everything_at_once(
    topics: FakeTopics, monitor: FakeMonitor, listener: trio.SocketListener, mock_clock: MockClock
) -> None:
    topics.gate = trio.Event()
    async with trio.open_nursery() as nursery:
        server: Address = await nursery.start(serve_http, build_application(topics, monitor), listener)
        idle, busy = await connect(server), await connect(server)
        await busy.stream.send_all(f"GET {LAYOUT} HTTP/1.1\r\nhost: a\r\n\r\n".encode())
        await topics.waiting.wait()
        nursery.cancel_scope.cancel()
    assert mock_clock.current_time() == 0
    assert await is_closed(idle.stream)
    assert await is_closed(busy.stream)
    assert listener.socket.fileno() == -1


async def endless(_scope: Scope, _receive: Receive, send: Send) -> None:
    """An application whose answer fills every buffer between it and a client that does not read."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while True:
        await send({"type": "http.response.body", "body": b"x" * 1_000_000, "more_body": True})


async def test_a_client_that_reads_nothing_does_not_hold_up_the_end(
    listener: trio.SocketListener, mock_clock: MockClock
) -> None:
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        server: Address = await nursery.start(partial(serve_http, endless, listener, stop=stop))
        stream = await trio.open_tcp_stream(server.host, server.port)
        await stream.send_all(GET + b"\r\n")
        await wait_all_tasks_blocked()
        stop.set()
        await wait_all_tasks_blocked()
        assert await stream.receive_some() != b""
        mock_clock.jump(STOP_SECONDS_MAX)
    assert await is_closed(stream)


async def test_an_idle_connection_is_closed_and_leaves_no_timer_behind(server: Address, mock_clock: MockClock) -> None:
    connection = await connect(server)
    await connection.request("GET", HEALTH)
    await wait_all_tasks_blocked()
    assert trio.lowlevel.current_statistics().seconds_to_next_deadline == IDLE_SECONDS_MAX
    mock_clock.jump(IDLE_SECONDS_MAX)
    assert await is_closed(connection.stream)
    await wait_all_tasks_blocked()
    assert trio.lowlevel.current_statistics().seconds_to_next_deadline == math.inf


@pytest.mark.parametrize(
    "sent",
    [
        b"PUT /admin/v2/scalable/public/default/x HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n",
        # HTTP/2, whose connection hypercorn keeps when it has begun.
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0" + b"\0\0\x05\x01\x05\0\0\0\x01\x82\x86\x84\x41\0",
    ],
)
async def test_whatever_a_connection_does_ends_some_time(server: Address, mock_clock: MockClock, sent: bytes) -> None:
    stream = await trio.open_tcp_stream(server.host, server.port)
    await stream.send_all(sent)
    await wait_all_tasks_blocked()
    mock_clock.jump(CONNECTION_SECONDS_MAX)
    assert await is_closed(stream)
    await wait_all_tasks_blocked()
    assert trio.lowlevel.current_statistics().seconds_to_next_deadline == math.inf


async def test_one_connection_too_many_is_closed_and_a_free_place_is_taken_again(
    server: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CONNECTIONS_MAX", 2)
    first, second = await connect(server), await connect(server)
    assert (await first.request("GET", HEALTH)).status == 200
    assert (await second.request("GET", HEALTH)).status == 200
    with capture_logs() as logs:
        assert await is_closed((await connect(server)).stream)
    assert [entry["event"] for entry in logs] == ["http connection refused"]
    assert (await first.request("GET", HEALTH)).status == 200
    await first.stream.aclose()
    await wait_all_tasks_blocked()
    assert await still_serves(server)
    await second.stream.aclose()


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\0" * 100,
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
        b"A" * 100_000,
        GET,
        GET + b"x: " + b"y" * 100_000 + b"\r\n\r\n",
        GET + b"upgrade: websocket\r\nconnection: upgrade\r\n\r\n",
        GET + b"upgrade: h2c\r\nhttp2-settings: AAAA\r\nconnection: upgrade\r\n\r\n",
        GET + b"upgrade: h2c\r\nhttp2-settings: !!!\r\nconnection: upgrade\r\n\r\n",
        b"PUT /admin/v2/scalable/public/default/x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n",
        b"PUT /admin/v2/scalable/public/default/x HTTP/1.1\r\nhost: a\r\ncontent-length: -5\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(range(256)) * 8,
        b"CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\nhost: [\r\n\r\n",
    ],
)
@pytest.mark.parametrize("hangs_up", [True, False])
async def test_a_malformed_request_costs_its_own_connection_and_no_other(
    server: Address, sent: bytes, hangs_up: bool
) -> None:
    other = await connect(server)
    with capture_logs():
        stream = await trio.open_tcp_stream(server.host, server.port)
        if sent:
            await stream.send_all(sent)
        if hangs_up:
            await stream.aclose()
        await wait_all_tasks_blocked()
    assert (await other.request("GET", HEALTH)).status == 200
    assert await still_serves(server)
    await stream.aclose()
    await other.stream.aclose()


async def test_a_connection_that_fails_says_so_in_the_log(server: Address) -> None:
    stream = await trio.open_tcp_stream(server.host, server.port)
    with capture_logs() as logs:
        await stream.send_all(GET + b"upgrade: h2c\r\nhttp2-settings: AAAA\r\nconnection: upgrade\r\n\r\n")
        assert await is_closed(stream)
        await wait_all_tasks_blocked()
    assert [(entry["event"], entry["causes"]) for entry in logs] == [
        ("http connection failed", ["InvalidFrameError('Invalid SETTINGS body')"])
    ]


async def test_a_fault_of_ours_answers_500_and_tells_the_log_alone(server: Address, topics: FakeTopics) -> None:
    topics.failure = RuntimeError("secret detail")
    with capture_logs() as logs:
        answer = await request(server, "GET", LAYOUT)
        await wait_all_tasks_blocked()
    assert answer.status == 500
    assert "secret" not in answer.reason
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [("http request failed", "error")]
    topics.failure = None
    assert await still_serves(server)


async def test_what_a_client_asked_for_goes_on_when_it_leaves(server: Address, topics: FakeTopics) -> None:
    topics.gate = trio.Event()
    connection = await connect(server)
    await connection.stream.send_all(f"PUT {LAYOUT} HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n".encode())
    await topics.waiting.wait()
    await connection.stream.aclose()
    await wait_all_tasks_blocked()
    with capture_logs() as logs:
        topics.gate.set()
        await wait_all_tasks_blocked()
    assert len(topics.layouts) == 1
    assert logs == []


async def test_half_a_body_creates_nothing_and_is_no_fault_of_ours(server: Address, topics: FakeTopics) -> None:
    stream = await trio.open_tcp_stream(server.host, server.port)
    with capture_logs() as logs:
        await stream.send_all(f"PUT {LAYOUT} HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n{{".encode())
        await wait_all_tasks_blocked()
        await stream.aclose()
        await wait_all_tasks_blocked()
    assert logs == []
    assert topics.layouts == {}
    assert await still_serves(server)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the system has no such option")
async def test_a_peer_that_reads_nothing_is_given_up_by_the_kernel(
    server: Address, listener: trio.SocketListener
) -> None:
    assert listener.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == module.USER_TIMEOUT_MS
    assert await still_serves(server)


async def test_no_header_says_what_software_answers(server: Address) -> None:
    answer = await request(server, "GET", HEALTH)
    assert "server" not in answer.headers
