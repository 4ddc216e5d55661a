"""What can be said at once of a log: its counters, and what its subscriptions have left (`live_contract`)."""

from collections.abc import Mapping

from broker.live_contract import LiveConsumer, LiveLog, LiveSubscription
from broker.topic import Topic
from dispatch.subscription import Subscription


def live_log(log: Topic, subscriptions: Mapping[str, Subscription]) -> LiveLog:
    """Return what is to be said of a log with these subscriptions."""
    traffic = log.traffic
    return LiveLog(
        log.name,
        log.scalable_topic or log.name.partitioned_topic,
        traffic.messages_in,
        traffic.bytes_in,
        traffic.messages_out,
        traffic.bytes_out,
        log.ledger.first_index,
        log.ledger.next_index,
        log.readable_end,
        len(log.clients.producers),
        {name: _subscription(log, subscription) for name, subscription in subscriptions.items()},
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
