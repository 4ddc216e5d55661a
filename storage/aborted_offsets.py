"""The aborted transactions of a log with markers, by ranges of offsets: Kafka's transaction index, version 0.

A log whose transactions end with markers (`persistent://`) keeps one such index beside each ledger. An abort whose
marker stands in a ledger adds one entry to that ledger's index, whichever ledgers hold its records (K6). Commits add
nothing.

    entry = [i16 version = 0][i64 producer id][i64 first offset][i64 last offset][i64 last stable offset]

The last offset is that of the marker. The last stable offset is that of the moment after the abort: exclusive, and
rising from entry to entry (K10). So a search for a range of offsets begins in the ledger that holds its first offset.
It ends at the first entry whose last stable offset has passed the range, because every later abort began behind it
(K7).

An entry stands for the offsets of one transaction, not for its producer. A producer id that was aborted, committed and
aborted again has two entries, and its committed records are in neither (K22).

The log has the markers, so the index can be made again from the log. Damage therefore loses nothing (K12, K18).

Pure.
"""

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

VERSION: Final = 0
_ENTRY: Final = struct.Struct(">hqqqq")
ENTRY_SIZE: Final = _ENTRY.size


class UnknownIndexVersion(ValueError):
    """The index has an entry of a later version. This release must not rebuild or shorten it (K18)."""


class AbortedOffsets(NamedTuple):
    """One aborted transaction."""

    producer_id: int
    first: int
    """The offset of its first record."""
    last: int
    """The offset of its marker."""
    last_stable: int
    """The first offset that was not stable yet after the abort."""


def encode(entry: AbortedOffsets) -> bytes:
    """The bytes of an entry (K4)."""
    return _ENTRY.pack(VERSION, *entry)


def decode(data: bytes, *, before: int = -1) -> tuple[list[AbortedOffsets], bool]:
    """The entries of an index up to the first that cannot be, and whether there is none such.

    `before` is the last stable offset of the entry before these, if there is one.

    Raises:
        UnknownIndexVersion: an entry is of a later version.
    """
    entries: list[AbortedOffsets] = []
    whole = len(data) - len(data) % ENTRY_SIZE
    for version, *fields in _ENTRY.iter_unpack(data[:whole]):
        if version > VERSION:
            raise UnknownIndexVersion(f"an entry has version {version}; this release reads version {VERSION}")
        entry = AbortedOffsets(*fields)
        if version != VERSION or not _follows(entry, before):
            return entries, False
        before = entry.last_stable
        entries.append(entry)
    return entries, whole == len(data)


def decode_at(data: bytes | bytearray, number: int) -> AbortedOffsets:
    """The entry of this number, from 0 on, of an index that is well formed."""
    return AbortedOffsets._make(_ENTRY.unpack_from(data, number * ENTRY_SIZE)[1:])


def is_well_formed(data: bytes) -> bool:
    """Whether an index has whole entries of this version. It takes one step for any number of entries.

    Raises:
        UnknownIndexVersion: an entry is of a later version.
    """
    versions = data[0::ENTRY_SIZE], data[1::ENTRY_SIZE]
    if all(part.count(0) == len(part) for part in versions):
        return len(data) % ENTRY_SIZE == 0
    _entries, is_whole = decode(data)
    return is_whole


def _follows(entry: AbortedOffsets, before: int) -> bool:
    """Whether an abort can have these offsets, behind one that left `before` as the last stable offset."""
    return 0 <= entry.first <= entry.last and before <= entry.last_stable <= entry.last + 1


def searched(
    indexes: Iterable[Iterable[AbortedOffsets]], start: int, end: int
) -> Iterator[tuple[AbortedOffsets, bool]]:
    """Yield each entry that a search looks at, and whether it has offsets from `start` to `end`, exclusive (K8).

    The indexes are those of the ledgers from the one on that holds `start`, in order (K7).
    """
    for index in indexes:
        for entry in index:
            yield entry, entry.last >= start and entry.first < end
            if entry.last_stable >= end:
                return


def cut_at(entries: Sequence[AbortedOffsets], end: int) -> tuple[list[AbortedOffsets], list[AbortedOffsets]]:
    """Divide entries where the log was cut at the offset `end`: those that stay, and those whose marker is gone (K11).

    A transaction whose marker is gone is open again, if its first offset is below `end`.
    """
    # Markers stand in the log in the order of the entries.
    kept = bisect_left(entries, end, key=lambda entry: entry.last)
    return list(entries[:kept]), list(entries[kept:])
