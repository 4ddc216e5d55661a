"""The newest part of the log, in memory, for a follower whose link was cut for a moment.

A follower comes back with its place. If that place is in the part kept here, the follower gets the batches behind it.
If it is older, the follower gets the whole image. If the log passed that place with another batch, the follower holds
what the log does not, and must end.

| the follower's place                                  | what it gets            |
|-------------------------------------------------------|-------------------------|
| below the part                                        | nothing here: the image |
| a batch of the part, the one before it or its last    | what is behind it       |
| the number of such a batch, but with another checksum | `OffChain`              |
| above the last batch                                  | `OffChain`              |

Pure: values in, values out.
"""

from collections import deque

from storage.metadata.batches import Point, link_at
from storage.metadata.chain import OffChain
from storage.metadata.log import Appended


class RecentLog:
    """What a controller appended last, at most `bytes_max`. It begins behind `begin`, where nothing is kept."""

    __slots__ = ("_before", "_bytes", "_bytes_max", "_kept", "_last")

    def __init__(self, begin: Point, bytes_max: int) -> None:
        self._kept: deque[Appended] = deque()
        self._bytes = 0
        self._bytes_max = bytes_max
        self._before = begin
        """The batch before the first one kept."""
        self._last = begin

    def add(self, appended: Appended) -> None:
        """Keep what was appended behind the last batch, and let go of the oldest instead."""
        assert appended.after == self._last, "appends follow each other"
        self._last = appended.last
        self._kept.append(appended)
        self._bytes += len(appended.data)
        while self._bytes > self._bytes_max:
            oldest = self._kept.popleft()
            self._bytes -= len(oldest.data)
            self._before = oldest.last

    def behind(self, point: Point) -> list[Appended] | None:
        """What was appended behind a place, in order. None if the place is below the part that is kept.

        Raises:
            OffChain: the log does not contain that place.
        """
        if point.sequence < self._before.sequence:
            return None
        found: list[Appended] = []
        passed = self._last
        for appended in reversed(self._kept):
            if passed.sequence <= point.sequence:
                break
            found.append(appended)
            passed = appended.after
        if passed.sequence < point.sequence and found:
            # The place is inside the last one found.
            found[-1], passed = _rest(found[-1], point.sequence)
        if passed != point:
            raise OffChain(point, self._last)
        return found[::-1]


def _rest(appended: Appended, sequence: int) -> tuple[Appended, Point]:
    """The part behind a batch that is in it, and the place of that batch."""
    begin = 0
    while True:
        link = link_at(appended.data, begin)
        assert link is not None, "what was appended is whole"
        begin += link.size
        if link.after.sequence == sequence:
            rest = Appended(appended.data[begin:], appended.offset + begin, link.after, appended.last)
            return rest, link.after
