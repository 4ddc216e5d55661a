"""What `/metrics` shows of topics and of those who read them, as values.

A series is what Prometheus calls the values with one set of labels. How fine the labels are is a setting, and so is the
largest number of series. What does not fit is summed under the label OTHERS.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from broker.config import MetricsLabels
from broker.names import TopicName
from broker.traffic import SegmentTraffic
from storage.metadata.store import MetadataStore

OTHERS: Final = "(others)"
"""The value of every label of a sum over what is not shown one by one. No topic or subscription has this name."""


class Labels(NamedTuple):
    """The labels of one series. An empty one is not shown: the values are summed over it."""

    namespace: str = ""
    """As tenant/namespace."""
    topic: str = ""
    """The full name, without a segment or partition."""
    reader: str = ""
    """The subscription or group."""

    @classmethod
    def of(cls, topic: TopicName, level: MetricsLabels) -> "Labels":
        """Return the labels of a topic, as fine as `level` says."""
        return cls(
            "" if level is MetricsLabels.NONE else topic.tenant_namespace,
            str(topic) if level is MetricsLabels.TOPIC else "",
        )

    @classmethod
    def of_reader(cls, topic: TopicName, reader: str) -> "Labels":
        """Return the labels of a subscription or group on a topic."""
        return cls(topic.tenant_namespace, str(topic), reader)


OTHER_TOPICS: Final = Labels(OTHERS, OTHERS)
OTHER_READERS: Final = Labels(OTHERS, OTHERS, OTHERS)


@dataclass(slots=True)
class TopicSums:
    """The loaded segments or partitions with one set of labels."""

    logs: int = 0
    producers: int = 0
    consumers: int = 0
    traffic: SegmentTraffic = field(default_factory=SegmentTraffic)
    stored_bytes: int = 0
    held_messages: int = 0
    """Durable messages that readers of committed messages do not get yet, because a transaction is open."""
    held_seconds: float = 0.0
    """The age of the oldest of these messages."""


class Backlog(NamedTuple):
    """What one reader has not read of one log."""

    messages: int = 0
    """From its oldest unread message to the end of what is readable, read or not."""
    size_bytes: int = 0
    """Their stored bytes, exact to a chunk of the ledger's index (64 KiB)."""
    seconds: float = 0.0
    """The age of the oldest one."""


@dataclass(slots=True)
class ReaderSums:
    """Subscriptions or groups with one set of labels."""

    backlog_messages: int = 0
    backlog_bytes: int = 0
    backlog_seconds: float = 0.0
    """The largest one."""
    backlog_entries: int = 0
    """Not acknowledged, batches counted once. Groups have none."""
    consumers: int = 0
    unacked_messages: int = 0
    """Sent and not acknowledged, on shared subscriptions."""

    def add(self, backlog: Backlog) -> None:
        """Add one reader's backlog on one log."""
        self.backlog_messages += backlog.messages
        self.backlog_bytes += backlog.size_bytes
        self.backlog_seconds = max(self.backlog_seconds, backlog.seconds)


@dataclass(slots=True)
class Series:
    """All series of a broker at one moment."""

    topics: dict[Labels, TopicSums] = field(default_factory=dict)
    subscriptions: dict[Labels, ReaderSums] = field(default_factory=dict)
    groups: dict[Labels, ReaderSums] = field(default_factory=dict)
    """Groups of Kafka's consumers."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """How many of each kind are summed under OTHERS."""
    unreadable: int = 0
    """Readers whose oldest unread message is damaged or gone, so their backlogs are not counted."""


class GroupOffset(NamedTuple):
    """Where a group of Kafka's consumers goes on in a partition, or in a segment of a scalable topic."""

    group: str
    namespace: str
    topic: str
    """The local name."""
    partition: int
    offset: int


GroupOffsets = Callable[[MetadataStore], AsyncIterator[GroupOffset]]
"""Yields all committed offsets, with pauses."""
