"""The aborted-transaction index of one ledger: which transactions were aborted, and where their entries are.

Kafka keeps such an index beside each log segment, so that readers filter by a range and need no history. Here, the
owner writes it once everything in a closed ledger is decided. It takes over the records that the metadata store held
until then. So neither that store nor the broker's memory grows with history (docs/design.md#transactions).

    file  = [magic u32][crc32c u32][ledger i64][count u32][entry]*
    entry = [version i16][txn most u64][txn least u64][first entry i64][last entry i64]

Kafka's own entries are version 0 (producer id, offsets, last stable offset). These are version 1. The checksum covers
everything but itself. Unlike the sparse index, this one cannot be rebuilt, because segments hold no markers. So a
damaged index is corruption, never an empty index.

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
    """The lowest number that an entry of the transaction can have in this ledger."""
    last: int
    """The highest such number."""


class CorruptIndex(ValueError):
    """The bytes are no index of this ledger. The message says why."""


def encode(ledger: int, spans: Iterable[AbortedSpan]) -> bytes:
    """The file's content. The order of the spans does not matter."""
    ordered = sorted(set(spans))
    body = b"".join(_ENTRY.pack(VERSION, *span.txn, span.first, span.last) for span in ordered)
    crc = google_crc32c.value(_HEADER.pack(_MAGIC, 0, ledger, len(ordered)) + body)
    return _HEADER.pack(_MAGIC, crc, ledger, len(ordered)) + body


def decode(ledger: int, data: bytes) -> tuple[AbortedSpan, ...]:
    """The spans that `encode` wrote for this ledger.

    Raises:
        CorruptIndex: the bytes are damaged, of another ledger, or of a later version.
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
