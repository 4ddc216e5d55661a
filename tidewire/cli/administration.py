"""Scalable topics as a broker's HTTP API administers them (PIP-460), asked with the standard library alone.

Each call is one blocking request on a connection of its own: commands are short, and who has an event loop runs the
call in a thread. Proxies that the environment names are not used: a broker is reached directly, often on loopback.
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
"""How long a request may take; a split or a deletion waits for what is on its way in the topic."""

_PREFIX: Final = "/admin/v2/scalable"
_SCALABLE: Final = "topic://"
_REGULAR: Final = "persistent://"
_TOPIC_PARTS: Final = 3
_NAMESPACE_PARTS: Final = 2


class NotAnswered(CommandFailed):
    """Nobody answered; a change that was asked for may have happened or not."""


class NotAccepted(CommandFailed):
    """The broker answered that it does not do this, with its reason."""

    def __init__(self, reason: str, status_code: int) -> None:
        super().__init__(reason)
        self.status_code = status_code


class Administration:
    """A broker's topics. Every `topic` is a full name, `topic://TENANT/NAMESPACE/NAME`.

    Every method raises `NotAnswered`, `NotAccepted`, and `UsageError` for a wrong name or address. Its change is
    durable when it returns.
    """

    def __init__(self, http_url: str) -> None:
        """Of the broker at `http_url`, as `http://127.0.0.1:8080`.

        Raises:
            UsageError: that is no such address.
        """
        parts = urlsplit(http_url)
        if parts.scheme != "http" or not parts.hostname or parts.path.strip("/") or parts.query:
            raise UsageError(f"{http_url!r} is no broker's HTTP address; expected http://HOST:PORT.")
        self._url = f"http://{parts.netloc}"
        self._opener = build_opener(ProxyHandler({}))

    def create(self, topic: str, *, segments: int | None = None, properties: Mapping[str, str] | None = None) -> None:
        """Create a topic; without `segments`, with as many as the broker is set to."""
        query = [] if segments is None else [("numInitialSegments", str(segments))]
        self._ask("PUT", _path(topic), query, dict(properties or {}))

    def names(self, namespace: str, properties: Mapping[str, str] | None = None) -> list[str]:
        """The full names of a namespace's topics that have all of `properties`, sorted."""
        parts = namespace.split("/")
        if len(parts) != _NAMESPACE_PARTS or not all(parts):
            raise UsageError(f"{namespace!r} is no namespace; expected TENANT/NAMESPACE.")
        filters = [("property", f"{key}={value}") for key, value in (properties or {}).items()]
        names = self._ask("GET", "/" + "/".join(quote(part, safe="") for part in parts), filters)
        return [str(name) for name in names]

    def layout(self, topic: str) -> dict[str, Any]:
        """The layout: epoch, segments by id, properties."""
        return dict(self._ask("GET", _path(topic)))

    def statistics(self, topic: str) -> dict[str, Any]:
        """Numbers of segments, and each subscription's consumers and backlog."""
        return dict(self._ask("GET", _path(topic) + "/stats"))

    def split(self, topic: str, segment_id: int) -> None:
        """Split a segment; returns when its children take messages."""
        self._ask("POST", f"{_path(topic)}/split/{segment_id}")

    def migrate(self, topic: str, *, force: bool = False) -> None:
        """Make a scalable topic of the `persistent://` one of this name; `force` does not wait for its v4 clients."""
        self._ask("POST", _path(topic, _REGULAR) + "/migrate", [("force", "true")] if force else [])

    def delete(self, topic: str, *, force: bool = False) -> None:
        """Delete a topic with everything in it; `force` disconnects who uses it."""
        self._ask("DELETE", _path(topic), [("force", "true")] if force else [])

    def _ask(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]] = (),
        body: object = None,
    ) -> Any:  # noqa: ANN401 - JSON; each caller says what it expects
        url = self._url + _PREFIX + path + (f"?{urlencode(query)}" if query else "")
        request = Request(url, method=method)  # noqa: S310 - the scheme was checked
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
            raise NotAnswered(f"No broker answers at {self._url}: {reason}. Is it running there?") from error
        return json.loads(answer) if answer else None


def _path(topic: str, scheme: str = _SCALABLE) -> str:
    parts = topic.removeprefix(scheme).split("/")
    if not topic.startswith(scheme) or len(parts) != _TOPIC_PARTS or not all(parts):
        kind = "scalable" if scheme == _SCALABLE else "regular"
        raise UsageError(f"{topic!r} is no {kind} topic's name; expected {scheme}TENANT/NAMESPACE/NAME.")
    return "/" + "/".join(quote(part, safe="") for part in parts)


def _reason(error: HTTPError) -> str:
    text = error.read().decode(errors="replace")
    try:
        return str(json.loads(text)["reason"])
    except (ValueError, KeyError, TypeError):
        return f"The broker answered {error.code} {error.reason}."
