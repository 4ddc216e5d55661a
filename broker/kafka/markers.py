"""How a log with markers reads and writes the entries of Kafka's producers and coordinators."""

from typing import Final

from storage.entry import Entry, EntryFormat
from tidewire.wire.kafka.record_batches import NO_PRODUCER_ID, BatchHeader, CorruptBatch, UnsupportedFormat, read_header
from tidewire.wire.kafka.records import Marker, build_marker, read_marker
from txn.marked_log import Described, Ended
from txn.marker_buffer import MarkerFormat
from txn.producer_states import Batch, EndMarker, last_sequence


def described(entry: Entry) -> Described | None:
    """Which numbered producer wrote an entry, or whose transaction it ends; None if it says neither."""
    if entry.format is not EntryFormat.KAFKA:
        return None
    try:
        header = read_header(entry.payload)
        if not entry.is_control:
            return numbered(header)
        marker = read_marker(header, entry.payload)
    except (CorruptBatch, UnsupportedFormat):
        return None
    # Whether it raises the epoch decides about a marker that comes, not about one that is in the log.
    end = EndMarker(header.producer_id, header.producer_epoch, marker.coordinator_epoch, bumps_epoch=False)
    return Ended(end, marker.is_commit)


def numbered(header: BatchHeader) -> Batch | None:
    """What a log must know of a batch of a numbered producer; None without a producer id."""
    if header.producer_id == NO_PRODUCER_ID:
        return None
    last = last_sequence(header.base_sequence, header.record_count)
    return Batch(header.producer_id, header.producer_epoch, header.base_sequence, last, header.is_transactional)


def _built(end: EndMarker, is_commit: bool, timestamp_ms: int) -> bytes:
    marker = Marker(is_commit, end.coordinator_epoch)
    return build_marker(marker, producer_id=end.producer_id, producer_epoch=end.epoch, timestamp_ms=timestamp_ms)


MARKERS: Final = MarkerFormat(described, _built)
"""Markers of Kafka's transactions."""
