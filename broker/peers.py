"""Requests from this broker to other brokers of its cluster, over their HTTP listeners.

Each request has its own connection. It says that another broker sends it (FORWARDED), so the other broker does the work
itself or refuses: no request goes in a circle.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final
from urllib.parse import urlsplit

import h11
import orjson
import trio

from broker.administration_contract import NextPiece, PeerAnswer
from broker.cluster.members import Members
from broker.errors import BrokerError

FORWARDED: Final = "tidewire-forwarded"
"""The header that names the broker which sends a request on behalf of a client."""
CONNECT_SECONDS_MAX: Final = 2.0
ANSWER_SECONDS_MAX: Final = 60.0
"""How long another broker may take. To drain one takes as long as its topics take."""
ANSWER_BYTES_MAX: Final = 1024 * 1024
"""The largest answer that a broker uses. Instead of a larger one, the caller gets a refusal that says so."""

PASSED_ON_BYTES_MAX: Final = 8 * 1024 * 1024
"""The largest answer that is passed on to a client: a whole message, or a page of them."""

_LATER: Final = (
    "If its process has ended, another broker takes over when you ask again. If it hangs, another one takes over when "
    "its session ends."
)
_WAS_NOT_ASKED: Final = f"It was not asked, so nothing has changed. Try again in a moment. {_LATER}"
_WAS_ASKED: Final = f"It may have done what it was asked. See whether that is done. Otherwise try again. {_LATER}"
_RECEIVE_BYTES: Final = 64 * 1024
_LOST: Final = (OSError, trio.TooSlowError, trio.BrokenResourceError, h11.RemoteProtocolError)
_REFUSED: Final = 400
_BAD_GATEWAY: Final = 502


class PeerSilent(BrokerError):
    """Another broker did not answer. Unless `definite`, it may have done what it was asked."""

    retriable = True

    def __init__(self, what: str, *, was_asked: bool) -> None:
        """`what` is a sentence about that broker; `was_asked` says whether the request may have reached it."""
        super().__init__(f"{what} {_WAS_ASKED if was_asked else _WAS_NOT_ASKED}")
        self.definite = not was_asked


class PeerRefused(BrokerError):
    """Another broker refused a request; the text is its reason."""

    def __init__(self, reason: str, status_code: int) -> None:
        super().__init__(reason)
        self.status_code = status_code


class _AnswerTooLong(BrokerError):
    """The answer has more bytes than the caller takes."""


class Peers:
    """The other brokers, as `members` knows them."""

    def __init__(self, members: Members, *, me: str) -> None:
        """Set up; `me` is the id of this broker."""
        self._members = members
        self._me = me

    async def request(self, broker: str, method: str, target: str, content: object = None) -> Any:  # noqa: ANN401 - JSON; each caller says what it expects
        """Ask the broker with this id, with `content` as JSON. Return the JSON that it answers, if any.

        When this returns, the broker has done what it was asked.

        Raises:
            PeerSilent: it did not answer, or it does not run.
            PeerRefused: it refused.
        """
        answer = await self.ask(broker, method, target, orjson.dumps(content))
        if answer.status_code >= _REFUSED:
            raise PeerRefused(_reason(broker, answer), answer.status_code)
        try:
            return orjson.loads(answer.body) if answer.body else None
        except orjson.JSONDecodeError as malformed:
            # Something else listens at the address of a broker that has ended.
            raise PeerSilent(
                f"Broker {broker} did not answer: what listens at its address sends no JSON.", was_asked=True
            ) from malformed

    async def ask_all(
        self, target: str, *, seconds_max: float, bytes_max: int = ANSWER_BYTES_MAX
    ) -> dict[str, PeerAnswer | None]:
        """Send `GET target` to all other brokers at once. Return their answers by id; None for silence."""
        answers: dict[str, PeerAnswer | None] = {broker: None for broker in self._members.live if broker != self._me}

        async def ask(broker: str) -> None:
            with suppress(PeerSilent):
                answers[broker] = await self.ask(broker, "GET", target, b"", bytes_max=bytes_max)

        with trio.move_on_after(seconds_max):
            async with trio.open_nursery() as nursery:
                for broker in tuple(answers):
                    nursery.start_soon(ask, broker)
        return answers

    async def ask(
        self, broker: str, method: str, target: str, body: bytes, *, bytes_max: int = ANSWER_BYTES_MAX
    ) -> PeerAnswer:
        """Ask the broker with this id, with `body` as it is. Return what it answered, a refusal too.

        If its answer is too long to pass on, return a refusal that says so.

        Raises:
            PeerSilent: it did not answer, or it does not run.
        """
        stream, http_url = await self._connect(broker)
        try:
            async with stream:
                with trio.fail_after(ANSWER_SECONDS_MAX):
                    connection = h11.Connection(h11.CLIENT)
                    await stream.send_all(self._request(connection, urlsplit(http_url).netloc, method, target, body))
                    return await _read(connection, stream, bytes_max)
        except _AnswerTooLong:
            reason = (
                f"Broker {broker} answered, but its answer has more than {bytes_max:,} bytes, so it was not "
                f"passed on. Ask that broker itself, at {http_url}."
            )
            return PeerAnswer(_BAD_GATEWAY, orjson.dumps({"reason": reason}))
        except _LOST as failure:
            raise PeerSilent(
                f"Broker {broker} at {http_url} did not answer: {_reason_of(failure)}.", was_asked=True
            ) from failure

    @asynccontextmanager
    async def follow(self, broker: str, target: str) -> AsyncIterator[NextPiece]:
        """Send `GET target` for a stream of JSON lines. Yield a function that waits for the next of its lines.

        The function returns None at the end of the stream. Each line is at most ANSWER_BYTES_MAX long.

        Raises:
            PeerSilent: it did not answer, it refused, or the connection was lost. The function raises it too.
        """
        stream, http_url = await self._connect(broker)
        async with stream:
            connection = h11.Connection(h11.CLIENT)
            received = bytearray()

            async def next_line() -> bytes | None:
                try:
                    while b"\n" not in received:
                        if len(received) > ANSWER_BYTES_MAX:
                            raise h11.RemoteProtocolError(f"it sends a line of more than {ANSWER_BYTES_MAX:,} bytes")
                        data = await _next_data(connection, stream)
                        if data is None:
                            return None
                        received.extend(data)
                except _LOST as failure:
                    raise PeerSilent(
                        f"Broker {broker} at {http_url} sends no more: {_reason_of(failure)}.", was_asked=False
                    ) from failure
                line, _, rest = bytes(received).partition(b"\n")
                received[:] = rest
                return line

            try:
                with trio.fail_after(ANSWER_SECONDS_MAX):
                    await stream.send_all(self._request(connection, urlsplit(http_url).netloc, "GET", target, b""))
            except _LOST as failure:
                raise PeerSilent(
                    f"Broker {broker} at {http_url} did not answer: {_reason_of(failure)}.", was_asked=False
                ) from failure
            yield next_line

    async def _connect(self, broker: str) -> tuple[trio.SocketStream, str]:
        member = self._members.live.get(broker)
        if member is None:
            others = ", ".join(sorted(self._members.live))
            raise PeerSilent(f"Broker {broker} does not run. These brokers run: {others}.", was_asked=False)
        if member.http_url is None:
            raise PeerSilent(f"The HTTP address of broker {broker} is not known.", was_asked=False)
        parts = urlsplit(member.http_url)
        assert parts.hostname is not None, "a registration has a whole URL"
        try:
            with trio.fail_after(CONNECT_SECONDS_MAX):
                return await trio.open_tcp_stream(parts.hostname, parts.port or 80), member.http_url
        except (OSError, trio.TooSlowError) as failure:
            raise PeerSilent(
                f"Broker {broker} at {member.http_url} cannot be reached: {_reason_of(failure)}.", was_asked=False
            ) from failure

    def _request(self, connection: h11.Connection, host: str, method: str, target: str, body: bytes) -> bytes:
        headers = [
            ("host", host),
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            (FORWARDED, self._me),
            ("connection", "close"),
        ]
        head = connection.send(h11.Request(method=method, target=target, headers=headers))
        data = connection.send(h11.Data(data=body))
        end = connection.send(h11.EndOfMessage())
        return b"".join(filter(None, (head, data, end)))


async def _next_data(connection: h11.Connection, stream: trio.SocketStream) -> bytes | None:
    """Return the next piece of a successful answer's body; None at its end."""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(bytes(await stream.receive_some(_RECEIVE_BYTES)))
        elif isinstance(event, h11.Response):
            if event.status_code >= _REFUSED:
                raise h11.RemoteProtocolError(f"it refused with the status {event.status_code}")
        elif isinstance(event, h11.Data):
            return bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            return None
        elif isinstance(event, h11.ConnectionClosed):
            raise h11.RemoteProtocolError("it closed the connection")


async def _read(connection: h11.Connection, stream: trio.SocketStream, bytes_max: int) -> PeerAnswer:
    status_code, body = 0, bytearray()
    headers: tuple[tuple[bytes, bytes], ...] = ()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(bytes(await stream.receive_some(_RECEIVE_BYTES)))
        elif isinstance(event, h11.Response):
            status_code = event.status_code
            headers = tuple((name, value) for name, value in event.headers.raw_items() if _is_passed_on(name.lower()))
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > bytes_max:
                raise _AnswerTooLong
        elif isinstance(event, h11.EndOfMessage):
            return PeerAnswer(status_code, bytes(body), headers)
        elif isinstance(event, h11.ConnectionClosed):
            raise h11.RemoteProtocolError("it closed the connection")


def _is_passed_on(name: bytes) -> bool:
    return name == b"content-type" or name.startswith((b"x-pulsar-", b"x-tidewire-"))


def _reason_of(failure: Exception) -> str:
    return str(failure) or "it took too long"


def _reason(broker: str, answer: PeerAnswer) -> str:
    try:
        return str(orjson.loads(answer.body)["reason"])
    except (KeyError, TypeError, ValueError):
        return f"Broker {broker} answered with the status {answer.status_code}. Its log may say why."
