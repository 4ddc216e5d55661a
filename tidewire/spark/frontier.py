"""How far a micro-batch goes: up to one moment, the frontier, in all segments together.

A segment that ran weeks ahead of the others would move a watermark past rows that are unread elsewhere. So a
micro-batch reads what brokers stored up to the frontier, in every segment, and nothing later. Without a limit, and when
no segment waits for its parents, the frontier is the present: everything is read.

A limit moves the frontier back. The search asks what a micro-batch would hold up to various moments, and takes the
first moment that fills most of the limit. The limit itself divides what only one segment has, and what was stored
within one millisecond (`limits.divide`).

Pure: `take` says what would be taken of a segment.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from tidewire.spark.limits import Limit, divide
from tidewire.spark.measuring import BacklogRange

PROBES_ENOUGH: Final = 10
"""After that many moments the search takes the best one, if it yields anything."""

_FILL_WANTED: Final = 0.9
"""The part of the limit that the search aims at."""
_FILL_ENOUGH: Final = 0.75
"""The part of the limit that ends the search."""


class Take(Protocol):
    """Says what would be taken of a segment."""

    def __call__(
        self, number: int, *, until_ms: int, messages_max: int | None = None, bytes_max: int | None = None
    ) -> BacklogRange:
        """What the broker stored until then in the segment of this number, at least one entry of it."""


_Cut = list[BacklogRange | None]


def advance(backlogs: Sequence[BacklogRange], held_ms: int | None, limit: Limit, take: Take) -> _Cut:
    """What a micro-batch takes of each segment; None for nothing.

    Args:
        backlogs: what can be read of each segment.
        held_ms: a moment that the frontier must not pass, in milliseconds since the epoch; None for no such moment.
        limit: the most that the micro-batch may hold. A single larger entry is taken all the same.
        take: called only for segments that a moment divides.
    """
    oldest = [one.first_time_ms for one in backlogs if one.messages and one.first_time_ms is not None]
    if not oldest:
        return [None] * len(backlogs)
    latest_ms = max(_last_ms(one) for one in backlogs if one.messages)
    search = _Search(backlogs, take, limit, min(oldest) - 1)
    return search.run(latest_ms if held_ms is None else min(held_ms, latest_ms))


class _Search:
    """The last known moment whose cut is within the limit, and the first known one whose cut is not."""

    def __init__(self, backlogs: Sequence[BacklogRange], take: Take, limit: Limit, before_ms: int) -> None:
        self._backlogs = backlogs
        self._take = take
        self._limit = limit
        self._within_ms = self._beyond_ms = before_ms
        self._within: _Cut = [None] * len(backlogs)
        self._beyond = self._within

    def run(self, until_ms: int) -> _Cut:
        self._beyond_ms, self._beyond = until_ms, self._cut(until_ms)
        if self._load(self._beyond) <= 1:
            return self._beyond
        probes = 0
        while self._beyond_ms - self._within_ms > 1:
            if self._load(self._within) >= _FILL_ENOUGH or (probes >= PROBES_ENOUGH and any(self._within)):
                return self._within
            if sum(map(bool, self._beyond)) == 1:
                return self._divided()
            moment_ms = self._guess(halves=probes % 2 == 1)
            probes += 1
            cut = self._cut(moment_ms)
            if self._load(cut) <= 1:
                self._within_ms, self._within = moment_ms, cut
            else:
                self._beyond_ms, self._beyond = moment_ms, cut
        return self._within if any(self._within) else self._divided()

    def _divided(self) -> _Cut:
        """Part of what lies before the later moment: the limit alone divides it."""

        def take(number: int, messages_max: int | None, bytes_max: int | None) -> BacklogRange:
            return self._take(number, until_ms=self._beyond_ms, messages_max=messages_max, bytes_max=bytes_max)

        nothing = [one._replace(end=one.after, messages=0, size_bytes=0) for one in self._backlogs]
        return divide([found or none for found, none in zip(self._beyond, nothing, strict=True)], self._limit, take)

    def _guess(self, *, halves: bool) -> int:
        """A moment between the two: where the limit would be filled at a constant rate, or the middle."""
        low, high = self._load(self._within), self._load(self._beyond)
        part = 0.5 if halves else (_FILL_WANTED - low) / (high - low)
        between = self._beyond_ms - self._within_ms
        return self._within_ms + min(max(1, int(between * part)), between - 1)

    def _load(self, cut: _Cut) -> float:
        """The part of the limit that the cut takes; more than 1 if it exceeds the limit."""
        taken = [one for one in cut if one is not None]
        loads = [0.0]
        if self._limit.messages is not None:
            loads.append(sum(one.messages for one in taken) / self._limit.messages)
        if self._limit.size_bytes is not None:
            loads.append(sum(one.size_bytes for one in taken) / self._limit.size_bytes)
        return max(loads)

    def _cut(self, until_ms: int) -> _Cut:
        return [self._of(number, until_ms) for number in range(len(self._backlogs))]

    def _of(self, number: int, until_ms: int) -> BacklogRange | None:
        whole = self._backlogs[number]
        if not whole.messages or (whole.first_time_ms or 0) > until_ms:
            return None
        if _last_ms(whole) <= until_ms:
            return whole
        before, behind = self._within[number], self._beyond[number]
        if before is not None and before == behind:
            return before
        found = self._take(number, until_ms=until_ms)
        return found if found.messages else None


def _last_ms(backlog_range: BacklogRange) -> int:
    """When its last message was stored; far in the future if the broker does not say."""
    return (1 << 62) if backlog_range.last_time_ms is None else backlog_range.last_time_ms
