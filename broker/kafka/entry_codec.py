"""What topics ask about entries in Kafka's format."""

from typing import Final

from storage.entry import Entry
from tidewire.wire.kafka.record_batches import CorruptBatch, UnsupportedFormat, read_header
from tidewire.wire.kafka.records import read

INFLATED_BYTES_MAX: Final = 64 * 1024 * 1024
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

    def send_of(self, _entry: Entry) -> None:
        """See `EntryCodec`. Kafka's sequences are checked by the log itself (`markers.py`)."""
