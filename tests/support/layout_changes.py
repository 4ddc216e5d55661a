"""Splits and merges the segments of scalable topics at random. The broker may die meanwhile.

changes = LayoutChanges(http_address, happenings)
await changes.change(topics, random)
"""

from collections.abc import Sequence
from random import Random
from typing import Any, Final, NamedTuple

import h11
import orjson
import trio

from broker.addresses import Address
from tests.support.happenings import Happenings
from tests.support.http import Answer, request
from tidewire.wire.pulsar.hashing import key_hash

ACTIVE_SEGMENTS_MAX: Final = 8
"""With more segments, they are merged and not split."""

CHANGE_ASKED: Final = "split or merge asked"
SPLIT_DONE: Final = "split done"
MERGE_DONE: Final = "merge done"

GONE: Final = (OSError, AssertionError, trio.BrokenResourceError, h11.RemoteProtocolError)
"""The errors of a request when the broker is not running, or dies."""


class SegmentView(NamedTuple):
    """A segment of a layout."""

    segment_id: int
    start: int
    end: int
    is_active: bool

    def key(self) -> str:
        """Return a key whose messages go to this segment."""
        candidates = (f"end-{number}" for number in range(10_000_000))
        return next(key for key in candidates if self.start <= key_hash(key) <= self.end)


class LayoutChanges:
    """See the module."""

    def __init__(self, http: Address, happenings: Happenings) -> None:
        """Set up. The topics must exist."""
        self.complaints: list[str] = []
        self._http = http
        self.happenings = happenings

    async def segments(self, topic: str) -> list[SegmentView]:
        """Return the topic's segments, as the broker reports them.

        Raises:
            OSError, AssertionError: the broker was unreachable (`GONE`).
        """
        answer = await request(self._http, "GET", layout_path(topic))
        assert answer.status == 200, answer.body
        return segments_in(orjson.loads(answer.body))

    async def change(self, topics: Sequence[str], random: Random, *, splits: bool | None = None) -> None:
        """Split a segment of one of the topics, or merge two, as `splits` says. The broker may die meanwhile."""
        topic = random.choice(topics)
        try:
            active = sorted(
                (view for view in await self.segments(topic) if view.is_active), key=lambda view: view.start
            )
            is_merge = len(active) > 1 and (random.random() < 0.45 if splits is None else not splits)
            if len(active) > ACTIVE_SEGMENTS_MAX or is_merge:
                first = random.randrange(len(active) - 1)
                kind, change = MERGE_DONE, f"merge/{active[first].segment_id}/{active[first + 1].segment_id}"
            else:
                kind, change = SPLIT_DONE, f"split/{random.choice(active).segment_id}"
            self.happenings.note(CHANGE_ASKED)
            answer = await request(self._http, "POST", f"{layout_path(topic)}/{change}")
        except GONE:
            return  # The broker died. The layout shows whether the change was made.
        self._judge_answer(topic, change, kind, answer)

    def _judge_answer(self, topic: str, change: str, kind: str, answer: Answer) -> None:
        # Another change may have come first, one that was carried on after a crash for instance.
        if answer.status == 204:
            self.happenings.note(kind)
        elif answer.status not in {409, 412, 503}:
            self.complaints.append(f"{change} of {topic} was answered {answer.status}: {answer.body!r}")


def segments_in(layout: dict[str, Any]) -> list[SegmentView]:
    """Return the segments of a layout, as a broker reports it."""
    return [
        SegmentView(view["segmentId"], view["hashRange"]["start"], view["hashRange"]["end"], view["active"])
        for view in layout["segments"].values()
    ]


def layout_path(topic: str) -> str:
    """Return where a broker reports the topic's layout."""
    return "/admin/v2/scalable/" + topic.removeprefix("topic://")
