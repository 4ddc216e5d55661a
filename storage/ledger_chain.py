"""The ledgers of one managed ledger: which ledgers exist, which one accepts entries, and their record.

One ledger accepts entries. When it is large or old enough, the next one takes over, and old ones can be trimmed. One
record in the metadata store lists the ledgers and the end of each closed one. It changes only by compare-and-set, and
only while the owner's claim holds. So a stale owner changes nothing (docs/design.md#topics).

    create file -> list in the record -> takes entries -> left -> complete on disk -> end in the record -> trimmed

A ledger without entries leaves the record when its end is recorded, so restarts do not pile up empty ledgers. Its file
is removed after that. A ledger's file is made before its record, so a listed ledger always has a file (E2).
"""

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

import structlog
import trio

from storage.aborted_index import AbortedSpan
from storage.errors import Fenced, LedgerNotMade, LedgerSealed, NoSpace
from storage.hidden_entries import HiddenEntries
from storage.ledger_ids import LedgerIds
from storage.ledger_list import LedgerList
from storage.ledger_reading import closed_info
from storage.ledger_record import LEDGERS_MAX, NO_RECORDS, LedgerInfo, ManagedLedgerRecord, later_of
from storage.ledger_store import LedgerStore, OpenLedger
from storage.managed_ledger_record import RecordChanged, RecordKeeper
from storage.managed_ledger_recovery import Recovered
from storage.managed_ledger_removal import remove_all
from storage.metadata.store import StoreFull
from storage.position import Position
from storage.watermark import Watermark

_NO_LEDGER: Final = (NoSpace, LedgerNotMade, StoreFull)
"""The errors that mean: no further ledger for now."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ManagedLedgerConfig:
    """When the next ledger follows. Both bounds are soft, because the old ledger accepts entries until the switch."""

    ledger_bytes_max: int = 256 * 1024 * 1024
    ledger_age_max_ms: int = 4 * 60 * 60 * 1000
    """Checked when an entry is appended. Counted from when the ledger was opened, independent of the wall clock."""


class LedgerChain:
    """See the module's docstring. An append changes `next_index` and `last_timestamp_ms`, through `took`."""

    def __init__(
        self,
        name: str,
        keeper: RecordKeeper,
        store: LedgerStore,
        ids: LedgerIds,
        config: ManagedLedgerConfig,
        recovered: Recovered,
    ) -> None:
        self.name = name
        self.store = store
        self.ledgers = recovered.ledgers
        self.reading = recovered.reading
        self.confirmed = Watermark(recovered.ledgers.last())
        """The last durable entry, inclusive. At the start, the last entry of the previous owner."""
        self.current: OpenLedger | None = None
        """The ledger that accepts entries."""
        self._not_made: NoSpace | LedgerNotMade | StoreFull | None = None
        """Why the last attempt to make the first of them failed."""
        self.current_first_index = 0
        self.current_latest_record_ms = NO_RECORDS
        """See `LedgerInfo.latest_record_ms`."""
        self.next_index = recovered.next_index
        """The index of the next message."""
        self._confirmed_index = recovered.next_index
        self._unconfirmed: deque[tuple[Position, int]] = deque()
        """The entries that wait for the journal, each with the index behind it."""
        self.last_timestamp_ms = recovered.last_timestamp_ms
        self.is_closing = False
        """Whether entries are refused, for good."""
        self.is_refused = False
        """Whether the last roll was postponed because the disk was full."""
        self.is_roll_requested = False
        self._current_old_at = 0.0
        """When the current ledger will be old enough to be replaced, on Trio's clock."""
        self._unfinished = recovered.unfinished
        """Ledgers that another one has replaced and whose end is not on record yet, in order."""
        self._empty = recovered.empty
        """Ledgers without entries that the record may still list."""
        self._keeper = keeper
        self._ids = ids
        self._config = config
        self._changing = trio.Lock()
        """Held during every change of the record, never while something waits for space, because trims and deletions
        free some."""
        self._finishing = trio.Lock()

    @property
    def record(self) -> ManagedLedgerRecord:
        """The record, as it was last read or written."""
        assert self._keeper.record is not None, "it was read or written when the managed ledger was opened"
        return self._keeper.record

    @property
    def has_unfinished(self) -> bool:
        """Whether the record lacks the end of a replaced ledger."""
        return bool(self._unfinished)

    # -- the ledger that takes entries

    async def take_over(self, record: ManagedLedgerRecord, ledger: int, *, is_new: bool) -> None:
        """Begin as the owner: record what was recovered, and make the ledger with the id `ledger` if there is space.

        Raises:
            RecordChanged: the record has changed since it was read.
            NoSpace: the disk is full, and the managed ledger is new.
        """
        if record.sealed:
            self.is_closing = True
            await self._remove_trimmed()
            return
        record = replace(record, leader_epoch=record.leader_epoch + 1)
        try:
            opened = await self.store.create(ledger, confirmed=self.confirmed)
        except NoSpace as full:
            if is_new:
                raise
            self._not_made = full
            # The existing entries can be read.
            log.warning("a topic accepts no messages until the disk has space", topic=self.name, reason=str(full))
            await self._keeper.write(replace(record, ledgers=self._listing(self.ledgers), newest_id=ledger))
        else:
            await self._list_new(record, opened)
            self._go_on_in(opened)
        await self._remove_empty()
        await self._remove_trimmed()

    async def begin(self) -> bool:
        """Have a ledger that accepts entries, unless entries are refused for good.

        False if there is no space for one.
        """
        async with self._changing:
            if self.current is None and not self.is_closing:
                try:
                    self._go_on_in(await self._following())
                except _NO_LEDGER as refused:
                    self._not_made = refused
                    # The warning came once, when it was opened.
                    log.debug("a ledger cannot be made yet", topic=self.name, reason=str(refused))
                    return False
        return True

    async def roll(self) -> bool:
        """Record a new ledger and switch to it between two appends, if it is time. False if nothing was done.

        Until `record_ends`, the record has two ledgers without an end. If the process ends there, both are recovered.
        The store confirms in order across them, so the second one has entries only if the first is complete.
        """
        async with self._changing:
            if self.current is None or self.is_closing or not self.is_due(self.current):
                return False
            try:
                following = await self._following()
            except _NO_LEDGER as refused:
                self.is_refused = True
                log.warning(
                    "a ledger exceeds its size or age; the next one cannot be made",
                    topic=self.name,
                    reason=str(refused),
                )
                return False
            self.is_refused = False
            self._leave_current()
            self._go_on_in(following)
            return True

    def is_due(self, current: OpenLedger) -> bool:
        """Whether the ledger that accepts entries is large or old enough to be replaced."""
        is_asked = self.is_roll_requested or trio.current_time() >= self._current_old_at
        is_due = (is_asked and current.next_entry > 0) or current.size_bytes >= self._config.ledger_bytes_max
        return is_due and len(self.ledgers.closed) < LEDGERS_MAX

    def require_taking(self) -> OpenLedger:
        """The ledger that accepts entries.

        Raises:
            LedgerSealed: entries are refused, for good.
            NoSpace: there is no such ledger, because the disk is full, or for the reason in the text.
        """
        if self.is_closing:
            raise LedgerSealed(f"{self.name} is sealed and accepts no more entries")
        if self.current is None:
            assert self._not_made is not None, "otherwise it would have been made"
            what_to_do = "Free space" if isinstance(self._not_made, NoSpace) else "The broker tries again by itself"
            raise NoSpace(f"{self.name} has no ledger that accepts entries: {self._not_made}. {what_to_do}")
        return self.current

    def took(self, position: Position, message_count: int, timestamp_ms: int, latest_record_ms: int) -> None:
        """Count an entry that was just appended to the current ledger."""
        self.current_latest_record_ms = later_of(self.current_latest_record_ms, latest_record_ms)
        self.last_timestamp_ms = timestamp_ms
        self.next_index += message_count
        self.ledgers.open_entries = position.entry + 1
        self._unconfirmed.append((position, self.next_index))
        # Here as well, so that it holds no more than what waits for the journal.
        self._pass_confirmed()

    @property
    def confirmed_index(self) -> int:
        """The index behind the last confirmed message."""
        self._pass_confirmed()
        return self._confirmed_index

    def _pass_confirmed(self) -> None:
        waiting, confirmed = self._unconfirmed, self.confirmed.value
        while waiting and waiting[0][0] <= confirmed:
            self._confirmed_index = waiting.popleft()[1]

    # -- ends

    async def end(self) -> None:
        """Accept no more entries, and wait until the accepted ones are confirmed."""
        self.is_closing = True
        async with self._changing:
            self._leave_current()
        await self._finish()

    async def record_ends(self) -> None:
        """Record the ends of the replaced ledgers. Waits while there is no space to complete them."""
        await self._finish()
        async with self._changing:
            listing = self._listing(self.ledgers)
            if listing != self.record.ledgers and not self.record.is_deleting:
                await self._write(replace(self.record, ledgers=listing))
            await self._remove_empty()

    async def record_marked(self) -> None:
        """See `ManagedLedger.mark`."""
        async with self._changing:
            if not self.record.is_marked and not self.record.is_deleting:
                first = self.record.newest_id if self.current is None else self.current.id
                await self._write(replace(self.record, is_marked=True, marked_from=first))

    async def record_start(self, index: int) -> None:
        """See `ManagedLedger.delete_below`."""
        async with self._changing:
            if index > self.record.start_index and not self.record.is_deleting:
                await self._write(replace(self.record, start_index=index))

    async def record_sealed(self) -> None:
        """Record the final seal. Call `end` first."""
        async with self._changing:
            if not self.record.sealed:
                await self._write(replace(self.record, ledgers=self._listing(self.ledgers), sealed=True))
                await self._remove_empty()

    # -- removal, and the aborted-transaction indexes

    async def trim(self, upto: Position) -> None:
        """See `ManagedLedger.trim`."""
        async with self._changing:
            trimmed = LedgerList(self.ledgers.closed, self.ledgers.trimmed)
            upto = min(upto, self.confirmed.value)
            if self._unfinished:
                upto = min(upto, trimmed.previous(Position(self._unfinished[0].id, 0)))
            gone = trimmed.trim(upto)
            if not gone:
                return
            removing = (*self.record.removing, *(info.id for info in gone))
            record = replace(self.record, ledgers=self._listing(trimmed), trimmed=trimmed.trimmed, removing=removing)
            await self._write(record)
            await self._remove_empty()
            self.ledgers.trim(upto)
            await self._remove_trimmed()

    async def store_aborted(self, indexes: Mapping[int, Collection[AbortedSpan]]) -> None:
        """See `ManagedLedger.store_aborted`."""
        await self._finish()
        async with self._changing:
            if self.record.is_deleting:
                return
            listed = LedgerList(self.ledgers.closed, self.ledgers.trimmed)
            indexed = []
            for ledger, spans in indexes.items():
                info = listed.info(ledger)
                if info is not None:
                    owner = self._keeper.owner
                    await self.store.store_aborted(ledger, spans, owner=owner)
                    indexed.append(info._replace(aborted=len(set(spans)), aborted_owner=owner))
            listed.update(indexed)
            await self._write(replace(self.record, ledgers=self._listing(listed)))
            self.ledgers.update(indexed)

    async def store_hidden(self, ledger: int, hidden: HiddenEntries) -> None:
        """See `HiddenLists.write`."""
        # A trim removes all files of a ledger. None must follow.
        async with self._changing:
            if self.ledgers.info(ledger) is not None and not self.record.is_deleting:
                await self.store.store_hidden(ledger, hidden)

    async def delete(self) -> None:
        """See `ManagedLedger.delete`."""
        self.is_closing = True
        async with self._changing:
            try:
                await remove_all(self._keeper, self.store)
            except RecordChanged as changed:
                raise self._fenced() from changed
            finally:
                if self.record.is_deleting:
                    self.current = None

    # -- steps

    async def _following(self) -> OpenLedger:
        """A new ledger, on record. Raises one of `_NO_LEDGER` if there is no space for it."""
        ledger = await self._ids.take(above=self.record.newest_id)
        following = await self.store.create(ledger, confirmed=self.confirmed)
        # Its first index is known once the ledger before it is left.
        try:
            await self._list_new(self.record, following)
        except RecordChanged as changed:
            raise self._fenced() from changed
        return following

    async def _list_new(self, record: ManagedLedgerRecord, made: OpenLedger) -> None:
        """Record a new ledger behind the existing ones. If that fails, abandon it."""
        new = LedgerInfo(made.id, self.next_index, writer=self.store.writer, epoch=record.leader_epoch)
        try:
            ledgers = (*self._listing(self.ledgers), new)
            await self._keeper.write(replace(record, ledgers=ledgers, newest_id=made.id))
        except BaseException as error:
            self.store.abandon(made)
            # The store is certain that it has not applied this one. An earlier try, without an answer, may be applied.
            is_refused = isinstance(error, RecordChanged | Fenced) and not await self._keeper.lists(made.id)
            if is_refused or isinstance(error, StoreFull):
                await self.store.remove_empty(made.id)
            raise

    def _go_on_in(self, ledger: OpenLedger) -> None:
        self.current = ledger
        self.is_roll_requested = False
        self.current_first_index = self.next_index
        self.current_latest_record_ms = NO_RECORDS
        self._current_old_at = trio.current_time() + self._config.ledger_age_max_ms / 1000
        self.reading.put_open(ledger)
        self.ledgers.open(ledger.id)

    def _leave_current(self) -> None:
        """Fix the end of the current ledger. Its last entries may still be unconfirmed."""
        left, self.current = self.current, None
        if left is None:
            return
        left.close()
        self._unfinished.append(left)
        entries = left.next_entry
        first = self.current_first_index
        messages = self.next_index - first
        info = LedgerInfo(
            left.id,
            first,
            entries,
            messages,
            left.size_bytes,
            self.last_timestamp_ms,
            writer=self.store.writer,
            epoch=self.record.leader_epoch,
            latest_record_ms=self.current_latest_record_ms,
        )
        self.ledgers.close(info if entries else None)

    async def _finish(self) -> None:
        """Make the replaced ledgers complete and durable, so that the record may name their ends."""
        async with self._finishing:
            while self._unfinished:
                left = self._unfinished[0]
                sealed = await self.store.seal(left)
                if sealed.last_entry >= 0:
                    info = self.ledgers.info(left.id)
                    assert info is not None, "it has entries, and was not trimmed without an end"
                    complete = closed_info(await sealed.index(), 0, self.store.writer, info.epoch)
                    self.ledgers.replace(complete._replace(latest_record_ms=info.latest_record_ms))
                    self.reading.put_sealed(sealed)
                else:
                    self._empty.append(left.id)
                del self._unfinished[0]

    async def _remove_empty(self) -> None:
        """Remove the files of ledgers without entries, once no record lists them."""
        while self._empty:
            await self.store.remove_empty(self._empty.pop())

    async def _remove_trimmed(self) -> None:
        """Remove the files of the ledgers that the record marks as being removed."""
        if self.record.removing:
            for ledger in self.record.removing:
                self.reading.forget(ledger)
                await self.store.delete(ledger)
            await self._write(replace(self.record, removing=()))

    def _listing(self, ledgers: LedgerList) -> tuple[LedgerInfo, ...]:
        """The record's list of these ledgers. It omits an end that is not complete on the disk."""
        listing = [
            info if info.closed else LedgerInfo(info.id, info.first_index, writer=info.writer, epoch=info.epoch)
            for info in ledgers.closed
        ]
        if self.current is not None:
            first, writer, epoch = self.current_first_index, self.store.writer, self.record.leader_epoch
            listing.append(LedgerInfo(self.current.id, first, writer=writer, epoch=epoch))
        return tuple(listing)

    async def _write(self, record: ManagedLedgerRecord) -> None:
        try:
            await self._keeper.write(record)
        except RecordChanged as changed:
            raise self._fenced() from changed

    def _fenced(self) -> Fenced:
        return Fenced(f"{self.name} was changed by another owner")
