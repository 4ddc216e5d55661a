"""How far a log with markers is decided: Kafka's last stable offset, exclusive (K1, K2).

A transaction is open from its first record to its marker. A marker counts only when it is durable, so a transaction
that has its marker holds the offset back until then (K19). Each producer id has one open transaction at most, and uses
its id again for the next one.

    begin    the first record of a transaction is appended
    end      its marker is appended
    passed   everything below an offset is durable

Pure.
"""

from collections import deque
from typing import NamedTuple

from storage.aborted_offsets import AbortedOffsets


class _Ended(NamedTuple):
    """A transaction whose marker is appended and not durable yet."""

    first: int
    marker: int


class StableOffset:
    """See the module's docstring. Offsets rise with each call."""

    __slots__ = ("_ended", "_last_stable_at_end", "_open")

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        """The first offset of each open transaction, by producer id, in the order of these offsets."""
        self._ended: deque[_Ended] = deque()
        """In the order of their markers."""
        self._last_stable_at_end = 0

    @property
    def open_transactions(self) -> dict[int, int]:
        """The first offset of each open transaction, by producer id, lowest first."""
        return dict(self._open)

    def begin(self, producer_id: int, first: int) -> None:
        """Note the first record of a transaction. Its offset is above all those noted before."""
        assert producer_id not in self._open, "a producer has one open transaction at a time"
        assert not self._open or first > next(reversed(self._open.values())), "offsets rise"
        self._open[producer_id] = first

    def first_of(self, producer_id: int) -> int | None:
        """The first offset of the producer's open transaction, if it has one."""
        return self._open.get(producer_id)

    def end(self, producer_id: int, marker: int, *, is_commit: bool) -> AbortedOffsets | None:
        """Note the marker at the offset `marker`. Return the entry for the index of aborted transactions, if any.

        A marker of a producer without an open transaction ends nothing (K27).
        """
        first = self._open.pop(producer_id, None)
        if first is None:
            return None
        self._ended.append(_Ended(first, marker))
        # As Kafka counts it: only transactions that are still open hold it back.
        last_stable = next(iter(self._open.values()), marker + 1)
        assert last_stable >= self._last_stable_at_end, "it never goes back (K10)"
        self._last_stable_at_end = last_stable
        return None if is_commit else AbortedOffsets(producer_id, first, marker, last_stable)

    def passed(self, durable_end: int) -> None:
        """Everything below `durable_end` is durable."""
        while self._ended and self._ended[0].marker < durable_end:
            self._ended.popleft()

    def last_stable(self, high_watermark: int) -> int:
        """The first offset that is not decided and durable; at most `high_watermark`, the first that is not durable."""
        lowest_open = next(iter(self._open.values()), high_watermark)
        lowest_ended = min((ended.first for ended in self._ended), default=high_watermark)
        return min(lowest_open, lowest_ended, high_watermark)
