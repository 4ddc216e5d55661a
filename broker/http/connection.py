"""One HTTP/1.1 connection: h11 parses the bytes, an ASGI application answers, and one task does both.

Only what is needed next is read from the socket: a request's head, or a piece of its body when the application asks for
it. So a client that sends or pipelines faster than it is served gets backpressure. Every wait for the client has a
deadline. The application's own work has none, because it is the broker's work.

Some applications stream for as long as their client listens. They call `receive` to learn when it leaves: after the
body, `receive` waits until the client leaves or this side stops. Other applications learn it only when they send,
because a requested change is completed anyway.

Two things are left out on purpose. HTTP/2 and WebSockets: no administration client needs them. Encryption: this module
takes any stream.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from email.utils import formatdate
from typing import Final
from urllib.parse import unquote

import h11
import structlog
import trio
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Scope

from broker.http.framing import AmbiguousRequest, check_head
from broker.http.refusals import refusal
from broker.listening import Accepted
from broker.ports import NO_PORTS, Ports
from broker.principal import ANONYMOUS
from storage.clock import wall_clock_ms
from tidewire.wire.protocols import SpokenProtocol, protocol_of

IDLE_SECONDS_MAX: Final = 10
"""How long a client may take to send a whole request head, from the moment when it may send one."""
BODY_SECONDS_MAX: Final = 60
"""How long a client may take to send a request's body."""
SEND_SECONDS_MAX: Final = 30
"""How long a client may take to read one piece of a response."""
HEAD_BYTES_MAX: Final = 16 * 1024
"""A longer request head is refused."""
LINGER_SECONDS_MAX: Final = 1
"""How long a refused client may continue to send, at most LINGER_BYTES_MAX, so that it can read the refusal."""
LINGER_BYTES_MAX: Final = 1024 * 1024

_RECEIVE_BYTES: Final = 64 * 1024

log = structlog.get_logger(__name__)


class PeerGone(OSError):
    """The client has closed the connection or does not read. An application gets it when it sends (ASGI 2.4)."""


class HttpConnection:
    """Answers one client's requests, one after another."""

    def __init__(self, application: ASGIApp, accepted: Accepted, ports: Ports = NO_PORTS) -> None:
        self.client = accepted.client
        self.reached = accepted.reached
        self.principal = ANONYMOUS
        """The identity of every request. A request with credentials is refused (`credentials.py`)."""
        self._application = application
        self._ports = ports
        self._stream = accepted.stream
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._waiting: trio.CancelScope | None = None
        self._is_last = False
        self._is_unread = False
        """Whether a head was refused, so that the meaning of the following bytes is unknown."""
        self._scope = trio.CancelScope()
        self._waits_since: float | None = None
        self._is_listened_to = False

    async def run(self) -> None:
        """Serve until either side ends the connection. The caller closes the stream. Clients cannot make this raise."""
        with self._scope:
            try:
                await self._answer_all()
            except PeerGone:
                return

    async def _answer_all(self) -> None:
        while (request := await self._next_request()) is not None:
            await self._answer(request)
            self._skip_unread()
            if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                break
            self._http.start_next_cycle()
        if self._is_unread or self._http.their_state in {h11.SEND_BODY, h11.ERROR}:
            await self._linger()

    @property
    def idleness(self) -> tuple[bool, float] | None:
        """A sort key for eviction, smallest first; None while the client waits for the broker.

        First come connections that wait for their client to send or read, the longest wait first, by Trio's clock. A
        client that sends or reads byte by byte counts as one long wait. Then come clients that listen to a stream.
        """
        return None if self._waits_since is None else (self._is_listened_to, self._waits_since)

    @contextmanager
    def waits(self, since: float | None = None, *, is_listened_to: bool = False) -> Iterator[None]:
        """Count the block as a wait for the client, since `since` or from now on."""
        before = self._waits_since, self._is_listened_to
        self._waits_since = trio.current_time() if since is None else since
        self._is_listened_to = is_listened_to
        try:
            yield
        finally:
            self._waits_since, self._is_listened_to = before

    def evict(self) -> None:
        """Close the connection at once, to make room for another one."""
        self._scope.cancel()

    def stop(self) -> None:
        """End after the request that is being answered; if there is none, `run` returns."""
        self._is_last = True
        self.stop_waiting()

    def stop_waiting(self) -> None:
        """End a wait for the next request, or for the client to leave."""
        if self._waiting is not None:
            self._waiting.cancel()

    async def wait_left(self) -> None:
        """Wait until the client has closed its side, or until `stop` or `stop_waiting` is called."""
        if self._is_last:
            return
        with trio.CancelScope() as self._waiting, self.waits(is_listened_to=True):
            try:
                if await self.next_event() is h11.PAUSED:
                    # The client has already sent its next request. It is read after this answer.
                    await trio.sleep_forever()
            except (h11.RemoteProtocolError, AmbiguousRequest):
                return
            finally:
                self._waiting = None

    async def _next_request(self) -> h11.Request | None:
        if self._is_last:
            return None
        with trio.move_on_after(IDLE_SECONDS_MAX) as self._waiting, self.waits():
            try:
                event = await self.next_event()
            except h11.RemoteProtocolError as error:
                self._is_last = True
                reason = f"The bytes are not an HTTP/1.1 request: {error}. The broker closes the connection."
                spoken = protocol_of(self._http.trailing_data[0])
                if spoken is not None and spoken is not SpokenProtocol.HTTP:
                    reason = self._ports.refusal(spoken, SpokenProtocol.HTTP)
                    log.warning("client of another protocol", client=str(self.client), reason=reason)
                await self._refuse(error.error_status_hint, reason)
                return None
            except AmbiguousRequest as error:
                self._is_last = self._is_unread = True
                await self._refuse(400, f"The request is ambiguous: {error}. The broker closes the connection.")
                return None
            finally:
                self._waiting = None
            return event if isinstance(event, h11.Request) else None
        return None

    async def _answer(self, request: h11.Request) -> None:
        if not request.target.startswith(b"/"):
            self._is_last = True
            await self._refuse(400, "The request's target must be a path that begins with /. This server is no proxy.")
            return
        exchange = _Exchange(self, request)
        try:
            await self._application(exchange.scope, exchange.receive, exchange.send)
            if self._http.our_state in {h11.SEND_RESPONSE, h11.SEND_BODY}:
                raise RuntimeError("the application returned before its response was complete")
        except (PeerGone, ClientDisconnect):
            raise PeerGone from None
        except Exception:
            log.exception("http request failed", method=request.method.decode(), path=exchange.scope["path"])
            self._is_last = True
            if self._http.our_state is h11.SEND_RESPONSE:
                await self._refuse(500, "The broker failed to handle this request. Its log says why.")

    async def _refuse(self, status_code: int, reason: str) -> None:
        answer = refusal(status_code, reason)
        head = self.response(answer.status_code, answer.raw_headers)
        await self.send(head, h11.Data(data=bytes(answer.body)), h11.EndOfMessage())

    def _skip_unread(self) -> None:
        # An application need not read the whole body. If the rest has not arrived yet, the connection ends instead.
        if self._http.their_state is h11.SEND_BODY:
            try:
                while isinstance(self._http.next_event(), h11.Data):
                    pass
            except h11.RemoteProtocolError:
                return

    async def _linger(self) -> None:
        # Closing a socket with unread bytes resets the connection, and the client may lose the answer.
        received = 0
        with trio.move_on_after(LINGER_SECONDS_MAX):
            try:
                # A TLS stream cannot close one direction alone.
                if isinstance(self._stream, trio.abc.HalfCloseableStream):
                    await self._stream.send_eof()
                while received < LINGER_BYTES_MAX and (data := await self._stream.receive_some(_RECEIVE_BYTES)):
                    received += len(data)
            except trio.BrokenResourceError:
                return

    def response(self, status_code: int, headers: Sequence[tuple[bytes, bytes]]) -> h11.Response:
        """Make the head of a response, with the headers that every response has."""
        every = [*headers, (b"date", formatdate(wall_clock_ms() / 1000, usegmt=True).encode())]
        if self._is_last:
            every.append((b"connection", b"close"))
        return h11.Response(status_code=status_code, headers=every)

    async def next_event(self) -> object:
        """Return the client's next event, or h11.PAUSED when the broker must answer first.

        Raises:
            h11.RemoteProtocolError: the bytes are not HTTP, or they end in the middle.
            AmbiguousRequest: the request's head is ambiguous, so it must not be acted on.
        """
        while (event := self._parsed()) is h11.NEED_DATA:
            if self._http.they_are_waiting_for_100_continue:
                await self.send(h11.InformationalResponse(status_code=100, headers=[]))
            try:
                data = await self._stream.receive_some(_RECEIVE_BYTES)
            except trio.BrokenResourceError:
                data = b""
            self._http.receive_data(bytes(data))
        return event

    def _parsed(self) -> object:
        if self._http.their_state is h11.IDLE:
            check_head(self._http.trailing_data[0])
        return self._http.next_event()

    async def send(self, *events: h11.Event) -> None:
        """Write part of a response to the socket, in one piece.

        Raises:
            PeerGone: the client has left, or does not read.
            h11.LocalProtocolError: the application broke HTTP's rules.
        """
        data = b"".join(self._http.send(event) or b"" for event in events)
        if not data:
            return
        with trio.move_on_after(SEND_SECONDS_MAX), self.waits():
            try:
                await self._stream.send_all(data)
            except trio.BrokenResourceError:
                raise PeerGone from None
            return
        raise PeerGone


class _Exchange:
    """One request and its response, in the terms of ASGI."""

    def __init__(self, connection: HttpConnection, request: h11.Request) -> None:
        path, _, query_string = request.target.partition(b"?")
        self.scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": request.http_version.decode(),
            "method": request.method.decode(),
            "scheme": "http",
            "path": _decoded(path.decode()),
            "raw_path": path,
            "query_string": query_string,
            "root_path": "",
            "headers": list(request.headers),
            "client": tuple(connection.client),
            "server": tuple(connection.reached),
            "state": {"principal": connection.principal},
        }
        self._connection = connection
        self._has_body = self.scope["method"] != "HEAD"
        self._began = trio.current_time()
        self._body_deadline = self._began + BODY_SECONDS_MAX
        self._body_ended = False
        self._answered = False
        self._head: h11.Response | None = None

    async def receive(self) -> Message:
        """ASGI's `receive`: the next piece of the body, and after it the end of the exchange or of the client."""
        if self._body_ended:
            if not self._answered:
                await self._connection.wait_left()
            return {"type": "http.disconnect"}
        with trio.move_on_at(self._body_deadline), self._connection.waits(self._began):
            try:
                event = await self._connection.next_event()
            except h11.RemoteProtocolError:
                return {"type": "http.disconnect"}
            if isinstance(event, h11.Data):
                return {"type": "http.request", "body": bytes(event.data), "more_body": True}
            self._body_ended = True
            return {"type": "http.request", "body": b"", "more_body": False}
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """ASGI's `send`: the head of the response, then its body in pieces."""
        if message["type"] == "http.response.start":
            # The head waits for the body. If the application fails in between, a 500 can still be sent.
            self._head = self._connection.response(message["status"], list(message.get("headers", ())))
            return
        events: list[h11.Event] = []
        if self._head is not None:
            events.append(self._head)
            self._head = None
        body = message.get("body", b"")
        if body and self._has_body:
            events.append(h11.Data(data=body))
        is_end = not message.get("more_body", False)
        if is_end:
            events.append(h11.EndOfMessage())
        await self._connection.send(*events)
        if is_end:
            self._answered = True
            self._connection.stop_waiting()


def _decoded(path: str) -> str:
    """Return the path that selects a route: decoded, except for encoded slashes."""
    return "/".join(unquote(part).replace("/", "%2F") for part in path.split("/"))
