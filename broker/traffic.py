"""Counters of the traffic through this broker since its start. Front ends add to them, and `/metrics` reads them.

`scalable/load_reports.py` derives each segment's load from them. This module also has the keys of those load reports.
"""

from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote

from broker.names import TopicName

LOAD_PREFIX: Final = "/segment-load/"
"""The key prefix of all load reports."""


def load_key(segment: TopicName) -> str:
    """Return the key of a segment's load report."""
    return LOAD_PREFIX + quote(str(segment), safe="")


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


@dataclass(slots=True)
class SegmentTraffic:
    """Counters of one topic or segment since it was loaded. They never fall."""

    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0

    def copy(self) -> "SegmentTraffic":
        """Return the current counters."""
        return replace(self)
