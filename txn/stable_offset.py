"""How far a log with markers is decided: Kafka's last stable offset, exclusive (K1, K2).

A transaction is open from its first record to its marker. A marker counts only when it is durable, so a transaction
that has its marker holds the offset back until then (K19). Each producer id has one open transaction at most, and uses
its id again for the next one.

    begin    the first record of a transaction is appended
    end      its marker is appended
    passed   everything up to a position is durable

Kafka's clients count in offsets, and the rooms below in positions. So a place has both.

Pure.
"""

from collections import OrderedDict, deque
from typing import NamedTuple

from storage.aborted_offsets import AbortedOffsets
from storage.position import Position


class Place(NamedTuple):
    """An entry's place in the log. Places rise from entry to entry."""

    offset: int
    """The index of its first message."""
    position: Position


class StableOffset:
    """See the module's docstring. Places rise with each call."""

    __slots__ = ("_ended", "_held", "_last_stable_at_end", "_open")

    def __init__(self) -> None:
        # Both keep the order of their first offsets. An `OrderedDict` finds and removes its first one in one step.
        self._open: OrderedDict[int, Place] = OrderedDict()
        """The first place of each open transaction, by producer id."""
        self._held: OrderedDict[int, Position] = OrderedDict()
        """The first offset and position of each transaction that is open or waits for its marker to be durable."""
        self._ended: deque[tuple[Position, int, int]] = deque()
        """The marker of each transaction that waits for it, its first offset and its producer id. In the order of the
        markers."""
        self._last_stable_at_end = 0

    @property
    def open_transactions(self) -> dict[int, Place]:
        """The first place of each open transaction, by producer id, lowest first."""
        return dict(self._open)

    def begin(self, producer_id: int, first: Place) -> None:
        """Note the first record of a transaction. Its place is above all those noted before."""
        assert producer_id not in self._open, "a producer has one open transaction at a time"
        assert not self._held or first.offset > next(reversed(self._held)), "places rise"
        self._open[producer_id] = first
        self._held[first.offset] = first.position

    def first_of(self, producer_id: int) -> Place | None:
        """The first place of the producer's open transaction, if it has one."""
        return self._open.get(producer_id)

    def holds(self, producer_id: int, offset: int) -> bool:
        """Whether a producer's record at this offset is in a transaction that is open, or waits for its marker."""
        first = self._open.get(producer_id)
        if first is not None and first.offset <= offset:
            return True
        return any(ending == producer_id and begin <= offset for _marker, begin, ending in self._ended)

    def end(self, producer_id: int, marker: Place, *, is_commit: bool) -> AbortedOffsets | None:
        """Note the marker at this place. Return the entry for the index of aborted transactions, if any.

        A marker of a producer without an open transaction ends nothing (K27).
        """
        first = self._open.pop(producer_id, None)
        if first is None:
            return None
        self._ended.append((marker.position, first.offset, producer_id))
        last_stable = self.stable_at(marker.offset + 1)
        assert last_stable >= self._last_stable_at_end, "it never goes back (K10)"
        self._last_stable_at_end = last_stable
        return None if is_commit else AbortedOffsets(producer_id, first.offset, marker.offset, last_stable)

    def stable_at(self, end: int) -> int:
        """The first offset that is not decided, of a log that ends at `end`. Only open transactions hold it back."""
        first = next(iter(self._open.values()), None)
        return end if first is None else first.offset

    def passed(self, durable: Position) -> None:
        """Everything up to this position, inclusive, is durable."""
        while self._ended and self._ended[0][0] <= durable:
            del self._held[self._ended.popleft()[1]]

    def last_stable(self, high_watermark: int) -> int:
        """The first offset that is not decided and durable; at most `high_watermark`, the first that is not durable."""
        return min(next(iter(self._held), high_watermark), high_watermark)

    def readable(self, durable: Position) -> Position:
        """The last position that is decided, if everything up to `durable` is durable."""
        first = next(iter(self._held.values()), None)
        return durable if first is None else min(durable, first.before())
