"""How a change set is laid out in the log: as neighbours in one batch, or as a transaction over several batches.

Every batch is written whole or not at all, so a change set that fits one needs no markers. A larger one is written in
pieces. Each piece is durable before the next one is encoded, so neither memory nor a worker thread ever holds all of
it. It counts only with its end (R8, R12).

Pure: values in, batches out.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from storage.metadata.batches import BATCH_BYTES_MAX, Body
from storage.metadata.record_codec import encode
from storage.metadata.records import (
    TEXT_BYTES_MAX,
    AbortTransaction,
    BeginTransaction,
    DataRecord,
    EndTransaction,
    LogRecord,
)

PIECE_BYTES_MAX: Final = 256 * 1024
"""A piece of a transaction is written when it has this size. Encoding and writing take a millisecond or two each."""


def fits_one_batch(change_set: Sequence[DataRecord]) -> bool:
    """Whether it needs no transaction.

    True if all of it fits a batch, and for a single record, which may have its own batch.
    """
    if len(change_set) == 1:
        return True
    size = 0
    for record in change_set:
        size += len(encode(record))
        if size > BATCH_BYTES_MAX:
            return False
    return True


def pieces(name: str, change_set: Sequence[DataRecord]) -> Iterator[list[Body]]:
    """The transaction with the change set, from begin to end, as batches to write piece by piece."""
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
    """The record that ends an open transaction as if it had never begun."""
    return [Body(encode(AbortTransaction(shortened(reason))), 1)]


def shortened(text: str) -> str:
    """The text, cut to the length that a marker allows."""
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
