"""The listener: where it listens, how many it serves, and how it stops."""

from functools import partial

import pytest
import trio
from starlette.types import Receive, Scope, Send
from structlog.testing import capture_logs
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from broker.addresses import Address
from broker.http import listener as module
from broker.http.application import build_application
from broker.http.connection import HttpConnection
from broker.http.listener import STOP_SECONDS_MAX, serve_http
from broker.listening import Accepted
from storage.metadata.memory import MemoryStore
from tests.support.http import (
    HEALTH,
    LAYOUT,
    FakeCluster,
    FakeMonitor,
    FakeTopics,
    connect,
    is_closed,
    read_all,
    request,
)


async def test_the_address_says_the_port_that_was_picked(server: Address, listener: trio.SocketListener) -> None:
    assert server == Address("127.0.0.1", listener.socket.getsockname()[1])
    assert server.port != 0


async def test_ipv6_addresses_are_told_too(topics: FakeTopics, monitor: FakeMonitor, nursery: trio.Nursery) -> None:
    try:
        listeners = await trio.open_tcp_listeners(0, host="::1")
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    server: Address = await nursery.start(
        serve_http, build_application(topics, monitor, MemoryStore(), FakeCluster()), listeners[0]
    )
    assert str(server) == f"[::1]:{server.port}"
    assert (await request(server, "GET", HEALTH)).status == 200


async def test_one_connection_too_many_takes_the_place_of_the_client_that_is_waited_for_longest(
    server: Address, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    """E12: however many clients send slowly, the others are served, and a newer client keeps its place."""
    monkeypatch.setattr(module, "HTTP_CONNECTIONS_MAX", 2)
    slow = []
    for _ in range(2):
        slow.append(await connect(server))
        await slow[-1].stream.send_all(b"GET / HT")
        await wait_all_tasks_blocked(0.01)
        mock_clock.jump(1)
    # A byte now and then makes it no younger.
    await slow[0].stream.send_all(b"T")
    await wait_all_tasks_blocked(0.01)
    assert (await request(server, "GET", HEALTH)).status == 200
    await slow[1].stream.send_all(f"TP/1.1\r\nHost: {server}\r\n\r\n".encode())
    assert (await slow[1].stream.receive_some()).startswith(b"HTTP/1.1 404")
    assert await is_closed(slow[0].stream)
    assert (await request(server, "GET", HEALTH)).status == 200
    await slow[1].stream.aclose()


async def test_an_evicted_client_gives_its_place_up_at_once() -> None:
    """E12: two connections at the same moment evict two clients, not the same one twice."""
    application = build_application(FakeTopics(), FakeMonitor(), MemoryStore(), FakeCluster())
    accepted = Accepted(memory_stream_pair()[0], Address("127.0.0.1", 1), Address("127.0.0.1", 2))
    late, early, listening = [HttpConnection(application, accepted) for _ in range(3)]
    places = {late, early, listening}
    with late.waits(2), early.waits(1), listening.waits(0, is_listened_to=True):
        for evicted in (early, late, listening):
            assert module._evict(places)
            assert evicted not in places
    assert not module._evict({early}), "nobody is waited for"


async def test_many_slow_clients_do_not_starve_health_checks(server: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    """E12: 30 slow clients compete for 10 places."""
    monkeypatch.setattr(module, "HTTP_CONNECTIONS_MAX", 10)
    slow = []
    for _ in range(30):
        client = await connect(server)
        await client.stream.send_all(b"GET /admin/v2/brokers/health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
        await wait_all_tasks_blocked()
        slow.append(client)
        assert (await request(server, "GET", HEALTH)).status == 200
    for client in slow:
        await client.stream.aclose()


async def test_a_connection_is_refused_while_every_place_is_being_answered(
    listener: trio.SocketListener, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    """E12: a request that the broker works on keeps its place."""
    monkeypatch.setattr(module, "HTTP_CONNECTIONS_MAX", 1)
    started, go = trio.Event(), trio.Event()

    async def work(_scope: Scope, _receive: Receive, send: Send) -> None:
        started.set()
        await go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    server: Address = await nursery.start(serve_http, work, listener)
    busy = await connect(server)
    await busy.stream.send_all(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    await started.wait()
    with capture_logs() as logs:
        assert await is_closed((await connect(server)).stream)
    assert [entry["event"] for entry in logs] == ["http connection refused: too many are open"]
    go.set()
    assert b"200" in await busy.stream.receive_some(100)
    await busy.stream.aclose()


async def test_clients_that_come_and_go_leave_their_places_at_once(
    server: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HTTP_CONNECTIONS_MAX", 2)
    for _ in range(20):
        assert (await request(server, "GET", HEALTH)).status == 200
        await wait_all_tasks_blocked()


class Stoppable:
    """A server that a test can stop."""

    def __init__(self, topics: FakeTopics, monitor: FakeMonitor) -> None:
        self.stop = trio.Event()
        self.stopped = trio.Event()
        self._application = build_application(topics, monitor, MemoryStore(), FakeCluster())

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
    half_a_request = await connect(server)
    await half_a_request.stream.send_all(b"GET / HTT")
    stoppable.stop.set()
    await stoppable.stopped.wait()
    assert mock_clock.current_time() == 0
    assert await is_closed(connection.stream)
    assert await is_closed(unused.stream)
    assert await is_closed(half_a_request.stream)
    with pytest.raises(OSError, match="connect"):
        await connect(server)


async def test_stopping_waits_for_a_request_that_is_being_answered(
    stoppable: Stoppable, topics: FakeTopics, listener: trio.SocketListener, nursery: trio.Nursery
) -> None:
    server = await stoppable.start(nursery, listener)
    topics.gate = trio.Event()
    connection = await connect(server)
    async with trio.open_nursery() as asking:

        async def ask() -> None:
            answer = await connection.request("PUT", LAYOUT)
            assert (answer.status, answer.headers["connection"]) == (204, "close")

        asking.start_soon(ask)
        await topics.waiting.wait()
        stoppable.stop.set()
        await wait_all_tasks_blocked()
        assert not stoppable.stopped.is_set()
        topics.gate.set()
    await stoppable.stopped.wait()
    assert len(topics.layouts) == 1
    assert await is_closed(connection.stream)


async def test_stopping_ends_a_connection_whose_answer_had_begun(
    listener: trio.SocketListener, mock_clock: MockClock
) -> None:
    begun, gate, stop = trio.Event(), trio.Event(), trio.Event()

    async def in_two_pieces(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        begun.set()
        await gate.wait()
        await send({"type": "http.response.body", "body": b"b"})

    async with trio.open_nursery() as nursery:
        server: Address = await nursery.start(partial(serve_http, in_two_pieces, listener, stop=stop))
        connection = await connect(server)
        async with connection.stream:
            await connection.stream.send_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
            await begun.wait()
            stop.set()
            await wait_all_tasks_blocked()
            gate.set()
            # The answer could no longer say that it is the last; the connection ends all the same.
            assert (await read_all(connection.stream)).endswith(b"ab")
    assert mock_clock.current_time() == 0


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
    await connection.stream.send_all(f"GET {LAYOUT} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    await topics.waiting.wait()
    stoppable.stop.set()
    await wait_all_tasks_blocked()
    assert not stoppable.stopped.is_set()
    mock_clock.jump(STOP_SECONDS_MAX)
    await stoppable.stopped.wait()
    assert await is_closed(connection.stream)


async def endless(_scope: Scope, _receive: Receive, send: Send) -> None:
    """An application whose answer fills all buffers between it and a client that does not read."""
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
        await stream.send_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await wait_all_tasks_blocked()
        stop.set()
        await wait_all_tasks_blocked()
        assert await stream.receive_some() != b""
        mock_clock.jump(STOP_SECONDS_MAX)
    assert await is_closed(stream)


async def test_cancelling_ends_everything_at_once(
    topics: FakeTopics, monitor: FakeMonitor, listener: trio.SocketListener, mock_clock: MockClock
) -> None:
    topics.gate = trio.Event()
    async with trio.open_nursery() as nursery:
        server: Address = await nursery.start(
            serve_http, build_application(topics, monitor, MemoryStore(), FakeCluster()), listener
        )
        idle, busy = await connect(server), await connect(server)
        await busy.stream.send_all(f"GET {LAYOUT} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        await topics.waiting.wait()
        nursery.cancel_scope.cancel()
    assert mock_clock.current_time() == 0
    assert await is_closed(idle.stream)
    assert await is_closed(busy.stream)
    assert listener.socket.fileno() == -1
