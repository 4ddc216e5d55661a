"""A client of the broker's HTTP API for scalable topics (PIP-460). See `asking` for how it asks."""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from tidewire.cli.asking import Brokers
from tidewire.cli.endings import UsageError
from tidewire.cli.topic_paths import scalable_path, topic_path

_SCALABLE: Final = "/admin/v2/scalable"
_REGULAR: Final = "/admin/v2/persistent"
_SEGMENTS: Final = "/admin/v2/segments"
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
        self._brokers.ask("PUT", _scalable(topic), query, dict(properties or {}))

    def names(self, namespace: str, properties: Mapping[str, str] | None = None) -> list[str]:
        """Return the full names of the namespace's topics that have all of `properties`, sorted."""
        parts = namespace.split("/")
        if len(parts) != _NAMESPACE_PARTS or not all(parts):
            raise UsageError(f"{namespace!r} is not a namespace. Give it as TENANT/NAMESPACE.")
        filters = [("property", f"{key}={value}") for key, value in (properties or {}).items()]
        path = "/".join((_SCALABLE, *(quote(part, safe="") for part in parts)))
        names = self._brokers.ask("GET", path, filters)
        return [str(name) for name in names]

    def layout(self, topic: str) -> dict[str, Any]:
        """Return the layout: epoch, segments by id, properties."""
        return dict(self._brokers.ask("GET", _scalable(topic)))

    def statistics(self, topic: str) -> dict[str, Any]:
        """Return the numbers of segments, and each subscription's consumers and backlog."""
        return dict(self._brokers.ask("GET", _scalable(topic) + "/stats"))

    def partitions(self, topic: str) -> int:
        """Return how many partitions a `persistent://` topic has; 0 if it is not partitioned."""
        found = self._brokers.ask("GET", topic_path(topic).root + "/partitions")
        return int(found["partitions"])

    def messages(self, log: str, asked: Mapping[str, str]) -> dict[str, Any]:
        """Return a page of messages of a `segment://` log, or of a `persistent://` topic or partition.

        `asked` are the parameters of the broker's call.
        """
        scheme, _, name = log.partition("://")
        root = _REGULAR if scheme == "persistent" else _SEGMENTS
        path = "/".join((root, *(quote(part, safe="") for part in name.split("/")), "messages"))
        return dict(self._brokers.ask("GET", path, list(asked.items())))

    def split(self, topic: str, segment_id: int) -> None:
        """Split a segment. Its children take messages when this returns."""
        self._brokers.ask("POST", f"{_scalable(topic)}/split/{segment_id}")

    def migrate(self, topic: str, *, force: bool = False) -> None:
        """Turn a `persistent://` topic into a scalable one; `force` does so even while v4 clients use it."""
        self._brokers.ask("POST", topic_path(topic).migration, [("force", "true")] if force else [])

    def delete(self, topic: str, *, force: bool = False) -> None:
        """Delete a topic with everything in it; `force` disconnects its clients."""
        self._brokers.ask("DELETE", _scalable(topic), [("force", "true")] if force else [])


def _scalable(topic: str) -> str:
    return scalable_path(topic, "Give it as topic://TENANT/NAMESPACE/NAME.").root
