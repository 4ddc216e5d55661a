"""Creates and changes topics through the broker's HTTP API. By hand, use `tidewire topics`."""

import json
from itertools import pairwise
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

# The broker is on this machine, so no proxy is used.
_opener = build_opener(ProxyHandler({}))


class Topics:
    """The topics of one broker. Names are full names, `topic://TENANT/NAMESPACE/NAME`."""

    def __init__(self, http_url: str) -> None:
        """Use the broker at this HTTP address."""
        self._url = f"{http_url}/admin/v2/scalable/"

    def create(self, topic: str, segments: int) -> None:
        """Create a topic with this number of segments."""
        self._ask("PUT", topic, f"?numInitialSegments={segments}")

    def split_widest(self, topic: str) -> str:
        """Split the segment with the widest hash range. Return a description."""
        widest = max(self._active(topic), key=_width)
        self._ask("POST", topic, f"/split/{widest['segmentId']}")
        return f"split segment {widest['segmentId']}"

    def merge_narrowest(self, topic: str) -> str:
        """Merge the two neighbours with the narrowest hash ranges. Return a description."""
        active = sorted(self._active(topic), key=lambda segment: segment["hashRange"]["start"])
        one, other = min(pairwise(active), key=lambda neighbours: sum(_width(segment) for segment in neighbours))
        self._ask("POST", topic, f"/merge/{one['segmentId']}/{other['segmentId']}")
        return f"merged segments {one['segmentId']} and {other['segmentId']}"

    def _active(self, topic: str) -> list[dict[str, Any]]:
        return [segment for segment in self._ask("GET", topic)["segments"].values() if segment["active"]]

    def _ask(self, method: str, topic: str, rest: str = "") -> Any:
        url = self._url + topic.removeprefix("topic://") + rest
        with _opener.open(Request(url, b"{}" if method == "PUT" else None, method=method), timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None


def _width(segment: dict[str, Any]) -> int:
    return int(segment["hashRange"]["end"]) - int(segment["hashRange"]["start"])
