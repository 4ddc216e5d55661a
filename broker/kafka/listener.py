"""The Kafka listener: accepts connections, and gives each a session with all handlers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Self

import structlog
import trio

from broker.addresses import Address, KafkaNode
from broker.background import keep_running
from broker.broker import Broker
from broker.budgets import Budgets
from broker.cluster.locator import Locator
from broker.cluster.members import Members
from broker.cluster.ownership import HasEnded
from broker.kafka.administering import AdministrationHandler
from broker.kafka.beginnings import Beginnings
from broker.kafka.committing import OffsetHandler
from broker.kafka.configuring import ConfigHandler
from broker.kafka.conversion import ToKafka
from broker.kafka.coordinators import CoordinatorHandler
from broker.kafka.deleting import DeletionHandler
from broker.kafka.fetching import FetchHandler
from broker.kafka.grouping import GroupHandler
from broker.kafka.groups.coordination import Coordination
from broker.kafka.groups.coordinator import GroupCoordinator
from broker.kafka.groups.values import GroupSettings
from broker.kafka.hanging import HangingHandler
from broker.kafka.inspecting import InspectionHandler
from broker.kafka.leaders import PartitionLeaders
from broker.kafka.listing import ListingHandler
from broker.kafka.log_dirs import LogDirHandler
from broker.kafka.members import KafkaMembers
from broker.kafka.metadata import MetadataHandler
from broker.kafka.partition_pages import PageHandler
from broker.kafka.producing import ProduceHandler
from broker.kafka.record_times import RecordTimes
from broker.kafka.session import KafkaSession
from broker.kafka.topic_settings import TopicSettings
from broker.kafka.topics import KafkaTopics
from broker.kafka.transacting import TransactionHandler
from broker.listening import Accepted, serve_clients
from broker.outbox import Outbox
from broker.partitioned_topics import PartitionedTopics
from broker.ports import NO_PORTS, Ports
from broker.topics import Topics
from broker.traffic import Traffic
from storage.clock import WallClock
from storage.metadata.store import MetadataStore
from txn.kafka_transactions import KafkaTransactions

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class KafkaServices:
    """The parts of the broker that this listener's sessions serve."""

    loaded: Topics
    topics: KafkaTopics
    partitioned: PartitionedTopics
    locator: Locator
    members: Members
    has_ended: HasEnded
    """Asked before a client is sent to another broker."""
    broker_id: str
    node_id: int
    traffic: Traffic
    budgets: Budgets
    cluster: str
    serving: KafkaMembers
    """The members that serve Kafka's clients, too."""
    groups: GroupCoordinator
    """Its `run`, and that of its `expiry`, are the caller's to start."""
    transactions: KafkaTransactions
    now_ms: WallClock
    metadata: MetadataStore
    folder: str
    """Where the ledgers are, for administrators."""
    batch_bytes_max: int
    configs: Mapping[str, str]
    """What clients may know of the broker's settings, by Kafka's names."""
    settings: TopicSettings
    convert: ToKafka
    times: RecordTimes
    ports: Ports = NO_PORTS
    connection_numbers: Iterator[int] = field(default_factory=lambda: count(1))
    """A number for each connection, in the order in which they are accepted."""

    @classmethod
    def of(cls, broker: Broker, ports: Ports = NO_PORTS) -> Self:
        """Take the parts from a broker that serves Kafka's clients. A drain resigns their groups from here on."""
        base = broker.foundation
        assert base.kafka is not None, "it was registered with a number"
        serving = KafkaMembers(broker.members)
        groups = GroupCoordinator(
            Coordination(broker.claims, base.metadata, serving, has_ended=base.has_ended),
            base.metadata,
            GroupSettings(),
            wall_ms=base.now_ms,
        )
        broker.handover.also_resigns(groups.hand_over)
        convert = ToKafka(base.traffic)
        settings = TopicSettings(int(base.settings.message_bytes_max))
        return cls(
            loaded=broker.topics,
            topics=KafkaTopics(
                broker.topics,
                broker.partitioned_topics,
                broker.layouts,
                broker.retention,
                base.metadata,
                settings,
                namespace=base.settings.kafka_namespace,
                partitions_default=base.settings.kafka_partitions,
            ),
            partitioned=broker.partitioned_topics,
            locator=broker.locator,
            members=broker.members,
            has_ended=base.has_ended,
            broker_id=base.settings.broker_id,
            node_id=base.kafka.id,
            traffic=base.traffic,
            budgets=base.budgets,
            cluster=base.settings.cluster,
            serving=serving,
            groups=groups,
            transactions=broker.kafka_transactions,
            now_ms=base.now_ms,
            metadata=base.metadata,
            folder=str(base.settings.data_dir / "ledgers"),
            batch_bytes_max=int(base.settings.message_bytes_max),
            configs={
                "auto.create.topics.enable": "true",
                "message.max.bytes": str(int(base.settings.message_bytes_max)),
                "num.partitions": str(base.settings.kafka_partitions),
                "default.replication.factor": "1",
            },
            settings=settings,
            convert=convert,
            times=RecordTimes(convert),
            ports=ports,
        )


async def serve_kafka(
    listeners: Sequence[trio.SocketListener], services: KafkaServices, advertised: Callable[[Address], Address]
) -> None:
    """Run a session for every connection until cancelled.

    Args:
        listeners: open sockets; this function closes them.
        services: the parts of the broker to serve.
        advertised: maps the address that a client connected to, to the address that it is told to use.
    """

    async def serve(accepted: Accepted) -> None:
        if services.traffic.connections >= services.budgets.connections_max:
            log.warning("connection refused", reason=f"{services.budgets.connections_max} connections are the maximum")
            return
        services.traffic.connections += 1
        try:
            node = KafkaNode(services.node_id, advertised(accepted.reached))
            session = open_session(
                accepted.stream, str(accepted.client), services, node, client_host=accepted.client.host
            )
            await session.run()
        finally:
            services.traffic.connections -= 1

    async with trio.open_nursery() as nursery:
        await nursery.start(services.groups.run)
        nursery.start_soon(keep_running, "forgetting offsets of Kafka's groups", services.groups.expiry.run)
        for listener in listeners:
            nursery.start_soon(serve_clients, listener, serve)


def open_session(
    stream: trio.abc.Stream, client: str, services: KafkaServices, node: KafkaNode, *, client_host: str = ""
) -> KafkaSession:
    """Make a session with all handlers, over any stream. Its `run` serves the client."""
    budgets, topics = services.budgets, services.topics
    session = KafkaSession(
        stream, Outbox(budgets.sending), budgets.receiving.share(), client, services.batch_bytes_max, services.ports
    )
    leaders = PartitionLeaders(services.locator, services.members, node)
    session.use(MetadataHandler(topics, leaders, services.members, node, cluster=services.cluster))
    session.use(PageHandler(topics, leaders))
    session.use(ProduceHandler(topics, services.traffic))
    session.use(FetchHandler(topics, services.traffic, budgets.sending, services.convert))
    session.use(ListingHandler(topics, services.times))
    session.use(DeletionHandler(topics))
    session.use(HangingHandler(topics, services.now_ms))
    session.use(LogDirHandler(topics, services.loaded, services.folder))
    session.use(ConfigHandler(topics, services.settings, services.node_id, services.configs))
    session.use(AdministrationHandler(topics, services.settings, services.partitioned))
    transactions = services.transactions
    session.use(
        TransactionHandler(
            transactions.coordinator,
            transactions.producer_ids,
            topics,
            services.traffic,
            next(services.connection_numbers),
        )
    )
    session.use(
        CoordinatorHandler(services.groups, services.serving, services.has_ended, node, broker_id=services.broker_id)
    )
    session.use(InspectionHandler(topics, services.metadata, services.serving, services.now_ms, me=services.broker_id))
    beginnings = Beginnings(topics, services.groups)
    session.use(GroupHandler(services.groups, beginnings, f"/{client_host}"))
    session.use(OffsetHandler(services.groups, beginnings, transactions.coordinator, topics, services.now_ms))
    return session
