"""The folder of ledger files: their names, their open descriptors, and reading from them.

    <20-digit id>.ledger     the batches, chained
    <20-digit id>.index      the sparse index, rebuilt when it is lost
    <20-digit id>.aborted-<owner>    its aborted-transaction index, once everything in it is decided
    <20-digit id>.hidden     its hidden entries, once everything in it is decided, made again when it is lost

The owner is the version of the claim under which the index was written. The ledger's record names it. A stale owner
that wakes up late replaces its own file only, which the record does not name. Such files go with the ledger.

Call functions that block through `Files.run`. Decisions about damage follow the tables in `recovery`.
"""

import re
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from errno import EEXIST
from pathlib import Path
from typing import Final

from storage import aborted_index
from storage.aborted_index import AbortedSpan
from storage.chunk_decoding import Extent, check_next, decode_chunk
from storage.entry import (
    BATCH_HEADER_SIZE,
    BATCH_MAGIC,
    ENTRY_MEMORY_BYTES,
    BatchHeader,
    CorruptEntry,
    Entry,
    decode_batch_header,
    decode_entries,
)
from storage.errors import LedgerAbsent, LedgerCorrupt
from storage.files import DiskFull, File, Files
from storage.hidden_entries import HEAD_SIZE, DamagedHidden, Hidden, HiddenEntries, total_in
from storage.ledger_index import SparseIndex, StaleIndex
from storage.open_files import OpenFiles

CHUNK_CACHE_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of decoded chunks kept for the next read, over all ledgers."""
_MAGIC: Final = BATCH_MAGIC.to_bytes(4)
_SCAN_BYTES: Final = 1024 * 1024
_NAME: Final = re.compile(r"(\d{20})\.(ledger|index|index-new|hidden|hidden-new|aborted-\d+(-new)?)")
_ID_DIGITS: Final = 20


@dataclass(frozen=True, slots=True)
class LoadedLedger:
    """A ledger file after reading."""

    index: SparseIndex
    """Covers everything before the damage."""
    damage: LedgerCorrupt | None
    """What follows the index's end, if it is not the end of the file."""


class LedgerFolder:
    """All ledger files of a data folder."""

    def __init__(self, files: Files, path: Path) -> None:
        self.files = files
        self.path = path
        self.open_files = OpenFiles(files)
        self.chunks = ChunkCache()

    def ledger_path(self, ledger: int) -> Path:
        """The path of the ledger's batches."""
        return self.path / f"{ledger:020d}.ledger"

    def index_path(self, ledger: int) -> Path:
        """The path of its index."""
        return self.path / f"{ledger:020d}.index"

    def aborted_path(self, ledger: int, owner: int) -> Path:
        """The path of its aborted-transaction index, as this owner wrote it."""
        return self.path / f"{ledger:020d}.aborted-{owner}"

    def hidden_path(self, ledger: int) -> Path:
        """The path of the list of its hidden entries."""
        return self.path / f"{ledger:020d}.hidden"

    def unknown_names(self) -> list[str]:
        """Files in the folder that this program did not make. They are left alone. Blocks."""
        return [name for name in self.files.names(self.path) if not _NAME.fullmatch(name)]

    def ids(self) -> list[int]:
        """The ledgers that have a file, in order. Blocks."""
        found = map(_NAME.fullmatch, self.files.names(self.path))
        return [int(match[1]) for match in found if match is not None and match[2] == "ledger"]

    def make(self, ledgers: Sequence[int]) -> None:
        """Make the empty files of new ledgers. Durable on return. Blocks.

        Raises:
            FileExistsError: one has entries already. The metadata gives each id out once, so it is older than the
                folder, as after the restore of only one of them.
        """
        for ledger in ledgers:
            path = self.ledger_path(ledger)
            file = self.files.open(path, create=True)
            try:
                if file.size():
                    raise FileExistsError(EEXIST, "it holds messages that the metadata does not know", str(path))
            finally:
                file.close()
        self.files.sync_dir(self.path)

    def missing(self, ledgers: Sequence[int]) -> list[int]:
        """The ledgers that have no file. Blocks."""
        return [ledger for ledger in ledgers if not self.files.exists(self.ledger_path(ledger))]

    def load(self, ledger: int, *, passes_damage: bool = False) -> LoadedLedger:
        """The ledger's index, completed from its batches, and what follows them. Syncs before it reads. Blocks.

        An absent file is damage, because every ledger has a file before its record names it. With `passes_damage`, the
        index continues behind a damaged place if good batches follow. Reading the entries in between then finds the
        damage.
        """
        path = self.ledger_path(ledger)
        index = self._stored_index(ledger) or SparseIndex(ledger)
        try:
            with self.open_files.use(path) as file:
                # Its writer may have died before the sync. What is shown from here on must be durable.
                file.sync()
                if file.size() < index.end_offset:
                    reason = f"the file has {file.size()} bytes, but {index.end_offset} were synced"
                    index = SparseIndex(ledger)
                    return LoadedLedger(index, scan(file, index) or LedgerCorrupt(path, file.size(), reason))
                begin = index.end_offset
                damage = scan(file, index)
                if damage is not None and passes_damage and resume(file, index):
                    # Not stored, because the replay of the journal looks for the place where the chain breaks.
                    damage, begin = None, index.end_offset
        except FileNotFoundError:
            return LoadedLedger(SparseIndex(ledger), LedgerAbsent(path, 0, "the file is missing"))
        if damage is None and index.end_offset > begin:
            # It saves the next opening this scan. On a full disk, the next opening scans again.
            with suppress(DiskFull):
                self.store_index(index)
        return LoadedLedger(index, damage)

    def store_index(self, index: SparseIndex) -> None:
        """Write the index beside its ledger, whose bytes must be synced.

        Not durable, because it can be rebuilt. Blocks.
        """
        path = self.index_path(index.ledger)
        fresh = path.with_suffix(".index-new")
        data = index.encode()
        # Another broker that reads the complete ledger writes the same bytes, and may have named the file meanwhile.
        with suppress(FileNotFoundError):
            self._replace(path, fresh, data, syncs=False)

    def store_aborted(self, ledger: int, spans: Iterable[AbortedSpan], owner: int) -> None:
        """See `LedgerStore.store_aborted`. Blocks.

        Raises:
            DiskFull: this owner's earlier index is unchanged.
        """
        path = self.aborted_path(ledger, owner)
        fresh = path.with_name(f"{path.name}-new")
        self._replace(path, fresh, aborted_index.encode(ledger, spans), syncs=True)
        self.files.sync_dir(self.path)

    def load_aborted(self, ledger: int, owner: int, spans_min: int) -> tuple[AbortedSpan, ...]:
        """See `LedgerStore.load_aborted`. Blocks.

        Raises:
            LedgerCorrupt: the index is damaged, missing or an older one, so it does not show which entries are visible.
        """
        path = self.aborted_path(ledger, owner)
        try:
            file = self.files.open(path)
        except FileNotFoundError:
            reason = f"the aborted-transaction index is missing, which named {spans_min} aborted transactions"
            raise LedgerCorrupt(path, 0, reason) from None
        try:
            spans = aborted_index.decode(ledger, file.read_at(0, file.size()))
        except aborted_index.CorruptIndex as damaged:
            raise LedgerCorrupt(path, 0, str(damaged)) from damaged
        finally:
            file.close()
        if len(spans) < spans_min:
            reason = f"it names {len(spans)} aborted transactions, but {spans_min} were stored in it"
            raise LedgerCorrupt(path, 0, reason)
        return spans

    def store_hidden(self, ledger: int, data: bytes) -> None:
        """See `LedgerStore.store_hidden`. Not durable, because it can be made again. Blocks.

        Raises:
            DiskFull: nothing was changed.
        """
        path = self.hidden_path(ledger)
        # As for the sparse index, another broker may write the same bytes.
        with suppress(FileNotFoundError):
            self._replace(path, path.with_suffix(".hidden-new"), data, syncs=False)

    def load_hidden(self, ledger: int) -> HiddenEntries | None:
        """See `LedgerStore.load_hidden`. Blocks."""
        data = self._stored_hidden(ledger)
        try:
            return None if data is None else HiddenEntries.decode(ledger, data)
        except DamagedHidden:
            return None

    def load_hidden_total(self, ledger: int) -> Hidden | None:
        """See `LedgerStore.load_hidden_total`. Blocks."""
        head = self._stored_hidden(ledger, bytes_max=HEAD_SIZE)
        try:
            return None if head is None else total_in(ledger, head)
        except DamagedHidden:
            return None

    def _stored_hidden(self, ledger: int, bytes_max: int | None = None) -> bytes | None:
        try:
            file = self.files.open(self.hidden_path(ledger))
        except FileNotFoundError:
            return None
        try:
            return file.read_at(0, file.size() if bytes_max is None else bytes_max)
        finally:
            file.close()

    def remove(self, ledgers: Collection[int]) -> None:
        """Remove all files of these ledgers. Durable after `Files.sync_dir`. Blocks.

        It lists the folder once, because nothing else names the aborted-transaction indexes of stale owners.
        """
        if not ledgers:
            return
        ids = {f"{ledger:020d}" for ledger in ledgers}
        for name in self.files.names(self.path):
            if name[:_ID_DIGITS] in ids and _NAME.fullmatch(name):
                self._remove(self.path / name)

    def remove_empty(self, ledger: int) -> None:
        """Remove the files of a ledger that never had an entry, and so no index of aborted transactions. Blocks."""
        for path in (self.ledger_path(ledger), self.index_path(ledger)):
            self._remove(path)

    def _remove(self, path: Path) -> None:
        self.open_files.forget(path)
        # Another process may remove the same ledger.
        with suppress(FileNotFoundError):
            self.files.remove(path)

    def read_chunks(
        self, ledger: int, extents: Sequence[Extent], first: int = 0
    ) -> tuple[list[tuple[Entry, ...]], LedgerCorrupt | None]:
        """The entries of adjoining chunks, and the damage at which reading had to stop. Blocks.

        Damage in front of entry `first` is skipped, together with the entries before it.
        """
        path = self.ledger_path(ledger)
        begin, stop = extents[0].begin, extents[-1].stop
        try:
            with self.open_files.use(path) as file:
                # Includes the header behind them, which tells how they end.
                data = file.read_at(begin, stop - begin + BATCH_HEADER_SIZE)
        except FileNotFoundError:
            return [], LedgerAbsent(path, 0, "the file is missing")
        chunks: list[tuple[Entry, ...]] = []
        for extent in extents:
            entries, damage = decode_chunk(data, begin, ledger, extent, first)
            chunks.append(entries)
            if damage is not None:
                return chunks, LedgerCorrupt(path, damage.offset, damage.reason, next_entry=damage.next_entry)
        return chunks, None

    def _replace(self, path: Path, fresh: Path, data: bytes, *, syncs: bool) -> None:
        file = self.files.open(fresh, create=True)
        try:
            file.truncate(len(data))
            file.write_at(0, data)
            if syncs:
                file.sync()
        except DiskFull:
            self.files.remove(fresh)
            raise
        finally:
            file.close()
        self.files.rename(fresh, path)

    def _stored_index(self, ledger: int) -> SparseIndex | None:
        try:
            file = self.files.open(self.index_path(ledger))
        except FileNotFoundError:
            return None
        try:
            return SparseIndex.decode(ledger, file.read_at(0, file.size()))
        except StaleIndex:
            return None
        finally:
            file.close()


def scan(file: File, index: SparseIndex) -> LedgerCorrupt | None:
    """Complete the index with the batches behind its end.

    Returns what was found in place of the next batch, or None at the end of the file.
    """
    size = file.size()
    data = b""
    base = index.end_offset
    while index.end_offset < size:
        offset = index.end_offset - base
        try:
            header = decode_batch_header(data, offset)
            is_there = len(data) >= offset + header.size
            wanted = header.size
        except CorruptEntry:
            is_there = len(data) >= offset + BATCH_HEADER_SIZE
            wanted = BATCH_HEADER_SIZE
        if not is_there and base + len(data) < size:
            base = index.end_offset
            data = file.read_at(base, max(_SCAN_BYTES, wanted))
            continue
        try:
            header = check_next(data, offset, index.ledger, index.last_entry + 1, index.last_crc)
            entries = list(decode_entries(index.ledger, header.first_entry, _body(data, offset, header)))
        except CorruptEntry as damaged:
            return LedgerCorrupt(file.path, index.end_offset, str(damaged))
        index.add(header, entries[0], entries[-1])
    return None


def resume(file: File, index: SparseIndex) -> bool:
    """Complete the index with the batches behind a damaged place, if an unbroken chain of them reaches the file's end.

    The chain proves that they belong to the ledger. Bytes of a damaged payload that only look like a batch start no
    such chain.
    """
    size = file.size()
    at = index.end_offset
    while (found := _find_header(file, index.ledger, at + 1, size)) is not None:
        at, header = found
        rest = SparseIndex(index.ledger)
        rest.end_offset, rest.last_entry, rest.last_crc = at, header.first_entry - 1, header.previous_crc
        broken = scan(file, rest)
        if broken is None and header.first_entry > index.last_entry:
            index.continue_with(rest)
            return True
        # No header inside the chain just followed can begin a longer one.
        at = max(at, rest.end_offset - 1)
    return False


def _find_header(file: File, ledger: int, begin: int, size: int) -> tuple[int, BatchHeader] | None:
    """The first good header of a batch of this ledger at or behind `begin`, and its offset."""
    while begin < size:
        data = file.read_at(begin, _SCAN_BYTES)
        at = data.find(_MAGIC)
        while at >= 0:
            try:
                header = decode_batch_header(data, at)
            except CorruptEntry:
                header = None
            if header is not None and header.ledger == ledger:
                return begin + at, header
            at = data.find(_MAGIC, at + 1)
        if len(data) <= BATCH_HEADER_SIZE:
            return None
        # A header may cross the end of the window.
        begin += len(data) - BATCH_HEADER_SIZE + 1
    return None


def _body(data: bytes, offset: int, header: BatchHeader) -> memoryview:
    return memoryview(data)[offset + BATCH_HEADER_SIZE : offset + header.size]


class ChunkCache:
    """The most recently read chunks, decoded. Bounded in bytes. Used from Trio's thread only."""

    def __init__(self, *, bytes_max: int = CHUNK_CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._chunks: OrderedDict[tuple[int, int], tuple[tuple[Entry, ...], int]] = OrderedDict()

    @property
    def cached_bytes(self) -> int:
        """Bytes held."""
        return self._bytes

    def get(self, ledger: int, chunk: int) -> tuple[Entry, ...] | None:
        """The chunk's entries if they are cached."""
        found = self._chunks.get((ledger, chunk))
        if found is None:
            return None
        self._chunks.move_to_end((ledger, chunk))
        return found[0]

    def put(self, ledger: int, chunk: int, entries: tuple[Entry, ...]) -> None:
        """Keep a whole chunk. Evicts the least recently used ones."""
        if (ledger, chunk) in self._chunks:
            return
        size = sum(len(entry.payload) + ENTRY_MEMORY_BYTES for entry in entries)
        self._chunks[ledger, chunk] = (entries, size)
        self._bytes += size
        while self._bytes > self._bytes_max:
            _key, (_entries, dropped) = self._chunks.popitem(last=False)
            self._bytes -= dropped
