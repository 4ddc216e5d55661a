"""A client of the broker's HTTP API for scalable topics (PIP-460). It uses the standard library alone.

Each call is one blocking request on its own connection. Code with an event loop makes the call in a thread. Proxies
named in the environment are not used: a broker is reached directly, often on loopback.
"""

import json
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from tidewire.cli.endings import CommandFailed, UsageError

ANSWER_SECONDS_MAX: Final = 60.0
"""How long a request may take. A split or a deletion waits for writes in flight in the topic."""

_UNAVAILABLE: Final = 503
_PREFIX: Final = "/admin/v2/scalable"
_PREFIX_REGULAR: Final = "/admin/v2/persistent"
_SCALABLE: Final = "topic://"
_REGULAR: Final = "persistent://"
_TOPIC_PARTS: Final = 3
_NAMESPACE_PARTS: Final = 2


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


class Administration:
    """Administers the topics of a cluster. Every `topic` is a full name, `topic://TENANT/NAMESPACE/NAME`.

    Every method raises `NotAnswered`, `NotAccepted`, and `UsageError` for a wrong name. When a method returns, its
    change is durable.
    """

    def __init__(self, *addresses: str) -> None:
        """Take the addresses of brokers, such as `127.0.0.1:8080` or `http://127.0.0.1:8080`; nothing is sent yet.

        Any broker of a cluster answers for all of them. So if nobody listens at an address, the next one is asked. The
        same holds for a read at a broker that cannot serve, because it has lost its metadata session.

        Raises:
            UsageError: one is not such an address.
        """
        self._urls = [_url(address) for address in addresses]
        self._opener = build_opener(ProxyHandler({}))

    def create(self, topic: str, *, segments: int | None = None, properties: Mapping[str, str] | None = None) -> None:
        """Create a topic. Without `segments`, the broker's setting decides how many it has."""
        query = [] if segments is None else [("numInitialSegments", str(segments))]
        self._ask("PUT", _path(topic), query, dict(properties or {}))

    def names(self, namespace: str, properties: Mapping[str, str] | None = None) -> list[str]:
        """Return the full names of the namespace's topics that have all of `properties`, sorted."""
        parts = namespace.split("/")
        if len(parts) != _NAMESPACE_PARTS or not all(parts):
            raise UsageError(f"{namespace!r} is not a namespace. Give it as TENANT/NAMESPACE.")
        filters = [("property", f"{key}={value}") for key, value in (properties or {}).items()]
        names = self._ask("GET", "/" + "/".join(quote(part, safe="") for part in parts), filters)
        return [str(name) for name in names]

    def layout(self, topic: str) -> dict[str, Any]:
        """Return the layout: epoch, segments by id, properties."""
        return dict(self._ask("GET", _path(topic)))

    def statistics(self, topic: str) -> dict[str, Any]:
        """Return the numbers of segments, and each subscription's consumers and backlog."""
        return dict(self._ask("GET", _path(topic) + "/stats"))

    def regular_statistics(self, topic: str) -> dict[str, Any]:
        """Return the number of partitions of a `persistent://` topic, and each subscription's consumers and backlog."""
        return dict(self._ask("GET", _path(topic, _REGULAR) + "/stats", prefix=_PREFIX_REGULAR))

    def split(self, topic: str, segment_id: int) -> None:
        """Split a segment. Its children take messages when this returns."""
        self._ask("POST", f"{_path(topic)}/split/{segment_id}")

    def migrate(self, topic: str, *, force: bool = False) -> None:
        """Turn a `persistent://` topic into a scalable one; `force` does so even while v4 clients use it."""
        self._ask("POST", _path(topic, _REGULAR) + "/migrate", [("force", "true")] if force else [])

    def delete(self, topic: str, *, force: bool = False) -> None:
        """Delete a topic with everything in it; `force` disconnects its clients."""
        self._ask("DELETE", _path(topic), [("force", "true")] if force else [])

    def _ask(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]] = (),
        body: object = None,
        prefix: str = _PREFIX,
    ) -> Any:  # noqa: ANN401 - JSON; each caller says what it expects
        target = prefix + path + (f"?{urlencode(query)}" if query else "")
        for url in self._urls[:-1]:
            try:
                return self._ask_at(url, method, target, body)
            except NotAnswered as failure:
                # Any other failure may have come after the change, which must not be asked for twice.
                if not isinstance(failure.reason, ConnectionRefusedError):
                    raise
            except NotAccepted as refusal:
                if method != "GET" or refusal.status_code != _UNAVAILABLE:
                    raise
        return self._ask_at(self._urls[-1], method, target, body)

    def _ask_at(self, url: str, method: str, target: str, body: object) -> Any:  # noqa: ANN401 - as `_ask`
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
            reason = getattr(error, "reason", None) or error
            raise NotAnswered(
                f"No broker answered at {url}: {reason}. Check that it runs, and its address.", reason
            ) from error
        return json.loads(answer) if answer else None


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


def _path(topic: str, scheme: str = _SCALABLE) -> str:
    parts = topic.removeprefix(scheme).split("/")
    if not topic.startswith(scheme) or len(parts) != _TOPIC_PARTS or not all(parts):
        kind = "scalable" if scheme == _SCALABLE else "regular"
        raise UsageError(f"{topic!r} is not the name of a {kind} topic. Give it as {scheme}TENANT/NAMESPACE/NAME.")
    return "/" + "/".join(quote(part, safe="") for part in parts)


def _reason(error: HTTPError) -> str:
    text = error.read().decode(errors="replace")
    try:
        return str(json.loads(text)["reason"])
    except (ValueError, KeyError, TypeError):
        return f"The broker answered {error.code} {error.reason}."
