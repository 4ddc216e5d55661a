"""Converted entries that are kept in memory, because consumers of one topic tend to read the same ones.

An entry has one format, and its converted form is that of the other protocol. So an entry's position finds it. Entries
never change, so what is kept is never wrong. The least recently read is evicted at the bound. A form that is larger
than the whole bound is not kept.
"""

from collections import OrderedDict
from typing import Final

from storage.position import Position

OVERHEAD_BYTES: Final = 220
"""What a kept entry costs in memory besides its bytes, measured with CPython 3.11."""


class ConvertedEntries:
    """The converted forms of recently read entries, up to a number of bytes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept: OrderedDict[Position, bytes] = OrderedDict()
        """By position. The most recently read one is last."""
        self.held_bytes = 0
        """What the kept entries cost, their overhead included. Never above the bound."""

    def __len__(self) -> int:
        """How many entries are kept."""
        return len(self._kept)

    def get(self, position: Position) -> bytes | None:
        """The entry in the other protocol's format; None if it is not kept."""
        found = self._kept.get(position)
        if found is not None:
            self._kept.move_to_end(position)
        return found

    def put(self, position: Position, converted: bytes) -> None:
        """Keep the converted form of an entry. Two tasks may have made it at the same time."""
        cost = _cost(converted)
        if cost > self._bytes_max or position in self._kept:
            return
        self._kept[position] = converted
        self.held_bytes += cost
        while self.held_bytes > self._bytes_max:
            _position, evicted = self._kept.popitem(last=False)
            self.held_bytes -= _cost(evicted)


def _cost(converted: bytes) -> int:
    return len(converted) + OVERHEAD_BYTES
