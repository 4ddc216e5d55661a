"""The ledgers of a managed ledger, in order, and the arithmetic of positions across their ends.

    ... [ 3: 0..99 ] [ 5: 0..41 ] [ 9: 0.. open      the ids rise, with gaps; the last one may still grow

A position may name a ledger that is gone (trimmed, or without entries), or an entry behind a ledger's end. It is then a
place between its neighbours, like any other. Pure.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

from storage.ledger_record import NOTHING_TRIMMED, LedgerInfo, Trimmed
from storage.position import EARLIEST, LATEST, Position


class LedgerList:
    """Position arithmetic. `closed` holds only ledgers with entries. The open one is kept beside them."""

    def __init__(self, closed: Sequence[LedgerInfo], trimmed: Trimmed = NOTHING_TRIMMED) -> None:
        self.trimmed = trimmed
        self.open_id: int | None = None
        """The ledger that accepts entries, or None."""
        self.open_entries = 0
        """How many entries it has, confirmed or not."""
        self._set(closed)

    @property
    def closed(self) -> Sequence[LedgerInfo]:
        """Ledgers that accept no more entries, in order. Their last entries may still be unconfirmed."""
        return self._closed

    def open(self, ledger: int) -> None:
        """Append to this ledger from now on."""
        assert self.open_id is None, "one ledger is open at a time"
        self.open_id = ledger
        self.open_entries = 0

    def close(self, info: LedgerInfo | None) -> None:
        """End the open ledger. Returns None, and forgets it, if it has no entries."""
        self.open_id = None
        if info is not None:
            self._set([*self._closed, info])

    def replace(self, info: LedgerInfo) -> None:
        """Replace what is known of a closed ledger by what is on the disk."""
        self._set([info if known.id == info.id else known for known in self._closed])

    def update(self, infos: Iterable[LedgerInfo]) -> None:
        """Replace what is known of several closed ledgers. Unknown ledgers are skipped."""
        better = {info.id: info for info in infos}
        self._set([better.get(known.id, known) for known in self._closed])

    def trim(self, upto: Position) -> list[LedgerInfo]:
        """Forget the closed ledgers that end at or below `upto`, and return them."""
        count = 0
        while count < len(self._closed) and _end(self._closed[count]) <= upto:
            count += 1
        gone = self._closed[:count]
        if gone:
            self.trimmed = Trimmed(_end(gone[-1]), gone[-1].first_index + gone[-1].messages)
            self._set(self._closed[count:])
        return gone

    @property
    def closed_end(self) -> int:
        """The index behind the last message of the closed ledgers, also of those that were trimmed."""
        return self._end_indexes[-1] if self._end_indexes else self.trimmed.next_index

    def last(self) -> Position:
        """The last entry, or the last one before it was trimmed; EARLIEST if there never was one."""
        if self.open_id is not None and self.open_entries:
            return Position(self.open_id, self.open_entries - 1)
        return _end(self._closed[-1]) if self._closed else self.trimmed.position

    def next_position(self) -> Position:
        """Where the next entry goes while this ledger stays open; the place behind the last one if none is open."""
        if self.open_id is not None:
            return Position(self.open_id, self.open_entries)
        last = self.last()
        return Position(last.ledger, last.entry + 1)

    def at_or_after(self, position: Position) -> Position | None:
        """The first existing entry at or above the position, or None."""
        number = bisect_left(self._ids, position.ledger)
        if number < len(self._ids):
            info = self._closed[number]
            if info.id > position.ledger:
                return Position(info.id, 0)
            if position.entry < info.entries:
                return Position(info.id, max(0, position.entry))
            if number + 1 < len(self._ids):
                return Position(self._ids[number + 1], 0)
        if self.open_id is None or not self.open_entries or position.ledger > self.open_id:
            return None
        if position.ledger < self.open_id:
            return Position(self.open_id, 0)
        return Position(self.open_id, max(0, position.entry)) if position.entry < self.open_entries else None

    def next_after(self, position: Position) -> Position:
        """The next place above: an entry, or where the next one goes.

        Behind all of that, the position plus one entry.
        """
        following = Position(position.ledger, position.entry + 1)
        found = self.at_or_after(following)
        if found is not None:
            return found
        if position >= LATEST:
            return LATEST
        return max(following, self.next_position())

    def previous(self, position: Position) -> Position:
        """The last existing entry below the position, or EARLIEST."""
        if self.open_id is not None and self.open_entries and position > Position(self.open_id, 0):
            entries = position.entry if position.ledger == self.open_id else self.open_entries
            return Position(self.open_id, min(entries, self.open_entries) - 1)
        number = bisect_left(self._ids, position.ledger)
        if number < len(self._ids) and self._ids[number] == position.ledger and position.entry > 0:
            return Position(position.ledger, min(position.entry, self._closed[number].entries) - 1)
        return _end(self._closed[number - 1]) if number else EARLIEST

    def entries_between(self, after: Position, upto: Position) -> int:
        """How many entries are above `after` and at or below `upto`."""
        return max(0, self._rank(upto) - self._rank(after))

    def cut(self, first: Position, last: Position) -> list[tuple[Position, Position]]:
        """The range from `first` to `last`, both included, cut at the ends of its ledgers, in order."""
        pieces = []
        while first < last:
            end = min(last, Position(first.ledger, self.last_entry(first.ledger)))
            if end >= first:
                pieces.append((first, end))
            following = self.next_after(max(end, first))
            if following > last:
                return pieces
            first = following
        return [*pieces, (first, last)]

    def last_entry(self, ledger: int) -> int:
        """Number of the ledger's last entry; -1 if it has none or is not in this list."""
        if ledger == self.open_id:
            return self.open_entries - 1
        info = self.info(ledger)
        return -1 if info is None else info.entries - 1

    def info(self, ledger: int) -> LedgerInfo | None:
        """What is known of a closed ledger, or None."""
        number = bisect_left(self._ids, ledger)
        return self._closed[number] if number < len(self._ids) and self._ids[number] == ledger else None

    def ledger_of_index(self, index: int) -> int | None:
        """The closed ledger with the message of this index, or the first one behind it; None if it is not closed."""
        number = bisect_right(self._end_indexes, index)
        return self._ids[number] if number < len(self._ids) else None

    def ledger_at_time(self, timestamp_ms: int) -> int | None:
        """The first closed ledger with an entry of this time or later; None if it is not closed."""
        number = bisect_left(self._end_times, timestamp_ms)
        return self._ids[number] if number < len(self._ids) else None

    def _set(self, closed: Sequence[LedgerInfo]) -> None:
        assert all(info.entries for info in closed), "an empty ledger is dropped when it is closed"
        self._closed = list(closed)
        self._ids = [info.id for info in closed]
        self._ranks = [0, *accumulate(info.entries for info in closed)]
        self._end_indexes = [info.first_index + info.messages for info in closed]
        self._end_times = [info.last_timestamp_ms for info in closed]

    def _rank(self, position: Position) -> int:
        number = bisect_left(self._ids, position.ledger)
        rank = self._ranks[number]
        if number < len(self._ids) and self._ids[number] == position.ledger:
            rank += min(max(0, position.entry + 1), self._closed[number].entries)
        if self.open_id is not None and position.ledger >= self.open_id:
            entries = position.entry + 1 if position.ledger == self.open_id else self.open_entries
            rank += min(max(0, entries), self.open_entries)
        return rank


def _end(info: LedgerInfo) -> Position:
    return Position(info.id, info.entries - 1)
