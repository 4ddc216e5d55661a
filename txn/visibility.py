"""Which places open transactions hold back, and so how far a segment may be read.

The readable position is just below the lowest place that an open transaction holds, and never above the confirmed
one (T14, PIP-473's maxReadPosition). Each open transaction holds one place: first a true lower bound, and from its
first append on the place of its first entry. A place has the position, and the index for those who count messages.

Pure.
"""

import heapq
from typing import Final

from storage.entry import TxnId
from storage.position import Position
from txn.stable_offset import Place

STALE_MAX: Final = 64
"""How many released places may stay in memory, beyond the number of held ones."""


class HeldPlaces:
    """The held places, one for each open transaction. Finds the lowest in O(log n)."""

    __slots__ = ("_heap", "_held")

    def __init__(self) -> None:
        self._held: dict[TxnId, Place] = {}
        # Released or replaced places stay in the heap until they reach its top, or until they are too many. The
        # earliest transaction may stay open for long, while any number of short ones come and go behind it.
        self._heap: list[tuple[Place, TxnId]] = []

    def __len__(self) -> int:
        return len(self._held)

    @property
    def size(self) -> int:
        """Places in memory."""
        return len(self._heap)

    def hold(self, txn: TxnId, place: Place) -> None:
        """Hold `place` for `txn`, instead of its earlier one."""
        if self._held.get(txn) == place:
            return
        self._held[txn] = place
        heapq.heappush(self._heap, (place, txn))
        if len(self._heap) > 2 * len(self._held) + STALE_MAX:
            self._heap = [(held, holder) for holder, held in self._held.items()]
            heapq.heapify(self._heap)

    def release(self, txn: TxnId) -> None:
        """Hold nothing more for `txn`."""
        self._held.pop(txn, None)

    def lowest(self) -> Place | None:
        """The lowest held place, or None."""
        while self._heap:
            place, txn = self._heap[0]
            if self._held.get(txn) == place:
                return place
            heapq.heappop(self._heap)
        return None

    def readable(self, confirmed: Position) -> Position:
        """How far the segment may be read when everything up to `confirmed` is durable."""
        lowest = self.lowest()
        return confirmed if lowest is None else min(confirmed, lowest.position.before())

    def readable_end(self, confirmed_end: int) -> int:
        """The index behind the last message that may be read when those below `confirmed_end` are durable."""
        lowest = self.lowest()
        return confirmed_end if lowest is None else min(confirmed_end, lowest.offset)
