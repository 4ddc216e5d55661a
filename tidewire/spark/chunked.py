"""Messages in chunks, put together: the entries of a range, with each chunked message whole.

A message belongs to the range that holds its last chunk. Its other chunks may lie before the range, because a
micro-batch or a task may end between two chunks. Then they are read again from there. A message without its last chunk
is incomplete: its producer died, and no reader gets it.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from tidewire.protocol.chunks import Chunks, Whole
from tidewire.protocol.positions import EARLIEST, EntryPosition
from tidewire.spark.errors import UnreadableMessage
from tidewire.spark.partitions import SegmentRange
from tidewire.spark.receiving import ReceivedEntry
from tidewire.wire.pulsar.errors import MessageError

_log: Final = logging.getLogger(__name__)

LOOK_BACK_FACTOR: Final = 8
"""Chunks of other producers lie between those of a message. Each search begins so much farther back than the last."""

Read = Callable[[SegmentRange], Iterable[ReceivedEntry]]


def whole_messages(partition: SegmentRange, entries: Iterable[ReceivedEntry], read: Read) -> Iterator[ReceivedEntry]:
    """The entries, with one entry for each chunked message, at the position of its last chunk.

    Args:
        partition: the range.
        entries: those of the range, in order.
        read: reads another range of the segment.

    Raises:
        UnreadableMessage: the chunks of a message contradict each other; the error gives the position.
        TidewireError: the segment cannot be read.
    """
    chunks = Chunks(time.monotonic)
    for entry in entries:
        if entry.metadata.num_chunks_from_msg <= 1:
            chunks.passed(entry.metadata, entry.position)
            yield entry
            continue
        whole = _added(partition, chunks, entry)
        if whole is None and entry.metadata.chunk_id == entry.metadata.num_chunks_from_msg - 1:
            whole = _looked_back(partition, entry, read)
        if whole is not None:
            yield entry._replace(body=memoryview(whole.body))


def _added(partition: SegmentRange, chunks: Chunks, entry: ReceivedEntry) -> Whole | None:
    try:
        return chunks.add(entry.metadata, entry.body, entry.position)
    except MessageError as error:
        raise UnreadableMessage(f"{partition.wire_name} {entry.position}: {error}") from error


def _looked_back(partition: SegmentRange, last: ReceivedEntry, read: Read) -> Whole | None:
    """The message of this last chunk, from where its first one is; None if an earlier last chunk made it whole."""
    for after in _starts(last.position, last.metadata.num_chunks_from_msg):
        chunks = Chunks(time.monotonic)
        has_begun = False
        before = SegmentRange(partition.topic, partition.segment, partition.wire_name, start=after, end=last.position)
        for entry in read(before):
            if entry.metadata.uuid != last.metadata.uuid or entry.metadata.num_chunks_from_msg <= 1:
                continue
            has_begun = has_begun or entry.metadata.chunk_id == 0
            whole = _added(partition, chunks, entry)
            if whole is not None:
                return whole if entry.position == last.position else None
        if has_begun:
            break
    _log.warning(
        "%s has the last chunk of a message at %s, and not all of the others, so the message is left out",
        partition.wire_name,
        last.position,
    )
    return None


def _starts(last: EntryPosition, count: int) -> Iterator[EntryPosition]:
    """Positions to search from, each farther back; the last one is the segment's beginning."""
    distance = 2 * count
    while distance <= last.entry:
        yield EntryPosition(last.ledger, last.entry - distance)
        distance *= LOOK_BACK_FACTOR
    yield EARLIEST
