"""The operations on regular topics that administrators may request. HTTP serves this contract.

A partitioned topic is named like a topic without partitions, and an operation on it concerns all its partitions.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from broker.log_statistics import RegularStatistics
from broker.names import TopicName
from storage.position import EARLIEST, LATEST, Position


class MessagePlace(NamedTuple):
    """A place in a log, as Pulsar's tools name it by a message id."""

    position: Position
    """The entry of the message; EARLIEST or LATEST for an end of the log."""
    batch_index: int = -1
    """The message in the entry's batch; -1 for the whole entry."""
    is_excluded: bool = False
    """Whether the place is behind the message, and not before it."""

    @property
    def is_end(self) -> bool:
        """Whether it is an end of the log. Every log has these places."""
        return self.position in (EARLIEST, LATEST)


class LastMessage(NamedTuple):
    """The last message of a log that a consumer can get."""

    place: MessagePlace
    batch_size: int
    """The messages of its batch; 1 if it was sent alone, 0 if the log has no message."""


class RegularService(Protocol):
    """Administration of regular topics. Every `name` is a `persistent://` name: of a topic, or of one partition.

    When a method returns, its change is durable. Besides the errors named, every method may raise what `TopicService`'s
    methods do. Every method that takes the name of one topic raises `TopicNotFound` if there is none. A topic that was
    migrated is none: it is scalable now. If another broker owns a topic, a method raises `OwnedElsewhere`, which names
    the owner. A partitioned topic is served by any broker, which asks the owners.
    """

    async def names(self, tenant: str, namespace: str) -> Sequence[str]:
        """Return the names of a namespace's topics in order. Of partitioned topics, it has the partitions."""

    async def partitioned_names(self, tenant: str, namespace: str) -> Sequence[str]:
        """Return the names of a namespace's partitioned topics, in order."""

    async def create(self, name: TopicName) -> None:
        """Create a topic without partitions, or a partition that nobody has used. Nobody owns it yet.

        Raises:
            TopicExists: it exists, or a partitioned or scalable topic has the name.
            TopicNotFound: it is a partition's name, and there is no topic that has this partition.
        """

    async def create_partitioned(self, name: TopicName, partitions: int) -> None:
        """Create a partitioned topic.

        Raises:
            TopicExists: see `create`. Or a partition of it is there as a topic of its own.
            NotSupported: it cannot have so many partitions.
        """

    async def extend(self, name: TopicName, partitions: int) -> None:
        """Give a partitioned topic more partitions.

        Raises:
            TooFewPartitions: it has as many.
            NotSupported: it cannot have so many partitions.
        """

    async def partitions(self, name: TopicName) -> int:
        """Return how many partitions a topic has; 0 if it is not partitioned."""

    async def delete(self, name: TopicName, *, force: bool) -> None:
        """Delete a topic, or a partitioned one with all its partitions. `force` disconnects its clients.

        Raises:
            TopicInUse: it has clients, and `force` was not given. Or it is a partition of a partitioned topic.
        """

    async def delete_partitioned(self, name: TopicName, *, force: bool) -> None:
        """As `delete`. If the topic is not partitioned, raise `TopicNotFound`."""

    async def statistics(self, name: TopicName) -> RegularStatistics:
        """Return a topic's statistics, with all its partitions."""

    async def internal_statistics(self, name: TopicName) -> Mapping[str, Any]:
        """Return what is inside a topic's log, in JSON (`broker.internal_statistics`).

        Raises:
            OnePartitionOnly: the topic has partitions.
        """

    async def partitions_inside(self, name: TopicName) -> Mapping[TopicName, Mapping[str, Any]]:
        """Return the same of the partitions of a partitioned topic. Those that nobody has used are left out."""

    async def subscriptions(self, name: TopicName) -> Sequence[str]:
        """Return the names of a topic's durable subscriptions, in order. It loads nothing."""

    async def create_subscription(self, name: TopicName, subscription: str, start: MessagePlace) -> None:
        """Create a subscription that begins with the message at `start`.

        Raises:
            SubscriptionExists: it exists. If only some partitions have it, the others get it, and nothing is raised.
            OnePartitionOnly: the topic has partitions, and `start` is no end of a log.
        """

    async def delete_subscription(self, name: TopicName, subscription: str, *, force: bool) -> None:
        """Delete a subscription. `force` disconnects its consumers.

        Raises:
            SubscriptionNotFound, SubscriptionInUse
        """

    async def skip(self, name: TopicName, subscription: str, count: int) -> None:
        """Let a subscription pass its next `count` messages (`broker.backlog`).

        Raises:
            SubscriptionNotFound
            OnePartitionOnly: the topic has partitions.
        """

    async def skip_all(self, name: TopicName, subscription: str) -> None:
        """Let a subscription pass everything that is readable now. Its consumers subscribe again.

        Raises:
            SubscriptionNotFound
        """

    async def skip_older(self, name: TopicName, subscription: str, age_seconds: int) -> None:
        """Let a subscription pass what was published longer ago than that.

        Raises:
            SubscriptionNotFound
        """

    async def skip_older_on_all(self, name: TopicName, age_seconds: int) -> None:
        """As `skip_older`, for all subscriptions of the topic."""

    async def skip_to(self, name: TopicName, subscription: str, place: MessagePlace) -> None:
        """Let a subscription pass everything up to a message, and itself unless it is excluded.

        Raises:
            SubscriptionNotFound
            OnePartitionOnly: the topic has partitions, and `place` is no end of a log.
        """

    async def seek_to_time(self, name: TopicName, subscription: str, timestamp_ms: int) -> None:
        """Move a subscription to the first message published at this time or later. Its consumers subscribe again.

        Raises:
            SubscriptionNotFound
        """

    async def seek_to_message(self, name: TopicName, subscription: str, place: MessagePlace) -> None:
        """Move a subscription to a message. Its consumers subscribe again.

        Raises:
            SubscriptionNotFound
            OnePartitionOnly: the topic has partitions, and `place` is no end of a log.
        """

    async def last_message(self, name: TopicName) -> LastMessage:
        """Return a topic's last message, with everything that was decided before the call.

        Raises:
            OnePartitionOnly: the topic has partitions.
        """

    async def backlog_bytes(self, name: TopicName, place: MessagePlace) -> int:
        """Return the stored bytes from a message to the end, to within 64 KiB.

        Raises:
            OnePartitionOnly: the topic has partitions.
        """
