"""A managed ledger: a sequence of ledgers that reads and grows as one.

One ledger takes entries; when it is large or old enough the next one takes over, and old ones can be trimmed. Which
ledgers there are, and where each closed one ends, is one record in the metadata store, changed by compare-and-set only
and with the owner's claim as a condition, so a stale owner changes nothing (docs/design.md#topics).

What is open in the record has no known end; the record names its writer. Whoever opens the managed ledger fences those
writers, recovers their ledgers, records the ends, and goes on in a new ledger with a greater id: positions rise and are
never used twice. A ledger that turns out to be empty leaves the record at that moment, so restarts leave no piles of
them. Its file goes after that, as a ledger's file comes before its record: what is listed has a file (E2).
"""

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

import structlog
import trio

from storage.aborted_index import AbortedSpan
from storage.clock import WallClock
from storage.entry import EntryFormat, TxnId
from storage.errors import SPACE_RETRY_SECONDS, Fenced, LedgerNotMade, LedgerSealed, NoSpace
from storage.ledger import OpenLedger
from storage.ledger_ids import LedgerIds
from storage.ledger_list import LEDGERS_MAX, LedgerInfo, LedgerList, ManagedLedgerRecord
from storage.ledger_reading import closed_info
from storage.ledger_store import LedgerStore
from storage.managed_ledger_record import RecordChanged, RecordKeeper
from storage.managed_ledger_removal import remove_all
from storage.managed_ledger_view import ManagedLedgerView
from storage.metadata.store import Check, MetadataStore, StoreFull
from storage.position import EARLIEST, Position
from storage.signal import Signal

CREATION_ID_DIGITS: Final = 16
"""Hexadecimal, so 64 random bits."""

_NO_LEDGER: Final = (NoSpace, LedgerNotMade, StoreFull)
"""Why there is no further ledger for now."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ManagedLedgerConfig:
    """When a ledger is followed by the next one. Both are soft: entries go on in the old one meanwhile."""

    ledger_bytes_max: int = 256 * 1024 * 1024
    ledger_age_max_ms: int = 4 * 60 * 60 * 1000
    """Looked at when an entry is appended; counted from when it was opened, whatever the wall clock does."""


@dataclass(frozen=True, slots=True)
class ManagedLedgerStatistics:
    """A snapshot for metrics; reading it costs nothing."""

    ledgers: int
    entries: int
    """Entries there are, confirmed or not."""
    size_bytes: int
    next_index: int
    is_sealed: bool


class ManagedLedger(ManagedLedgerView):
    """See the module. One owner at a time, by its claim."""

    def __init__(
        self,
        name: str,
        keeper: RecordKeeper,
        store: LedgerStore,
        ids: LedgerIds,
        config: ManagedLedgerConfig,
        now_ms: WallClock,
    ) -> None:
        super().__init__(store, now_ms)
        self.name = name
        self._keeper = keeper
        self._ids = ids
        self._config = config
        self._current: OpenLedger | None = None
        self._current_opened = 0.0
        """When the current ledger was opened, on Trio's clock."""
        self._unfinished: list[OpenLedger] = []
        """Ledgers that another followed and whose end is not on record yet, in order."""
        self._empty: list[int] = []
        """Ledgers without entries that the record may still list."""
        self._last_timestamp_ms = 0
        self._is_closing = False
        self._roll_due = Signal()
        self._rolls: list[Signal] = []
        self._is_roll_requested = False
        self._is_refused = False
        """Whether the last roll was put off for want of space."""
        self._changing = trio.Lock()
        """Held for every change of the record, never while something waits for space: trims and deletions make some."""
        self._finishing = trio.Lock()

    @classmethod
    async def open(
        cls,
        name: str,
        *,
        metadata: MetadataStore,
        ledgers: LedgerStore,
        claim: Check | None,
        config: ManagedLedgerConfig,
        now_ms: WallClock,
        ids: LedgerIds | None = None,
    ) -> "ManagedLedger":
        """Take over the managed ledger of this name, made if there is none.

        On return no earlier owner's writer gets anything confirmed, what was confirmed is durable and readable, and
        unless it is sealed it takes entries. If the disk is full it takes some as soon as there is space, while `run`
        runs. `ids` is best shared by all managed ledgers of a process.

        Raises:
            Fenced: the claim does not hold.
            LedgerCorrupt: confirmed entries at its end are damaged or missing.
            NoSpace: the disk is full, and there was no managed ledger of this name.
        """
        ids = ids or LedgerIds(metadata)
        while True:
            keeper = RecordKeeper(name, metadata, claim)
            opened = cls(name, keeper, ledgers, ids, config, now_ms)
            try:
                record = await keeper.read()
                if record is not None and record.is_deleting:
                    await remove_all(keeper, ledgers)
                    record = await keeper.read()
                await opened._take_over(record)
            except RecordChanged:
                continue  # By somebody with the same claim, or none; what it says now decides.
            return opened

    @classmethod
    async def let_go(
        cls, name: str, *, metadata: MetadataStore, ledgers: LedgerStore, claim: Check, now_ms: WallClock
    ) -> bool:
        """Close what an owner in this process left open and record where it ends; durable on return.

        To be called before the claim is given up: no other broker takes over a ledger that a living one has open.
        False if it is being deleted and something of it is open, which this process has to finish.

        Raises:
            Fenced: the claim does not hold. LedgerFailed: the writer has ended.
            LedgerCorrupt: the end cannot be found.
        """
        keeper = RecordKeeper(name, metadata, claim)
        record = await keeper.read()
        if record is None or all(info.closed or info.writer != ledgers.writer for info in record.ledgers):
            return True
        if record.is_deleting:
            return False
        left = cls(name, keeper, ledgers, LedgerIds(metadata), ManagedLedgerConfig(), now_ms)
        left._is_closing = True
        await left._recover(record)
        await left._record_ends()
        return True

    async def _take_over(self, record: ManagedLedgerRecord | None) -> None:
        is_new = record is None
        if record is None:
            ledger = await self._ids.take(above=-1)
            # Ledger ids begin again in another data folder, whose topics must not be taken for those of this one.
            record = ManagedLedgerRecord(uuid.uuid4().hex[:CREATION_ID_DIGITS], (), ledger)
        else:
            await self._recover(record)
            ledger = record.newest_id if record.sealed else await self._ids.take(above=record.newest_id)
        self.confirmed.raise_to(self._list.last())
        if record.sealed:
            self._is_closing = True
            await self._remove_trimmed()
            return
        try:
            opened = await self._store.create(ledger, confirmed=self.confirmed)
        except NoSpace as full:
            if is_new:
                raise
            # What is there can be read.
            log.warning("a topic takes no messages until there is space", topic=self.name, reason=str(full))
            await self._keeper.write(replace(record, ledgers=self._listing(self._list), newest_id=ledger))
        else:
            await self._list_new(record, opened)
            self._go_on_in(opened)
        await self._remove_empty()
        await self._remove_trimmed()

    async def _list_new(self, record: ManagedLedgerRecord, made: OpenLedger) -> None:
        """Record a ledger that was made, behind those there are; it is abandoned if that fails."""
        new = LedgerInfo(made.id, self._next_index, writer=self._store.writer)
        try:
            ledgers = (*self._listing(self._list), new)
            await self._keeper.write(replace(record, ledgers=ledgers, newest_id=made.id))
        except BaseException as error:
            self._store.abandon(made)
            if isinstance(error, StoreFull):
                # The store is sure that no record lists it.
                await self._store.remove_empty(made.id)
            raise

    async def _recover(self, record: ManagedLedgerRecord) -> None:
        """Find the ends that are not on record; ledgers that turn out to be empty are left out from here on."""
        closed: list[LedgerInfo] = []
        self._next_index = record.trimmed.next_index
        for info in record.ledgers:
            assert info.writer is not None, "every record names the writers"
            self._store.require_within_reach(info.writer)
            found = info
            if not info.closed:
                await self._store.fence(info.writer, info.id)
                found = await self._found(info)
                # Its first entries may be damaged, and they have their messages still.
                gap = found.first_index - self._next_index
                found = found._replace(first_index=self._next_index, messages=found.messages + gap)
                if not found.entries:
                    self._empty.append(info.id)
            if found.entries:
                assert found.first_index == self._next_index, "the index has no gaps"
                closed.append(found)
                self._next_index += found.messages
                self._last_timestamp_ms = max(self._last_timestamp_ms, found.last_timestamp_ms)
        self._list = LedgerList(closed, record.trimmed)
        for missing in await self._store.missing([info.id for info in closed]):
            log.error("a ledger's file is missing; its entries cannot be read", topic=self.name, ledger=missing)

    async def _found(self, info: LedgerInfo) -> LedgerInfo:
        """What is in a ledger that has no end on record, and whose writer is fenced.

        What this process has still open is read from memory: on a full disk it cannot be completed, and nothing of
        its end is on record before (`_record_ends`).
        """
        left = await self._store.left_open(info.id)
        if left is None:
            sealed = await self._store.recover(info.id)
            self._reading.put(sealed)
            return closed_info((await sealed.log()).index, self._next_index, info.writer)
        if left.next_entry:
            self._reading.put(left)
            self._unfinished.append(left)
        return closed_info(left.log.index, self._next_index, info.writer)._replace(closed=False)

    async def _remove_empty(self) -> None:
        """Remove the files of ledgers that turned out to be empty, once no record lists them."""
        while self._empty:
            await self._store.remove_empty(self._empty.pop())

    def _go_on_in(self, ledger: OpenLedger) -> None:
        self._current = ledger
        self._is_roll_requested = False
        self._current_first_index = self._next_index
        self._current_opened = trio.current_time()
        self._reading.put(ledger)
        self._list.open(ledger.id)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Go on in a new ledger whenever the current one has reached its size or age; until cancelled.

        Raises:
            Fenced: the claim is lost.
        """
        task_status.started()
        await self._begin_in_time()
        if self._unfinished:
            await self._record_ends_in_time()
            self._tell_rolled()
        while True:
            await self._roll_due.wait()
            if await self._roll():
                # Told at both moments: the first may be long before the second, as long as the disk is full.
                self._tell_rolled()
                await self._record_ends_in_time()
                self._tell_rolled()
            elif self._is_refused:
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
            if await self._begin():
                return
            await trio.sleep(SPACE_RETRY_SECONDS)

    async def _begin(self) -> bool:
        """Have a ledger that takes entries, if any are to be taken; False if there is no space for one."""
        async with self._changing:
            if self._current is None and not self._is_closing:
                try:
                    self._go_on_in(await self._following())
                except _NO_LEDGER as refused:
                    # Said aloud once, when it was opened.
                    log.debug("there is no space for a ledger yet", topic=self.name, reason=str(refused))
                    return False
        return True

    async def _record_ends_in_time(self) -> None:
        while True:
            try:
                await self._record_ends()
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
        return 0 if self._current is None else self._current.size_bytes

    @property
    def creation_id(self) -> str:
        """Tells this managed ledger from an earlier or later one of the same name."""
        return self._record.creation_id

    @property
    def is_sealed(self) -> bool:
        """True once nothing is ever appended again, durably."""
        return self._record.sealed

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
        current = self._require_taking()
        # Never earlier than the entry before, so that times can be searched; the clock may step back.
        now = max(self._now_ms(), self._last_timestamp_ms)
        position = current.append(
            payload,
            first_index=self._next_index,
            message_count=message_count,
            timestamp_ms=now,
            txn=txn,
            entry_format=entry_format,
        )
        self._last_timestamp_ms = now
        self._next_index += message_count
        self._list.open_entries = position.entry + 1
        if self._is_due(current):
            self._roll_due.set()
        return position

    async def wait_room(self) -> None:
        """Return when the bytes appended and not confirmed, over all ledgers of the broker, are below their bound.

        Appending without a pause afterwards keeps the bound up to one entry. Does not yield while there is room.

        Raises:
            LedgerSealed, LedgerFailed, NoSpace: as `append` would.
        """
        await self._require_taking().wait_room()

    def require_space(self) -> None:
        """Hold that there is space for entries, unless none are taken for another reason.

        Raises:
            NoSpace: the disk is full.
        """
        if not self._is_closing:
            self._require_taking()
        self._store.require_space()

    def _require_taking(self) -> OpenLedger:
        if self._is_closing:
            raise LedgerSealed(f"{self.name} takes no more entries")
        if self._current is None:
            raise NoSpace(f"the disk is full: {self.name} has no ledger that takes entries")
        return self._current

    # -- changes

    def request_roll(self) -> None:
        """Let another ledger take over soon, if the one that takes entries is not empty."""
        self._is_roll_requested = True
        self._roll_due.set()

    async def seal(self) -> Position:
        """Take no more entries, wait for those taken, and record that for good; the last position.

        From the call on `append` raises `LedgerSealed`, also if this is cancelled: call it again. Durable on return.
        Idempotent.

        Raises:
            LedgerFailed: the writer has ended. Fenced: the claim is lost.
        """
        self._is_closing = True
        await self._end()
        async with self._changing:
            if not self._record.sealed:
                await self._write(replace(self._record, ledgers=self._listing(self._list), sealed=True))
                await self._remove_empty()
        return self._list.last()

    async def close(self) -> None:
        """Take no more entries, wait for those taken, and record where they end; durable on return.

        For an owner that gives the managed ledger up: the next one has nothing to recover and goes on in a new ledger.
        Idempotent; from the call on `append` raises `LedgerSealed`.

        Raises:
            LedgerFailed: the writer has ended. Fenced: the claim is lost. The next owner recovers the end.
        """
        await self._end()
        await self._record_ends()

    async def _end(self) -> None:
        """Take no more entries, and wait for those taken."""
        self._is_closing = True
        async with self._changing:
            self._leave_current()
        await self._finish()

    async def trim(self, upto: Position) -> None:
        """Remove the ledgers whose every entry is at or below `upto`, except those whose end is not on record yet.

        The record says so, durably, before anything is removed.

        Raises:
            Fenced: the claim is lost; nothing was removed.
        """
        async with self._changing:
            trimmed = LedgerList(self._list.closed, self._list.trimmed)
            upto = min(upto, self.confirmed.value)
            if self._unfinished:
                upto = min(upto, trimmed.previous(Position(self._unfinished[0].id, 0)))
            gone = trimmed.trim(upto)
            if not gone:
                return
            removing = (*self._record.removing, *(info.id for info in gone))
            record = replace(self._record, ledgers=self._listing(trimmed), trimmed=trimmed.trimmed, removing=removing)
            await self._write(record)
            await self._remove_empty()
            self._list.trim(upto)
            await self._remove_trimmed()

    async def _remove_trimmed(self) -> None:
        """Remove the files of the ledgers that the record says are being removed."""
        if self._record.removing:
            for ledger in self._record.removing:
                self._reading.forget(ledger)
                await self._store.delete(ledger)
            await self._write(replace(self._record, removing=()))

    async def store_aborted(self, indexes: Mapping[int, Collection[AbortedSpan]]) -> None:
        """Write the aborted-transaction indexes of closed ledgers in which everything is decided.

        The record says afterwards that they exist, so that one that is lost is found missing. Both are durable on
        return. Ledgers that are not here any more are passed over.

        Raises:
            Fenced: the claim is lost.
        """
        await self._finish()
        async with self._changing:
            listed = LedgerList(self._list.closed, self._list.trimmed)
            indexed = []
            for ledger, spans in indexes.items():
                info = listed.info(ledger)
                if info is not None:
                    await self._store.store_aborted(ledger, spans)
                    indexed.append(info._replace(aborted=len(set(spans))))
            listed.update(indexed)
            await self._write(replace(self._record, ledgers=self._listing(listed)))
            self._list.update(indexed)

    async def delete(self) -> None:
        """Remove it with all its entries. Durable on return; see `managed_ledger_removal` for what a crash leaves.

        Raises:
            Fenced: the claim is lost; nothing was removed.
        """
        self._is_closing = True
        async with self._changing:
            try:
                await remove_all(self._keeper, self._store)
            except RecordChanged as changed:
                raise self._fenced() from changed
            finally:
                if self._record.is_deleting:
                    self._current = None

    def statistics(self) -> ManagedLedgerStatistics:
        """Counters at this moment."""
        current = self._current
        return ManagedLedgerStatistics(
            ledgers=len(self._list.closed) + (current is not None),
            entries=self._list.entries_between(EARLIEST, self._list.last()),
            size_bytes=sum(info.size for info in self._list.closed) + (0 if current is None else current.size_bytes),
            next_index=self._next_index,
            is_sealed=self._record.sealed,
        )

    @property
    def _record(self) -> ManagedLedgerRecord:
        assert self._keeper.record is not None, "it was read or written when the managed ledger was opened"
        return self._keeper.record

    async def _write(self, record: ManagedLedgerRecord) -> None:
        try:
            await self._keeper.write(record)
        except RecordChanged as changed:
            raise self._fenced() from changed

    def _fenced(self) -> Fenced:
        return Fenced(f"{self.name} was changed by another owner")

    def _is_due(self, current: OpenLedger) -> bool:
        if len(self._list.closed) >= LEDGERS_MAX:
            return False
        age_ms = (trio.current_time() - self._current_opened) * 1000
        is_old = age_ms >= self._config.ledger_age_max_ms and current.next_entry > 0
        is_requested = self._is_roll_requested and current.next_entry > 0
        return is_old or is_requested or current.size_bytes >= self._config.ledger_bytes_max

    async def _roll(self) -> bool:
        """Record a new ledger and switch to it between two appends, if it is time; False if nothing was done.

        Until `_record_ends` the record has two ledgers without an end. Should the process end there, both are
        recovered: the store confirms in order across them, so the second has entries only if the first is complete.
        """
        async with self._changing:
            if self._current is None or self._is_closing or not self._is_due(self._current):
                return False
            try:
                following = await self._following()
            except _NO_LEDGER as refused:
                self._is_refused = True
                log.warning("a ledger goes on beyond its size or age", topic=self.name, reason=str(refused))
                return False
            self._is_refused = False
            self._leave_current()
            self._go_on_in(following)
            return True

    async def _following(self) -> OpenLedger:
        """A new ledger, on record. Raises one of `_NO_LEDGER` if there is no space for it."""
        ledger = await self._ids.take(above=self._record.newest_id)
        following = await self._store.create(ledger, confirmed=self.confirmed)
        # The index where it begins is known once the ledger before it is left.
        try:
            await self._list_new(self._record, following)
        except RecordChanged as changed:
            raise self._fenced() from changed
        return following

    async def _record_ends(self) -> None:
        """Record where the ledgers end that were left; waits while there is no space to complete them."""
        await self._finish()
        async with self._changing:
            listing = self._listing(self._list)
            if listing != self._record.ledgers and not self._record.is_deleting:
                await self._write(replace(self._record, ledgers=listing))
            await self._remove_empty()

    def _listing(self, ledgers: LedgerList) -> tuple[LedgerInfo, ...]:
        """What the record says of these ledgers: nothing of an end that is not complete on the disk."""
        listing = [
            info if info.closed else LedgerInfo(info.id, info.first_index, writer=info.writer)
            for info in ledgers.closed
        ]
        if self._current is not None:
            listing.append(LedgerInfo(self._current.id, self._current_first_index, writer=self._store.writer))
        return tuple(listing)

    def _leave_current(self) -> None:
        """Fix the end of the current ledger; what it took may still be unconfirmed."""
        left, self._current = self._current, None
        if left is None:
            return
        left.close()
        self._unfinished.append(left)
        entries = left.next_entry
        first = self._current_first_index
        messages = self._next_index - first
        last, writer = self._last_timestamp_ms, self._store.writer
        info = LedgerInfo(left.id, first, entries, messages, left.size_bytes, last, writer=writer)
        self._list.close(info if entries else None)

    async def _finish(self) -> None:
        """Make the ledgers that were left complete and durable, so that the record may say where they end."""
        async with self._finishing:
            while self._unfinished:
                left = self._unfinished[0]
                sealed = await self._store.seal(left)
                if sealed.last_entry >= 0:
                    self._list.replace(closed_info((await sealed.log()).index, 0, self._store.writer))
                    self._reading.put(sealed)
                else:
                    self._empty.append(left.id)
                del self._unfinished[0]
