"""What there is in a managed ledger: where things stand, across the ends of its ledgers, and the entries themselves.

The side of it that changes nothing; `managed_ledger.py` is the other.
"""

from collections.abc import Sequence

from storage.aborted_index import AbortedSpan
from storage.clock import WallClock
from storage.entry import Entry
from storage.errors import LedgerCorrupt, LedgerNotFound
from storage.ledger_list import LedgerInfo, LedgerList
from storage.ledger_reading import LedgerReading
from storage.ledger_store import LedgerStore
from storage.position import EARLIEST, Position
from storage.watermark import Watermark


class ManagedLedgerView:
    """See the module's docstring."""

    def __init__(self, store: LedgerStore, now_ms: WallClock) -> None:
        self.confirmed = Watermark(EARLIEST)
        """The last entry that is durable, inclusive. At the start, the last that the owner before left."""
        self._store = store
        self._now_ms = now_ms
        self._list = LedgerList(())
        self._reading = LedgerReading(store)
        self._next_index = 0
        self._current_first_index = 0

    @property
    def last_position(self) -> Position:
        """The last entry appended, confirmed or not, also if it was trimmed since; EARLIEST if there never was one."""
        return self._list.last()

    @property
    def next_position(self) -> Position:
        """A lower bound of where the next entry goes; exact unless a new ledger takes over before."""
        return self._list.next_position()

    @property
    def next_index(self) -> int:
        """Index that the next message gets."""
        return self._next_index

    @property
    def first_index(self) -> int:
        """Index of the first message that is still here, or of the first that will be."""
        if self._list.closed:
            return self._list.closed[0].first_index
        return self._next_index if self._list.open_id is None else self._current_first_index

    def next_after(self, position: Position) -> Position:
        """The next place above: an entry, or where the next one goes. For EARLIEST the first."""
        return self._list.next_after(position)

    def previous(self, position: Position) -> Position:
        """The last entry there is below the position, or EARLIEST."""
        return self._list.previous(position)

    def entries_between(self, after: Position, upto: Position) -> int:
        """How many entries stand above `after` and at or below `upto`."""
        return self._list.entries_between(after, upto)

    async def position_of_index(self, index: int) -> Position:
        """The confirmed entry that holds the message of this index, else the next place above it that there is.

        Raises:
            EntriesUnreadable: the search met damage. What is searched for is one of these entries, or behind them.
        """
        return await self._reading.position_of_index(self._list, index)

    async def position_at_time(self, timestamp_ms: int) -> Position:
        """The first confirmed entry taken at this time or later, else the next place behind them.

        Raises:
            EntriesUnreadable: the search met damage. What is searched for is one of these entries, or behind them.
        """
        return await self._reading.position_at_time(self._list, timestamp_ms)

    async def position_of_age(self, age_ms: int) -> Position:
        """As `position_at_time`, for the time so long ago by the clock that entries are stamped with."""
        return await self.position_at_time(max(0, self._now_ms() - age_ms))

    async def bytes_upto(self, position: Position) -> int:
        """Bytes of what is stored and confirmed at or below the position, to within a chunk of the index (64 KiB)."""
        return await self._reading.bytes_upto(self._list, position)

    async def position_within(self, size_bytes: int) -> Position:
        """The last confirmed entry for which `bytes_upto` is at most this; EARLIEST if there is none."""
        return await self._reading.position_within(self._list, size_bytes)

    async def read(self, start: Position, *, upto: Position, entries_max: int, bytes_max: int) -> list[Entry]:
        """Entries with start <= position <= upto, in order and across ledgers; never above `confirmed`.

        At least one if there is one, even if it is larger than `bytes_max`; fewer than the bounds allow is no sign of
        the end. Does not yield while everything is in memory.

        Raises:
            EntriesUnreadable: the first entry is damaged or missing.
        """
        upto = min(upto, self.confirmed.value)
        return await self._reading.read(self._list, start, upto, entries_max, bytes_max)

    def cut_at_ledgers(self, first: Position, last: Position) -> list[tuple[Position, Position]]:
        """The range from `first` to `last`, both included and existing, cut at the ends of the ledgers it spans."""
        return self._list.cut(first, last)

    @property
    def closed(self) -> Sequence[LedgerInfo]:
        """The ledgers that take no more entries, in order."""
        return self._list.closed

    def has_ledger(self, ledger: int) -> bool:
        """Whether the closed ledger is here: it has entries, and was not trimmed."""
        return self._list.info(ledger) is not None

    def aborted_count(self, ledger: int) -> int:
        """How many transactions the aborted-transaction index of a closed ledger must name."""
        info = self._list.info(ledger)
        return 0 if info is None else info.aborted

    def takes_entries(self, ledger: int) -> bool:
        """Whether the ledger is the one that takes entries."""
        return ledger == self._list.open_id

    async def load_aborted(self, ledger: int) -> tuple[AbortedSpan, ...]:
        """The aborted-transaction index of a closed ledger, empty if it needs none.

        Raises:
            LedgerCorrupt: it is damaged or missing, so nobody can tell which of the ledger's entries may be shown.
            LedgerNotFound: the ledger was trimmed.
        """
        if self.has_ledger(ledger):
            try:
                return await self._store.load_aborted(ledger, spans_min=self.aborted_count(ledger))
            except LedgerCorrupt:
                # Trimming removes the index with its ledger.
                if self.has_ledger(ledger):
                    raise
        raise LedgerNotFound(f"ledger {ledger} is gone")
