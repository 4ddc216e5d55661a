"""Requests to a running broker's HTTP listener, with the standard library alone.

Each request has its own connection. Answers are read line by line as they arrive, so long lists and endless streams
need little memory. Proxies named in the environment are not used.
"""

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse, IncompleteRead
from typing import Final
from urllib.parse import urlencode, urlsplit

from tidewire.cli.asking import NotAccepted, NotAnswered, unanswered
from tidewire.cli.endings import CommandFailed, UsageError
from tidewire.cli.interruptible import interruptible

ANSWER_SECONDS_MAX: Final = 60.0
"""How long the broker may be silent during an answer. A snapshot of a large store takes long."""
KEEPALIVE_SECONDS: Final = 60
"""How long a stream may be silent before the kernel probes whether the broker's machine is still reachable."""

_FAILED: Final = b'{"failed":'
_OK: Final = range(200, 300)
_RECEIVE_BYTES: Final = 64 * 1024


class BrokerHttp:
    """One broker. Every method raises `NotAnswered` and `NotAccepted` with a message."""

    def __init__(self, address: str, *, answer_seconds_max: float = ANSWER_SECONDS_MAX) -> None:
        """Take the broker's address, such as `127.0.0.1:8080` or `http://127.0.0.1:8080`; nothing is sent yet.

        `answer_seconds_max` is how long it may be silent during an answer.

        Raises:
            UsageError: `address` is not such an address.
        """
        url = address if "://" in address else f"http://{address}"
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if not host or port is None or parts.scheme != "http" or parts.path.strip("/") or parts.query:
            raise UsageError(f"{address!r} is not a broker's HTTP address. Give it as HOST:PORT.")
        self._answer_seconds_max = answer_seconds_max
        self._host = host
        self._port = port
        self.url = f"http://{parts.netloc}"
        """The broker's name in messages."""

    def lines(
        self,
        path: str,
        query: Mapping[str, str | int | None],
        *,
        method: str = "GET",
        content: object = None,
        pushed: bool = False,
    ) -> Iterator[bytes]:
        """Yield the lines of the answer.

        Args:
            path: the path of the resource.
            query: the parameters; those that are None are left out.
            method: what to do with the resource.
            content: sent as JSON, if it is not None.
            pushed: whether any time may pass between two lines.
        """
        given = urlencode({name: value for name, value in query.items() if value is not None})
        with self._answer(method, f"{path}?{given}" if given else path, content) as (connection, response):
            if response.status not in _OK:
                raise NotAccepted(_reason(response), response.status)
            # The response still reads from this socket, even when `HTTPConnection` has already dropped it.
            connection.settimeout(None if pushed else self._answer_seconds_max)
            for line in _divided(response):
                if line.startswith(_FAILED):
                    raise CommandFailed(
                        f"The broker stopped in the middle of its answer: {json.loads(line)['failed'].rstrip('.')}."
                    )
                yield line

    @contextmanager
    def _answer(self, method: str, target: str, content: object) -> Iterator[tuple[socket.socket, HTTPResponse]]:
        connection = HTTPConnection(self._host, self._port, timeout=self._answer_seconds_max)
        begun = False
        try:
            connection.connect()
            with interruptible(connection.sock) as open_socket:
                connection.sock = open_socket
                open_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                if hasattr(socket, "TCP_KEEPIDLE"):  # Systems without it use their own interval.
                    open_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
                if content is None:
                    connection.request(method, target)
                else:
                    connection.request(method, target, json.dumps(content), {"Content-Type": "application/json"})
                with connection.getresponse() as response:
                    begun = True
                    yield open_socket, response
        except (OSError, HTTPException) as error:
            if begun and isinstance(error, TimeoutError):
                raise NotAnswered(
                    f"The broker at {self.url} was silent for {self._answer_seconds_max:g} s during its answer."
                ) from error
            if begun:
                raise NotAnswered(f"The broker at {self.url} closed the connection during its answer.") from error
            raise unanswered(self.url, error) from error
        finally:
            connection.close()


def _divided(response: HTTPResponse) -> Iterator[bytes]:
    """Yield the lines of an answer, each as soon as it has arrived.

    `HTTPResponse.readline` does not notice an answer that breaks off between two chunks, so it is not used.

    Raises:
        IncompleteRead: the answer broke off.
    """
    rest = b""
    while data := response.read1(_RECEIVE_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line + b"\n"
    if response.length:
        raise IncompleteRead(rest, response.length)
    if rest:
        yield rest


def _reason(response: HTTPResponse) -> str:
    text = response.read().decode(errors="replace")
    try:
        return str(json.loads(text)["reason"])
    except (ValueError, KeyError, TypeError):
        return f"The broker answered {response.status} {response.reason}."
