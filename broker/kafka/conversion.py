"""Gives entries of Pulsar's clients as record batches, for the consumers of a topic that both use."""

from typing import Final

import structlog

from broker.converted import ConvertedEntries
from broker.traffic import Traffic
from storage.entry import Entry, EntryFormat
from storage.metadata.pacing import paced
from tidewire.wire.conversion.to_kafka import to_kafka

CONVERTED_BYTES_MAX: Final = 32 * 1024 * 1024
"""Converted entries that stay in memory, of all topics together."""

log = structlog.get_logger(__name__)


class ToKafka:
    """A `Converter`."""

    def __init__(self, traffic: Traffic) -> None:
        """Set up. `traffic` counts what cannot be converted; again if it is read after its eviction here."""
        self._traffic = traffic
        self._known = ConvertedEntries(CONVERTED_BYTES_MAX)

    async def __call__(self, entry: Entry) -> Entry:
        """Return the entry in Kafka's format. One that cannot be converted is a batch without records (K21)."""
        if entry.format is not EntryFormat.PULSAR:
            return entry
        batch = self._known.get(entry.position)
        if batch is None:
            made = await paced(
                to_kafka(entry.payload, message_count=entry.message_count, timestamp_ms=entry.timestamp_ms)
            )
            if made.reason is not None:
                self._traffic.unconvertible_for_kafka += 1
                log.warning("an entry cannot be converted", position=str(entry.position), reason=made.reason)
            batch = made.batch
            self._known.put(entry.position, batch)
        return entry._replace(payload=batch, format=EntryFormat.KAFKA)
