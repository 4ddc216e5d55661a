"""An entry: the bytes that a client sent, with the broker's header; and the batch that carries entries to disk.

    batch  = [batch header, 48 bytes][entry]*          one batch per ledger and journal write
    entry  = [u32 length of the rest][entry header][transaction, 16 bytes, if flag 1][payload]

Flag 1 says that the entry has a transaction, flag 2 that it is a control entry. No other flag is known yet.

All integers are big-endian. The payload is the client's bytes, never re-encoded. A batch's crc32c covers its header
(without the crc itself) and its entries. It is chained: it starts from the crc of the batch before it in the same
ledger. So a batch that was lost, moved or left over from an earlier use of the space cannot pass for the next one.

Pure: bytes in, values out.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import chain, groupby
from typing import Final, NamedTuple

import google_crc32c

from storage.position import Position


class EntryFormat(IntEnum):
    """The layout of the payload. Readers of another protocol convert it; the log never does."""

    PULSAR = 0
    """`[u16 0x0e01][u32 crc32c][u32 size][MessageMetadata][payload]`, as in SEND and MESSAGE."""
    KAFKA = 1
    """A Kafka RecordBatch, version 2."""
    PRODUCERS = 2
    """What a log knows of its producers, by a broker for the next owner: a control entry (`txn/marked_log.py`)."""


class TxnId(NamedTuple):
    """A transaction's identity on the wire: two 64-bit halves. v5 sets bit 62 of `least` (docs/design.md#records)."""

    most: int
    least: int

    def __str__(self) -> str:
        return f"{self.most}_{self.least}"

    @property
    def shown(self) -> str:
        """The id in text for people, as they give it to `tidewire transactions`."""
        return f"{self.most}:{self.least}"


class Entry(NamedTuple):
    """An entry that was read back. It has everything that a dispatcher needs without parsing the payload."""

    position: Position
    payload: bytes
    """The client's bytes."""
    first_index: int
    """The index of this entry's first message within its topic, contiguous over the topic's ledgers."""
    message_count: int
    """Messages in the entry (a client batch holds several). The next entry begins at `first_index + message_count`.

    For a control entry, the number of indexes that it takes, without messages. Kafka's markers take one."""
    timestamp_ms: int
    """When the broker took the entry, milliseconds since the epoch."""
    txn: TxnId | None = None
    """The transaction that wrote it, or None."""
    format: EntryFormat = EntryFormat.PULSAR
    is_control: bool = False
    """Whether a broker wrote it for brokers, such as the marker of a transaction's end. It has a position like any
    other. No consumer gets it, acknowledgements pass over it, and it is no message."""


ENTRY_MEMORY_BYTES: Final = 400
"""What an entry costs in memory besides its payload, measured with CPython 3.11 in the tail of a ledger."""

_FLAG_TXN: Final = 1
_FLAG_CONTROL: Final = 2
_FORMATS: Final = tuple(EntryFormat)
_PREFIX: Final = struct.Struct(">IBBIqq")  # length of the rest, format, flags, message count, timestamp, first index
_LENGTH_SIZE: Final = 4
_HEADER_SIZE: Final = _PREFIX.size - _LENGTH_SIZE
_TXN: Final = struct.Struct(">qq")
_TXN_PREFIX: Final = struct.Struct(_PREFIX.format + "qq")
"""Both, one behind the other."""


class CorruptEntry(ValueError):
    """The bytes break a rule of batches or entries. The message names the rule."""


Pieces = tuple[bytes, ...]
"""Bytes that stand one behind the other in a file, and were not copied together in memory."""

UNCOPIED_BYTES_MIN: Final = 16 * 1024
"""A piece of so many bytes is written from where it is. Smaller ones cost less to copy than to handle one by one."""


def encode_entry(entry: Entry) -> Pieces:
    """The bytes of an entry in a batch. A large payload is the last piece, uncopied."""
    _position, payload, first_index, count, time_ms, txn, entry_format, is_control = entry
    flags = _FLAG_CONTROL if is_control else 0
    rest = _HEADER_SIZE + len(payload)
    if txn is None:
        head = _PREFIX.pack(rest, entry_format, flags, count, time_ms, first_index)
    else:
        rest += _TXN.size
        head = _TXN_PREFIX.pack(rest, entry_format, flags | _FLAG_TXN, count, time_ms, first_index, txn.most, txn.least)
    return (head, payload) if len(payload) >= UNCOPIED_BYTES_MIN else (head + payload,)


def copy_small_together(pieces: Sequence[bytes]) -> Pieces:
    """The same bytes, with small pieces that follow one another copied into one."""
    if all(len(piece) < UNCOPIED_BYTES_MIN for piece in pieces):
        return (b"".join(pieces),)
    found: list[bytes] = []
    for is_large, group in groupby(pieces, lambda piece: len(piece) >= UNCOPIED_BYTES_MIN):
        some = list(group)
        found += some if is_large else [b"".join(some)]
    return tuple(found)


def extend_checksum(crc: int, pieces: Iterable[bytes]) -> int:
    """Continue a crc32c over further bytes. How they are divided into pieces makes no difference."""
    for piece in pieces:
        crc = google_crc32c.extend(crc, piece)
    return int(crc)


def decode_entries(ledger: int, first_entry: int, body: bytes | memoryview) -> Iterator[Entry]:
    """The entries of a batch's body, in order.

    Raises:
        CorruptEntry: the body does not divide into entries exactly.
    """
    offset = 0
    entry_id = first_entry
    end = len(body)
    while offset < end:
        if end - offset < _PREFIX.size:
            raise CorruptEntry(f"{end - offset} bytes are left, too few for an entry")
        length, form, flags, message_count, timestamp_ms, index = _PREFIX.unpack_from(body, offset)
        stop = offset + _LENGTH_SIZE + length
        if length < _HEADER_SIZE or stop > end:
            raise CorruptEntry(f"entry {entry_id} claims {length} bytes")
        start = offset + _PREFIX.size
        txn = None
        if flags & ~(_FLAG_TXN | _FLAG_CONTROL):
            raise CorruptEntry(f"entry {entry_id} has the unknown flags {flags}")
        if flags & _FLAG_TXN:
            if stop - start < _TXN.size:
                raise CorruptEntry(f"entry {entry_id} is too short for its transaction id")
            txn = TxnId(*_TXN.unpack_from(body, start))
            start += _TXN.size
        if form >= len(_FORMATS):
            raise CorruptEntry(f"entry {entry_id} has the unknown format {form}")
        payload = bytes(body[start:stop])
        is_control = flags & _FLAG_CONTROL != 0
        position = Position(ledger, entry_id)
        yield Entry(position, payload, index, message_count, timestamp_ms, txn, _FORMATS[form], is_control)
        offset = stop
        entry_id += 1


BATCH_MAGIC: Final = 0x54574231  # "TWB1": the last digit is the format's version
_BATCH: Final = struct.Struct(">IIqqIIqII")
BATCH_HEADER_SIZE: Final = _BATCH.size
BATCH_BODY_SIZE_MAX: Final = 64 * 1024 * 1024
"""No writer makes a larger batch. So a larger length in a header is damage, not a reason to allocate."""


class BatchHeader(NamedTuple):
    """The header of a batch."""

    ledger: int
    first_entry: int
    """Id of the batch's first entry, one above the last entry of the batch before it."""
    entry_count: int
    body_size: int
    """Bytes of entries after the header."""
    confirmed_before: int
    """Highest entry id of this ledger that was confirmed when the batch was made. Always below `first_entry`."""
    previous_crc: int
    """The crc of the ledger's previous batch, 0 for the first."""
    crc: int

    @property
    def last_entry(self) -> int:
        """Id of the batch's last entry."""
        return self.first_entry + self.entry_count - 1

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return BATCH_HEADER_SIZE + self.body_size


def encode_batch(
    ledger: int, first_entry: int, encoded: Sequence[Pieces], *, confirmed_before: int, previous_crc: int
) -> tuple[BatchHeader, Pieces]:
    """A batch of entries made by `encode_entry`, and its header. The next batch continues the crc of the header."""
    body = copy_small_together(list(chain.from_iterable(encoded)))
    size = sum(map(len, body))
    assert 0 < size <= BATCH_BODY_SIZE_MAX, "a batch holds at least one entry and is bounded"
    assert confirmed_before < first_entry, "what this batch carries cannot be confirmed yet"
    fields = (ledger, first_entry, len(encoded), size, confirmed_before, previous_crc, 0)
    crc = extend_checksum(previous_crc, (_BATCH.pack(BATCH_MAGIC, 0, *fields), *body))
    header = BatchHeader(ledger, first_entry, len(encoded), size, confirmed_before, previous_crc, crc)
    return header, (_BATCH.pack(BATCH_MAGIC, crc, *fields), *body)


def decode_batch_header(data: bytes | memoryview, offset: int = 0) -> BatchHeader:
    """The header at `offset`. This checks only its shape; `check_batch` checks the content.

    Raises:
        CorruptEntry: too few bytes, another magic, or a field outside its bounds.
    """
    if len(data) - offset < BATCH_HEADER_SIZE:
        raise CorruptEntry(f"{len(data) - offset} bytes are left, too few for a batch header")
    magic, crc, ledger, first, count, body_size, confirmed, previous_crc, _ = _BATCH.unpack_from(data, offset)
    if magic != BATCH_MAGIC:
        raise CorruptEntry(f"0x{magic:08x} is not the magic number of a batch")
    if not (ledger >= 0 and first >= 0 and count > 0 and 0 < body_size <= BATCH_BODY_SIZE_MAX and confirmed < first):
        raise CorruptEntry("a field of the batch header is outside its bounds")
    return BatchHeader(ledger, first, count, body_size, confirmed, previous_crc, crc)


def check_batch(header: BatchHeader, data: bytes | memoryview, offset: int = 0) -> None:
    """Verify the crc of the batch at `offset`.

    Raises:
        CorruptEntry: the bytes are cut short or differ from what was written.
    """
    stop = offset + header.size
    if len(data) < stop:
        raise CorruptEntry(f"the batch of entry {header.first_entry} is cut short")
    bare = bytearray(data[offset : offset + BATCH_HEADER_SIZE])
    bare[4:8] = b"\0\0\0\0"
    body = bytes(data[offset + BATCH_HEADER_SIZE : stop])
    if extend_checksum(header.previous_crc, (bytes(bare), body)) != header.crc:
        raise CorruptEntry(f"the checksum of the batch of entry {header.first_entry} differs")
