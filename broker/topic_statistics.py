"""Who reads a topic, and how much is left to read: subscriptions, and the groups of other front ends.

A topic's numbers are the sums over its segments or partitions, as their owners know them. Any broker asks them. A group
of Kafka's consumers reads like a subscription, but has offsets where that has a cursor. The two may have one name, and
neither moves the other (K36). So they stand beside each other.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import NamedTuple

import structlog

from broker.administration_contract import SubscriptionStatistics, TopicStatistics
from broker.backlogs import NOTHING, End, Places, messages_from
from broker.cluster.ownership import OwnedElsewhere
from broker.errors import TopicNotFound
from broker.last_visible import last_visible
from broker.layouts.layout import Layout
from broker.layouts.legacy import segment_topic
from broker.layouts.registrations import GroupId
from broker.layouts.store import Layouts
from broker.log_statistics import (
    ConnectedConsumer,
    GroupStatistics,
    LogStatistics,
    RegularStatistics,
    RegularSubscription,
    SegmentSubscription,
)
from broker.names import TopicName
from broker.partitioned_topics import PartitionedTopics
from broker.scalable.consumer_groups import ConsumerGroups
from broker.segment_requests import SegmentRequests
from broker.topic import Topic
from broker.topics import Topics
from storage.clock import WallClock
from storage.errors import LedgerCorrupt
from storage.metadata.store import MetadataStore
from storage.position import EARLIEST

logger = structlog.get_logger(__name__)


class GroupOnTopic(NamedTuple):
    """A group that reads a topic."""

    state: str
    consumers: int
    offsets: Mapping[int, int]
    """Where it goes on, by the number of the segment or partition."""


GroupsOn = Callable[[MetadataStore, TopicName, Layout | None], Awaitable[Mapping[str, GroupOnTopic]]]
"""Returns the groups of a front end that read a topic, by name. A scalable topic comes with its layout."""


async def no_groups(_store: MetadataStore, _topic: TopicName, _layout: Layout | None) -> Mapping[str, GroupOnTopic]:
    """No front end has groups."""
    return {}


class StatisticsOfTopics:
    """See the module's docstring."""

    def __init__(
        self,
        layouts: Layouts,
        topics: Topics,
        partitioned: PartitionedTopics,
        consumer_groups: ConsumerGroups,
        requests: SegmentRequests,
        metadata: MetadataStore,
        groups_on: GroupsOn,
        now_ms: WallClock,
    ) -> None:
        self._layouts = layouts
        self._topics = topics
        self._partitioned = partitioned
        self._consumer_groups = consumer_groups
        self._requests = requests
        self._metadata = metadata
        self._groups_on = groups_on
        self._now_ms = now_ms

    async def of_scalable(self, name: TopicName) -> TopicStatistics:
        """Return the statistics of a scalable topic whose controller this broker is, or that has none.

        Raises:
            TopicNotFound: there is no such topic.
        """
        layout, groups, segments = await self._segments(name)
        subscriptions = {}
        for subscription_name in sorted(layout.living_subscriptions()):
            registered = layout.subscriptions[subscription_name]
            counted = _on_each(subscription_name, segments.values())
            subscriptions[subscription_name] = SubscriptionStatistics(
                registered.kind,
                # An ordered consumer has another name on each of its segments. Other consumers have one name.
                consumers=self._consumer_groups.connected_count(GroupId(name, subscription_name))
                or len(_consumers_of(counted)),
                backlog_entries=sum(one.backlog_entries for one in counted),
            )
        return TopicStatistics(layout, subscriptions, _group_statistics(groups, segments), segments)

    async def of_regular(self, name: TopicName) -> RegularStatistics:
        """Return the statistics of a regular topic, or of a partitioned one with all its partitions.

        Raises:
            TopicNotFound: there is no such topic.
        """
        record = await self._partitioned.find(name)
        if record is None and not await self._layouts.is_made(name):
            raise TopicNotFound(f"{name} does not exist. A producer creates it, and so does a consumer.")
        count = 1 if record is None else record.partitions
        groups = await self._groups_on(self._metadata, name, None)
        logs = {
            index: await self._log(name if record is None else name.partition(index), _offsets_on(groups, index))
            for index in range(count)
        }
        names = sorted({subscription for log in logs.values() for subscription in log.subscriptions})
        subscriptions = {}
        for subscription_name in names:
            counted = _on_each(subscription_name, logs.values())
            subscriptions[subscription_name] = RegularSubscription(
                counted[0].type, len(_consumers_of(counted)), sum(one.backlog_entries for one in counted)
            )
        return RegularStatistics(count, subscriptions, _group_statistics(groups, logs), logs)

    async def of_log(self, name: TopicName, indexes: Collection[int]) -> LogStatistics:
        """Return the statistics of a segment, or of a regular topic without its partitions, that this broker owns.

        They say how many messages are left from each of these indexes.

        Raises:
            OwnedElsewhere: another broker owns it.
            TopicNotFound: it does not exist.
        """
        return await _counted(await self._topics.get(name, creates=False), indexes, self._now_ms())

    async def _segments(self, name: TopicName) -> tuple[Layout, Mapping[str, GroupOnTopic], dict[int, LogStatistics]]:
        """Return the topic's layout, its groups, and the statistics of all its segments."""
        while True:
            layout = await self._layouts.get(name)
            groups = await self._groups_on(self._metadata, name, layout)
            try:
                segments = {
                    segment.id: await self._log(
                        segment_topic(name, segment),
                        _offsets_on(groups, segment.id),
                        name.segment_name(segment.descriptor),
                    )
                    for segment in layout.segments.values()
                }
                return layout, groups, segments
            except TopicNotFound:
                # If a segment was pruned meanwhile, the layout has a new epoch. Otherwise the error stands.
                if (await self._layouts.get(name)).epoch == layout.epoch:
                    raise

    async def _log(self, name: TopicName, indexes: Collection[int], segment: TopicName | None = None) -> LogStatistics:
        """The statistics of a log, wherever it is owned. That of a partition which nobody used yet are zeros."""
        if segment is None and not await self._layouts.is_made(name):
            return LogStatistics({}, 0, 0)
        try:
            return await self.of_log(name, indexes)
        except OwnedElsewhere as elsewhere:
            if elsewhere.owner is None:
                raise
            return await self._requests.statistics(elsewhere.owner, segment or name, indexes)


async def _counted(log: Topic, indexes: Collection[int], now_ms: int) -> LogStatistics:
    first_index = log.ledger.first_index
    left_from = {}
    try:
        last = await last_visible(log, log.ledger)
        end = End(EARLIEST, first_index) if last is None else End(last.position, last.first_index + last.message_count)
        for index in indexes:
            left_from[index] = await messages_from(log, index, end)
    except LedgerCorrupt as damaged:
        _report(log, damaged)
        end = End(log.readable.value, log.readable_end)
    subscriptions = {}
    places = Places(log)
    for name, subscription in tuple(log.subscriptions.items()):
        stored = await places.stored(name, subscription.cursor.first_unacknowledged(), end, now_ms) or NOTHING
        try:
            entries = await subscription.visible_backlog()
        except LedgerCorrupt as damaged:
            _report(log, damaged)
            entries = subscription.backlog_entries
        now = subscription.statistics()
        subscriptions[name] = SegmentSubscription(
            entries,
            frozenset(consumer.name for consumer in now.consumers),
            now.kind.name,
            now.unacked_messages,
            f"{now.mark_delete.ledger}:{now.mark_delete.entry}",
            stored.size_bytes,
            round(now_ms - stored.seconds * 1000) if stored.messages else 0,
            tuple(
                ConnectedConsumer(one.name, one.permits, one.unacked_messages, one.messages_sent, one.bytes_sent)
                for one in sorted(now.consumers, key=lambda consumer: consumer.name)
            ),
        )
    traffic = log.traffic
    return LogStatistics(
        subscriptions,
        first_index,
        end.next_index,
        frozenset(producer.name for producer in log.clients.producers),
        traffic.messages_in,
        traffic.bytes_in,
        traffic.messages_out,
        traffic.bytes_out,
        log.ledger.statistics().size_bytes,
        log.clients.count,
        left_from,
    )


def _report(log: Topic, damaged: LedgerCorrupt) -> None:
    logger.warning("a backlog may count markers, because data is damaged", topic=str(log.name), reason=str(damaged))


def _on_each(subscription: str, logs: Iterable[LogStatistics]) -> list[SegmentSubscription]:
    return [log.subscriptions[subscription] for log in logs if subscription in log.subscriptions]


def _consumers_of(counted: Iterable[SegmentSubscription]) -> frozenset[str]:
    return frozenset().union(*(one.consumers for one in counted))


def _group_statistics(
    groups: Mapping[str, GroupOnTopic], logs: Mapping[int, LogStatistics]
) -> dict[str, GroupStatistics]:
    return {
        name: GroupStatistics(
            group.state,
            group.consumers,
            sum(_left(logs[index], offset) for index, offset in group.offsets.items() if index in logs),
        )
        for name, group in sorted(groups.items())
    }


def _left(log: LogStatistics, offset: int) -> int:
    """How many messages a group has left. An owner of an earlier release, or of damaged data, tells only the end."""
    return log.left_from.get(offset, max(0, log.end_index - max(offset, log.first_index)))


def _offsets_on(groups: Mapping[str, GroupOnTopic], number: int) -> frozenset[int]:
    """Where groups go on in the segment or partition with this number."""
    return frozenset(group.offsets[number] for group in groups.values() if number in group.offsets)
