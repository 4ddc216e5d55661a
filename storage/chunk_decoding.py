"""The entries of a chunk of a ledger's file, and where reading continues behind damage in it. Pure.

A chunk is a run of batches between two slots of the index. Each batch has its own checksum, so a flipped bit makes one
batch unreadable. The headers alone show where the next batch begins: their sizes, entry numbers and checksums must form
a chain that ends exactly at the chunk's end. So bytes of a payload that only look like a header are not taken for one.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from storage.entry import (
    BATCH_HEADER_SIZE,
    BATCH_MAGIC,
    BatchHeader,
    CorruptEntry,
    Entry,
    check_batch,
    decode_batch_header,
    decode_entries,
)

_MAGIC: Final = BATCH_MAGIC.to_bytes(4)


class Extent(NamedTuple):
    """Where a chunk is."""

    entry: int
    """The chunk's first entry."""
    begin: int
    stop: int
    """The end of the chunk. `start` and `stop` are offsets in the file."""
    next_entry: int
    """The first entry behind the chunk."""
    last_crc: int | None = None
    """The checksum of its last batch, if something other than the chunk tells it."""


class Damage(NamedTuple):
    """Why the rest of a chunk could not be read."""

    offset: int
    """Its offset in the file."""
    reason: str
    next_entry: int
    """The first entry behind the damage that may be readable."""


def decode_chunk(
    data: bytes, base: int, ledger: int, extent: Extent, first: int
) -> tuple[tuple[Entry, ...], Damage | None]:
    """The chunk's entries, up to the first damage that touches entry `first` or a later one.

    If damage lies wholly before `first`, the entries in front of it are left out. So the entries have no gap.

    Args:
        data: bytes of the file; they hold the whole chunk, unless the file ends before it.
        base: where these bytes begin in the file.
        ledger: the ledger of the file.
        extent: the chunk.
        first: the first entry that the caller wants.
    """
    entries: list[Entry] = []
    due, at, stop = extent.entry, extent.begin - base, extent.stop - base
    crc: int | None = None
    while at < stop:
        try:
            header = check_next(data, at, ledger, due, crc)
            entries.extend(decode_entries(ledger, due, memoryview(data)[at + BATCH_HEADER_SIZE : at + header.size]))
        except CorruptEntry as damaged:
            found = _next_batch(data, at, stop, ledger, due, extent)
            next_entry = extent.next_entry if found is None else found[1].first_entry
            if found is None or first < next_entry:
                return tuple(entries), Damage(base + at, str(damaged), next_entry)
            entries.clear()
            at, header = found
            due, crc = next_entry, header.previous_crc
            continue
        due, crc = header.last_entry + 1, header.crc
        at += header.size
    return tuple(entries), None


def check_next(data: bytes, offset: int, ledger: int, first_entry: int, previous_crc: int | None) -> BatchHeader:
    """The header of the batch at `offset`. The batch must be whole, and the next one of this ledger.

    Raises:
        CorruptEntry: it is not.
    """
    header = decode_batch_header(data, offset)
    if header.ledger != ledger or header.first_entry != first_entry:
        raise CorruptEntry(f"entry {first_entry} is due, not entry {header.first_entry} of ledger {header.ledger}")
    if previous_crc is not None and header.previous_crc != previous_crc:
        raise CorruptEntry(f"the batch of entry {first_entry} does not continue the one before it")
    check_batch(header, data, offset)
    return header


def _next_batch(
    data: bytes, begin: int, stop: int, ledger: int, due: int, extent: Extent
) -> tuple[int, BatchHeader] | None:
    """The first header behind `begin` from which a chain of headers reaches the end of the chunk, and its offset."""
    behind = _header(data, stop, ledger)
    last_crc = extent.last_crc if behind is None else behind.previous_crc
    walked: set[int] = set()
    at = data.find(_MAGIC, begin + 1, stop)
    while at >= 0:
        header = _header(data, at, ledger)
        if (
            header is not None
            and header.first_entry > due
            and _leads_to(data, at, stop, header, extent, last_crc, walked)
        ):
            return at, header
        at = data.find(_MAGIC, at + 1, stop)
    return None


def _leads_to(
    data: bytes, at: int, stop: int, header: BatchHeader, extent: Extent, last_crc: int | None, walked: set[int]
) -> bool:
    """Whether the batches from this header on end where the chunk ends. `walked` has headers that are known not to."""
    while at not in walked:
        walked.add(at)
        at += header.size
        if at >= stop:
            return at == stop and header.last_entry + 1 == extent.next_entry and last_crc in (None, header.crc)
        following = _header(data, at, header.ledger)
        if following is None or (following.first_entry, following.previous_crc) != (header.last_entry + 1, header.crc):
            return False
        header = following
    return False


def _header(data: bytes, offset: int, ledger: int) -> BatchHeader | None:
    try:
        header = decode_batch_header(data, offset)
    except CorruptEntry:
        return None
    return header if header.ledger == ledger else None


def is_gapless(extent: Extent, entries: Sequence[Entry]) -> bool:
    """Whether the entries begin where the chunk begins."""
    return not entries or entries[0].position.entry == extent.entry
