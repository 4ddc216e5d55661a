"""How a change set stands in the log: as neighbours in one batch, or as a transaction over as many as it needs.

Every batch is written whole or not at all, so a change set that fits one needs no marks. A larger one is written in
pieces, each durable before the next is encoded, so that neither memory nor a worker thread ever holds all of it; only
its end makes it count (R8, R12).

Pure: values in, batches out.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from storage.metadata.batches import BATCH_BYTES_MAX, Body
from storage.metadata.records import (
    TEXT_BYTES_MAX,
    AbortTransaction,
    BeginTransaction,
    DataRecord,
    EndTransaction,
    LogRecord,
    encode,
)

PIECE_BYTES_MAX: Final = 256 * 1024
"""A piece of a transaction is written when it has this size: a millisecond or two to encode, and as much to write."""


def fits_one_batch(change_set: Sequence[DataRecord]) -> bool:
    """True if it needs no transaction: all of it fits a batch, or it is a single record, which may have one alone."""
    if len(change_set) == 1:
        return True
    size = 0
    for record in change_set:
        size += len(encode(record))
        if size > BATCH_BYTES_MAX:
            return False
    return True


def pieces(name: str, change_set: Sequence[DataRecord]) -> Iterator[list[Body]]:
    """The transaction that holds the change set, from begin to end, as batches to be written piece by piece."""
    piece: list[Body] = []
    size = 0
    for body in _batches(_marked(name, change_set)):
        piece.append(body)
        size += len(body.data)
        if size >= PIECE_BYTES_MAX:
            yield piece
            piece = []
            size = 0
    if piece:
        yield piece


def abort(reason: str) -> list[Body]:
    """What ends an open transaction as if it had never begun."""
    return [Body(encode(AbortTransaction(shortened(reason))), 1)]


def shortened(text: str) -> str:
    """The text, or as much of its beginning as a marker takes."""
    return text.encode()[:TEXT_BYTES_MAX].decode(errors="ignore")


def _marked(name: str, change_set: Iterable[DataRecord]) -> Iterator[LogRecord]:
    yield BeginTransaction(shortened(name))
    yield from change_set
    yield EndTransaction()


def _batches(records: Iterable[LogRecord]) -> Iterator[Body]:
    parts: list[bytes] = []
    size = 0
    for record in records:
        encoded = encode(record)
        if parts and size + len(encoded) > BATCH_BYTES_MAX:
            yield Body(b"".join(parts), len(parts))
            parts = []
            size = 0
        parts.append(encoded)
        size += len(encoded)
    yield Body(b"".join(parts), len(parts))
