"""One connection: valid and invalid HTTP, with a bound on every wait."""

import math
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.addresses import Address
from broker.http.application import build_application
from broker.http.connection import (
    BODY_SECONDS_MAX,
    HEAD_BYTES_MAX,
    IDLE_SECONDS_MAX,
    LINGER_BYTES_MAX,
    LINGER_SECONDS_MAX,
    SEND_SECONDS_MAX,
    HttpConnection,
)
from broker.http.listener import serve_http
from broker.listening import Accepted
from storage.metadata.memory import MemoryStore
from tests.support.any_stream import StreamPair, encrypted_pair, plain_pair
from tests.support.http import (
    HEALTH,
    LAYOUT,
    FakeCluster,
    FakeMonitor,
    FakeTopics,
    HttpClientConnection,
    connect,
    is_closed,
    read_all,
    request,
)

GET = b"GET / HTTP/1.1\r\nhost: localhost\r\n"
PUT = f"PUT {LAYOUT} HTTP/1.1\r\nhost: localhost\r\n".encode()


async def echo(request: Request) -> Response:
    """Answer with the body as it arrived."""
    return Response(await request.body(), headers={"x-pieces": request.headers.get("x-pieces", "")})


async def refuse_unread(_request: Request) -> Response:
    return Response(b"no", 409)


async def stream(_request: Request) -> Response:
    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b"one", b"two", b"", b"three"):
            yield piece

    return StreamingResponse(pieces())


async def bare(scope: Scope, receive: Receive, send: Send) -> None:
    """Applications that break ASGI's rules, one for each path."""
    head = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
    match scope["path"]:
        case "/silent":
            return
        case "/half":
            await send(head)
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
        case "/too-much":
            await send(head)
            await send({"type": "http.response.body", "body": b"xyz"})
        case "/head-only":
            await send(head)
        case "/late-fault":
            await send(head)
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            raise RuntimeError("secret detail")


async def tell_who(request: Request) -> Response:
    return Response(f"{request.client} {request.url.netloc} {request.state.principal.name}")


ECHOING = Starlette(
    routes=[
        Route("/", echo, methods=["GET", "PUT", "POST"]),
        Route("/unread", refuse_unread, methods=["PUT"]),
        Route("/stream", stream),
        Route("/who", tell_who),
    ]
)


@pytest.fixture
async def echoing(listener: trio.SocketListener, nursery: trio.Nursery) -> Address:
    address: Address = await nursery.start(serve_http, ECHOING, listener)
    return address


@pytest.fixture
async def misbehaving(listener: trio.SocketListener, nursery: trio.Nursery) -> Address:
    address: Address = await nursery.start(serve_http, bare, listener)
    return address


async def raw(server: Address, sent: bytes) -> bytes:
    """Send these bytes and the end of the stream, and return everything that the server sends."""
    stream = await trio.open_tcp_stream(server.host, server.port)
    async with stream:
        await stream.send_all(sent)
        await stream.send_eof()
        return await read_all(stream)


async def test_a_connection_carries_one_request_after_another(echoing: Address) -> None:
    connection = await connect(echoing)
    async with connection.stream:
        for number in range(50):
            answer = await connection.request("PUT", "/", body=str(number).encode())
            assert (answer.status, answer.body) == (200, str(number).encode())
            assert "connection" not in answer.headers


async def test_requests_sent_ahead_are_answered_in_order(echoing: Address) -> None:
    requests = [b"PUT / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n\r\n" + bytes([65 + i]) for i in range(20)]
    said = await raw(echoing, b"".join(requests))
    assert said.count(b"HTTP/1.1 200") == 20
    assert [part[:1] for part in said.split(b"\r\n\r\n")[1:]] == [bytes([65 + i]) for i in range(20)]


async def test_a_body_in_chunks_arrives_whole(echoing: Address) -> None:
    head = b"PUT / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    said = await raw(echoing, head + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
    assert said.endswith(b"\r\n\r\nabcde")


async def test_a_large_body_goes_both_ways(echoing: Address) -> None:
    body = bytes(range(256)) * 20_000
    stream = await trio.open_tcp_stream(echoing.host, echoing.port)
    head = f"PUT / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    async with stream:
        await stream.send_all(head + body)
        said = await read_all(stream)
    assert said.partition(b"\r\n\r\n")[2] == body


async def test_a_client_that_asks_first_is_told_to_go_on(echoing: Address) -> None:
    stream = await trio.open_tcp_stream(echoing.host, echoing.port)
    async with stream:
        await stream.send_all(b"PUT / HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n")
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 100")
        await stream.send_all(b"abc")
        assert (await stream.receive_some()).endswith(b"abc")


async def test_a_client_that_asks_first_may_be_refused_at_once(echoing: Address) -> None:
    stream = await trio.open_tcp_stream(echoing.host, echoing.port)
    async with stream:
        await stream.send_all(
            b"PUT /unread HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n"
        )
        said = await read_all(stream)
    assert said.startswith(b"HTTP/1.1 409")
    assert b"100" not in said


async def test_an_old_client_gets_an_answer_it_can_read(echoing: Address) -> None:
    said = await raw(echoing, b"GET /stream HTTP/1.0\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 200")
    assert b"chunked" not in said
    assert said.endswith(b"\r\n\r\nonetwothree")


async def test_an_answer_in_pieces_is_sent_in_chunks(echoing: Address) -> None:
    answer = await request(echoing, "GET", "/stream")
    assert (answer.body, answer.headers["transfer-encoding"]) == (b"onetwothree", "chunked")


async def test_a_head_is_the_answer_without_its_body(server: Address) -> None:
    connection = await connect(server)
    async with connection.stream:
        head = await connection.request("HEAD", HEALTH)
        assert (head.status, head.headers["content-length"], head.body) == (200, "2", b"")
        assert (await connection.request("GET", HEALTH)).body == b"ok"


async def test_a_small_body_nobody_reads_does_not_end_the_connection(echoing: Address) -> None:
    connection = await connect(echoing)
    async with connection.stream:
        assert (await connection.request("PUT", "/unread", body=b"small")).status == 409
        assert (await connection.request("PUT", "/", body=b"next")).body == b"next"


async def test_a_refused_client_reads_why_though_it_sent_more_than_was_read(echoing: Address) -> None:
    stream = await trio.open_tcp_stream(echoing.host, echoing.port)
    body = b"x" * (LINGER_BYTES_MAX // 2)
    async with stream:
        await stream.send_all(b"PUT /unread HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9999999\r\n\r\n" + body)
        said = await read_all(stream)
    assert said.endswith(b"\r\n\r\nno")


@pytest.mark.parametrize("pair", [plain_pair, encrypted_pair])
async def test_any_stream_is_served(pair: Callable[[], StreamPair], nursery: trio.Nursery) -> None:
    """Only the listener knows sockets. A client is answered, and then refused properly."""
    near, far = pair()
    accepted = Accepted(near, Address("192.0.2.1", 4321), Address("192.0.2.2", 8080))

    async def serve() -> None:
        async with near:
            await HttpConnection(ECHOING, accepted).run()

    nursery.start_soon(serve)
    async with far:
        connection = HttpClientConnection(far, "broker:8080")
        assert (await connection.request("PUT", "/", body=b"said")).body == b"said"
        told = await connection.request("GET", "/who")
        assert told.body == b"Address(host='192.0.2.1', port=4321) broker:8080 anonymous"
        answer = await connection.request("PUT", "/unread", body=None, headers={"content-length": "9999999"})
        assert answer.body == b"no"
        assert await read_all(far) == b""


async def test_a_refused_client_is_not_listened_to_for_long(
    echoing: Address, listener: trio.SocketListener, mock_clock: MockClock
) -> None:
    stream = await trio.open_tcp_stream(echoing.host, echoing.port)
    await stream.send_all(b"PUT /unread HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9999999\r\n\r\n")
    await wait_all_tasks_blocked()
    mock_clock.jump(LINGER_SECONDS_MAX)
    await wait_all_tasks_blocked()
    assert trio.lowlevel.current_statistics().seconds_to_next_deadline == math.inf
    await stream.send_all(b"x")
    await wait_all_tasks_blocked()
    with pytest.raises(trio.BrokenResourceError):
        await stream.send_all(b"x")
    await stream.aclose()


async def test_an_idle_connection_is_closed_and_leaves_no_timer_behind(server: Address, mock_clock: MockClock) -> None:
    connection = await connect(server)
    await connection.request("GET", HEALTH)
    await wait_all_tasks_blocked()
    assert trio.lowlevel.current_statistics().seconds_to_next_deadline == IDLE_SECONDS_MAX
    mock_clock.jump(IDLE_SECONDS_MAX)
    assert await is_closed(connection.stream)
    await wait_all_tasks_blocked()
    assert trio.lowlevel.current_statistics().seconds_to_next_deadline == math.inf


async def test_a_head_that_never_ends_is_not_waited_for(server: Address, mock_clock: MockClock) -> None:
    stream = await trio.open_tcp_stream(server.host, server.port)
    for piece in (b"GET / HTTP/1.1\r\n", b"host: localhost\r\n", b"x: y\r\n"):
        await stream.send_all(piece)
        await wait_all_tasks_blocked()
        mock_clock.jump(IDLE_SECONDS_MAX / 3)
    assert await is_closed(stream)


async def test_a_body_that_never_ends_is_not_waited_for(
    server: Address, topics: FakeTopics, mock_clock: MockClock
) -> None:
    stream = await trio.open_tcp_stream(server.host, server.port)
    await stream.send_all(PUT + b"content-length: 9\r\n\r\n")
    for _ in range(6):
        await stream.send_all(b" ")
        await wait_all_tasks_blocked()
        mock_clock.jump(BODY_SECONDS_MAX / 6)
    await wait_all_tasks_blocked()
    mock_clock.jump(LINGER_SECONDS_MAX)
    said = await read_all(stream)
    assert said.startswith(b"HTTP/1.1 400")
    assert b"ended before its body was complete" in said
    assert topics.layouts == {}
    await stream.aclose()


async def test_a_client_that_does_not_read_is_given_up(
    listener: trio.SocketListener, nursery: trio.Nursery, mock_clock: MockClock
) -> None:
    async def endless(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": b"x" * 1_000_000, "more_body": True})

    server: Address = await nursery.start(serve_http, endless, listener)
    stream = await trio.open_tcp_stream(server.host, server.port)
    with capture_logs() as logs:
        await stream.send_all(GET + b"\r\n")
        await wait_all_tasks_blocked()
        mock_clock.jump(SEND_SECONDS_MAX)
        assert await is_closed(stream)
        await wait_all_tasks_blocked()
    assert trio.lowlevel.current_statistics().seconds_to_next_deadline == math.inf
    assert logs == []


@pytest.mark.parametrize("path", ["/silent", "/head-only"])
async def test_an_application_that_says_nothing_is_answered_for(misbehaving: Address, path: str) -> None:
    with capture_logs() as logs:
        answer = await request(misbehaving, "GET", path)
    assert (answer.status, answer.headers["connection"]) == (500, "close")
    assert [entry["event"] for entry in logs] == ["http request failed"]


@pytest.mark.parametrize("path", ["/half", "/late-fault"])
async def test_an_answer_that_went_wrong_is_seen_to_be_incomplete(misbehaving: Address, path: str) -> None:
    with capture_logs() as logs:
        said = await raw(misbehaving, f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    head, _, body = said.partition(b"\r\n\r\n")
    assert b"content-length: 2" in head.lower()
    assert len(body) < 2
    assert b"secret" not in said
    assert [entry["event"] for entry in logs] == ["http request failed"]


async def test_an_answer_that_breaks_its_own_promise_is_not_sent(misbehaving: Address) -> None:
    with capture_logs() as logs:
        assert await raw(misbehaving, b"GET /too-much HTTP/1.1\r\nhost: localhost\r\n\r\n") == b""
    assert [entry["event"] for entry in logs] == ["http request failed"]


async def test_a_fault_of_ours_answers_500_and_tells_the_log_alone(server: Address, topics: FakeTopics) -> None:
    topics.failure = RuntimeError("secret detail")
    with capture_logs() as logs:
        answer = await request(server, "GET", LAYOUT)
        await wait_all_tasks_blocked()
    assert answer.status == 500
    assert "secret" not in answer.reason
    assert [(entry["event"], entry["path"], entry["log_level"]) for entry in logs] == [
        ("http request failed", LAYOUT, "error")
    ]
    topics.failure = None
    assert (await request(server, "GET", HEALTH)).status == 200


async def test_an_application_may_wait_for_its_client_to_leave(
    listener: trio.SocketListener, nursery: trio.Nursery
) -> None:
    """The request that the client sends meanwhile is not lost, and does not count as its leaving."""
    told: list[str] = []

    async def waiting(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] == "http.request":
            pass
        told.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"bye"})
        assert (await receive())["type"] == "http.disconnect"

    server: Address = await nursery.start(serve_http, waiting, listener)
    with capture_logs() as logs:
        stream = await trio.open_tcp_stream(server.host, server.port)
        async with stream:
            await stream.send_all(b"GET /first HTTP/1.1\r\nhost: localhost\r\n\r\n")
            await wait_all_tasks_blocked()
            await stream.send_all(b"GET /second HTTP/1.1\r\nhost: localhost\r\n\r\n")
            await wait_all_tasks_blocked()
            assert told == []
        async with await trio.open_tcp_stream(server.host, server.port) as other:
            await other.send_all(b"GET /third HTTP/1.1\r\nhost: localhost\r\n\r\n")
            await wait_all_tasks_blocked()
            assert told == []
            await other.send_eof()
            assert (await read_all(other)).endswith(b"\r\n3\r\nbye\r\n0\r\n\r\n")
    assert told == ["/third"]
    assert logs == []


async def test_after_its_answer_an_application_waits_for_nobody(
    listener: trio.SocketListener, nursery: trio.Nursery
) -> None:
    async def answering(_scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "http.request"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"3")]})
        await send({"type": "http.response.body", "body": b"bye"})
        assert (await receive())["type"] == "http.disconnect"

    server: Address = await nursery.start(serve_http, answering, listener)
    connection = await connect(server)
    async with connection.stream:
        for _ in range(2):
            assert (await connection.request("GET", "/")).body == b"bye"


async def test_what_a_client_asked_for_is_done_when_it_leaves(server: Address, topics: FakeTopics) -> None:
    topics.gate = trio.Event()
    connection = await connect(server)
    await connection.stream.send_all(PUT + b"content-length: 0\r\n\r\n")
    await topics.waiting.wait()
    await connection.stream.aclose()
    await wait_all_tasks_blocked()
    with capture_logs() as logs:
        topics.gate.set()
        await wait_all_tasks_blocked()
    assert len(topics.layouts) == 1
    assert logs == []


@pytest.mark.parametrize("half", [b"content-length: 9\r\n\r\n{", b"transfer-encoding: chunked\r\n\r\n5\r\nab"])
async def test_half_a_body_creates_nothing_and_is_no_fault_of_ours(
    server: Address, topics: FakeTopics, half: bytes
) -> None:
    with capture_logs() as logs:
        assert (await raw(server, PUT + half)).startswith(b"HTTP/1.1 400")
        stream = await trio.open_tcp_stream(server.host, server.port)
        await stream.send_all(PUT + half)
        await stream.aclose()
        await wait_all_tasks_blocked()
    assert logs == []
    assert topics.layouts == {}


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\0" * 100, b"400"),
        (b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03", b"400"),
        (b"A" * (HEAD_BYTES_MAX + 1), b"431"),
        (GET + b"x: " + b"y" * 10 * HEAD_BYTES_MAX + b"\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (GET + b"host: b\r\n\r\n", b"400"),
        (b"GET /\xff HTTP/1.1\r\nhost: localhost\r\n\r\n", b"400"),
        (PUT + b"transfer-encoding: chunked\r\n\r\nZZ\r\n", b"400"),
        (PUT + b"transfer-encoding: gzip\r\n\r\n", b"501"),
        (PUT + b"content-length: -5\r\n\r\n", b"400"),
        (PUT + b"content-length: 1\r\ncontent-length: 2\r\n\r\n", b"400"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(range(256)) * 8, b"400"),
        (b"CONNECT a:1 HTTP/1.1\r\nhost: localhost\r\n\r\n", b"400"),
        (b"OPTIONS * HTTP/1.1\r\nhost: localhost\r\n\r\n", b"400"),
        (b"GET http://[ HTTP/1.1\r\nhost: [\r\n\r\n", b"400"),
        (b"GET // HTTP/1.1\r\nhost: [\r\n\r\n", b"403"),
        # What these ask to switch to is not spoken here, so they are answered as they stand.
        (GET + b"upgrade: websocket\r\nconnection: upgrade\r\n\r\n", b"404"),
        (GET + b"upgrade: h2c\r\nhttp2-settings: AAAA\r\nconnection: upgrade, http2-settings\r\n\r\n", b"404"),
    ],
)
async def test_whatever_is_sent_gets_an_answer_and_costs_no_other_connection(
    server: Address, topics: FakeTopics, sent: bytes, status: bytes
) -> None:
    other = await connect(server)
    with capture_logs() as logs:
        assert (await raw(server, sent)).startswith(b"HTTP/1.1 " + status)
        stream = await trio.open_tcp_stream(server.host, server.port)
        await stream.send_all(sent)
        await stream.aclose()
        await wait_all_tasks_blocked()
    # The operator hears of TLS, because a client was given the wrong address.
    assert [entry["event"] for entry in logs] == ["client of another protocol"] * 2 * sent.startswith(b"\x16\x03")
    assert topics.layouts == {}
    assert (await other.request("GET", HEALTH)).status == 200
    await other.stream.aclose()


FRAGMENTS = [
    GET,
    PUT,
    b"\r\n",
    b"\r\n\r\n",
    b"content-length: 3\r\n",
    b"transfer-encoding: chunked\r\n",
    b"connection: close\r\n",
    b"expect: 100-continue\r\n",
    b"upgrade: h2c\r\nconnection: upgrade\r\n",
    b"3\r\n{ }\r\n",
    b"0\r\n\r\n",
    b"{ }",
    b"GET / HTTP/1.0\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]


@given(st.lists(st.sampled_from(FRAGMENTS) | st.binary(max_size=10), max_size=12))
async def test_no_bytes_make_a_connection_fail_or_stay(pieces: list[bytes]) -> None:
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    stop = trio.Event()
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            application = build_application(FakeTopics(), FakeMonitor(), MemoryStore(), FakeCluster())
            server: Address = await nursery.start(partial(serve_http, application, listener, stop=stop))
            client = await trio.open_tcp_stream(server.host, server.port)
            async with client:
                with suppress(trio.BrokenResourceError):
                    for piece in pieces:
                        await client.send_all(piece)
                    await client.send_eof()
                    said = await read_all(client)
                    assert said == b"" or said.startswith(b"HTTP/1.1 ")
            # With nothing left to answer, stopping waits for nobody.
            stop.set()
    assert logs == []


async def test_answers_say_when_and_not_by_what(server: Address) -> None:
    answer = await request(server, "GET", HEALTH)
    assert answer.headers["date"].endswith("GMT")
    assert "server" not in answer.headers
