"""What open and sealed ledgers share: the newest entries in memory, the rest in the file.

The tail is a list without gaps. In a new ledger it begins with the first entry. It loses its oldest entries once they
are in the file and memory is short (`write_behind` decides). So it always reaches the last appended entry. Older
entries are read from the file in whole chunks. The chunks are cached, because readers are mostly sequential.
"""

from collections.abc import Sequence
from typing import Final

from storage.chunk_decoding import Extent, is_gapless
from storage.entry import Entry
from storage.errors import LedgerCorrupt, fresh
from storage.ledger_folder import LedgerFolder
from storage.ledger_index import SparseIndex

READ_BYTES_MAX: Final = 1024 * 1024
"""Bytes read from the file at once, beyond the first chunk."""


class LedgerLog:
    """The entries of one ledger."""

    def __init__(self, ledger: int, folder: LedgerFolder, index: SparseIndex, *, is_growing: bool) -> None:
        self.id = ledger
        self.folder = folder
        self.index = index
        """Covers what is confirmed."""
        self.is_growing = is_growing
        """False once the index covers everything that will ever exist, which makes its last chunk whole."""
        self.damage: LedgerCorrupt | None = None
        """What follows the index's end in the file."""
        self.tail: list[Entry] = []
        self.tail_first = index.last_entry + 1
        """Entry id of the tail's first entry, or of the next entry while the tail is empty."""
        self.written_offset = index.end_offset
        """Where the bytes in the file end. Later bytes are only in memory and in the journal."""
        self.written_entry = index.last_entry
        """The last entry in the file."""

    def forget(self, last_entry: int) -> None:
        """Drop the tail up to and including this entry, which must be in the file."""
        assert last_entry <= self.written_entry, "only what is in the file may leave memory"
        count = last_entry + 1 - self.tail_first
        if count > 0:
            del self.tail[:count]
            self.tail_first += count

    async def read(self, first: int, last: int, *, entries_max: int, bytes_max: int) -> list[Entry]:
        """The entries first..last in order: at least one if there is one, then at most as many as the bounds allow.

        Raises:
            LedgerCorrupt: the first of them is damaged or missing.
        """
        last = min(last, self.tail_first + len(self.tail) - 1)
        if first > last:
            if self.damage is not None:
                raise fresh(self.damage)
            return []
        if first >= self.tail_first:
            begin = first - self.tail_first
            stop = min(last + 1, first + entries_max) - self.tail_first
            return _within(self.tail[begin:stop], bytes_max)
        return await self._read_file(first, min(last, self.tail_first - 1), entries_max, bytes_max)

    async def _read_file(self, first: int, last: int, entries_max: int, bytes_max: int) -> list[Entry]:
        found: list[Entry] = []
        missing: list[int] = []
        chunk = self.index.chunk_of(first)
        last_chunk = self.index.chunk_of(last)
        size = 0
        while chunk <= last_chunk and size < bytes_max and len(found) < entries_max:
            entries = self.folder.chunks.get(self.id, chunk)
            if entries is None:
                missing = self._run_of_missing(chunk, last_chunk, bytes_max - size)
                break
            size += sum(len(entry.payload) for entry in _slice(entries, first, last))
            found.extend(_slice(entries, first, last))
            chunk += 1
        if missing:
            # The offsets are taken now, because the index grows while the disk reads.
            extents = [self._extent(each) for each in missing]
            is_whole = [self._is_whole(each) for each in missing]
            chunks, damage = await self.folder.files.run(self.folder.read_chunks, self.id, extents, first)
            for number, extent, entries, whole in zip(missing, extents, chunks, is_whole, strict=False):
                found.extend(_slice(entries, first, last))
                if whole and is_gapless(extent, entries) and (damage is None or entries is not chunks[-1]):
                    self.folder.chunks.put(self.id, number, entries)
            if damage is not None and not found:
                if damage.next_entry is not None:
                    # Entries in memory need no file.
                    damage.next_entry = min(damage.next_entry, self.tail_first)
                raise damage
        return _within(found[:entries_max], bytes_max)

    def _run_of_missing(self, chunk: int, last_chunk: int, bytes_max: int) -> list[int]:
        run = [chunk]
        budget = min(bytes_max, READ_BYTES_MAX)
        begin = self._extent(chunk).begin
        while run[-1] < last_chunk and self._extent(run[-1]).stop - begin < budget:
            if self.folder.chunks.get(self.id, run[-1] + 1) is not None:
                break
            run.append(run[-1] + 1)
        return run

    def _extent(self, chunk: int) -> Extent:
        extent = self.index.chunk_extent(chunk)
        if extent.stop <= self.written_offset:
            return extent
        return Extent(extent.entry, extent.begin, self.written_offset, self.written_entry + 1)

    def _is_whole(self, chunk: int) -> bool:
        is_last = chunk + 1 == len(self.index.slots)
        return self.index.chunk_extent(chunk).stop <= self.written_offset and not (is_last and self.is_growing)


def _slice(entries: Sequence[Entry], first: int, last: int) -> Sequence[Entry]:
    if not entries:
        return entries
    base = entries[0].position.entry
    return entries[max(0, first - base) : max(0, last + 1 - base)]


def _within(entries: list[Entry], bytes_max: int) -> list[Entry]:
    size = 0
    for count, entry in enumerate(entries):
        size += len(entry.payload)
        if size > bytes_max and count:
            return entries[:count]
    return entries
