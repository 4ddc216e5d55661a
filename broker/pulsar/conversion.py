"""Gives entries of Kafka's clients in Pulsar's format, for the consumers of a topic that both use."""

from typing import Final

import structlog

from broker.converted import ConvertedEntries
from broker.traffic import Traffic
from storage.entry import Entry, EntryFormat
from storage.metadata.pacing import paced
from tidewire.wire.conversion.errors import Unconvertible
from tidewire.wire.conversion.to_pulsar import to_pulsar

CONVERTED_BYTES_MAX: Final = 32 * 1024 * 1024
"""Converted entries that stay in memory, of all topics together."""

log = structlog.get_logger(__name__)


class ToPulsar:
    """A `Converter`."""

    def __init__(self, traffic: Traffic) -> None:
        """Set up. `traffic` counts what cannot be converted, each time that it is read."""
        self._traffic = traffic
        self._known = ConvertedEntries(CONVERTED_BYTES_MAX)

    async def __call__(self, entry: Entry) -> Entry:
        """Return the entry in Pulsar's format; as it is stored if it cannot be converted."""
        if entry.format is not EntryFormat.KAFKA:
            return entry
        payload = self._known.get(entry.position)
        if payload is None:
            steps = to_pulsar(
                entry.payload,
                message_count=entry.message_count,
                base_index=entry.first_index,
                publish_time_ms=entry.timestamp_ms,
            )
            try:
                payload = bytes(await paced(steps))
            except Unconvertible as reason:
                self._traffic.unconvertible_for_pulsar += 1
                log.warning("a batch cannot be converted", position=str(entry.position), reason=str(reason))
                return entry
            self._known.put(entry.position, payload)
        return entry._replace(payload=payload, format=EntryFormat.PULSAR)
