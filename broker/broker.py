"""One broker, put together: every room between the stores and the front ends, for one metadata session.

    broker = Broker(foundation, session, nursery)      # only builds the parts: nothing is read, written or run
    await broker.start()                               # follows the store, recovers, starts background work
    ...                                                # front ends serve it
    await broker.close()                               # topics write their cursors

`__init__` is the one place where the parts meet. Each part gets only parts that are built before it. The daemon, its
tests and the model all build this class. They differ only in the foundation.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import trio

from broker.addresses import KafkaNode
from broker.administration import Administration, Monitor
from broker.background import keep_running
from broker.budgets import Budgets
from broker.cluster.assignments import Assignments
from broker.cluster.duties import Duties
from broker.cluster.elections import Elections
from broker.cluster.locator import Locator
from broker.cluster.members import Members
from broker.cluster.ownership import Claims, HasEnded, not_known
from broker.cluster.placement import Member
from broker.cluster.recovery import DeadBrokers
from broker.cluster.segment_owners import SegmentOwners
from broker.cluster.shards import Shards
from broker.cluster.turns import Turns
from broker.cluster_administration import ClusterAdministration
from broker.config import BrokerSettings
from broker.consumer_reports import ConsumerReports
from broker.doctor.examination import Examination
from broker.entry_codecs import Converter, EntryCodecs, ViewForTools, as_bytes, as_stored
from broker.handover import HandOver
from broker.layouts.autoscale_policy import AutoScalePolicy
from broker.layouts.store import Layouts
from broker.leftovers import Leftovers
from broker.live import Live
from broker.log_owners import LogOwners
from broker.loop_monitor import LoopMonitor
from broker.message_administration import MessageAdministration
from broker.names import Domain, TopicName
from broker.own_load import OwnLoad
from broker.partition_removal import PartitionRemoval
from broker.partitioned_topics import ForgetTopic, PartitionedTopics, forget_nothing
from broker.peers import Peers
from broker.regular_administration import RegularAdministration
from broker.retention import Retention
from broker.retention_policies import RetentionPolicies
from broker.scalable.autoscaler import AutoScaler
from broker.scalable.consumer_groups import ConsumerGroups
from broker.scalable.controller import Controller
from broker.scalable.feeds import LayoutFeeds
from broker.scalable.layout_followers import LayoutFollowers
from broker.scalable.load_reports import SAMPLE_SECONDS, LoadReporter
from broker.scalable.namespaces import NamespaceFeeds
from broker.scalable.pruning import Pruner
from broker.scalable.segment_owner import SegmentOwner
from broker.scalable.segment_work import SegmentWork
from broker.schema_administration import SchemaAdministration
from broker.schemas.registry import Schemas
from broker.segment_requests import SegmentRequests
from broker.series import GroupOffsets
from broker.series_monitor import SeriesMonitor
from broker.topic import Topic
from broker.topic_series import TopicSeries
from broker.topic_services import TopicServices
from broker.topic_statistics import GroupsOn, StatisticsOfTopics, no_groups
from broker.topics import Topics
from broker.tracing.decisions import TracedHeaders, TracedTransactionalIds
from broker.tracing.spans import Tracing
from broker.traffic import Traffic
from broker.transaction_buffers import ANY_NAMESPACE, TransactionBuffers
from broker.unloaded_backlogs import UnloadedBacklogs
from storage.clock import WallClock
from storage.files import Files
from storage.journal_records import JournalRecords
from storage.ledger_chain import ManagedLedgerConfig
from storage.ledger_ids import LedgerIds
from storage.ledger_store import LedgerStore
from storage.managed_ledger import ManagedLedger
from storage.metadata.store import Check, MetadataStore, Session
from txn.buffer import TransactionBuffer
from txn.inspection import Inspection
from txn.kafka_coordination import TIMEOUT_MS_MAX as KAFKA_TIMEOUT_MS_MAX
from txn.kafka_settler import KafkaSettler
from txn.kafka_transactions import KafkaTransactions
from txn.marker_buffer import MarkerBuffer, MarkerFormat
from txn.metadata_buffer import MetadataTransactionBuffer
from txn.transactions import Transactions, TransactionSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Foundation:
    """What a broker is built on. All of it outlives the metadata session and serves the next one."""

    settings: BrokerSettings
    version: str
    service_url: str
    """Where other brokers redirect clients that need this one."""
    http_url: str | None = None
    """Where other brokers reach this one's HTTP, if it serves any."""
    kafka: KafkaNode | None = None
    """What Kafka's clients know of this broker; None if it does not serve them."""
    metadata: MetadataStore
    files: Files
    """The disk with the data folder, for the doctor. All others use the stores."""
    ledgers: LedgerStore
    """The ledger store; its writer is already running."""
    now_ms: WallClock
    budgets: Budgets
    codecs: EntryCodecs
    """Those of the front ends' formats."""
    markers: MarkerFormat
    """How logs with markers are read and written."""
    for_subscribers: Converter = as_stored
    """Gives entries in the format of those who subscribe."""
    for_tools: ViewForTools = as_bytes
    """Shows entries to Pulsar's tools."""
    forget_topic: ForgetTopic = forget_nothing
    """Removes what the front ends store about a partitioned or scalable topic that is gone."""
    groups_on: GroupsOn = no_groups
    """Finds the groups of Kafka's consumers that read a topic."""
    group_offsets: GroupOffsets | None = None
    """Finds the offsets of all groups; None if there are none."""
    traffic: Traffic = field(default_factory=Traffic)
    tracing: Tracing | None = None
    """Makes spans of traced messages; None if the broker does not trace."""
    loop: LoopMonitor = field(default_factory=LoopMonitor)
    """The event loop's measurements for `/metrics`."""
    has_ended: HasEnded = not_known
    """Whether another broker is known to serve no clients, although it may be registered."""


class Broker:
    """See the module's docstring. `nursery` runs its tasks; cancelling that is like killing the broker."""

    def __init__(self, foundation: Foundation, session: Session, nursery: trio.Nursery) -> None:
        base, settings, metadata = foundation, foundation.settings, foundation.metadata
        self.foundation = base
        self.metadata = metadata
        self._nursery = nursery
        self.claims = Claims(
            metadata,
            session,
            broker_id=settings.broker_id,
            service_url=base.service_url,
            has_ended=base.has_ended,
        )
        self.elections = Elections(self.claims, metadata)
        self.members = Members(metadata, Member(settings.broker_id, base.service_url, base.http_url, base.kafka))
        self.shards = Shards(self.claims, metadata, self.members, count=settings.transaction_coordinators)
        self.duties = Duties(self.members, self.shards, base.has_ended, me=settings.broker_id)
        self.transactions = Transactions(metadata, _transaction_settings(settings), base.now_ms, self.duties)
        self.kafka_transactions = KafkaTransactions(
            metadata,
            base.now_ms,
            self.transactions.counters,
            self.duties,
            timeout_ms_max=min(KAFKA_TIMEOUT_MS_MAX, round(settings.txn_timeout_seconds_max * 1000)),
        )
        if base.tracing is not None:
            self.transactions.headers.attach(TracedHeaders(base.tracing))
            self.kafka_transactions.watch.attach(TracedTransactionalIds(base.tracing))
        self.assignments = Assignments(metadata, session, broker_id=settings.broker_id)
        self.locator = Locator(metadata, self.members, self.assignments, base.has_ended, me=settings.broker_id)
        self.segment_owners = SegmentOwners(metadata, nursery, me=settings.broker_id)
        self.layouts = Layouts(metadata)
        self.partitioned_topics = PartitionedTopics(metadata, base.now_ms)
        self.turns = Turns(self.elections, self.members, me=settings.broker_id)
        layout_followers = LayoutFollowers(metadata, session, self.members, nursery, me=settings.broker_id)
        self.feeds = LayoutFeeds(metadata, layout_followers, nursery)
        self.namespaces = NamespaceFeeds(metadata, nursery)
        self.retention = RetentionPolicies(
            metadata, Retention(settings.retention_minutes, settings.retention_megabytes)
        )
        self.schemas = Schemas(metadata, base.now_ms)
        self.services = _topic_services(
            base, self.transactions, self.kafka_transactions.settler, self.retention, self.members
        )
        self.topics = Topics(self.claims, self.layouts, self.open_topic, self.services, nursery, session.id)
        self.handover = HandOver(
            self.topics,
            self.elections,
            self.claims,
            self.members,
            self.assignments,
            metadata,
            session,
            now_ms=base.now_ms,
        )
        self.segment_owner = SegmentOwner(
            self.topics, self.layouts, self.feeds, self.elections, metadata=metadata, nursery=nursery
        )
        peers = Peers(self.members, me=settings.broker_id)
        requests = SegmentRequests(peers)
        self.segment_work = SegmentWork(self.claims, self.topics, self.layouts, self.segment_owner, requests, metadata)
        self.groups = ConsumerGroups(
            self.feeds,
            self.elections,
            self.turns,
            metadata=metadata,
            nursery=nursery,
            grace_seconds=settings.consumer_session_grace_seconds,
        )
        self.consumer_reports = ConsumerReports(self.groups, self.elections, peers, nursery, me=settings.broker_id)
        self.controller = Controller(
            self.layouts,
            self.topics,
            self.segment_work,
            self.groups,
            self.elections,
            self.turns,
            now_ms=base.now_ms,
            nursery=nursery,
            metadata=metadata,
            auto_scale=AutoScalePolicy(enabled=settings.auto_scale),
            forget=base.forget_topic,
        )
        self.pruner = Pruner(
            self.layouts,
            self.segment_work,
            self.feeds,
            self.controller.locks,
            self.elections,
            self.turns,
            metadata=metadata,
            retention_ms=round(settings.segment_retention_seconds * 1000),
            now_ms=base.now_ms,
            is_alone=lambda: self.members.is_alone,
        )
        self.leftovers = Leftovers(self.topics, self.locator, self.assignments, me=settings.broker_id)
        self.header_sweep = self.transactions.header_sweep(self.leftovers.redrive)
        self.kafka_sweeps = self.kafka_transactions.sweeps(self.leftovers.redrive_partition)
        self.partition_removal = PartitionRemoval(
            self.partitioned_topics,
            self.topics,
            self.layouts,
            self.members,
            self.retention,
            metadata,
            base.forget_topic,
        )
        own_load = OwnLoad(
            metadata,
            session,
            base.traffic,
            base.loop,
            lambda: len(self.topics.owned),
            me=settings.broker_id,
            sample_seconds=SAMPLE_SECONDS,
        )
        self.load_reporter = LoadReporter(
            self.topics, self.services.activity, own_load, metadata=metadata, session=session, now_ms=base.now_ms
        )
        self.auto_scaler = AutoScaler(self.controller, self.layouts, self.groups, metadata=metadata, now_ms=base.now_ms)
        self.dead_brokers = DeadBrokers(
            metadata,
            base.ledgers,
            JournalRecords(metadata, settings.data_dir),
            session,
            broker_id=settings.broker_id,
        )
        statistics = StatisticsOfTopics(
            self.layouts,
            self.topics,
            self.partitioned_topics,
            self.groups,
            requests,
            metadata,
            base.groups_on,
            base.now_ms,
        )
        owners = LogOwners(
            self.topics, self.layouts, self.partitioned_topics, requests, self.members, me=settings.broker_id
        )
        regular = RegularAdministration(
            owners,
            self.topics,
            self.layouts,
            self.partitioned_topics,
            statistics,
            self.retention,
            metadata,
            base.forget_topic,
        )
        self.administration = Administration(
            self.controller,
            self.layouts,
            self.topics,
            statistics,
            Inspection(metadata, self.transactions.coordinator, base.now_ms),
            regular,
            SchemaAdministration(self.schemas, self.topics, self.layouts, self.partitioned_topics),
            MessageAdministration(owners, self.topics, self.layouts, self.schemas, base.for_tools),
            initial_segments=settings.default_initial_segments,
        )
        unloaded = UnloadedBacklogs(metadata, settings.broker_id, settings.metrics_series_max)
        self.live = Live(self.topics, unloaded, self.services.changes)
        self.topics.attach(lambda _topic: self.services.changes.set())
        self.monitor = Monitor(
            self.topics,
            coordinator=self.transactions.coordinator,
            counters=self.transactions.counters,
            metadata=metadata,
            traffic=base.traffic,
            tracing=base.tracing,
            loop=base.loop,
            ledgers=base.ledgers,
            budgets=base.budgets,
            members=self.members,
            claims=self.claims,
            series=SeriesMonitor(
                TopicSeries(
                    self.topics,
                    settings.metrics_labels,
                    settings.metrics_series_max,
                    unloaded,
                ),
                metadata,
                base.group_offsets,
                base.now_ms,
                settings.metrics_series_max,
            ),
        )
        examination = Examination(
            metadata,
            base.files,
            settings.data_dir,
            self.members,
            peers,
            self.monitor,
            self.live,
            base.now_ms,
            me=settings.broker_id,
            coordinators=settings.transaction_coordinators,
        )
        self.cluster_administration = ClusterAdministration(
            self.handover,
            self.layouts,
            self.partitioned_topics,
            self.members,
            self.assignments,
            peers,
            examination,
            self.consumer_reports,
            metadata,
            me=settings.broker_id,
        )

    async def start(self) -> None:
        """Start the broker. On return, front ends may serve clients."""
        await self.follow()
        await self.recover()
        for what, work in self.background.items():
            self._nursery.start_soon(keep_running, what, work)

    async def follow(self) -> None:
        """Start the watches that the other parts need. On return they know the metadata store's records."""
        await self._nursery.start(self.members.run)
        await self.transactions.start(self._nursery)
        await self.kafka_transactions.start(self._nursery)
        await self._nursery.start(self.elections.run)
        await self._nursery.start(self.assignments.run)
        await self._nursery.start(self.retention.run)

    async def recover(self) -> None:
        """Continue the changes that an earlier broker left unfinished."""
        await self.controller.recover()
        await self.groups.recover()

    @property
    def background(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """Return the background work, by the names that the log uses."""
        return {
            "taking topics that others hand over": self.handover.run,
            "sharing the coordinators": self.shards.run,
            "pruning": self.pruner.run,
            "removing partitions of deleted topics": self.partition_removal.run,
            "ending transactions at their deadline": self.transactions.timeout_sweep.run,
            "forgetting finished transactions": self.header_sweep.run,
            "seeing to transactions of Kafka's clients": self.kafka_sweeps.run,
            "forgetting transaction groups": self.transactions.group_sweep.run,
            "reporting load": self.load_reporter.run,
            "recovering what dead brokers left open": self.dead_brokers.run,
            "splitting and merging by load": self.auto_scaler.run,
        }

    async def close(self) -> None:
        """Close every topic. Its cursors are durable on return."""
        await self.topics.close()

    async def open_topic(self, name: TopicName, claim: Check) -> Topic:
        """Take over a topic that this broker has claimed."""
        return await Topic.open(name, self.services, claim)


def _transaction_settings(settings: BrokerSettings) -> TransactionSettings:
    return TransactionSettings(
        coordinators=settings.transaction_coordinators,
        timeout_ms_max=round(settings.txn_timeout_seconds_max * 1000),
        retention_ms=round(settings.txn_retention_seconds * 1000),
    )


def _transaction_buffers(base: Foundation, transactions: Transactions, settler: KafkaSettler) -> TransactionBuffers:
    def metadata_driven(ledger: ManagedLedger, claim: Check) -> TransactionBuffer:
        return MetadataTransactionBuffer(
            ledger,
            metadata=base.metadata,
            headers=transactions.headers,
            claim=claim,
            counters=transactions.counters,
        )

    def with_markers(ledger: ManagedLedger, claim: Check) -> TransactionBuffer:
        return MarkerBuffer(ledger, base.metadata, claim, base.markers, settler, base.now_ms)

    return TransactionBuffers(
        {
            (Domain.SEGMENT, ANY_NAMESPACE): metadata_driven,
            (Domain.PERSISTENT, ANY_NAMESPACE): with_markers,
        }
    )


def _topic_services(
    base: Foundation,
    transactions: Transactions,
    settler: KafkaSettler,
    retention: RetentionPolicies,
    members: Members,
) -> TopicServices:
    settings = base.settings
    return TopicServices(
        metadata=base.metadata,
        ledgers=base.ledgers,
        ledger_ids=LedgerIds(base.metadata),
        headers=transactions.headers,
        counters=transactions.counters,
        buffers=_transaction_buffers(base, transactions, settler),
        ledger_config=ManagedLedgerConfig(
            ledger_bytes_max=int(settings.ledger_bytes_max),
            ledger_age_max_ms=round(settings.ledger_age_seconds_max * 1000),
        ),
        now_ms=base.now_ms,
        codecs=base.codecs,
        for_subscribers=base.for_subscribers,
        deduplicates_persistent=settings.deduplication,
        retention=retention,
        tracing=base.tracing,
        is_own_clock=lambda broker_id: members.is_alone or broker_id == settings.broker_id,
    )
