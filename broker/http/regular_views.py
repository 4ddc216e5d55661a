"""Regular topics in JSON, with the names that Pulsar's tools read.

What this broker does not count is left out, so those tools show 0: rates, and what concerns replication, compaction,
delays and offloading. The counters begin when the owner loads the topic.
"""

from collections.abc import Iterable, Mapping

from broker.http.scalable import groups_view
from broker.http.segments import consumer_view
from broker.log_statistics import ConnectedConsumer, LogStatistics, RegularStatistics, SegmentSubscription
from broker.names import TopicName
from broker.regular_contract import LastMessage


def topic_view(statistics: RegularStatistics) -> dict[str, object]:
    """A topic over all its partitions: Pulsar's `TopicStats`, the number of partitions, and Kafka's groups."""
    return {
        "partitions": statistics.partitions,
        **_logs_view(tuple(statistics.logs.values())),
        **groups_view(statistics.groups),
    }


def partitioned_view(name: TopicName, statistics: RegularStatistics, *, names_each: bool) -> dict[str, object]:
    """A partitioned topic: Pulsar's `PartitionedTopicStats`; `names_each` shows each partition, too."""
    parts = {str(name.partition(index)): _logs_view((log,)) for index, log in statistics.logs.items()}
    return {
        "metadata": {"partitions": statistics.partitions, "deleted": False},
        **_logs_view(tuple(statistics.logs.values())),
        "partitions": parts if names_each else {},
        **groups_view(statistics.groups),
    }


def message_id_view(last: LastMessage, partition: int | None) -> dict[str, object]:
    """The id of a message, as Pulsar's tools read it."""
    place = last.place
    view: dict[str, object] = {
        "ledgerId": place.position.ledger,
        "entryId": place.position.entry,
        "partitionIndex": -1 if partition is None else partition,
    }
    return {**view, "batchIndex": place.batch_index, "batchSize": last.batch_size} if place.batch_index >= 0 else view


def _logs_view(logs: tuple[LogStatistics, ...]) -> dict[str, object]:
    messages_in, bytes_in = sum(log.messages_in for log in logs), sum(log.bytes_in for log in logs)
    names = sorted({name for log in logs for name in log.subscriptions})
    on_each = {name: [log.subscriptions[name] for log in logs if name in log.subscriptions] for name in names}
    return {
        "msgInCounter": messages_in,
        "bytesInCounter": bytes_in,
        "msgOutCounter": sum(log.messages_out for log in logs),
        "bytesOutCounter": sum(log.bytes_out for log in logs),
        "averageMsgSize": bytes_in / messages_in if messages_in else 0.0,
        "storageSize": sum(log.size_bytes for log in logs),
        "backlogSize": max((_backlog_bytes(subscriptions) for subscriptions in on_each.values()), default=0),
        "earliestMsgPublishTimeInBacklogs": _oldest(one for ones in on_each.values() for one in ones),
        "publishers": [{"producerName": name} for name in sorted({name for log in logs for name in log.producers})],
        "subscriptions": {name: _subscription_view(subscriptions) for name, subscriptions in on_each.items()},
        "replication": {},
    }


def _subscription_view(on_logs: list[SegmentSubscription]) -> dict[str, object]:
    consumers = _joined(one for counted in on_logs for one in counted.connected)
    backlog = sum(counted.backlog_entries for counted in on_logs)
    view: dict[str, object] = {
        "type": _type_of(on_logs),
        "isDurable": True,
        "isReplicated": False,
        "consumerCount": len(consumers),
        "msgBacklog": backlog,
        "msgBacklogNoDelayed": backlog,
        "backlogSize": _backlog_bytes(on_logs),
        "earliestMsgPublishTimeInBacklog": _oldest(on_logs),
        "unackedMessages": sum(counted.unacked_messages for counted in on_logs),
        "msgOutCounter": sum(one.messages_out for one in consumers.values()),
        "bytesOutCounter": sum(one.bytes_out for one in consumers.values()),
        "consumers": [consumer_view(one) for one in consumers.values()],
        "subscriptionProperties": {},
    }
    return view


def _joined(consumers: Iterable[ConnectedConsumer]) -> Mapping[str, ConnectedConsumer]:
    """Consumers by name. One that reads several partitions is one consumer."""
    found: dict[str, ConnectedConsumer] = {}
    for one in consumers:
        other = found.get(one.name)
        if other is not None:
            sums = (mine + others for mine, others in zip(one[1:], other[1:], strict=True))
            one = ConnectedConsumer(one.name, *sums)
        found[one.name] = one
    return dict(sorted(found.items()))


def _type_of(on_logs: list[SegmentSubscription]) -> str:
    """The type of the consumers that are connected. Where nobody is, the type is that of the last ones."""
    used = [counted for counted in on_logs if counted.consumers]
    return (used or on_logs)[0].type.title()


def _backlog_bytes(on_logs: Iterable[SegmentSubscription]) -> int:
    return sum(counted.backlog_bytes for counted in on_logs)


def _oldest(on_logs: Iterable[SegmentSubscription]) -> int:
    return min((counted.oldest_ms for counted in on_logs if counted.oldest_ms), default=0)
