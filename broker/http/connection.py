"""One HTTP/1.1 connection: h11 reads the bytes, an ASGI application answers, and one task does it all.

Nothing is read from the socket but what is needed next: a request's head, or a piece of its body when the application
asks for it. So a client that sends faster than it is served waits in its own socket, what it pipelines too. Every
wait for the client has a deadline; what the application does has none, as it is the broker's own work.

An application that answers for as long as its client listens asks `receive` whether it still does: once the body has
been read, that waits for the client to leave, or for this end to stop. Others are not told before they try to send:
what was asked for is done.

Left out on purpose: HTTP/2 and WebSockets, which no client of a broker's administration insists on. Encryption is not
this module's concern: any stream will do.
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
from broker.principal import ANONYMOUS
from storage.clock import wall_clock_ms

IDLE_SECONDS_MAX: Final = 10
"""How long a client may take to send a whole request head, from the moment it could."""
BODY_SECONDS_MAX: Final = 60
"""How long a client may take to send a request's body."""
SEND_SECONDS_MAX: Final = 30
"""How long a client may take to read one piece of an answer."""
HEAD_BYTES_MAX: Final = 16 * 1024
"""A request head that is longer and not complete yet is refused."""
LINGER_SECONDS_MAX: Final = 1
"""How long a refused client may go on sending, so that it gets to read why; and no more than LINGER_BYTES_MAX."""
LINGER_BYTES_MAX: Final = 1024 * 1024

_RECEIVE_BYTES: Final = 64 * 1024

log = structlog.get_logger(__name__)


class PeerGone(OSError):
    """The client has closed the connection or does not read; raised to an application that sends (ASGI 2.4)."""


class HttpConnection:
    """Answers one client's requests, one after another."""

    def __init__(self, application: ASGIApp, accepted: Accepted) -> None:
        self.client = accepted.client
        self.reached = accepted.reached
        self.principal = ANONYMOUS
        """Whom every request acts for; one that brings credentials is refused (`credentials.py`)."""
        self._application = application
        self._stream = accepted.stream
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._waiting: trio.CancelScope | None = None
        self._is_last = False
        self._is_unread = False
        """Whether a head was refused, so that nobody knows what follows it."""
        self._scope = trio.CancelScope()
        self._waits_since: float | None = None
        self._is_listened_to = False

    async def run(self) -> None:
        """Return when either side wants no more; whoever called closes the stream. Raises nothing a client causes."""
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
        """What may be evicted sorts first; None while the client waits for us.

        First who is waited for to send or to read, since when, by Trio's clock: a client that does so byte by byte is
        waited for all the while. Then who listens to an answer that goes on.
        """
        return None if self._waits_since is None else (self._is_listened_to, self._waits_since)

    @contextmanager
    def waits(self, since: float | None = None, *, is_listened_to: bool = False) -> Iterator[None]:
        """Count what happens in the block as waiting for the client, since then or from now on."""
        before = self._waits_since, self._is_listened_to
        self._waits_since = trio.current_time() if since is None else since
        self._is_listened_to = is_listened_to
        try:
            yield
        finally:
            self._waits_since, self._is_listened_to = before

    def evict(self) -> None:
        """Close the connection at once, for one that may have more use of its place."""
        self._scope.cancel()

    def stop(self) -> None:
        """Let the request that is being answered be the last; if there is none, `run` returns."""
        self._is_last = True
        self.stop_waiting()

    def stop_waiting(self) -> None:
        """Let who waits for the next request, or for the client to leave, wait no longer."""
        if self._waiting is not None:
            self._waiting.cancel()

    async def wait_left(self) -> None:
        """Return when the client has closed its side, or is not to be waited for (`stop`, `stop_waiting`)."""
        if self._is_last:
            return
        with trio.CancelScope() as self._waiting, self.waits(is_listened_to=True):
            try:
                if await self.next_event() is h11.PAUSED:
                    # It has sent its next request already, which is read when this one is answered.
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
                await self._refuse(error.error_status_hint, f"This is no HTTP request: {error}.")
                return None
            except AmbiguousRequest as error:
                self._is_last = self._is_unread = True
                await self._refuse(400, f"This request is refused: {error}.")
                return None
            finally:
                self._waiting = None
            return event if isinstance(event, h11.Request) else None
        return None

    async def _answer(self, request: h11.Request) -> None:
        if not request.target.startswith(b"/"):
            self._is_last = True
            await self._refuse(400, "A request names a path of this server.")
            return
        exchange = _Exchange(self, request)
        try:
            await self._application(exchange.scope, exchange.receive, exchange.send)
            if self._http.our_state in {h11.SEND_RESPONSE, h11.SEND_BODY}:
                raise RuntimeError("the application returned without a whole answer")
        except (PeerGone, ClientDisconnect):
            raise PeerGone from None
        except Exception:
            log.exception("http request failed", method=request.method.decode(), path=exchange.scope["path"])
            self._is_last = True
            if self._http.our_state is h11.SEND_RESPONSE:
                await self._refuse(500, "The broker failed to handle this request; its log says why.")

    async def _refuse(self, status_code: int, reason: str) -> None:
        answer = refusal(status_code, reason)
        head = self.response(answer.status_code, answer.raw_headers)
        await self.send(head, h11.Data(data=bytes(answer.body)), h11.EndOfMessage())

    def _skip_unread(self) -> None:
        # An application need not read what it does not use. What has not arrived by now ends the connection instead.
        if self._http.their_state is h11.SEND_BODY:
            try:
                while isinstance(self._http.next_event(), h11.Data):
                    pass
            except h11.RemoteProtocolError:
                return

    async def _linger(self) -> None:
        # A socket closed with bytes unread resets the connection, and the client loses the answer it did not read yet.
        received = 0
        with trio.move_on_after(LINGER_SECONDS_MAX):
            try:
                # A stream that encrypts cannot end one direction alone.
                if isinstance(self._stream, trio.abc.HalfCloseableStream):
                    await self._stream.send_eof()
                while received < LINGER_BYTES_MAX and (data := await self._stream.receive_some(_RECEIVE_BYTES)):
                    received += len(data)
            except trio.BrokenResourceError:
                return

    def response(self, status_code: int, headers: Sequence[tuple[bytes, bytes]]) -> h11.Response:
        """The head of an answer, with what every answer says."""
        every = [*headers, (b"date", formatdate(wall_clock_ms() / 1000, usegmt=True).encode())]
        if self._is_last:
            every.append((b"connection", b"close"))
        return h11.Response(status_code=status_code, headers=every)

    async def next_event(self) -> object:
        """What the client sent next, or h11.PAUSED when it is our turn.

        Raises:
            h11.RemoteProtocolError: it is no HTTP, or ends in the middle.
            AmbiguousRequest: it is a request's head, and not to be acted on.
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
        """Hand part of an answer to the socket, in one piece.

        Raises:
            PeerGone: the client takes no more.
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
    """One request and its answer, as ASGI has them."""

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
        """ASGI's: the next piece of the body; after it, that the client has left or the exchange is over."""
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
        """ASGI's: the head of the answer, then its body in pieces."""
        if message["type"] == "http.response.start":
            # Kept until there is a body, so that an application that fails in between can still be answered for.
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
    """A path by which a route is chosen: decoded, but for slashes within its parts."""
    return "/".join(unquote(part).replace("/", "%2F") for part in path.split("/"))
