"""A managed ledger: a sequence of ledgers that reads and grows as one.

This module has what its owner changes: append, roll, seal, trim, delete. `readable_ledger.py` has what readers ask.
`managed_ledger_opening.py` makes an owner. `ledger_chain.py` has the list of ledgers and its record.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from storage.aborted_index import AbortedSpan
from storage.clock import WallClock
from storage.entry import EntryFormat, TxnId
from storage.errors import SPACE_RETRY_SECONDS
from storage.hidden_lists import HiddenLists
from storage.ledger_chain import LedgerChain
from storage.ledger_record import NO_RECORDS, UNKNOWN_TIME
from storage.metadata.store import StoreFull
from storage.own_hidden import OwnHidden
from storage.position import EARLIEST, Position
from storage.readable_ledger import ReadableLedger
from storage.signal import Signal

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


class ManagedLedger(ReadableLedger):
    """See the module's docstring."""

    def __init__(self, chain: LedgerChain, now_ms: WallClock) -> None:
        super().__init__(chain, now_ms)
        self.hidden = OwnHidden(above=chain.ledgers.closed[-1].id if chain.ledgers.closed else -1)
        """What this owner appended, or knows to be aborted, that no consumer gets."""
        self.hidden_lists = HiddenLists(chain)
        """The same of closed ledgers, as it was written down."""
        self._roll_due = Signal()
        self._rolls: list[Signal] = []

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
