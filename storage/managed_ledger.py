"""A managed ledger: a sequence of ledgers that reads and grows as one.

This is what its owner does with it: append, read, roll, seal, trim, delete. `managed_ledger_opening.py` makes an owner.
Which ledgers there are, and the record of that, is `ledger_chain.py`. How entries are found across the ends of ledgers
is `ledger_list.py` and `ledger_reading.py`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import structlog
import trio

from storage.aborted_index import AbortedSpan
from storage.clock import WallClock
from storage.entry import Entry, EntryFormat, TxnId
from storage.errors import SPACE_RETRY_SECONDS, LedgerCorrupt, LedgerNotFound
from storage.ledger_chain import LedgerChain
from storage.ledger_list import LedgerInfo
from storage.metadata.store import StoreFull
from storage.position import EARLIEST, Position
from storage.signal import Signal

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ManagedLedgerStatistics:
    """A snapshot for metrics; reading it costs nothing."""

    ledgers: int
    entries: int
    """Entries there are, confirmed or not."""
    size_bytes: int
    next_index: int
    is_sealed: bool


class ManagedLedger:
    """See the module's docstring."""

    def __init__(self, chain: LedgerChain, now_ms: WallClock) -> None:
        self.name = chain.name
        self.confirmed = chain.confirmed
        """The last entry that is durable, inclusive. At the start, the last that the owner before left."""
        self._chain = chain
        self._ledgers = chain.ledgers
        self._reading = chain.reading
        self._now_ms = now_ms
        self._roll_due = Signal()
        self._rolls: list[Signal] = []

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Go on in a new ledger whenever the current one has reached its size or age; until cancelled.

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
                # Told at both moments: the first may be long before the second, as long as the disk is full.
                self._tell_rolled()
                await self._record_ends_in_time()
                self._tell_rolled()
            elif self._chain.is_refused:
                # The next append that finds the ledger due tries it again, but not each of many in a moment.
                await trio.sleep(SPACE_RETRY_SECONDS)

    def attach_rolls(self, signal: Signal) -> None:
        """Set `signal` whenever a ledger was left because of its size or age, and when its end is on record.

        Until `detach_rolls`.
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
        """The size of the ledger that takes entries."""
        return 0 if self._chain.current is None else self._chain.current.size_bytes

    @property
    def creation_id(self) -> str:
        """Tells this managed ledger from an earlier or later one of the same name."""
        return self._chain.record.creation_id

    @property
    def is_sealed(self) -> bool:
        """True once nothing is ever appended again, durably."""
        return self._chain.record.sealed

    # -- entries

    def append(
        self,
        payload: bytes,
        *,
        message_count: int = 1,
        txn: TxnId | None = None,
        entry_format: EntryFormat = EntryFormat.PULSAR,
    ) -> Position:
        """Take an entry and return its position; entries keep the order of the calls.

        Durable when `confirmed.wait_for(position)` returns. Call `wait_room` first.

        Raises:
            LedgerSealed: nothing is appended here any more.
            LedgerFailed: the writer has ended.
            NoSpace: the disk is full; nothing was taken.
        """
        chain = self._chain
        current = chain.require_taking()
        # Never earlier than the entry before, so that times can be searched; the clock may step back.
        now = max(self._now_ms(), chain.last_timestamp_ms)
        position = current.append(
            payload,
            first_index=chain.next_index,
            message_count=message_count,
            timestamp_ms=now,
            txn=txn,
            entry_format=entry_format,
        )
        chain.took(position, message_count, now)
        if chain.is_due(current):
            self._roll_due.set()
        return position

    async def wait_room(self) -> None:
        """Return when the bytes appended and not confirmed, over all ledgers of the broker, are below their bound.

        Appending without a pause afterwards keeps the bound up to one entry. Does not yield while there is room.

        Raises:
            LedgerSealed, LedgerFailed, NoSpace: as `append` would.
        """
        await self._chain.require_taking().wait_room()

    def require_space(self) -> None:
        """Hold that there is space for entries, unless none are taken for another reason.

        Raises:
            NoSpace: the disk is full.
        """
        if not self._chain.is_closing:
            self._chain.require_taking()
        self._chain.store.require_space()

    # -- reading

    @property
    def last_position(self) -> Position:
        """The last entry appended, confirmed or not, also if it was trimmed since; EARLIEST if there never was one."""
        return self._ledgers.last()

    @property
    def next_position(self) -> Position:
        """A lower bound of where the next entry goes; exact unless a new ledger takes over before."""
        return self._ledgers.next_position()

    @property
    def next_index(self) -> int:
        """Index that the next message gets."""
        return self._chain.next_index

    @property
    def first_index(self) -> int:
        """Index of the first message that is still here, or of the first that will be."""
        if self._ledgers.closed:
            return self._ledgers.closed[0].first_index
        return self._chain.next_index if self._ledgers.open_id is None else self._chain.current_first_index

    def next_after(self, position: Position) -> Position:
        """The next place above: an entry, or where the next one goes. For EARLIEST the first."""
        return self._ledgers.next_after(position)

    def previous(self, position: Position) -> Position:
        """The last entry there is below the position, or EARLIEST."""
        return self._ledgers.previous(position)

    def entries_between(self, after: Position, upto: Position) -> int:
        """How many entries stand above `after` and at or below `upto`."""
        return self._ledgers.entries_between(after, upto)

    async def position_of_index(self, index: int) -> Position:
        """The confirmed entry that holds the message of this index, else the next place above it that there is.

        Raises:
            EntriesUnreadable: the search met damage. What is searched for is one of these entries, or behind them.
        """
        return await self._reading.position_of_index(self._ledgers, index)

    async def position_at_time(self, timestamp_ms: int) -> Position:
        """The first confirmed entry taken at this time or later, else the next place behind them.

        Raises:
            EntriesUnreadable: the search met damage. What is searched for is one of these entries, or behind them.
        """
        return await self._reading.position_at_time(self._ledgers, timestamp_ms)

    async def position_of_age(self, age_ms: int) -> Position:
        """As `position_at_time`, for the time so long ago by the clock that entries are stamped with."""
        return await self.position_at_time(max(0, self._now_ms() - age_ms))

    async def bytes_upto(self, position: Position) -> int:
        """Bytes of what is stored and confirmed at or below the position, to within a chunk of the index (64 KiB)."""
        return await self._reading.bytes_upto(self._ledgers, position)

    async def position_within(self, size_bytes: int) -> Position:
        """The last confirmed entry for which `bytes_upto` is at most this; EARLIEST if there is none."""
        return await self._reading.position_within(self._ledgers, size_bytes)

    async def read(self, start: Position, *, upto: Position, entries_max: int, bytes_max: int) -> list[Entry]:
        """Entries with start <= position <= upto, in order and across ledgers; never above `confirmed`.

        At least one if there is one, even if it is larger than `bytes_max`; fewer than the bounds allow is no sign of
        the end. Does not yield while everything is in memory.

        Raises:
            EntriesUnreadable: the first entry is damaged or missing.
        """
        upto = min(upto, self.confirmed.value)
        return await self._reading.read(self._ledgers, start, upto, entries_max, bytes_max)

    def cut_at_ledgers(self, first: Position, last: Position) -> list[tuple[Position, Position]]:
        """The range from `first` to `last`, both included and existing, cut at the ends of the ledgers it spans."""
        return self._ledgers.cut(first, last)

    @property
    def closed(self) -> Sequence[LedgerInfo]:
        """The ledgers that take no more entries, in order."""
        return self._ledgers.closed

    def has_ledger(self, ledger: int) -> bool:
        """Whether the closed ledger is here: it has entries, and was not trimmed."""
        return self._ledgers.info(ledger) is not None

    def aborted_count(self, ledger: int) -> int:
        """How many transactions the aborted-transaction index of a closed ledger must name."""
        info = self._ledgers.info(ledger)
        return 0 if info is None else info.aborted

    def takes_entries(self, ledger: int) -> bool:
        """Whether the ledger is the one that takes entries."""
        return ledger == self._ledgers.open_id

    async def load_aborted(self, ledger: int) -> tuple[AbortedSpan, ...]:
        """The aborted-transaction index of a closed ledger, empty if it needs none.

        Raises:
            LedgerCorrupt: it is damaged or missing, so nobody can tell which of the ledger's entries may be shown.
            LedgerNotFound: the ledger was trimmed.
        """
        if self.has_ledger(ledger):
            try:
                return await self._chain.store.load_aborted(ledger, spans_min=self.aborted_count(ledger))
            except LedgerCorrupt:
                # Trimming removes the index with its ledger.
                if self.has_ledger(ledger):
                    raise
        raise LedgerNotFound(f"ledger {ledger} is gone")

    # -- changes

    def request_roll(self) -> None:
        """Let another ledger take over soon, if the one that takes entries is not empty."""
        self._chain.is_roll_requested = True
        self._roll_due.set()

    async def seal(self) -> Position:
        """Take no more entries, wait for those taken, and record that for good; the last position.

        From the call on `append` raises `LedgerSealed`, also if this is cancelled: call it again. Durable on return.
        Idempotent.

        Raises:
            LedgerFailed: the writer has ended. Fenced: the claim is lost.
        """
        await self._chain.end()
        await self._chain.record_sealed()
        return self._ledgers.last()

    async def close(self) -> None:
        """Take no more entries, wait for those taken, and record where they end; durable on return.

        For an owner that gives the managed ledger up: the next one has nothing to recover and goes on in a new ledger.
        Idempotent; from the call on `append` raises `LedgerSealed`.

        Raises:
            LedgerFailed: the writer has ended. Fenced: the claim is lost. The next owner recovers the end.
        """
        await self._chain.end()
        await self._chain.record_ends()

    async def trim(self, upto: Position) -> None:
        """Remove the ledgers whose every entry is at or below `upto`, except those whose end is not on record yet.

        The record says so, durably, before anything is removed.

        Raises:
            Fenced: the claim is lost; nothing was removed.
        """
        await self._chain.trim(upto)

    async def store_aborted(self, indexes: Mapping[int, Collection[AbortedSpan]]) -> None:
        """Write the aborted-transaction indexes of closed ledgers in which everything is decided.

        The record says afterwards that they exist, so that one that is lost is found missing. Both are durable on
        return. Ledgers that are not here any more are passed over.

        Raises:
            Fenced: the claim is lost.
        """
        await self._chain.store_aborted(indexes)

    async def delete(self) -> None:
        """Remove it with all its entries. Durable on return; see `managed_ledger_removal` for what a crash leaves.

        Raises:
            Fenced: the claim is lost; nothing was removed.
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
