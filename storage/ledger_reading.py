"""Reading across the ledgers of a managed ledger: which ledger, then which entries, then the next ledger."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from storage.entry import Entry
from storage.errors import EntriesUnreadable, LedgerAbsent, LedgerCorrupt, LedgerNotFound
from storage.ledger_index import SparseIndex
from storage.ledger_list import LedgerList
from storage.ledger_log import READ_BYTES_MAX
from storage.ledger_record import LedgerInfo
from storage.ledger_store import LedgerReader, LedgerStore, OpenLedger, SealedLedger
from storage.position import EARLIEST, Position
from storage.writer import Writer

SEALED_KEPT_MAX: Final = 8
"""Sealed ledgers of one managed ledger whose index stays in memory. Reading another one loads its index again, which
takes half a megabyte for a ledger of one gigabyte."""

_SEARCH_ENTRIES: Final = 10_000
"""Entries read at once in a search by index or time."""


class LedgerReading:
    """Reading from the ledgers of one managed ledger. A closed ledger is opened when it is first read."""

    def __init__(self, store: LedgerStore) -> None:
        self._store = store
        self._open: dict[int, OpenLedger] = {}
        self._sealed: OrderedDict[int, SealedLedger] = OrderedDict()
        """The most recently read one comes last."""

    def put_open(self, ledger: OpenLedger) -> None:
        """Read this ledger through this object until it is sealed."""
        self._open[ledger.id] = ledger

    def put_sealed(self, ledger: SealedLedger) -> None:
        """Read this ledger through this object from now on."""
        self._open.pop(ledger.id, None)
        self._sealed[ledger.id] = ledger
        self._evict()

    def forget(self, ledger: int) -> None:
        """The ledger is gone."""
        self._open.pop(ledger, None)
        self._sealed.pop(ledger, None)

    async def read(
        self, ledgers: LedgerList, start: Position, upto: Position, entries_max: int, bytes_max: int
    ) -> list[Entry]:
        """See `ManagedLedger.read`. `upto` must be confirmed."""
        found: list[Entry] = []
        size = 0
        at = ledgers.at_or_after(start)
        while at is not None and at <= upto and len(found) < entries_max and size < bytes_max:
            last = upto.entry if upto.ledger == at.ledger else ledgers.last_entry(at.ledger)
            try:
                reader = await self._reader(ledgers, at.ledger)
                entries = await reader.read(
                    at.entry, last, entries_max=entries_max - len(found), bytes_max=bytes_max - size
                )
            except (LedgerCorrupt, LedgerNotFound) as error:
                if ledgers.last_entry(at.ledger) < 0:
                    # It was trimmed while it was read. Continue behind it.
                    at = ledgers.at_or_after(at)
                    continue
                if found:
                    break
                if isinstance(error, LedgerCorrupt):
                    raise await self._unreadable(ledgers, at, error) from error
                raise
            if not entries:
                break
            taken = sum(len(entry.payload) for entry in entries)
            if found and size + taken > bytes_max:
                break
            found.extend(entries)
            size += taken
            if entries[-1].position.entry < last:
                break
            at = ledgers.at_or_after(Position(at.ledger, last + 1))
        return found

    async def _unreadable(self, ledgers: LedgerList, at: Position, damage: LedgerCorrupt) -> EntriesUnreadable:
        """The damage, with the range of entries that cannot be read because of it."""
        last = ledgers.last_entry(at.ledger)
        if damage.next_entry is not None:
            last = min(last, damage.next_entry - 1)
        elif not isinstance(damage, LedgerAbsent):
            following = (await self._index(ledgers, at.ledger)).next_chunk(at.entry)
            last = last if following is None else following - 1
        return EntriesUnreadable(damage, at, Position(at.ledger, max(at.entry, last)))

    async def position_of_index(self, ledgers: LedgerList, index: int) -> Position:
        """See `ManagedLedger.position_of_index`."""
        return await self._find(
            ledgers,
            ledgers.ledger_of_index(index),
            lambda entry: entry.first_index + entry.message_count > index,
            lambda entry: entry.first_index <= index,
            lambda slots: slots.chunk_of_index(index),
        )

    async def position_at_time(self, ledgers: LedgerList, timestamp_ms: int) -> Position:
        """See `ManagedLedger.position_at_time`."""
        return await self._find(
            ledgers,
            ledgers.ledger_at_time(timestamp_ms),
            lambda entry: entry.timestamp_ms >= timestamp_ms,
            lambda entry: entry.timestamp_ms < timestamp_ms,
            lambda slots: slots.chunk_of_time(timestamp_ms),
        )

    async def bytes_upto(self, ledgers: LedgerList, position: Position) -> int:
        """See `ManagedLedger.bytes_upto`."""
        size = sum(info.size for info in ledgers.closed if info.id < position.ledger)
        if ledgers.open_id is not None and position.ledger > ledgers.open_id:
            position = Position(ledgers.open_id, ledgers.open_entries - 1)
        if ledgers.last_entry(position.ledger) < 0:
            return size
        return size + (await self._index(ledgers, position.ledger)).offset_behind(position.entry)

    async def position_within(self, ledgers: LedgerList, size: int) -> Position:
        """See `ManagedLedger.position_within`."""
        last = EARLIEST
        for info in tuple(ledgers.closed):
            if size < info.size:
                entry = (await self._index(ledgers, info.id)).entry_within(size)
                return Position(info.id, entry) if entry >= 0 else last
            size -= info.size
            last = Position(info.id, info.entries - 1)
        if ledgers.open_id is None or ledgers.open_entries == 0:
            return last
        entry = (await self._index(ledgers, ledgers.open_id)).entry_within(size)
        return Position(ledgers.open_id, entry) if entry >= 0 else last

    async def _index(self, ledgers: LedgerList, ledger: int) -> SparseIndex:
        return await (await self._reader(ledgers, ledger)).index()

    async def _find(
        self,
        ledgers: LedgerList,
        ledger: int | None,
        reaches: Callable[[Entry], bool],
        excludes: Callable[[Entry], bool],
        chunk_of: Callable[[SparseIndex], int],
    ) -> Position:
        """The first entry that `reaches` accepts. If `excludes` accepts an entry, no entry before it qualifies."""
        ledger = ledgers.open_id if ledger is None else ledger
        if ledger is None:
            return ledgers.next_position()
        reader = await self._reader(ledgers, ledger)
        index, last = await reader.index(), reader.confirmed_entry
        at = index.slots[chunk_of(index)].entry if index.slots else 0
        met: EntriesUnreadable | None = None
        while at <= last:
            try:
                entries = await reader.read(at, last, entries_max=_SEARCH_ENTRIES, bytes_max=READ_BYTES_MAX)
            except LedgerCorrupt as damage:
                unreadable = await self._unreadable(ledgers, Position(ledger, at), damage)
                met = met or unreadable
                at = unreadable.last.entry + 1
                continue
            if not entries:
                break
            if met is not None and not excludes(entries[0]):
                break
            met = None
            for entry in entries:
                if reaches(entry):
                    return ledgers.next_after(entry.position.before())
            at += len(entries)
        if met is not None:
            raise met
        return ledgers.next_after(Position(ledger, last))

    async def _reader(self, ledgers: LedgerList, ledger: int) -> LedgerReader:
        taking = self._open.get(ledger)
        if taking is not None:
            return taking
        sealed = self._sealed.get(ledger)
        if sealed is None:
            info = ledgers.info(ledger)
            if info is None:
                raise LedgerNotFound(f"ledger {ledger} is gone")
            sealed = await self._store.open_sealed(ledger, info.entries - 1)
            # Another reader may have opened it meanwhile. Then both share that reader's index.
            sealed = self._sealed.setdefault(ledger, sealed)
            self._evict()
        self._sealed.move_to_end(ledger)
        return sealed

    def _evict(self) -> None:
        """Forget the least recently read sealed ledgers. Everything in them is in the store."""
        while len(self._sealed) > SEALED_KEPT_MAX:
            self._sealed.popitem(last=False)


def closed_info(index: SparseIndex, first_index: int, writer: Writer | None, epoch: int) -> LedgerInfo:
    """What the record says of a ledger with an end. `first_index` is for a ledger without entries."""
    if not index.slots:
        return LedgerInfo(index.ledger, first_index, closed=True, writer=writer, epoch=epoch)
    first = index.slots[0].first_index
    return LedgerInfo(
        id=index.ledger,
        first_index=first,
        entries=index.last_entry + 1,
        messages=index.next_index - first,
        size=index.end_offset,
        last_timestamp_ms=index.last_timestamp_ms,
        closed=True,
        writer=writer,
        epoch=epoch,
    )
