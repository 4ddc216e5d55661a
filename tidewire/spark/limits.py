"""How a limit divides a backlog for one micro-batch.

Each segment gets a share in proportion to its backlog, until the limit is used up. The segment whose messages have
waited longest comes first. Entries are taken whole. An entry larger than its segment's share is taken if it still fits
the limit. If nothing else was taken, it is taken in any case, so that the stream advances.

Pure: `take` says what would be taken of a segment.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tidewire.spark.measuring import BacklogRange


class Limit(NamedTuple):
    """The most that a micro-batch may hold; None for no bound."""

    messages: int | None = None
    size_bytes: int | None = None

    @property
    def is_none(self) -> bool:
        """Whether everything may be taken."""
        return self.messages is None and self.size_bytes is None


Take = Callable[[int, int | None, int | None], BacklogRange]
"""By a segment's number, and the most messages and bytes: what would be taken of it, at least one entry."""


def divide(backlogs: Sequence[BacklogRange], limit: Limit, take: Take) -> list[BacklogRange | None]:
    """What is taken of each segment, given what can be read of each; None for nothing."""
    taken: list[BacklogRange | None] = [None] * len(backlogs)
    messages_left, bytes_left = limit.messages, limit.size_bytes
    messages_total = sum(one.messages for one in backlogs) or 1
    bytes_total = sum(one.size_bytes for one in backlogs) or 1
    oldest_first = sorted(range(len(backlogs)), key=lambda number: backlogs[number].first_time_ms or 0)
    for number in oldest_first:
        backlog = backlogs[number]
        if not backlog.messages:
            continue
        messages = _share(backlog.messages, messages_total, limit.messages, messages_left)
        size = _share(backlog.size_bytes, bytes_total, limit.size_bytes, bytes_left)
        if any(taken) and (messages == 0 or size == 0):
            continue
        fits = (messages is None or backlog.messages <= messages) and (size is None or backlog.size_bytes <= size)
        got = backlog if fits else take(number, messages, size)
        too_much = (messages_left is not None and got.messages > messages_left) or (
            bytes_left is not None and got.size_bytes > bytes_left
        )
        if too_much and any(taken):
            continue
        taken[number] = got
        messages_left = None if messages_left is None else max(0, messages_left - got.messages)
        bytes_left = None if bytes_left is None else max(0, bytes_left - got.size_bytes)
    return taken


def _share(backlog: int, total: int, limit: int | None, left: int | None) -> int | None:
    if limit is None or left is None:
        return None
    return min(left, max(1, limit * backlog // total))
