"""What topics ask about entries in Kafka's format."""

from collections.abc import Sequence
from typing import Final

from broker.contents import Contents
from broker.entry_codecs import undivided
from broker.kafka.markers import described
from broker.tracing.contexts import TRACEPARENT, TRACEPARENT_SIZE, TraceContext, marked
from storage.entry import Entry
from tidewire.wire.kafka.record_batches import HEADER_SIZE, Compression, CorruptBatch, UnsupportedFormat, read_header
from tidewire.wire.kafka.records import opened, parse
from tidewire.wire.steps import Steps
from txn.marked_log import Ended

INFLATED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of a batch's records when they are decompressed. A batch with more is delivered as it is."""

KEY_BYTES_MAX: Final = 1024 * 1024
"""A compressed batch with more decompressed bytes has no key and no trace contexts, because the questions for them may
not pause (E7)."""

_KEY_STEPS_MAX: Final = 4
"""Steps of decompression, each of which is bounded. Records of KEY_BYTES_MAX take fewer."""

_TRACEPARENT: Final = bytes((2 * len(TRACEPARENT), *TRACEPARENT.encode(), 2 * TRACEPARENT_SIZE))
"""How a record's header of this name begins, up to its value. Lengths are zigzag varints, here of one byte."""


class KafkaEntryCodec:
    """See `EntryCodec`."""

    def chunk_of(self, _entry: Entry) -> None:
        """See `EntryCodec`. Kafka's clients divide no records."""

    def key_of(self, entry: Entry) -> bytes | None:
        """See `EntryCodec`: the key of the first record."""
        try:
            header = read_header(entry.payload)
            records = _records_soon(opened(header, entry.payload, KEY_BYTES_MAX))
            first = None if records is None else next(parse(header, records), None)
        except (CorruptBatch, UnsupportedFormat):
            return None
        return None if first is None else first[1].key

    def send_of(self, _entry: Entry) -> None:
        """See `EntryCodec`. Kafka's sequences are checked by the log itself (`markers.py`)."""

    def contents_of(self, entry: Entry, _first: int, _count: int) -> Steps[Contents]:
        """See `EntryCodec`. Records are told in Pulsar's format (`broker.pulsar.conversion`), if they can be."""
        yield from ()
        return undivided(entry, "The batch of Kafka's records cannot be read.")

    def control_of(self, entry: Entry) -> str:
        """See `EntryCodec`."""
        ended = described(entry)
        if not isinstance(ended, Ended):
            return ""
        return f"{'commit' if ended.is_commit else 'abort'} of producer {ended.marker.producer_id}"

    def trace_contexts_of(self, payload: bytes, _message_count: int) -> Sequence[TraceContext]:
        """See `EntryCodec`: those in the headers of records."""
        try:
            header = read_header(payload)
            if header.compression == Compression.NONE:
                return marked(payload, _TRACEPARENT, HEADER_SIZE)
            records = _records_soon(opened(header, payload, KEY_BYTES_MAX))
        except (CorruptBatch, UnsupportedFormat):
            return ()
        return () if records is None else marked(records, _TRACEPARENT)


def _records_soon(steps: Steps[bytes]) -> bytes | None:
    """What the first steps make, or None if there are more."""
    for _ in range(_KEY_STEPS_MAX):
        try:
            next(steps)
        except StopIteration as done:
            records: bytes = done.value
            return records
    return None
