"""The broker's REST calls that scenarios need, blocking and with a bound.

admin = Admin(broker.http_url)
admin.create("topic://public/default/x", segments=2)
await admin.split("topic://public/default/x", 0)      # in a thread: the broker may need what the test does meanwhile
"""

import json
import urllib.request
from typing import Any, Final

import anyio.to_thread

SECONDS_MAX: Final = 30.0


class Admin:
    """See the module's docstring."""

    def __init__(self, http_url: str) -> None:
        self._base = f"{http_url}/admin/v2/scalable"

    def create(self, topic: str, segments: int = 1) -> str:
        """Create a scalable topic; returns its name."""
        self._call("PUT", f"{self._path(topic)}?numInitialSegments={segments}")
        return topic

    def delete(self, topic: str) -> None:
        """Delete a scalable topic, whoever uses it."""
        self._call("DELETE", f"{self._path(topic)}?force=true")

    def migrate(self, topic: str) -> None:
        """Make the scalable topic of the regular one of its name."""
        self._call("POST", f"{self._path(topic)}/migrate")

    def active_segments(self, topic: str) -> list[int]:
        """The ids of the segments that take messages."""
        layout = self._call("GET", self._path(topic))
        return sorted(segment["segmentId"] for segment in layout["segments"].values() if segment["active"])

    async def split(self, topic: str, segment_id: int) -> None:
        """Split a segment; returns when it is done."""
        await anyio.to_thread.run_sync(self._call, "POST", f"{self._path(topic)}/split/{segment_id}")

    async def merge(self, topic: str, first_id: int, second_id: int) -> None:
        """Merge two neighbours; returns when it is done."""
        await anyio.to_thread.run_sync(self._call, "POST", f"{self._path(topic)}/merge/{first_id}/{second_id}")

    def _path(self, topic: str) -> str:
        return f"{self._base}/{topic.removeprefix('topic://')}"

    @staticmethod
    def _call(method: str, url: str) -> Any:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=SECONDS_MAX) as answer:
            body = answer.read()
        return json.loads(body) if body else None
