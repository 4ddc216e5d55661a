"""The hidden entries of a managed ledger, as far as its present owner appended them.

It knows them without reading: it appended each control entry, and learned of each abort. Those of ledgers before its
time are another matter (`txn/hidden_log.py`).

Pure.
"""

from collections.abc import Collection

from storage.hidden_entries import HiddenEntries
from storage.position import Position


class OwnHidden:
    """See the module's docstring. A set lasts until it is on disk, or its ledger is trimmed."""

    __slots__ = ("_above", "_by_ledger", "_released")

    def __init__(self, *, above: int) -> None:
        """Set up for an owner all of whose ledgers have a greater id than `above`."""
        self._above = above
        self._by_ledger: dict[int, HiddenEntries] = {}
        self._released: dict[int, None] = {}

    def add(self, position: Position, messages: int) -> None:
        """This entry is hidden. It may be one of an earlier owner's, which is left out."""
        if position.ledger > self._above:
            self._by_ledger.setdefault(position.ledger, HiddenEntries()).add(position.entry, messages)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was hidden in an own ledger, or all of it is on disk."""
        return not self._by_ledger

    def entries_in(self, ledger: int) -> int:
        """How many entries of the ledger are known to be hidden, and in memory."""
        known = self._by_ledger.get(ledger)
        return 0 if known is None else known.total.entries

    def of(self, ledger: int) -> HiddenEntries | None:
        """The set of an own ledger; None if the ledger is an earlier owner's, or its set was released."""
        if ledger <= self._above or ledger in self._released:
            return None
        return self._by_ledger.get(ledger) or HiddenEntries()

    def release(self, ledger: int) -> None:
        """Forget the set of a ledger, because it is on disk."""
        self._by_ledger.pop(ledger, None)
        self._released[ledger] = None

    def keep(self, ledgers: Collection[int]) -> None:
        """Forget all other ledgers, because they were trimmed."""
        for ledger in self._by_ledger.keys() - set(ledgers):
            del self._by_ledger[ledger]
        for ledger in self._released.keys() - set(ledgers):
            del self._released[ledger]
