"""Which positions open transactions hold back, and so how far a segment may be read.

The readable position is the one just below the lowest that an open transaction holds, and never above what is
confirmed (T14, PIP-473's maxReadPosition). Each open transaction holds one position: at first a true lower bound, from
its first append on the position of its first entry.

Pure.
"""

import heapq
from typing import Final

from storage.entry import TxnId
from storage.position import Position

STALE_MAX: Final = 64
"""Positions that are held no more and may be remembered all the same, beside as many as are held."""


class HeldPositions:
    """The positions held, one per open transaction; the lowest is found in O(log n)."""

    __slots__ = ("_heap", "_held")

    def __init__(self) -> None:
        self._held: dict[TxnId, Position] = {}
        # Positions that were released or replaced stay in the heap until they come to its top, or are too many: the
        # earliest transaction may stay open for long, and any number of short ones come and go behind it.
        self._heap: list[tuple[Position, TxnId]] = []

    def __len__(self) -> int:
        return len(self._held)

    @property
    def size(self) -> int:
        """Positions remembered: what the memory is proportional to."""
        return len(self._heap)

    def hold(self, txn: TxnId, position: Position) -> None:
        """Hold `position` for `txn`, in place of what it held."""
        if self._held.get(txn) == position:
            return
        self._held[txn] = position
        heapq.heappush(self._heap, (position, txn))
        if len(self._heap) > 2 * len(self._held) + STALE_MAX:
            self._heap = [(held, holder) for holder, held in self._held.items()]
            heapq.heapify(self._heap)

    def release(self, txn: TxnId) -> None:
        """Hold nothing for `txn` any more."""
        self._held.pop(txn, None)

    def lowest(self) -> Position | None:
        """The lowest position held, or None."""
        while self._heap:
            position, txn = self._heap[0]
            if self._held.get(txn) == position:
                return position
            heapq.heappop(self._heap)
        return None

    def readable(self, confirmed: Position) -> Position:
        """How far the segment may be read when everything up to `confirmed` is durable."""
        lowest = self.lowest()
        return confirmed if lowest is None else min(confirmed, lowest.before())
