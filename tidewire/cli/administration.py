"""A client of the broker's HTTP API for scalable topics (PIP-460). See `asking` for how it asks."""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from tidewire.cli.asking import Brokers
from tidewire.cli.endings import UsageError

_PREFIX: Final = "/admin/v2/scalable"
_PREFIX_REGULAR: Final = "/admin/v2/persistent"
_PREFIX_SEGMENTS: Final = "/admin/v2/segments"
_SCALABLE: Final = "topic://"
_REGULAR: Final = "persistent://"
_TOPIC_PARTS: Final = 3
_NAMESPACE_PARTS: Final = 2


class Administration:
    """Administers the topics of a cluster. Every `topic` is a full name, `topic://TENANT/NAMESPACE/NAME`.

    Every method raises `NotAnswered`, `NotAccepted`, and `UsageError` for a wrong name. When a method returns, its
    change is durable.
    """

    def __init__(self, *addresses: str) -> None:
        """Take the addresses of brokers; they are asked as `Brokers` says."""
        self._brokers = Brokers(*addresses)

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

    def partitions(self, topic: str) -> int:
        """Return how many partitions a `persistent://` topic has; 0 if it is not partitioned."""
        found = self._ask("GET", _path(topic, _REGULAR) + "/partitions", prefix=_PREFIX_REGULAR)
        return int(found["partitions"])

    def messages(self, log: str, asked: Mapping[str, str]) -> dict[str, Any]:
        """Return a page of messages of a `segment://` log, or of a `persistent://` topic or partition.

        `asked` are the parameters of the broker's call.
        """
        scheme, _, name = log.partition("://")
        path = "".join("/" + quote(part, safe="") for part in name.split("/"))
        prefix = _PREFIX_REGULAR if scheme == "persistent" else _PREFIX_SEGMENTS
        return dict(self._ask("GET", path + "/messages", list(asked.items()), prefix=prefix))

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
    ) -> Any:  # noqa: ANN401 - as `Brokers.ask`
        return self._brokers.ask(method, prefix + path, query, body)


def _path(topic: str, scheme: str = _SCALABLE) -> str:
    parts = topic.removeprefix(scheme).split("/")
    if not topic.startswith(scheme) or len(parts) != _TOPIC_PARTS or not all(parts):
        kind = "scalable" if scheme == _SCALABLE else "regular"
        raise UsageError(f"{topic!r} is not the name of a {kind} topic. Give it as {scheme}TENANT/NAMESPACE/NAME.")
    return "/" + "/".join(quote(part, safe="") for part in parts)
