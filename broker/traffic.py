"""What went through this broker since it started: counters that front ends add to and `/metrics` reads.

Also where the metadata store keeps the load of a segment, which `scalable/load_reports.py` derives from them.
"""

from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote

from broker.names import TopicName

LOAD_PREFIX: Final = "/segment-load/"
"""Of the keys of all load reports."""


def load_key(segment: TopicName) -> str:
    """Where the load of a segment is reported."""
    return LOAD_PREFIX + quote(str(segment), safe="")


@dataclass(slots=True)
class Traffic:
    """Counters of one broker. They never fall."""

    connections: int = 0
    """Connections open now; the one field that does fall."""
    messages_in: int = 0
    """Messages published and durable."""
    bytes_in: int = 0
    """Their payloads, as stored."""
    messages_out: int = 0
    """Messages handed to a connection for a consumer."""
    bytes_out: int = 0
    """Their payloads."""


@dataclass(slots=True)
class SegmentTraffic:
    """Counters of one topic or segment since it was loaded. They never fall."""

    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0

    def copy(self) -> "SegmentTraffic":
        """The counters as they are now."""
        return replace(self)
