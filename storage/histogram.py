"""Counts durations by size, for a histogram in `/metrics`. Counting one takes less than a microsecond."""

from bisect import bisect_left
from typing import Final

BOUNDS_SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Upper bounds of the buckets, inclusive. One more bucket has the longer ones."""


class Histogram:
    """Durations since the process started."""

    __slots__ = ("_counts", "_sum_seconds")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_SECONDS) + 1)
        self._sum_seconds = 0.0

    def count(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(BOUNDS_SECONDS, seconds)] += 1
        self._sum_seconds += seconds

    @property
    def counts(self) -> tuple[int, ...]:
        """How many there were for each bucket, not cumulative."""
        return tuple(self._counts)

    @property
    def sum_seconds(self) -> float:
        """The sum of all durations."""
        return self._sum_seconds
