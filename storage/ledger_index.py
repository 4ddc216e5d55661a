"""The sparse index of a ledger: where a chunk of entries begins in its file.

The index has a slot for the first batch of every 64 KiB. So one search in memory and one read of the file find any
entry, and the index of a ledger of one gigabyte takes half a megabyte. The bytes between two slots are a **chunk**, the
unit of reading.

The index lives in memory and grows as batches are confirmed. It is written beside the ledger at checkpoints and when
the ledger is closed, each time after the ledger's bytes were synced. So it may be missing or behind the file. It is
then completed from the batches. If it is ahead of the file, the file lost synced bytes (see the table in `recovery`).

Pure: bytes in, values out.
"""

import struct
from bisect import bisect_right
from operator import attrgetter
from typing import Final, NamedTuple

import google_crc32c

from storage.chunk_decoding import Extent
from storage.entry import BatchHeader, Entry

CHUNK_BYTES: Final = 64 * 1024
"""A new slot begins with the first batch at least this far behind the last slot."""

_MAGIC: Final = 0x54574931  # "TWI1": the last digit is the format's version
_HEADER: Final = struct.Struct(">IIqqqqqII")
_SLOT: Final = struct.Struct(">qqqq")


class StaleIndex(ValueError):
    """The bytes are no index of this ledger."""


class Slot(NamedTuple):
    """The first entry of a chunk."""

    entry: int
    first_index: int
    timestamp_ms: int
    offset: int
    """Where its batch begins in the ledger file."""


_entry = attrgetter("entry")
_first_index = attrgetter("first_index")
_timestamp = attrgetter("timestamp_ms")


class SparseIndex:
    """The index of one ledger, and the end of its chain of batches."""

    __slots__ = ("end_offset", "last_crc", "last_entry", "last_timestamp_ms", "ledger", "next_index", "slots")

    def __init__(self, ledger: int) -> None:
        self.ledger = ledger
        self.slots: list[Slot] = []
        self.end_offset = 0
        """Where the next batch begins. The index covers everything below it."""
        self.last_entry = -1
        """The last entry covered."""
        self.last_crc = 0
        """The crc of the last covered batch. The next batch continues it."""
        self.next_index = 0
        """The index of the message behind the last entry. It has no meaning while there is no entry."""
        self.last_timestamp_ms = 0
        """The last entry's time, milliseconds since the epoch."""

    def add(self, header: BatchHeader, first: Entry, last: Entry) -> None:
        """Cover one more batch, which begins at `end_offset`."""
        assert header.first_entry == self.last_entry + 1, "batches are covered in order"
        if not self.slots or self.end_offset - self.slots[-1].offset >= CHUNK_BYTES:
            self.slots.append(Slot(first.position.entry, first.first_index, first.timestamp_ms, self.end_offset))
        self.end_offset += header.size
        self.last_entry = header.last_entry
        self.last_crc = header.crc
        self.next_index = last.first_index + last.message_count
        self.last_timestamp_ms = last.timestamp_ms

    def continue_with(self, rest: "SparseIndex") -> None:
        """Cover what `rest` covers. It begins behind a gap, and the entries of the gap are in no readable chunk."""
        assert rest.slots, "it covers at least one batch"
        if not self.slots:
            # The gap begins the ledger. Its entries still need a chunk.
            self.slots.append(rest.slots[0]._replace(entry=0, offset=0))
        self.slots += rest.slots
        self.end_offset, self.last_entry, self.last_crc = rest.end_offset, rest.last_entry, rest.last_crc
        self.next_index, self.last_timestamp_ms = rest.next_index, rest.last_timestamp_ms

    def next_chunk(self, entry: int) -> int | None:
        """The first entry of the chunk behind the one that has, or should have, this entry; None if there is none."""
        following = self.chunk_of(entry) + 1
        return self.slots[following].entry if following < len(self.slots) else None

    def copy(self) -> "SparseIndex":
        """A copy that stays as it is while this one grows."""
        other = SparseIndex(self.ledger)
        other.slots = self.slots.copy()
        other.end_offset, other.last_entry, other.last_crc = self.end_offset, self.last_entry, self.last_crc
        other.next_index, other.last_timestamp_ms = self.next_index, self.last_timestamp_ms
        return other

    def chunk_of(self, entry: int) -> int:
        """Number of the chunk that holds the entry."""
        return bisect_right(self.slots, entry, key=_entry) - 1

    def chunk_of_index(self, index: int) -> int:
        """Number of the last chunk that begins at or below this message index; the first chunk if none does."""
        return max(0, bisect_right(self.slots, index, key=_first_index) - 1)

    def chunk_of_time(self, timestamp_ms: int) -> int:
        """Number of the chunk with the first entry of this time or later; the last chunk if there is no such entry."""
        # Strictly below: the chunk before the first one that begins at this time may end with an entry of this time.
        return max(0, bisect_right(self.slots, timestamp_ms - 1, key=_timestamp) - 1)

    def chunk_extent(self, chunk: int) -> Extent:
        """Where a chunk is in the file."""
        slot = self.slots[chunk]
        if chunk + 1 == len(self.slots):
            return Extent(slot.entry, slot.offset, self.end_offset, self.last_entry + 1, self.last_crc)
        following = self.slots[chunk + 1]
        return Extent(slot.entry, slot.offset, following.offset, following.entry)

    def offset_behind(self, entry: int) -> int:
        """Roughly where the entry ends in the file, to within a chunk. Exact at the end."""
        if entry >= self.last_entry:
            return self.end_offset
        chunk = self.chunk_of(entry + 1)
        if chunk < 0:
            return 0
        first, begin, stop, following, _crc = self.chunk_extent(chunk)
        return begin + (stop - begin) * (entry + 1 - first) // (following - first)

    def entry_within(self, offset: int) -> int:
        """The last entry that ends at or before the offset, by `offset_behind`; -1 if none does."""
        return bisect_right(range(self.last_entry + 1), offset, key=self.offset_behind) - 1

    def encode(self) -> bytes:
        """The bytes of the index file."""
        body = b"".join(_SLOT.pack(*slot) for slot in self.slots)
        fields = (self.ledger, self.end_offset, self.last_entry, self.next_index, self.last_timestamp_ms, self.last_crc)
        bare = _HEADER.pack(_MAGIC, 0, *fields, len(self.slots)) + body
        crc = int(google_crc32c.value(bare))
        return bare[:4] + crc.to_bytes(4) + bare[8:]

    @classmethod
    def decode(cls, ledger: int, data: bytes) -> "SparseIndex":
        """The index from the bytes of its file.

        Raises:
            StaleIndex: it is damaged, or belongs to another ledger.
        """
        if len(data) < _HEADER.size:
            raise StaleIndex("too short")
        magic, crc, owner, end_offset, last_entry, next_index, last_timestamp, last_crc, count = _HEADER.unpack_from(
            data
        )
        bare = data[:4] + b"\0\0\0\0" + data[8:]
        if magic != _MAGIC or owner != ledger or len(data) != _HEADER.size + count * _SLOT.size:
            raise StaleIndex("another format, ledger or length")
        if google_crc32c.value(bare) != crc:
            raise StaleIndex("the checksum differs")
        index = cls(ledger)
        index.slots = [Slot(*fields) for fields in _SLOT.iter_unpack(data[_HEADER.size :])]
        index.end_offset, index.last_entry, index.last_crc = end_offset, last_entry, last_crc
        index.next_index, index.last_timestamp_ms = next_index, last_timestamp
        return index
