"""Implements the administration contract: scalable topics, and the broker's statistics."""

from collections.abc import Collection, Mapping, Sequence

from broker.administration_contract import (
    BrokerStatistics,
    LatencyCounts,
    MigrationAsked,
    SegmentUsers,
    TopicStatistics,
    TransactionStatistics,
)
from broker.backlog import seek_to_time
from broker.budgets import Budgets
from broker.cluster.members import Members
from broker.cluster.ownership import Claims, OwnedElsewhere
from broker.errors import SubscriptionExists, SubscriptionNotFound
from broker.layouts.autoscale_policy import AutoScaleOverride
from broker.layouts.layout import Layout
from broker.layouts.legacy import segment_topic
from broker.layouts.parts import StartPosition, SubscriptionKind
from broker.layouts.store import Layouts
from broker.log_statistics import LogStatistics
from broker.loop_monitor import LoopMonitor
from broker.names import TopicName
from broker.peek_contract import PeekService
from broker.regular_contract import RegularService
from broker.scalable.controller import Controller
from broker.schema_contract import SchemaService
from broker.series import Series
from broker.series_monitor import SeriesMonitor
from broker.topic import Topic
from broker.topic_statistics import StatisticsOfTopics
from broker.topics import Topics
from broker.tracing.spans import Tracing
from broker.traffic import Traffic
from dispatch.subscription import Subscription
from storage.ledger_store import LedgerStore
from storage.metadata.store import MetadataStore
from storage.position import LATEST
from txn.coordinator import Coordinator
from txn.counters import OpCounters
from txn.inspection import Inspection


class Administration:
    """Implements `TopicService`."""

    def __init__(
        self,
        controller: Controller,
        layouts: Layouts,
        topics: Topics,
        statistics: StatisticsOfTopics,
        transactions: Inspection,
        regular: RegularService,
        schemas: SchemaService,
        messages: PeekService,
        *,
        initial_segments: int,
    ) -> None:
        self.transactions = transactions
        self.regular = regular
        self.schemas = schemas
        self.messages = messages
        self._statistics = statistics
        self._controller = controller
        self._layouts = layouts
        self._topics = topics
        self._initial_segments = initial_segments

    async def create_topic(self, name: TopicName, *, segments: int | None, properties: Mapping[str, str]) -> None:
        """See `TopicService`."""
        count = self._initial_segments if segments is None else segments
        await self._controller.create_topic(name, count, properties)

    async def layout(self, name: TopicName) -> Layout:
        """See `TopicService`."""
        return await self._layouts.get(name)

    async def delete_topic(self, name: TopicName, *, force: bool) -> None:
        """See `TopicService`."""
        await self._controller.delete_topic(name, force=force)

    async def split(self, name: TopicName, segment_id: int) -> None:
        """See `TopicService`."""
        await self._controller.split(name, segment_id)

    async def merge(self, name: TopicName, first_id: int, second_id: int, *, allow_fewer: bool = True) -> None:
        """See `TopicService`."""
        await self._controller.merge(name, first_id, second_id, allow_fewer=allow_fewer)

    async def migrate(self, name: TopicName, *, force: bool) -> None:
        """See `TopicService`."""
        await self._controller.migrate(name, force=force)

    async def begin_migration(self, name: TopicName, asked: MigrationAsked, *, force: bool) -> None:
        """See `TopicService`."""
        await self._controller.begin_migration(name, asked, force=force)

    async def create_subscription(self, name: TopicName, subscription: str, kind: SubscriptionKind) -> None:
        """See `TopicService`."""
        await self._controller.subscriptions.add(name, subscription, kind, StartPosition.EARLIEST)
        there = (await self._layouts.get(name)).subscriptions.get(subscription)
        if there is not None and there.kind is not kind:
            raise SubscriptionExists(
                f"{name} already has a subscription {subscription} of type {there.kind}. Choose another name."
            )

    async def delete_subscription(self, name: TopicName, subscription: str) -> None:
        """See `TopicService`."""
        await self._controller.subscriptions.delete(name, subscription, force=True)

    async def seek(self, name: TopicName, subscription: str, timestamp_ms: int) -> None:
        """See `TopicService`."""
        if name.segment is None:
            await self._controller.subscriptions.seek_to_time(name, subscription, timestamp_ms)
            return
        topic, here = await self._on_segment(name, subscription)
        await seek_to_time(topic, here, timestamp_ms)

    async def skip_all(self, name: TopicName, subscription: str) -> None:
        """See `TopicService`."""
        if name.segment is None:
            await self._controller.subscriptions.skip_all(name, subscription)
            return
        topic, here = await self._on_segment(name, subscription)
        await topic.seek(here, LATEST)

    async def segment_backlog(self, name: TopicName, subscription: str) -> int:
        """See `TopicService`."""
        _topic, here = await self._on_segment(name, subscription)
        return await here.visible_backlog()

    async def log_statistics(self, name: TopicName, indexes: Collection[int] = ()) -> LogStatistics:
        """See `TopicService`."""
        if name.segment is not None:
            name = _log_of(name, await self._layouts.get(name.scalable_topic))
        return await self._statistics.of_log(name, indexes)

    async def segment_is_untouched(self, name: TopicName) -> bool:
        """See `TopicService`."""
        return (await self._segment(name)).is_untouched

    async def _segment(self, name: TopicName) -> Topic:
        return await self._topics.get(_log_of(name, await self._layouts.get(name.scalable_topic)))

    async def segment_users(self, name: TopicName) -> SegmentUsers:
        """See `TopicService`."""
        topic = self._topics.running(_log_of(name, await self._layouts.get(name.scalable_topic)))
        if topic is None:
            raise OwnedElsewhere(f"This broker does not serve {name} at this moment. Ask again.")
        subscriptions = (name for name, subscription in topic.subscriptions.items() if subscription.consumers)
        return SegmentUsers(topic.clients.count, frozenset(subscriptions))

    async def _on_segment(self, name: TopicName, subscription: str) -> tuple[Topic, Subscription]:
        layout = await self._layouts.get(name.scalable_topic)
        if subscription not in layout.subscriptions:
            # A refused request loads nothing.
            raise SubscriptionNotFound(f"{name.scalable_topic} has no subscription {subscription}.")
        topic = await self._topics.get(_log_of(name, layout))
        here = topic.subscriptions.get(subscription)
        if here is None:
            raise SubscriptionNotFound(f"{name} has no subscription {subscription}.")
        return topic, here

    async def auto_scale(self, name: TopicName) -> AutoScaleOverride | None:
        """See `TopicService`."""
        return await self._controller.auto_scale_override(name)

    async def set_auto_scale(self, name: TopicName, override: AutoScaleOverride | None) -> None:
        """See `TopicService`."""
        await self._controller.set_auto_scale_override(name, override)

    async def topics(self, tenant: str, namespace: str, properties: Mapping[str, str]) -> Sequence[TopicName]:
        """See `TopicService`."""
        if not properties:
            return await self._layouts.names(f"{tenant}/{namespace}")
        return [
            name
            for name, layout in (await self._layouts.scan(f"{tenant}/{namespace}")).items()
            if isinstance(layout, Layout) and not layout.is_deleting and properties.items() <= layout.properties.items()
        ]

    async def statistics(self, name: TopicName) -> TopicStatistics:
        """See `TopicService`."""
        if self._controller.elections.is_elsewhere(name):
            # Only the controller knows the ordered consumers. This raises who it is.
            await self._controller.elections.elect(name)
        return await self._statistics.of_scalable(name)


def _log_of(name: TopicName, layout: Layout) -> TopicName:
    """Return the name under which a segment is loaded. That of a migrated topic keeps its `persistent://` name."""
    found = [segment for segment in layout.segments.values() if segment.descriptor == name.segment]
    return segment_topic(name.scalable_topic, found[0]) if found else name


class Monitor:
    """Implements `BrokerMonitor`."""

    def __init__(
        self,
        topics: Topics,
        *,
        coordinator: Coordinator,
        counters: OpCounters,
        metadata: MetadataStore,
        traffic: Traffic,
        tracing: Tracing | None,
        loop: LoopMonitor,
        ledgers: LedgerStore,
        budgets: Budgets,
        members: Members,
        claims: Claims,
        series: SeriesMonitor,
    ) -> None:
        self._members = members
        self._series = series
        self._claims = claims
        self._topics = topics
        self._ledgers = ledgers
        self._budgets = budgets
        self._coordinator = coordinator
        self._counters = counters
        self._metadata = metadata
        self._traffic = traffic
        self._tracing = tracing
        self._loop = loop

    def statistics(self) -> BrokerStatistics:
        """See `BrokerMonitor`."""
        topics = list(self._topics)
        subscriptions = [subscription for topic in topics for subscription in topic.subscriptions.values()]
        cas = self._coordinator.statistics()
        metadata = self._metadata.statistics()
        epoch = metadata.extra.get("epoch")
        return BrokerStatistics(
            connections=self._traffic.connections,
            topics=len(topics),
            subscriptions=len(subscriptions),
            producers=sum(len(topic.clients.producers) for topic in topics),
            consumers=sum(topic.clients.consumer_count for topic in topics),
            messages_in=self._traffic.messages_in,
            bytes_in=self._traffic.bytes_in,
            messages_out=self._traffic.messages_out,
            bytes_out=self._traffic.bytes_out,
            unconvertible={
                "kafka": self._traffic.unconvertible_for_kafka,
                "pulsar": self._traffic.unconvertible_for_pulsar,
            },
            received_bytes=self._budgets.receiving.held_bytes,
            unread_bytes=self._budgets.sending.held_bytes,
            received_bytes_max=self._budgets.receiving.bytes_max,
            unread_bytes_max=self._budgets.sending.bytes_max,
            memory_waiting=self._budgets.receiving.waiting,
            connections_max=self._budgets.connections_max,
            metadata_revision=metadata.revision,
            metadata_writes_waiting=metadata.writes_waiting,
            metadata_epoch=None if epoch is None else int(epoch),
            members=len(self._members.live),
            claims=self._claims.counts(),
            latencies={
                (what, protocol): LatencyCounts(histogram.counts, histogram.sum_seconds)
                for protocol, times in (("pulsar", self._traffic.pulsar), ("kafka", self._traffic.kafka))
                for what, histogram in times._asdict().items()
            },
            loop=self._loop.statistics(),
            spans=None if self._tracing is None else self._tracing.counts(),
            transactions=TransactionStatistics(
                op_writes=self._counters.op_writes,
                header_cas_ok=cas.cas_ok,
                header_cas_conflict=cas.cas_conflict,
                header_cas_reject=cas.cas_reject,
                index_queries=self._counters.index_queries,
                index_query_seconds=self._counters.index_query_seconds,
                op_records_outstanding=self._counters.op_records_outstanding,
            ),
        )

    async def series(self) -> Series:
        """See `BrokerMonitor`."""
        return await self._series.series()

    def problem(self) -> str | None:
        """See `BrokerMonitor`. Only a full disk is reported: any other such problem ends the process."""
        shortage = self._ledgers.shortage
        return None if shortage is None else f"{shortage}. Free space"
