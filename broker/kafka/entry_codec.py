"""Reads who wrote an entry in Kafka's format: the header of its record batch, or its marker."""

from storage.entry import Entry
from tidewire.wire.kafka.record_batches import NO_PRODUCER_ID, BatchHeader, CorruptBatch, UnsupportedFormat, read_header
from tidewire.wire.kafka.records import read, read_marker
from txn.marked_log import Described, Ended
from txn.producer_states import Batch, EndMarker, last_sequence

INFLATED_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of a batch's records when they are decompressed. A batch with more is delivered as it is, and has no key."""


class KafkaEntryCodec:
    """See `EntryCodec`."""

    def chunk_of(self, _entry: Entry) -> None:
        """See `EntryCodec`. Kafka's clients divide no records."""

    def key_of(self, entry: Entry) -> bytes | None:
        """See `EntryCodec`: the key of the first record."""
        try:
            header = read_header(entry.payload)
            for _delta, record in read(header, entry.payload, INFLATED_BYTES_MAX):
                return record.key
        except (CorruptBatch, UnsupportedFormat):
            pass
        return None

    def producer_of(self, entry: Entry) -> Described | None:
        """See `EntryCodec`."""
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

    def send_of(self, _entry: Entry) -> None:
        """See `EntryCodec`. Kafka's sequences are checked by the log itself (`txn/producer_states.py`)."""


def numbered(header: BatchHeader) -> Batch | None:
    """What a log must know of a batch of a numbered producer; None without a producer id."""
    if header.producer_id == NO_PRODUCER_ID:
        return None
    last = last_sequence(header.base_sequence, header.record_count)
    return Batch(header.producer_id, header.producer_epoch, header.base_sequence, last, header.is_transactional)
