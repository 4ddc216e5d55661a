"""What a broker can say of the logs that it serves, at any moment and at once. The console shows it.

Counters come with no rate, because a rate depends on who looks and how often. Whoever shows one computes it from two
counts and their times.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from broker.names import TopicName
from broker.unread import Unread
from storage.signal import Bell


class LiveConsumer(NamedTuple):
    """A consumer that is connected to one log."""

    name: str
    """That of the client's consumer. It is the same on each segment that the consumer reads."""
    permits: int
    """How many more messages it asks for."""
    unacked: int
    """Messages sent to it and not acknowledged. Only shared subscriptions count them."""
    messages_out: int


class LiveSubscription(NamedTuple):
    """A subscription on one log."""

    type: str
    """Of its consumers, or of the last ones, by Pulsar's name."""
    backlog: int
    """Readable entries that are not acknowledged."""
    consumers: tuple[LiveConsumer, ...]
    is_all_sent: bool
    """Whether every readable entry was sent to a consumer at least once, acknowledged or skipped."""
    last_left: str = ""
    """The name of the consumer that left last. It is empty if none has left since a broker loaded the log."""


class LiveLog(NamedTuple):
    """A segment or regular topic that this broker serves now, or served last, with a backlog."""

    name: TopicName
    topic: TopicName
    """The scalable topic of a segment; the partitioned topic of a partition; otherwise the log itself."""
    messages_in: int
    """Since it was loaded here, like the next three. They begin again at 0 when another broker takes it over."""
    bytes_in: int
    messages_out: int
    bytes_out: int
    first_index: int
    """The index of the first message that is retained."""
    end_index: int
    """The index behind the last durable message."""
    readable_index: int
    """The index behind the last readable message. What is between the two waits for open transactions."""
    producers: int
    subscriptions: Mapping[str, LiveSubscription]


class LiveService(Protocol):
    """See the module's docstring."""

    @property
    def changes(self) -> Bell:
        """Rings whenever an answer of `logs` may have changed."""

    def logs(self, topic: TopicName | None = None) -> Iterable[LiveLog]:
        """Return the logs of this topic that the broker serves; without a topic, all that it serves.

        Logs that it has unloaded are among them if a subscription has a backlog there and nobody has loaded them since.
        """

    def unread(self) -> Unread:
        """Return the subscriptions that have a backlog on a log of `logs` and no consumer on any, and those that have.

        It costs less than `logs`, because it counts nothing where a consumer is connected.
        """
