"""Counters and times of the traffic through this broker since its start.

Front ends add to them, and `/metrics` reads them.

`scalable/load_reports.py` derives each segment's load from them. This module also has the keys of those load reports.
"""

from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple
from urllib.parse import quote

import trio

from broker.names import TopicName
from storage.histogram import Histogram
from storage.watermark import Watermark

LOAD_PREFIX: Final = "/segment-load/"
"""The key prefix of all load reports."""


def load_key(segment: TopicName) -> str:
    """Return the key of a segment's load report."""
    return LOAD_PREFIX + quote(str(segment), safe="")


class Latencies(NamedTuple):
    """How long the clients of one protocol wait."""

    publish: Histogram
    """From the arrival of a send to its answer, when it is durable. Refused sends do not count."""
    commit: Histogram
    """From a request to commit a transaction to its answer, when it is durable. Refused ones do not count."""
    delivery: Histogram
    """From the moment when the newest message became readable to its hand-over to a consumer that waited for it.

    Hand-overs that end before the newest readable message do not count, because then the consumer is behind."""

    @classmethod
    def none(cls) -> "Latencies":
        """Nothing was counted."""
        return cls(Histogram(), Histogram(), Histogram())

    def delivered(self, readable: Watermark, *, since: float) -> None:
        """Count a hand-over up to the newest readable message, to a consumer that is there `since` this time."""
        if readable.risen_at is not None:
            self.delivery.count(trio.current_time() - max(readable.risen_at, since))


@dataclass(slots=True)
class Traffic:
    """Counters of one broker. They never fall."""

    connections: int = 0
    """Connections open now. Only this field can fall."""
    messages_in: int = 0
    """Messages published and durable."""
    bytes_in: int = 0
    """Payload bytes of these messages, as stored."""
    messages_out: int = 0
    """Messages handed to a connection for a consumer."""
    bytes_out: int = 0
    """Payload bytes of these messages."""
    unconvertible_for_kafka: int = 0
    """Reads of entries of Pulsar's clients that Kafka's consumers cannot be given."""
    unconvertible_for_pulsar: int = 0
    """Reads of batches of Kafka's clients that Pulsar's consumers cannot be given."""
    pulsar: Latencies = field(default_factory=Latencies.none)
    kafka: Latencies = field(default_factory=Latencies.none)


@dataclass(slots=True)
class SegmentTraffic:
    """Counters of one topic or segment since it was loaded. They never fall."""

    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0

    def add(self, other: "SegmentTraffic") -> None:
        """Add the counters of another one."""
        self.messages_in += other.messages_in
        self.bytes_in += other.bytes_in
        self.messages_out += other.messages_out
        self.bytes_out += other.bytes_out

    def copy(self) -> "SegmentTraffic":
        """Return the current counters."""
        return replace(self)
