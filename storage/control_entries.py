"""Where the control entries of a managed ledger are, as far as this owner has appended them.

A control entry has a position like any other, but no consumer ever gets it. So a backlog must not count it. This module
keeps the entry numbers, 8 bytes each, until their ledger is trimmed. Control entries of earlier owners are unknown.
They count as entries until a subscription has passed them.

Pure.
"""

from array import array
from bisect import bisect_right
from collections.abc import Collection

from storage.position import Position


class ControlEntries:
    """See the module's docstring."""

    __slots__ = ("_by_ledger",)

    def __init__(self) -> None:
        self._by_ledger: dict[int, array[int]] = {}

    def add(self, position: Position) -> None:
        """A control entry was appended there, above all earlier ones."""
        self._by_ledger.setdefault(position.ledger, array("q")).append(position.entry)

    def between(self, after: Position, upto: Position) -> int:
        """How many are above `after` and at or below `upto`."""
        count = 0
        for ledger, entries in self._by_ledger.items():
            if after.ledger <= ledger <= upto.ledger:
                low = bisect_right(entries, after.entry) if ledger == after.ledger else 0
                high = bisect_right(entries, upto.entry) if ledger == upto.ledger else len(entries)
                count += max(0, high - low)
        return count

    def keep(self, ledgers: Collection[int]) -> None:
        """Forget the control entries of other ledgers."""
        for ledger in self._by_ledger.keys() - set(ledgers):
            del self._by_ledger[ledger]
