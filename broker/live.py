"""Implements the contract of live numbers, from the topics that are loaded."""

from collections.abc import Iterable, Iterator, Sequence

from broker.live_contract import LiveConsumer, LiveLog, LiveSubscription
from broker.names import TopicName
from broker.topic import Topic
from dispatch.subscription import Subscription
from storage.signal import Bell


class Live:
    """Implements `LiveService`."""

    def __init__(self, topics: Iterable[Topic], changes: Bell) -> None:
        """Set up; `topics` iterates over the topics that are loaded at that moment."""
        self._topics = topics
        self.changes = changes

    def logs(self, topic: TopicName | None = None) -> Iterator[LiveLog]:
        """See `LiveService`."""
        return (_log(each) for each in self._topics if topic is None or _topic_of(each) == topic)

    def unread(self) -> Sequence[tuple[TopicName, str]]:
        """See `LiveService`."""
        consumed: set[tuple[TopicName, str]] = set()
        left: set[tuple[TopicName, str]] = set()
        for log in self._topics:
            for name, subscription in log.subscriptions.items():
                if subscription.consumers:
                    consumed.add((_topic_of(log), name))
                elif subscription.backlog_entries:
                    left.add((_topic_of(log), name))
        return sorted(left - consumed, key=lambda one: (str(one[0]), one[1]))


def _topic_of(log: Topic) -> TopicName:
    return log.scalable_topic or log.name.partitioned_topic


def _log(log: Topic) -> LiveLog:
    traffic = log.traffic
    return LiveLog(
        log.name,
        _topic_of(log),
        traffic.messages_in,
        traffic.bytes_in,
        traffic.messages_out,
        traffic.bytes_out,
        log.ledger.first_index,
        log.ledger.next_index,
        log.readable_end,
        len(log.clients.producers),
        {name: _subscription(log, subscription) for name, subscription in log.subscriptions.items()},
    )


def _subscription(log: Topic, subscription: Subscription) -> LiveSubscription:
    found = subscription.statistics()
    consumers = (
        LiveConsumer(consumer.name, consumer.permits, consumer.unacked_messages, consumer.messages_sent)
        for consumer in found.consumers
    )
    return LiveSubscription(
        found.kind.name,
        found.backlog_entries,
        tuple(consumers),
        subscription.handled_upto >= log.readable.value,
    )
