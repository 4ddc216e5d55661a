"""What readers may ask of a managed ledger: positions, indexes, times, sizes, and the entries themselves.

`ledger_list.py` and `ledger_reading.py` find them across the ends of ledgers. `managed_ledger.py` has what changes.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import trio

from storage.aborted_index import AbortedSpan
from storage.clock import WallClock
from storage.entry import Entry
from storage.errors import LedgerCorrupt, LedgerNotFound
from storage.ledger_chain import LedgerChain
from storage.ledger_record import NO_RECORDS, LedgerInfo
from storage.position import Position

READ_ENDS_MAX: Final = 64
"""Readers by index that need not search for the place where they go on."""


class ReadableLedger:
    """See the module's docstring."""

    def __init__(self, chain: LedgerChain, now_ms: WallClock) -> None:
        self.name = chain.name
        self.confirmed = chain.confirmed
        """The last durable entry, inclusive. At the start, the last entry of the previous owner."""
        self._chain = chain
        self._ledgers = chain.ledgers
        self._reading = chain.reading
        self._now_ms = now_ms
        self._read_ends: OrderedDict[int, Position] = OrderedDict()
        """Where reads have ended: the last entry, by the index behind it. A reader by index goes on there."""

    @property
    def last_position(self) -> Position:
        """The last appended entry, confirmed or not, even if it was trimmed; EARLIEST if there never was one."""
        return self._ledgers.last()

    @property
    def next_position(self) -> Position:
        """A lower bound of the position of the next entry. Exact unless a new ledger takes over before."""
        return self._ledgers.next_position()

    @property
    def next_index(self) -> int:
        """The index of the next message."""
        return self._chain.next_index

    @property
    def confirmed_index(self) -> int:
        """The index behind the last confirmed message: Kafka's high watermark (K19)."""
        return self._chain.confirmed_index

    @property
    def leader_epoch(self) -> int:
        """The number of this owner: one above that of the owner before (K44)."""
        return self._chain.record.leader_epoch

    def epoch_of(self, ledger: int) -> int:
        """The leader epoch in which the ledger was made; that of this owner if it is not closed."""
        info = self._ledgers.info(ledger)
        return self.leader_epoch if info is None else info.epoch

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """The last known epoch that is not above this one, and the index behind its last confirmed message (K44).

        An epoch whose messages were all trimmed ends at the first index.
        """
        if epoch >= self.leader_epoch:
            return self.leader_epoch, self.confirmed_index
        closed = self._ledgers.closed
        number = bisect_right(closed, epoch, key=lambda info: info.epoch)
        known = closed[number - 1].epoch if number else epoch
        return known, closed[number].first_index if number < len(closed) else self._open_first_index

    @property
    def first_index(self) -> int:
        """The index of the first message that is retained and not deleted, or of the first one that will exist."""
        first = self._ledgers.closed[0].first_index if self._ledgers.closed else self._open_first_index
        return max(first, self.start_index)

    @property
    def start_index(self) -> int:
        """Messages below this index were deleted by request (`delete_below`). Their entries may still be there."""
        return self._chain.record.start_index

    @property
    def _open_first_index(self) -> int:
        """The index of the first message behind the closed ledgers."""
        return self._chain.next_index if self._ledgers.open_id is None else self._chain.current_first_index

    def next_after(self, position: Position) -> Position:
        """The next place above: an entry, or where the next one goes. For EARLIEST, the first."""
        return self._ledgers.next_after(position)

    def previous(self, position: Position) -> Position:
        """The last existing entry below the position, or EARLIEST."""
        return self._ledgers.previous(position)

    def entries_between(self, after: Position, upto: Position) -> int:
        """How many entries are above `after` and at or below `upto`."""
        return self._ledgers.entries_between(after, upto)

    async def position_of_index(self, index: int) -> Position:
        """The confirmed entry with the message of this index; if there is none, the next place above it.

        Raises:
            EntriesUnreadable: the search met damage. The entry is in the damaged range, or behind it.
        """
        before = self._read_ends.get(index)
        if before is not None:
            return self._ledgers.next_after(before)
        return await self._reading.position_of_index(self._ledgers, index)

    async def position_at_time(self, timestamp_ms: int) -> Position:
        """The first confirmed entry of this time or later; if there is none, the place behind the last one.

        Raises:
            EntriesUnreadable: the search met damage. The entry is in the damaged range, or behind it.
        """
        return await self._reading.position_at_time(self._ledgers, timestamp_ms)

    async def position_of_age(self, age_ms: int) -> Position:
        """As `position_at_time`, for a time this long ago by the clock that stamps entries."""
        return await self.position_at_time(max(0, self._now_ms() - age_ms))

    async def bytes_upto(self, position: Position) -> int:
        """Stored and confirmed bytes at or below the position, to within a chunk of the index (64 KiB)."""
        return await self._reading.bytes_upto(self._ledgers, position)

    async def position_within(self, size_bytes: int) -> Position:
        """The last confirmed entry for which `bytes_upto` is at most this; EARLIEST if there is none."""
        return await self._reading.position_within(self._ledgers, size_bytes)

    async def read(self, start: Position, *, upto: Position, entries_max: int, bytes_max: int) -> list[Entry]:
        """Confirmed entries with start <= position <= upto, in order and across ledgers.

        Returns at least one entry if there is one, even if it is larger than `bytes_max`. Fewer entries than the bounds
        allow do not mean the end. Does not yield while everything is in memory.

        Raises:
            EntriesUnreadable: the first entry is damaged or missing.
        """
        upto = min(upto, self.confirmed.value)
        entries = await self._reading.read(self._ledgers, start, upto, entries_max, bytes_max)
        if entries:
            last = entries[-1]
            self._read_ends[last.first_index + last.message_count] = last.position
            if len(self._read_ends) > READ_ENDS_MAX:
                self._read_ends.popitem(last=False)
        return entries

    def cut_at_ledgers(self, first: Position, last: Position) -> list[tuple[Position, Position]]:
        """The range from `first` to `last`, both included and existing, cut at the ends of its ledgers."""
        return self._ledgers.cut(first, last)

    @property
    def closed(self) -> Sequence[LedgerInfo]:
        """The ledgers that accept no more entries, in order."""
        return self._ledgers.closed

    def latest_record_ms(self, ledger: int) -> int:
        """No record of this ledger has a later time, as its producer says; UNKNOWN_TIME or NO_RECORDS (K39)."""
        if ledger == self._ledgers.open_id:
            return self._chain.current_latest_record_ms
        info = self._ledgers.info(ledger)
        return NO_RECORDS if info is None else info.latest_record_ms

    def last_entry(self, ledger: int) -> int:
        """The number of the ledger's last entry, confirmed or not; -1 if it has none or was trimmed."""
        return self._ledgers.last_entry(ledger)

    def info(self, ledger: int) -> LedgerInfo | None:
        """What is known of a closed ledger with entries; None if it is another one, or was trimmed."""
        return self._ledgers.info(ledger)

    def has_ledger(self, ledger: int) -> bool:
        """Whether the closed ledger has entries and was not trimmed."""
        return self._ledgers.info(ledger) is not None

    def takes_entries(self, ledger: int) -> bool:
        """Whether this ledger accepts entries."""
        return ledger == self._ledgers.open_id

    async def load_aborted(self, ledger: int) -> tuple[AbortedSpan, ...]:
        """The aborted-transaction index of a closed ledger that its record names, empty if it names none.

        Raises:
            LedgerCorrupt: the index is damaged or missing, so it does not show which of the ledger's entries are
                visible.
            LedgerNotFound: the ledger was trimmed.
        """
        info = self._ledgers.info(ledger)
        if info is not None:
            if not info.aborted:
                await trio.lowlevel.checkpoint()
                return ()
            try:
                return await self._chain.store.load_aborted(ledger, owner=info.aborted_owner, spans_min=info.aborted)
            except LedgerCorrupt:
                # Trimming removes the index with its ledger.
                if self.has_ledger(ledger):
                    raise
        raise LedgerNotFound(f"ledger {ledger} is gone")
