"""The broker's REST calls that scenarios need. They block, with a time limit.

admin = Admin(broker.http_url)
topic = admin.new_topic(segments=2)     # that no other test uses
admin.split_now(topic, 0)
await admin.split(topic, 1)             # in a thread: the broker may need what the test does meanwhile
"""

import json
import urllib.request
import uuid
from typing import Any, Final

import anyio.to_thread

SECONDS_MAX: Final = 120.0


class Admin:
    """See the module's docstring."""

    def __init__(self, http_url: str) -> None:
        self._base = f"{http_url}/admin/v2/scalable"

    def take_snapshot(self) -> None:
        """Have the metadata store write a snapshot now."""
        self._call("POST", f"{self._base.removesuffix('/scalable')}/metadata/snapshot")

    def create(self, topic: str, segments: int = 1) -> str:
        """Create a scalable topic; returns its name."""
        self._call("PUT", f"{self._path(topic)}?numInitialSegments={segments}")
        return topic

    def new_topic(self, segments: int = 1) -> str:
        """Create a scalable topic with an unused name, and return the name."""
        return self.create(f"topic://public/default/{uuid.uuid4().hex}", segments)

    def delete(self, topic: str) -> None:
        """Delete a scalable topic, even if it is in use."""
        self._call("DELETE", f"{self._path(topic)}?force=true")

    def migrate(self, topic: str) -> None:
        """Migrate the regular topic of this name to the scalable one."""
        self._call("POST", f"{self._path(topic)}/migrate")

    def active_segments(self, topic: str) -> list[int]:
        """The ids of the segments that take messages."""
        layout = self._call("GET", self._path(topic))
        return sorted(segment["segmentId"] for segment in layout["segments"].values() if segment["active"])

    def subscription(self, topic: str, name: str) -> dict[str, Any]:
        """Return the statistics of a subscription."""
        found: dict[str, Any] = self._call("GET", f"{self._path(topic)}/stats")["subscriptions"][name]
        return found

    def split_now(self, topic: str, segment_id: int) -> None:
        """Split a segment."""
        self._call("POST", f"{self._path(topic)}/split/{segment_id}")

    def merge_now(self, topic: str, first_id: int, second_id: int) -> None:
        """Merge two neighbours."""
        self._call("POST", f"{self._path(topic)}/merge/{first_id}/{second_id}")

    async def split(self, topic: str, segment_id: int) -> None:
        """Split a segment; returns when it is done."""
        await anyio.to_thread.run_sync(self.split_now, topic, segment_id)

    async def merge(self, topic: str, first_id: int, second_id: int) -> None:
        """Merge two neighbours; returns when it is done."""
        await anyio.to_thread.run_sync(self.merge_now, topic, first_id, second_id)

    def _path(self, topic: str) -> str:
        return f"{self._base}/{topic.removeprefix('topic://')}"

    @staticmethod
    def _call(method: str, url: str) -> Any:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=SECONDS_MAX) as answer:
            body = answer.read()
        return json.loads(body) if body else None
