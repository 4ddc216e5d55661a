"""A managed ledger: a sequence of ledgers that reads and grows as one.

This module has what its owner does with it: append, read, roll, seal, trim, delete. `managed_ledger_opening.py` makes
an owner. `ledger_chain.py` has the list of ledgers and its record. `ledger_list.py` and `ledger_reading.py` find
entries across the ends of ledgers.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from storage.aborted_index import AbortedSpan
from storage.clock import WallClock
from storage.entry import Entry, EntryFormat, TxnId
from storage.errors import SPACE_RETRY_SECONDS, LedgerCorrupt, LedgerNotFound
from storage.hidden_lists import HiddenLists
from storage.ledger_chain import LedgerChain
from storage.ledger_record import NO_RECORDS, UNKNOWN_TIME, LedgerInfo
from storage.metadata.store import StoreFull
from storage.own_hidden import OwnHidden
from storage.position import EARLIEST, Position
from storage.signal import Signal

READ_ENDS_MAX: Final = 64
"""Readers by index that need not search for the place where they go on."""

HIDDEN_IN_LEDGER_MAX: Final = 500_000
"""Hidden entries of the ledger that grows, each 12 bytes in memory, before another one takes over. Once the ledger is
decided, they are on disk."""

Stamp = Callable[[bytes, int], bytes]
"""Makes the payload that holds this time, in milliseconds since the epoch. It has the same size."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ManagedLedgerStatistics:
    """A snapshot for metrics. Reading it costs nothing."""

    ledgers: int
    entries: int
    """Existing entries, confirmed or not."""
    size_bytes: int
    next_index: int
    is_sealed: bool


class ManagedLedger:
    """See the module's docstring."""

    def __init__(self, chain: LedgerChain, now_ms: WallClock) -> None:
        self.name = chain.name
        self.confirmed = chain.confirmed
        """The last durable entry, inclusive. At the start, the last entry of the previous owner."""
        self._chain = chain
        self._ledgers = chain.ledgers
        self._reading = chain.reading
        self._now_ms = now_ms
        self.hidden = OwnHidden(above=chain.ledgers.closed[-1].id if chain.ledgers.closed else -1)
        """What this owner appended, or knows to be aborted, that no consumer gets."""
        self.hidden_lists = HiddenLists(chain)
        """The same of closed ledgers, as it was written down."""
        self._roll_due = Signal()
        self._rolls: list[Signal] = []
        self._read_ends: OrderedDict[int, Position] = OrderedDict()
        """Where reads have ended: the last entry, by the index behind it. A reader by index goes on there."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Continue in a new ledger whenever the current one has reached its size or age, until cancelled.

        Raises:
            Fenced: the claim is lost.
        """
        task_status.started()
        await self._begin_in_time()
        if self._chain.has_unfinished:
            await self._record_ends_in_time()
            self._tell_rolled()
        while True:
            await self._roll_due.wait()
            if await self._chain.roll():
                # Signalled at both moments. On a full disk, much time may pass between them.
                self._tell_rolled()
                await self._record_ends_in_time()
                self._tell_rolled()
            elif self._chain.is_refused:
                # The next append that finds the ledger due tries again. The pause bounds how often that happens.
                await trio.sleep(SPACE_RETRY_SECONDS)

    def attach_rolls(self, signal: Signal) -> None:
        """Set `signal` whenever a ledger was replaced for its size or age, and when its end is on record.

        Detach it with `detach_rolls`.
        """
        self._rolls.append(signal)

    def detach_rolls(self, signal: Signal) -> None:
        """Undo one `attach_rolls`."""
        self._rolls.remove(signal)

    async def _begin_in_time(self) -> None:
        while True:
            if await self._chain.begin():
                return
            await trio.sleep(SPACE_RETRY_SECONDS)

    async def _record_ends_in_time(self) -> None:
        while True:
            try:
                await self._chain.record_ends()
            except StoreFull as refused:
                log.warning("a ledger's end is not recorded yet", topic=self.name, reason=str(refused))
                await trio.sleep(SPACE_RETRY_SECONDS)
            else:
                return

    def _tell_rolled(self) -> None:
        for signal in self._rolls:
            signal.set()

    @property
    def open_bytes(self) -> int:
        """The size of the ledger that accepts entries."""
        return 0 if self._chain.current is None else self._chain.current.size_bytes

    @property
    def creation_id(self) -> str:
        """Differs from that of every earlier or later managed ledger of the same name."""
        return self._chain.record.creation_id

    @property
    def is_sealed(self) -> bool:
        """Whether nothing is ever appended again. The seal is durable."""
        return self._chain.record.sealed

    # -- entries

    @property
    def last_timestamp_ms(self) -> int:
        """The timestamp of the last entry, milliseconds since the epoch; 0 if there was none. It never goes back."""
        return self._chain.last_timestamp_ms

    def append(
        self,
        payload: bytes,
        *,
        message_count: int = 1,
        txn: TxnId | None = None,
        entry_format: EntryFormat = EntryFormat.PULSAR,
        is_control: bool = False,
        latest_record_ms: int = UNKNOWN_TIME,
        stamp: Stamp | None = None,
    ) -> Position:
        """Append an entry and return its position. Entries keep the order of the calls.

        No record of the entry has a later time than `latest_record_ms`, if that is known. It is for searches by the
        times that producers give (`latest_record_ms`). With `stamp`, the records get the time of the entry.

        It is durable when `confirmed.wait_for(position)` returns. Call `wait_room` first.

        Raises:
            LedgerSealed: entries are refused, for good.
            LedgerFailed: the writer has ended.
            NoSpace: the disk is full. Nothing was appended.
        """
        chain = self._chain
        current = chain.require_taking()
        # Never earlier than the entry before, so that a search by time works. The clock may step back.
        now = max(self._now_ms(), chain.last_timestamp_ms)
        if stamp is not None:
            payload, latest_record_ms = stamp(payload, now), now
        position = current.append(
            payload,
            first_index=chain.next_index,
            message_count=message_count,
            timestamp_ms=now,
            txn=txn,
            entry_format=entry_format,
            is_control=is_control,
        )
        chain.took(position, message_count, now, NO_RECORDS if is_control else latest_record_ms)
        if is_control:
            self.hidden.add(position, message_count)
            if self.hidden.entries_in(position.ledger) >= HIDDEN_IN_LEDGER_MAX:
                self.request_roll()
        if chain.is_due(current):
            self._roll_due.set()
        return position

    async def wait_room(self) -> None:
        """Return when the unconfirmed bytes of all ledgers of the broker are below their bound.

        A caller that appends without a pause exceeds the bound by at most one entry. Does not yield while there is
        room.

        Raises:
            LedgerSealed, LedgerFailed, NoSpace: as `append` would.
        """
        await self._chain.require_taking().wait_room()

    def require_space(self) -> None:
        """Return if there is space for entries, or if entries are refused for another reason.

        Raises:
            NoSpace: the disk is full.
        """
        if not self._chain.is_closing:
            self._chain.require_taking()
        self._chain.store.require_space()

    # -- reading

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

    # -- changes

    @property
    def is_marked(self) -> bool:
        """Whether the log may have markers, or entries of numbered producers. It stays so."""
        return self._chain.record.is_marked

    def may_be_marked(self, ledger: int) -> bool:
        """Whether this ledger may have markers, or entries of numbered producers."""
        return self.is_marked and ledger >= self._chain.record.marked_from

    async def mark(self) -> None:
        """Record that the log will have markers, or entries of numbered producers. Durable on return. Idempotent.

        The owners of a log that is not marked need not read it.

        Raises:
            Fenced: the claim is lost.
            StoreFull: the metadata store is full.
        """
        if not self.is_marked:
            await self._chain.record_marked()

    def request_roll(self) -> None:
        """Let another ledger take over soon, if the current one is not empty."""
        self._chain.is_roll_requested = True
        self._roll_due.set()

    async def delete_below(self, index: int) -> None:
        """Delete the messages below this index, which is at most `confirmed_index`. Durable on return. Idempotent.

        `trim` removes the entries. Until then the caller hides those that are wholly below.

        Raises:
            Fenced: the claim is lost.
            StoreFull: the metadata store is full.
        """
        assert index <= self.confirmed_index, "the caller checks it"
        await self._chain.record_start(index)

    async def seal(self) -> Position:
        """Accept no more entries, wait for the accepted ones, and record the seal. Returns the last position.

        From the call on, `append` raises `LedgerSealed`, even if this call is cancelled; then call it again. Durable on
        return. Idempotent.

        Raises:
            LedgerFailed: the writer has ended.
            Fenced: the claim is lost.
        """
        await self._chain.end()
        await self._chain.record_sealed()
        return self._ledgers.last()

    async def close(self) -> None:
        """Accept no more entries, wait for the accepted ones, and record their end. Durable on return.

        An owner calls it before it gives up the managed ledger. The next owner then has nothing to recover and
        continues in a new ledger. Idempotent. From the call on, `append` raises `LedgerSealed`.

        Raises:
            LedgerFailed: the writer has ended. The next owner recovers the end.
            Fenced: the claim is lost. The next owner recovers the end.
        """
        await self._chain.end()
        await self._chain.record_ends()

    async def trim(self, upto: Position) -> None:
        """Remove the ledgers whose every entry is at or below `upto`, except ledgers whose end is not on record.

        The record says so, durably, before anything is removed.

        Raises:
            Fenced: the claim is lost. Nothing was removed.
        """
        await self._chain.trim(upto)
        self.hidden.keep({*(info.id for info in self._ledgers.closed), self._ledgers.last().ledger})

    async def store_aborted(self, indexes: Mapping[int, Collection[AbortedSpan]]) -> None:
        """Write the aborted-transaction indexes of closed ledgers in which everything is decided.

        The record then counts them, so that a lost index is found missing. Both are durable on return. Ledgers that
        were trimmed or are being deleted are skipped.

        Raises:
            Fenced: the claim is lost.
        """
        await self._chain.store_aborted(indexes)

    async def delete(self) -> None:
        """Remove it with all its entries. Durable on return. `managed_ledger_removal` tells what a crash leaves.

        Raises:
            Fenced: the claim is lost. Nothing was removed.
        """
        await self._chain.delete()

    def statistics(self) -> ManagedLedgerStatistics:
        """Counters at this moment."""
        current = self._chain.current
        return ManagedLedgerStatistics(
            ledgers=len(self._ledgers.closed) + (current is not None),
            entries=self._ledgers.entries_between(EARLIEST, self._ledgers.last()),
            size_bytes=sum(info.size for info in self._ledgers.closed) + (0 if current is None else current.size_bytes),
            next_index=self._chain.next_index,
            is_sealed=self._chain.record.sealed,
        )
