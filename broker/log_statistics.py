"""Numbers about segments and regular topics at one moment, as their owners tell them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class ConnectedConsumer(NamedTuple):
    """A consumer of a subscription on one log."""

    name: str
    permits: int
    """Messages that it still has room for."""
    unacked_messages: int
    """See `SegmentSubscription`."""
    messages_out: int
    """Sent to it since it connected."""
    bytes_out: int


class SegmentSubscription(NamedTuple):
    """One subscription on one segment."""

    backlog_entries: int
    """Readable entries that are not acknowledged. A batch counts as one, as in Pulsar's `msgBacklog`."""
    consumers: frozenset[str]
    """The names of the consumers that are connected to this segment now."""
    type: str
    """The type of its consumers, or of the last ones, by Pulsar's name."""
    unacked_messages: int = 0
    """Sent and not acknowledged. Subscriptions that keep order do not count them."""
    mark_delete: str = ""
    """The position up to which everything is acknowledged, as `ledger:entry`."""
    backlog_bytes: int = 0
    """The stored bytes from the first entry that is not acknowledged to the end, to within 64 KiB."""
    oldest_ms: int = 0
    """When the first message of the backlog was published, in milliseconds since 1970; 0 without a backlog."""
    connected: tuple[ConnectedConsumer, ...] = ()
    """More about `consumers`, in the order of their names."""


class RegularSubscription(NamedTuple):
    """One subscription of a regular topic, over all its partitions."""

    type: str
    """See `SegmentSubscription`."""
    consumers: int
    """Those that are connected now, by their names."""
    backlog_entries: int
    """See `SegmentSubscription`."""


class LogStatistics(NamedTuple):
    """Numbers about one segment or partition at one moment."""

    subscriptions: Mapping[str, SegmentSubscription]
    first_index: int
    """The index of the first message that is retained."""
    end_index: int
    """The index behind the last message that a consumer can get."""
    producers: frozenset[str] = frozenset()
    """The names of the producers that are connected now."""
    messages_in: int = 0
    """Since its owner loaded it, like the next three."""
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0
    size_bytes: int = 0
    """What its ledgers hold."""
    clients: int = 0
    """Producers, consumers and readers that are connected now."""
    left_from: Mapping[int, int] = {}
    """How many messages a consumer has left that goes on at an index, by each index that was asked about."""


class GroupStatistics(NamedTuple):
    """A group of Kafka's consumers on a topic, over all its segments or partitions."""

    state: str
    """In Kafka's words."""
    consumers: int
    """Its members that read the topic."""
    backlog: int
    """Messages from the offsets that it has committed to the ends, without aborted ones and markers."""


@dataclass(frozen=True, slots=True)
class RegularStatistics:
    """Numbers about one regular topic at one moment."""

    partitions: int
    """1 if it is not partitioned."""
    subscriptions: Mapping[str, RegularSubscription]
    groups: Mapping[str, GroupStatistics]
    logs: Mapping[int, LogStatistics]
    """Those of the partitions by their numbers. A topic without partitions is number 0."""
