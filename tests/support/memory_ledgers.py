"""A place for ledgers in memory that stores of several brokers share: the second implementation of `LedgerStore`.

    place = MemoryLedgers()
    async with place.broker("broker-1") as store:     # leaving is like kill -9: what was confirmed stays in the place
        ledger = await store.create(1)

It is only for tests. It does not model unsynced data, damage or a full disk. An entry is confirmed as soon as it is
appended.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from storage.aborted_index import AbortedSpan
from storage.entry import Entry, EntryFormat, TxnId, encode_batch, encode_entry
from storage.errors import (
    Fenced,
    JournalMissing,
    LedgerAbsent,
    LedgerCorrupt,
    LedgerFailed,
    LedgerOutOfReach,
    LedgerSealed,
)
from storage.hidden_entries import Hidden, HiddenEntries
from storage.ledger_index import SparseIndex
from storage.ledger_store import LedgerStore, OpenLedger
from storage.position import Position
from storage.watermark import Watermark
from storage.writer import Writer


class _Kept:
    """The content of one ledger."""

    def __init__(self, ledger: int) -> None:
        self.entries: list[Entry] = []
        self.index = SparseIndex(ledger)
        self.aborted: dict[int, tuple[AbortedSpan, ...]] = {}
        """By owner."""
        self.hidden: bytes | None = None


class MemoryLedgers:
    """The place. See the module's docstring."""

    def __init__(self, folder: str = "memory") -> None:
        self.folder = folder
        self.kept: dict[int, _Kept] = {}
        self.epochs: dict[str, int] = {}
        """The newest epoch of each broker."""
        self.fenced: set[Writer] = set()

    @asynccontextmanager
    async def broker(self, broker_id: str = "broker-1") -> AsyncIterator["MemoryLedgerStore"]:
        """Open a store for the broker's next life."""
        epoch = self.epochs.get(broker_id, 0) + 1
        self.epochs[broker_id] = epoch
        store = MemoryLedgerStore(self, Writer(self.folder, broker_id, epoch, stream=epoch))
        yield store
        store.has_ended = True

    def path(self, ledger: int) -> Path:
        """Return the ledger's name in errors."""
        return Path(self.folder) / str(ledger)


class MemoryOpenLedger:
    """See `OpenLedger`."""

    def __init__(self, ledger: int, kept: _Kept, store: "MemoryLedgerStore", confirmed: Watermark | None) -> None:
        self.id = ledger
        self.confirmed = confirmed or Watermark(Position(ledger, -1))
        self.kept = kept
        self.is_closed = False
        self._store = store

    @property
    def next_entry(self) -> int:
        return len(self.kept.entries)

    @property
    def confirmed_entry(self) -> int:
        return self.next_entry - 1

    @property
    def size_bytes(self) -> int:
        return self.kept.index.end_offset

    async def index(self) -> SparseIndex:
        await trio.lowlevel.checkpoint()
        return self.kept.index

    def append(
        self,
        payload: bytes,
        *,
        first_index: int,
        message_count: int,
        timestamp_ms: int,
        txn: TxnId | None = None,
        entry_format: EntryFormat = EntryFormat.PULSAR,
        is_control: bool = False,
    ) -> Position:
        if self.is_closed:
            raise LedgerSealed(f"ledger {self.id} is closed and accepts no more entries")
        self._store.require_writing()
        position = Position(self.id, self.next_entry)
        entry = Entry(position, payload, first_index, message_count, timestamp_ms, txn, entry_format, is_control)
        index = self.kept.index
        header, _ = encode_batch(
            self.id,
            position.entry,
            [encode_entry(entry)],
            confirmed_before=position.entry - 1,
            previous_crc=index.last_crc,
        )
        self.kept.entries.append(entry)
        index.add(header, entry, entry)
        self.confirmed.raise_to(position)
        return position

    async def wait_room(self) -> None:
        await trio.lowlevel.checkpoint()
        self._store.require_writing()

    async def read(self, first: int, last: int, *, entries_max: int, bytes_max: int) -> list[Entry]:
        await trio.lowlevel.checkpoint()
        return _within(self.kept.entries[first : last + 1], entries_max, bytes_max)

    def close(self) -> None:
        self.is_closed = True


class MemorySealedLedger:
    """See `SealedLedger`."""

    def __init__(self, ledger: int, last_entry: int, place: MemoryLedgers) -> None:
        self.id = ledger
        self.last_entry = last_entry
        self._place = place

    @property
    def confirmed_entry(self) -> int:
        return self.last_entry

    async def index(self) -> SparseIndex:
        await trio.lowlevel.checkpoint()
        return self._kept().index

    async def read(self, first: int, last: int, *, entries_max: int, bytes_max: int) -> list[Entry]:
        await trio.lowlevel.checkpoint()
        entries = self._kept().entries[first : min(last, self.last_entry) + 1]
        return _within(entries, entries_max, bytes_max)

    def _kept(self) -> _Kept:
        kept = self._place.kept.get(self.id)
        if kept is None:
            raise LedgerAbsent(self._place.path(self.id), 0, "it is missing")
        return kept


class MemoryLedgerStore:
    """See `LedgerStore`. One life of a broker."""

    def __init__(self, place: MemoryLedgers, writer: Writer) -> None:
        self.has_ended = False
        self._place = place
        self._writer = writer
        self._open: dict[int, MemoryOpenLedger] = {}

    @property
    def writer(self) -> Writer:
        return self._writer

    @property
    def shortage(self) -> str | None:
        return None

    def require_space(self) -> None:
        """Return at once: there is always space."""

    def require_writing(self) -> None:
        """Check that this life still confirms entries."""
        if self.has_ended:
            raise LedgerFailed("the store was closed")
        if self._writer in self._place.fenced or self._place.epochs[self._writer.broker] > self._writer.epoch:
            raise Fenced(f"{self._writer} was fenced")

    async def create(self, ledger: int, *, confirmed: Watermark | None = None) -> MemoryOpenLedger:
        await trio.lowlevel.checkpoint()
        assert ledger not in self._place.kept, "ids are never used twice"
        kept = self._place.kept[ledger] = _Kept(ledger)
        made = self._open[ledger] = MemoryOpenLedger(ledger, kept, self, confirmed)
        return made

    def abandon(self, ledger: OpenLedger) -> None:
        ledger.close()
        self._open.pop(ledger.id, None)

    def require_within_reach(self, writer: Writer) -> None:
        if writer.folder != self._place.folder:
            raise LedgerOutOfReach(writer, self._place.folder, Path(self._place.folder))

    async def fence(self, writer: Writer, ledger: int) -> None:
        await trio.lowlevel.checkpoint()
        self.require_within_reach(writer)
        if writer.epoch > self._place.epochs.get(writer.broker, 0):
            raise JournalMissing(writer, self._place.path(ledger))
        if writer != self._writer:
            self._place.fenced.add(writer)

    async def seal(self, ledger: OpenLedger) -> MemorySealedLedger:
        await trio.lowlevel.checkpoint()
        self.require_writing()
        ledger.close()
        self._open.pop(ledger.id, None)
        return MemorySealedLedger(ledger.id, ledger.next_entry - 1, self._place)

    async def left_open(self, ledger: int) -> MemoryOpenLedger | None:
        await trio.lowlevel.checkpoint()
        mine = self._open.get(ledger)
        if mine is not None:
            mine.close()
        return mine

    async def recover(self, ledger: int) -> MemorySealedLedger:
        mine = self._open.get(ledger)
        if mine is not None:
            return await self.seal(mine)
        await trio.lowlevel.checkpoint()
        kept = self._place.kept.get(ledger)
        if kept is None:
            raise LedgerAbsent(self._place.path(ledger), 0, "it is missing")
        return MemorySealedLedger(ledger, len(kept.entries) - 1, self._place)

    async def open_sealed(self, ledger: int, last_entry: int) -> MemorySealedLedger:
        await trio.lowlevel.checkpoint()
        return MemorySealedLedger(ledger, last_entry, self._place)

    async def delete(self, ledger: int) -> None:
        await self.remove_empty(ledger)

    async def remove_empty(self, ledger: int) -> None:
        await trio.lowlevel.checkpoint()
        self._open.pop(ledger, None)
        self._place.kept.pop(ledger, None)

    async def missing(self, ledgers: Sequence[int]) -> list[int]:
        await trio.lowlevel.checkpoint()
        return [ledger for ledger in ledgers if ledger not in self._place.kept]

    async def store_aborted(self, ledger: int, spans: Iterable[AbortedSpan], *, owner: int) -> None:
        await trio.lowlevel.checkpoint()
        self._place.kept[ledger].aborted[owner] = tuple(sorted(set(spans)))

    async def load_aborted(self, ledger: int, *, owner: int, spans_min: int) -> tuple[AbortedSpan, ...]:
        await trio.lowlevel.checkpoint()
        kept = self._place.kept.get(ledger)
        spans = () if kept is None else kept.aborted.get(owner, ())
        if len(spans) < spans_min:
            raise LedgerCorrupt(self._place.path(ledger), 0, f"{len(spans)} spans, {spans_min} were stored")
        return spans

    async def store_hidden(self, ledger: int, hidden: HiddenEntries) -> None:
        await trio.lowlevel.checkpoint()
        self._place.kept[ledger].hidden = hidden.encode(ledger)

    async def load_hidden_total(self, ledger: int) -> Hidden | None:
        hidden = await self.load_hidden(ledger)
        return None if hidden is None else hidden.total

    async def load_hidden(self, ledger: int) -> HiddenEntries | None:
        await trio.lowlevel.checkpoint()
        kept = self._place.kept.get(ledger)
        return None if kept is None or kept.hidden is None else HiddenEntries.decode(ledger, kept.hidden)


def _within(entries: list[Entry], entries_max: int, bytes_max: int) -> list[Entry]:
    found: list[Entry] = []
    size = 0
    for entry in entries[:entries_max]:
        size += len(entry.payload)
        if found and size > bytes_max:
            break
        found.append(entry)
    return found


def _keeps_the_contract(store: MemoryLedgerStore) -> LedgerStore:
    """Lets the type checker compare the classes with the contract."""
    return store
