"""Requests to the admin HTTP API of a cluster's brokers, with the standard library alone.

Each call is one blocking request on its own connection. Code with an event loop makes the call in a thread. Proxies
named in the environment are not used: a broker is reached directly, often on loopback.
"""

import json
from collections.abc import Sequence
from http.client import HTTPException, RemoteDisconnected
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from tidewire.cli.endings import CommandFailed, UsageError

ANSWER_SECONDS_MAX: Final = 60.0
"""How long a request may take. A split or a deletion waits for writes in flight in the topic."""

_UNAVAILABLE: Final = 503
_GIVE_THE_ADDRESS: Final = (
    "Give the broker's HTTP address by --http or TIDEWIRE_HTTP_URL. Its line `ready` names it as http=."
)
_AS_A_FLAG: Final = ("force=true", "--force")
"""The broker's sentences name the parameter of its API, and the commands have a flag for it."""


class NotAnswered(CommandFailed):
    """No broker answered. A requested change may or may not have happened."""

    def __init__(self, message: str, reason: object = None) -> None:
        """`reason` is the error of the connection, if there was one."""
        super().__init__(message)
        self.reason = reason


class NotAccepted(CommandFailed):
    """The broker refused the request; the text is its reason."""

    def __init__(self, reason: str, status_code: int) -> None:
        super().__init__(reason)
        self.status_code = status_code


class Brokers:
    """The brokers of a cluster, asked in turn."""

    def __init__(self, *addresses: str) -> None:
        """Take the addresses of brokers, such as `127.0.0.1:8080` or `http://127.0.0.1:8080`; nothing is sent yet.

        Any broker of a cluster answers for all of them. So if nobody listens at an address, the next one is asked. The
        same holds for a read at a broker that cannot serve, because it has lost its metadata session.

        Raises:
            UsageError: one is not such an address.
        """
        self.urls: Final = [_url(address) for address in addresses]
        self._opener = build_opener(ProxyHandler({}))

    def ask(self, method: str, path: str, query: Sequence[tuple[str, str]] = (), body: object = None) -> Any:  # noqa: ANN401 - JSON; each caller says what it expects
        """Return the answer's JSON; None if it is empty. A change that the broker accepted is durable.

        Args:
            method: what to do with the resource.
            path: the path of the resource, already percent-encoded.
            query: the parameters.
            body: sent as JSON, if it is not None.

        Raises:
            NotAnswered: no broker answered.
            NotAccepted: the broker refused.
        """
        target = path + (f"?{urlencode(query)}" if query else "")
        for url in self.urls[:-1]:
            try:
                return self._ask_at(url, method, target, body)
            except NotAnswered as failure:
                # Any other failure may have come after the change, which must not be asked for twice.
                if not isinstance(failure.reason, ConnectionRefusedError):
                    raise
            except NotAccepted as refusal:
                if method != "GET" or refusal.status_code != _UNAVAILABLE:
                    raise
        return self._ask_at(self.urls[-1], method, target, body)

    def _ask_at(self, url: str, method: str, target: str, body: object) -> Any:  # noqa: ANN401 - as `ask`
        request = Request(url + target, method=method)  # noqa: S310 - the scheme was checked
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        try:
            with self._opener.open(request, timeout=ANSWER_SECONDS_MAX) as response:
                answer = response.read()
        except HTTPError as error:
            with error:
                raise NotAccepted(_reason(error), error.code) from None
        except (OSError, HTTPException) as error:
            raise unanswered(url, error) from error
        return json.loads(answer) if answer else None


def unanswered(url: str, error: OSError | HTTPException) -> NotAnswered:
    """Return what to raise if a connection ended by `error` before an answer began."""
    # urllib wraps the errors of sockets.
    reason = getattr(error, "reason", None) or error
    if isinstance(reason, RemoteDisconnected):
        told = f"What listens at {url} closed the connection without an answer."
    elif isinstance(reason, HTTPException):
        # Its text holds what was received, and that may be bytes of any protocol.
        told = f"What listens at {url} does not speak HTTP."
    else:
        told = f"No broker answered at {url}: {reason}. Check that it runs."
    return NotAnswered(f"{told} {_GIVE_THE_ADDRESS}", reason)


def _url(address: str) -> str:
    url = address if "://" in address else f"http://{address}"
    try:
        parts = urlsplit(url)
        is_address = parts.scheme == "http" and parts.hostname and not parts.path.strip("/") and not parts.query
    except ValueError:
        is_address = False
    if not is_address:
        raise UsageError(f"{address!r} is not a broker's HTTP address. Give it as HOST:PORT.")
    return f"http://{parts.netloc}"


def _reason(error: HTTPError) -> str:
    text = error.read().decode(errors="replace")
    try:
        return str(json.loads(text)["reason"]).replace(*_AS_A_FLAG)
    except (ValueError, KeyError, TypeError):
        return f"The broker answered {error.code} {error.reason}."
