"""A histogram of latencies whose memory is bounded and whose relative error is the same everywhere. Pure.

As in HdrHistogram: values fall into buckets whose width grows with the value. Each power of two is divided into
2**PRECISION_BITS buckets, so a bucket is at most 1/128 as wide as its values. Counts of different runs can be added.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

PRECISION_BITS: Final = 7
"""An error of at most 1/2**7, less than one percent."""

ERROR: Final = 2.0**-PRECISION_BITS
"""How much a percentile may exceed the exact one."""

_UNIT_SECONDS: Final = 1e-6
"""Below this, times count as this."""

_LARGEST: Final = 2**40
"""In units: more than a week. Longer times count as this, apart from `max_seconds`. So the buckets are below 4,500."""


class Histogram:
    """Counts times in seconds."""

    __slots__ = ("_counts", "_sum", "count", "max_seconds")

    def __init__(self) -> None:
        """Empty."""
        self._counts: Counter[int] = Counter()
        self._sum = 0.0
        self.count = 0
        """How many times were added."""
        self.max_seconds = 0.0
        """The longest of them, exactly."""

    def add(self, seconds: float) -> None:
        """Count one time."""
        self._counts[_bucket_of(min(_LARGEST, max(1, round(seconds / _UNIT_SECONDS))))] += 1
        self._sum += seconds
        self.count += 1
        self.max_seconds = max(self.max_seconds, seconds)

    def include(self, other: "Histogram") -> None:
        """Add everything that the other one has counted."""
        self._counts.update(other._counts)  # noqa: SLF001 - the same class
        self._sum += other._sum  # noqa: SLF001 - the same class
        self.count += other.count
        self.max_seconds = max(self.max_seconds, other.max_seconds)

    @property
    def mean_seconds(self) -> float:
        """The mean; 0 without any times."""
        return self._sum / self.count if self.count else 0.0

    def percentile(self, percent: float) -> float:
        """The time in seconds that `percent` of the times do not exceed, within the error; 0 without any times."""
        assert 0 <= percent <= 100, percent
        if not self.count:
            return 0.0
        left = percent / 100 * self.count
        for bucket, count in sorted(self._counts.items()):
            left -= count
            if left <= 0:
                return min(_end_of(bucket) * _UNIT_SECONDS, self.max_seconds)
        return self.max_seconds

    def between(self, bounds_seconds: Iterable[float]) -> list[int]:
        """How many times are at most the first bound, between the first and the second, and so on, up to the last."""
        counts, ordered, place = [], sorted(self._counts.items()), 0
        for bound in bounds_seconds:
            within = 0
            while place < len(ordered) and _end_of(ordered[place][0]) * _UNIT_SECONDS <= bound * (
                1 + 2**-PRECISION_BITS
            ):
                within += ordered[place][1]
                place += 1
            counts.append(within)
        return counts


def _bucket_of(units: int) -> int:
    # Values below 2**(PRECISION_BITS + 1) have a bucket each.
    shift = max(0, units.bit_length() - PRECISION_BITS - 1)
    return (shift << PRECISION_BITS) + (units >> shift)


def _end_of(bucket: int) -> int:
    """The largest number of units in the bucket."""
    shift = max(0, (bucket >> PRECISION_BITS) - 1)
    return (((bucket - (shift << PRECISION_BITS)) + 1) << shift) - 1
