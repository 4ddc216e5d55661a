"""Counts what no consumer gets in a range of a log: control entries, and entries of aborted transactions (K35).

A backlog is what is unread less this. The owner counts without reading the log, wherever it can:

    a ledger of its own             it hides control entries as it appends them, and others as transactions abort
    a whole ledger before its time  the head of the list beside the ledger has the sums
    a part of such a ledger         the list has its hidden entries

If an earlier owner died before it wrote the list, the ledger is read once, up to what is decided. So it is if the list
is missing or damaged, or if an earlier release closed the ledger. Then the list is written. A ledger in which nothing
can be hidden is never read.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

import structlog
import trio

from storage.entry import Entry, TxnId
from storage.errors import EntriesUnreadable, LedgerNotFound, NoSpace, StorageError
from storage.hidden_entries import NOTHING_HIDDEN, Hidden, HiddenEntries
from storage.managed_ledger import ManagedLedger
from storage.position import Position
from storage.signal import Bell, Signal

CACHED_ENTRIES_MAX: Final = 500_000
"""Hidden entries of earlier owners' ledgers that stay in memory, for one log. Each takes 12 bytes."""

HIDDEN_AT_ONCE: Final = 1_000
"""Entries of aborted transactions that are hidden in one step. It takes about 1 ms."""

PIECES_AT_ONCE: Final = 200
"""Parts of ledgers that are counted in one step. It takes about 1 ms."""

_READ_ENTRIES: Final = 1_000
_READ_BYTES: Final = 1024 * 1024

log = structlog.get_logger(__name__)

Range = tuple[Position, Position]
"""The entries above the first position, and at or below the second."""


class Aborts(Protocol):
    """What a transaction buffer knows of aborted transactions."""

    @property
    def hides_nothing(self) -> bool:
        """Whether nothing decided in any closed ledger can be hidden."""

    def may_hide(self, ledger: int) -> bool:
        """Whether anything decided in this closed ledger can be hidden."""

    async def prepare(self, entries: Sequence[Entry]) -> None:
        """Load what `hides` needs for these entries. Raises LedgerCorrupt if it is damaged."""

    def hides(self, entry: Entry) -> bool:
        """Whether the decided entry belongs to an aborted transaction."""


class _Piece(NamedTuple):
    """The part of a range that one ledger holds: its entries above `after`, up to `last`."""

    ledger: int
    after: int
    last: int


class _Written(NamedTuple):
    """What an open transaction has in one ledger."""

    ledger: int
    entries: "array[int]"
    messages: "array[int]"


@dataclass(slots=True)
class _Found:
    """What was found hidden in an earlier owner's ledger."""

    hidden: HiddenEntries = field(default_factory=HiddenEntries)
    last: int = -1
    """The last entry that was looked at."""
    is_whole: bool = True
    """Whether all entries up to there could be read."""


class HiddenLog:
    """See the module's docstring. Every range ends at or below the readable position."""

    # There may be many logs, and most of them hide nothing.
    __slots__ = (
        "_aborted",
        "_aborts",
        "_due",
        "_found",
        "_handled",
        "_ledger",
        "_open",
        "_reading",
        "_totals",
        "_unwritten",
        "_wanted",
        "heard",
    )

    def __init__(self, ledger: ManagedLedger, aborts: Aborts, due: Signal) -> None:
        """Set up. `due` is set when there is something for `work` to do."""
        self._ledger = ledger
        self._aborts = aborts
        self._due = due
        self._open: dict[TxnId | int, list[_Written]] = {}
        """Entries of open transactions, as far as this owner appended them: 12 bytes each."""
        self._aborted: list[_Written] = []
        """Entries of aborted transactions that are not hidden yet."""
        self._found: dict[int, _Found] = {}
        """By ledger. The most recently used one comes last."""
        self._totals: dict[int, Hidden] = {}
        """Of whole ledgers, as far as they were asked for."""
        self._wanted: dict[int, None] = {}
        """Ledgers to be read."""
        self._unwritten: dict[int, HiddenEntries] = {}
        """Ledgers that were read to their end, and whose list is not written yet."""
        self._handled = -1
        """Closed ledgers of this owner up to this one are written down, or need not be."""
        self._reading: trio.Lock | None = None
        """Made when a ledger is looked at for the first time."""
        self.heard: Bell | None = None
        """Rung when `known_between` knows more than before."""

    # -- what the owner does

    def took(self, txn: TxnId | int, position: Position, messages: int) -> None:
        """An entry of an open transaction was appended there."""
        written = self._open.setdefault(txn, [])
        if not written or written[-1].ledger != position.ledger:
            written.append(_Written(position.ledger, array("Q"), array("I")))
        written[-1].entries.append(position.entry)
        written[-1].messages.append(messages)

    def ended(self, txn: TxnId | int, *, is_abort: bool) -> None:
        """The transaction is decided."""
        written = self._open.pop(txn, ())
        if is_abort:
            self._aborted.extend(written)
            self._hide_some()

    def _hide_some(self) -> None:
        left = HIDDEN_AT_ONCE
        while self._aborted and left > 0:
            ledger, entries, messages = self._aborted[-1]
            for _ in range(min(left, len(entries))):
                # From the end, which costs an array nothing.
                self._ledger.hidden.add(Position(ledger, entries.pop()), messages.pop())
                left -= 1
            if not entries:
                self._aborted.pop()

    # -- counting

    async def count(self, ranges: Iterable[Range]) -> Hidden:
        """How much is hidden in these ranges.

        Raises:
            LedgerCorrupt: it is unknown which transactions were aborted, because of damage.
            LedgerNotFound: a ledger was trimmed.
        """
        found = await self._count(ranges, reads=True)
        assert found is not None, "whatever has to be read was read"
        return found

    async def count_soon(self, ranges: Iterable[Range]) -> Hidden | None:
        """As `count`; None if a ledger has to be read first. `work` then reads it, so the next call may succeed."""
        return await self._count(ranges, reads=False)

    async def _count(self, ranges: Iterable[Range], *, reads: bool) -> Hidden | None:
        while self._aborted:
            self._hide_some()
            await trio.lowlevel.checkpoint()
        total = NOTHING_HIDDEN
        pieces = chain.from_iterable(self._pieces(after, upto) for after, upto in ranges)
        for number, piece in enumerate(pieces, 1):
            known = self._known(piece)
            if known is None:
                known = await self._count_found(piece, reads=reads)
            if known is None:
                return None
            total = total.plus(known)
            if number % PIECES_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        return total

    def known_between(self, after: Position, upto: Position) -> Hidden:
        """How much is known to be hidden there. What has to be loaded for more is loaded soon."""
        total = NOTHING_HIDDEN
        for piece in self._pieces(after, upto):
            known = self._known(piece)
            if known is None:
                self._wanted[piece.ledger] = None
                self._due.set()
            else:
                total = total.plus(known)
        return total

    def _pieces(self, after: Position, upto: Position) -> Iterator[_Piece]:
        ledger = self._ledger
        if ledger.hidden.is_empty and self._aborts.hides_nothing:
            return
        at = ledger.next_after(after)
        while at <= upto:
            last = ledger.last_entry(at.ledger)
            if last < 0:
                return
            end = min(last, upto.entry) if at.ledger == upto.ledger else last
            yield _Piece(at.ledger, at.entry - 1, end)
            at = ledger.next_after(Position(at.ledger, last))

    def _known(self, piece: _Piece) -> Hidden | None:
        """What is hidden in a piece, if it is in memory."""
        hidden = self._ledger.hidden.of(piece.ledger)
        if hidden is None:
            total = self._totals.get(piece.ledger)
            if total is not None and (not total.entries or self._is_whole(piece)):
                return total
            if total is None and not self._aborts.may_hide(piece.ledger):
                return NOTHING_HIDDEN
            found = self._found.get(piece.ledger)
            if found is None or found.last < piece.last:
                return None
            hidden = found.hidden
        return hidden.upto(piece.last).less(hidden.upto(piece.after))

    def _is_whole(self, piece: _Piece) -> bool:
        return piece.after < 0 and piece.last == self._ledger.last_entry(piece.ledger)

    async def _count_found(self, piece: _Piece, *, reads: bool) -> Hidden | None:
        async with self._lock():
            known = self._known(piece)
            if known is None and self._is_whole(piece):
                known = await self._ledger.hidden_lists.total(piece.ledger)
                if known is not None:
                    self._totals[piece.ledger] = known
            if known is not None:
                return known
            found = await self._loaded(piece.ledger)
            if found.last < piece.last:
                if not reads:
                    self._wanted[piece.ledger] = None
                    self._due.set()
                    return None
                await self._read(piece.ledger, found, piece.last)
            return found.hidden.upto(piece.last).less(found.hidden.upto(piece.after))

    def _lock(self) -> trio.Lock:
        """Held by whoever reads a ledger or its list."""
        if self._reading is None:
            self._reading = trio.Lock()
        return self._reading

    async def _loaded(self, ledger: int) -> _Found:
        found = self._found.get(ledger)
        if found is None:
            if not self._ledger.has_ledger(ledger):
                raise LedgerNotFound(f"ledger {ledger} is gone")
            stored = await self._ledger.hidden_lists.load(ledger)
            found = _Found() if stored is None else _Found(stored, self._ledger.last_entry(ledger))
            self._found[ledger] = found
            if stored is not None:
                self._totals[ledger] = stored.total
        del self._found[ledger]
        while self._found and sum(one.hidden.total.entries for one in self._found.values()) > CACHED_ENTRIES_MAX:
            del self._found[next(iter(self._found))]
        self._found[ledger] = found
        return found

    async def _read(self, ledger: int, found: _Found, last: int) -> None:
        """Go on reading an earlier owner's ledger, up to this decided entry."""
        while found.last < last:
            at = Position(ledger, found.last + 1)
            try:
                entries = await self._ledger.read(
                    at, upto=Position(ledger, last), entries_max=_READ_ENTRIES, bytes_max=_READ_BYTES
                )
            except EntriesUnreadable as damage:
                # No consumer gets these entries. They count, so that somebody looks.
                log.error("damaged entries count in a backlog", topic=self._ledger.name, reason=str(damage))
                found.last, found.is_whole = damage.last.entry, False
                continue
            if not entries:
                raise LedgerNotFound(f"ledger {ledger} is gone")
            await self._aborts.prepare(entries)
            for entry in entries:
                if entry.is_control or (entry.txn is not None and self._aborts.hides(entry)):
                    found.hidden.add(entry.position.entry, entry.message_count)
            found.last = entries[-1].position.entry
            # Reads served from memory do not pause.
            await trio.lowlevel.checkpoint()
        if found.is_whole and found.last == self._ledger.last_entry(ledger):
            self._unwritten[ledger] = found.hidden
            self._due.set()

    # -- what is written, and read, in the background

    async def work(self, readable: Position) -> bool:
        """Read what is wanted, and write what is complete. Return whether a ledger waits for `readable` to rise."""
        await self._read_wanted(readable)
        while self._aborted:
            self._hide_some()
            await trio.lowlevel.checkpoint()
        try:
            for ledger, hidden in tuple(self._unwritten.items()):
                await self._write(ledger, hidden)
                self._unwritten.pop(ledger, None)
            return await self._write_own(readable)
        except NoSpace as full:
            # The next ledger that closes brings another try.
            log.warning("a list of hidden entries is not written yet", topic=self._ledger.name, reason=str(full))
            return False

    async def _write_own(self, readable: Position) -> bool:
        closed = self._ledger.closed
        for info in closed[bisect_right(closed, self._handled, key=attrgetter("id")) :]:
            hidden = self._ledger.hidden.of(info.id)
            if hidden is not None:
                if Position(info.id, info.entries - 1) > readable:
                    return True
                if hidden.total.entries or self._aborts.may_hide(info.id):
                    await self._write(info.id, hidden)
                    self._ledger.hidden.release(info.id)
            self._handled = info.id
        return False

    async def _write(self, ledger: int, hidden: HiddenEntries) -> None:
        await self._ledger.hidden_lists.write(ledger, hidden)
        self._totals[ledger] = hidden.total
        if len(self._totals) > len(self._ledger.closed):
            self._totals = {known: total for known, total in self._totals.items() if self._ledger.has_ledger(known)}

    async def _read_wanted(self, readable: Position) -> None:
        for ledger in sorted(self._wanted):
            last = self._ledger.last_entry(ledger) if ledger < readable.ledger else readable.entry
            try:
                async with self._lock():
                    await self._read(ledger, await self._loaded(ledger), last)
            except StorageError as error:
                log.warning("hidden entries cannot be counted", topic=self._ledger.name, reason=str(error))
            self._wanted.pop(ledger, None)
            if self.heard is not None:
                self.heard.set()
