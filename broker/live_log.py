"""What can be said at once of a log: its counters, and what its subscriptions have left (`live_contract`)."""

from collections.abc import Mapping

from broker.live_contract import LiveConsumer, LiveLog, LiveSubscription
from broker.topic import Reading, Topic


def live_log(log: Topic, readings: Mapping[str, Reading]) -> LiveLog:
    """Return what is to be said of a log whose subscriptions are so far."""
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
        {name: _subscription(log, reading) for name, reading in readings.items()},
    )


def _subscription(log: Topic, reading: Reading) -> LiveSubscription:
    found = reading.statistics
    consumers = (
        LiveConsumer(
            _whole_name(consumer.name, log), consumer.permits, consumer.unacked_messages, consumer.messages_sent
        )
        for consumer in found.consumers
    )
    return LiveSubscription(
        found.kind.name,
        found.backlog_entries,
        tuple(consumers),
        reading.handled_upto >= log.readable.value,
        _whole_name(reading.last_left, log),
    )


def _whole_name(consumer: str, log: Topic) -> str:
    # v5 clients subscribe to each segment, under their consumer's name and the segment's number.
    segment = log.name.segment
    return consumer if segment is None else consumer.removesuffix(f"-seg-{segment.segment_id}")
