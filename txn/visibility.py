"""Which positions open transactions hold back, and so how far a segment may be read.

The readable position is just below the lowest position that an open transaction holds, and never above the confirmed
one (T14, PIP-473's maxReadPosition). Each open transaction holds one position: first a true lower bound, and from its
first append on the position of its first entry.

Pure.
"""

import heapq
from typing import Final

from storage.entry import TxnId
from storage.position import Position

STALE_MAX: Final = 64
"""How many released positions may stay in memory, beyond the number of held ones."""


class HeldPositions:
    """The held positions, one for each open transaction. Finds the lowest in O(log n)."""

    __slots__ = ("_heap", "_held")

    def __init__(self) -> None:
        self._held: dict[TxnId, Position] = {}
        # Released or replaced positions stay in the heap until they reach its top, or until they are too many. The
        # earliest transaction may stay open for long, while any number of short ones come and go behind it.
        self._heap: list[tuple[Position, TxnId]] = []

    def __len__(self) -> int:
        return len(self._held)

    @property
    def size(self) -> int:
        """Positions in memory."""
        return len(self._heap)

    def hold(self, txn: TxnId, position: Position) -> None:
        """Hold `position` for `txn`, in place of its earlier one."""
        if self._held.get(txn) == position:
            return
        self._held[txn] = position
        heapq.heappush(self._heap, (position, txn))
        if len(self._heap) > 2 * len(self._held) + STALE_MAX:
            self._heap = [(held, holder) for holder, held in self._held.items()]
            heapq.heapify(self._heap)

    def release(self, txn: TxnId) -> None:
        """Hold nothing more for `txn`."""
        self._held.pop(txn, None)

    def lowest(self) -> Position | None:
        """The lowest held position, or None."""
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
