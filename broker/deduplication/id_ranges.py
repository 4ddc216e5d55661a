"""A set of sequence ids, kept as disjoint ranges. Pure.

The ranges are two sorted lists. A producer that numbers its messages without gaps has one range, and adding the next id
moves its end.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator


class IdRanges:
    """See the module's docstring. No two ranges touch."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        """Take disjoint ranges, lowest first, each as its first and last id."""
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in ranges:
            self._firsts.append(first)
            self._lasts.append(last)

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self._firsts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield the first and last id of each range, lowest first."""
        return zip(self._firsts, self._lasts, strict=True)

    @property
    def last(self) -> int:
        """The highest id; -1 for an empty set."""
        return self._lasts[-1] if self._lasts else -1

    def has_all(self, first: int, last: int) -> bool:
        """Return whether every id from `first` to `last` is in the set."""
        index = bisect_right(self._firsts, first) - 1
        return index >= 0 and last <= self._lasts[index]

    def has_any(self, first: int, last: int) -> bool:
        """Return whether any id from `first` to `last` is in the set."""
        index = bisect_right(self._firsts, last) - 1
        return index >= 0 and first <= self._lasts[index]

    def add(self, first: int, last: int) -> None:
        """Add the ids from `first` to `last`."""
        # Ranges that overlap or touch the new one are merged with it.
        begin = bisect_right(self._lasts, first - 2)
        end = bisect_right(self._firsts, last + 1)
        if begin < end:
            first, last = min(first, self._firsts[begin]), max(last, self._lasts[end - 1])
        self._firsts[begin:end] = [first]
        self._lasts[begin:end] = [last]

    def join_lowest(self) -> None:
        """Add the ids between the two lowest ranges, which merges the two."""
        del self._firsts[1]
        del self._lasts[0]

    def drop_lowest(self) -> None:
        """Remove the lowest range."""
        del self._firsts[0]
        del self._lasts[0]
