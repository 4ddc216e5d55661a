"""The aborted-transaction index of one ledger: which transactions were aborted, and where their entries stand.

Kafka keeps such an index beside each log segment (its EoS design) so that readers filter by looking up a range instead
of remembering history. Here it is written when everything in a closed ledger is decided, and moves what the metadata
store held until then: so neither that store nor the broker's memory grows with history (docs/design.md#transactions).

    file  = [magic u32][crc32c u32][ledger i64][count u32][entry]*
    entry = [version i16][txn most u64][txn least u64][first entry i64][last entry i64]

Kafka's own entries are version 0 (producer id, offsets, last stable offset); these are version 1. The checksum covers
all but itself. Unlike the sparse index it cannot be rebuilt, as segments hold no markers: a damaged one is corruption,
never an empty one.

Pure.
"""

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

import google_crc32c

from storage.entry import TxnId

VERSION: Final = 1
_MAGIC: Final = 0x54574131  # "TWA1"
_HEADER: Final = struct.Struct(">IIqI")
_ENTRY: Final = struct.Struct(">hQQqq")


class AbortedSpan(NamedTuple):
    """One aborted transaction in one ledger."""

    txn: TxnId
    first: int
    """No entry of it in this ledger has a lower number."""
    last: int
    """Nor a higher one."""


class CorruptIndex(ValueError):
    """The bytes are no index of this ledger; the message says why."""


def encode(ledger: int, spans: Iterable[AbortedSpan]) -> bytes:
    """The file's content, the same for the same spans in any order."""
    ordered = sorted(set(spans))
    body = b"".join(_ENTRY.pack(VERSION, *span.txn, span.first, span.last) for span in ordered)
    crc = google_crc32c.value(_HEADER.pack(_MAGIC, 0, ledger, len(ordered)) + body)
    return _HEADER.pack(_MAGIC, crc, ledger, len(ordered)) + body


def decode(ledger: int, data: bytes) -> tuple[AbortedSpan, ...]:
    """The spans that `encode` wrote for this ledger.

    Raises:
        CorruptIndex: damaged, of another ledger, or of a later version.
    """
    if len(data) < _HEADER.size:
        raise CorruptIndex(f"{len(data)} bytes are too few for an aborted-transaction index")
    magic, crc, owner, count = _HEADER.unpack_from(data)
    if magic != _MAGIC or owner != ledger or len(data) != _HEADER.size + count * _ENTRY.size:
        raise CorruptIndex("another format, ledger or length")
    bare = _HEADER.pack(magic, 0, owner, count) + data[_HEADER.size :]
    if google_crc32c.value(bare) != crc:
        raise CorruptIndex("the checksum differs")
    spans = []
    for version, most, least, first, last in _ENTRY.iter_unpack(data[_HEADER.size :]):
        if version != VERSION:
            raise CorruptIndex(f"version {version} is of a later release; this one reads version {VERSION}")
        spans.append(AbortedSpan(TxnId(most, least), first, last))
    return tuple(spans)
