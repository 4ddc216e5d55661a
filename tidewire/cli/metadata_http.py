"""The metadata of a running broker, read through its HTTP listener with the standard library alone.

Each query is one request on its own connection. Answers are read line by line as they arrive, so long lists and endless
watches need little memory. Proxies named in the environment are not used.
"""

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse, IncompleteRead
from typing import Final, NamedTuple
from urllib.parse import urlencode, urlsplit

from tidewire.cli.administration import NotAccepted, NotAnswered
from tidewire.cli.endings import CommandFailed, UsageError
from tidewire.cli.interruptible import interruptible

ANSWER_SECONDS_MAX: Final = 60.0
"""How long the broker may be silent during an answer. A snapshot of a large store takes long."""
KEEPALIVE_SECONDS: Final = 60
"""How long a watch may be silent before the kernel probes whether the broker's machine is still reachable."""

_PREFIX: Final = "/admin/v2/metadata"
_FAILED: Final = b'{"failed":'
_OK: Final = 200
_RECEIVE_BYTES: Final = 64 * 1024


class Snapshot(NamedTuple):
    """What a snapshot covers, and its size."""

    sequence: int
    revision: int
    size_bytes: int


class BrokerMetadata:
    """The records of a running broker. Every method raises `NotAnswered` and `NotAccepted` with a message."""

    def __init__(self, address: str) -> None:
        """Take the broker's address, such as `127.0.0.1:8080` or `http://127.0.0.1:8080`; nothing is sent yet.

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
        self._host = host
        self._port = port
        self.url = f"http://{parts.netloc}"
        """The broker's name in messages."""

    def dump(self, prefix: str, limit: int | None) -> Iterator[bytes]:
        """Yield the records in key order, a line each."""
        return self._lines("/records", {"prefix": prefix, "limit": limit})

    def get(self, key: str) -> bytes:
        """Return one record as a line."""
        (line,) = self._lines("/record", {"key": key})
        return line

    def query(self, index: str, start: str, end: str | None, limit: int | None) -> Iterator[bytes]:
        """Yield the index's entries with keys in [start, end), a line each, with the records they point at."""
        return self._lines("/index", {"name": index, "from": start, "to": end, "limit": limit})

    def watch(self, prefix: str) -> Iterator[bytes]:
        """Yield the records, then every change as it happens, a line each. It ends only by raising."""
        yield from self._lines("/watch", {"prefix": prefix}, silence_seconds_max=None)
        raise CommandFailed(f"The broker at {self.url} ended the watch. Start it again to get later changes.")

    def snapshot(self) -> Snapshot:
        """Have the broker write a snapshot now; it is durable on return."""
        (line,) = self._lines("/snapshot", {}, method="POST")
        taken = json.loads(line)
        return Snapshot(taken["sequence"], taken["revision"], taken["size_bytes"])

    def _lines(
        self,
        path: str,
        query: Mapping[str, str | int | None],
        *,
        method: str = "GET",
        silence_seconds_max: float | None = ANSWER_SECONDS_MAX,
    ) -> Iterator[bytes]:
        given = urlencode({name: value for name, value in query.items() if value is not None})
        with self._answer(method, f"{_PREFIX}{path}?{given}" if given else _PREFIX + path) as (connection, response):
            if response.status != _OK:
                raise NotAccepted(_reason(response), response.status)
            # The response still reads from this socket, even when `HTTPConnection` has already dropped it.
            connection.settimeout(silence_seconds_max)
            for line in _divided(response):
                if line.startswith(_FAILED):
                    raise CommandFailed(
                        f"The broker stopped in the middle of its answer: {json.loads(line)['failed'].rstrip('.')}."
                    )
                yield line

    @contextmanager
    def _answer(self, method: str, target: str) -> Iterator[tuple[socket.socket, HTTPResponse]]:
        connection = HTTPConnection(self._host, self._port, timeout=ANSWER_SECONDS_MAX)
        begun = False
        try:
            connection.connect()
            with interruptible(connection.sock) as open_socket:
                connection.sock = open_socket
                open_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                if hasattr(socket, "TCP_KEEPIDLE"):  # Systems without it use their own interval.
                    open_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
                connection.request(method, target)
                with connection.getresponse() as response:
                    begun = True
                    yield open_socket, response
        except (OSError, HTTPException) as error:
            if begun:
                raise NotAnswered(f"The broker at {self.url} closed the connection during its answer.") from error
            raise NotAnswered(
                f"No broker answered at {self.url}: {error}. Check that it runs, and its address."
            ) from error
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
