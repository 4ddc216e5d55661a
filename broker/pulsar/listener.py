"""The Pulsar listener: accepts connections, and gives each a session with all groups of commands."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Self

import structlog
import trio

from broker.addresses import Address
from broker.broker import Broker
from broker.budgets import Budgets
from broker.cluster.elections import Elections
from broker.cluster.locator import Locator
from broker.cluster.segment_owners import SegmentOwners
from broker.cluster.shards import Shards
from broker.consumer_reports import ConsumerReports
from broker.layouts.store import Layouts
from broker.listening import Accepted, serve_clients
from broker.outbox import Outbox
from broker.partitioned_topics import PartitionedTopics
from broker.ports import NO_PORTS, Ports
from broker.pulsar.connection import Connection
from broker.pulsar.consuming import ConsumerHandler
from broker.pulsar.coordinator_watches import CoordinatorWatchHandler
from broker.pulsar.layout_sessions import EncodedDags
from broker.pulsar.lookup import LookupHandler
from broker.pulsar.namespaces import NamespaceHandler
from broker.pulsar.producing import ProducerHandler
from broker.pulsar.registry import Registry
from broker.pulsar.scalable import ScalableHandler
from broker.pulsar.schemas import SchemaGate, SchemaHandler
from broker.pulsar.session import PulsarSession
from broker.pulsar.transactions import TransactionHandler
from broker.pulsar.unsupported import Peer
from broker.regular_contract import RegularService
from broker.scalable.consumer_groups import ConsumerGroups
from broker.scalable.controller import Controller
from broker.scalable.feeds import LayoutFeeds
from broker.scalable.namespaces import NamespaceFeeds
from broker.scalable.segment_work import SegmentWork
from broker.schemas.registry import Schemas
from broker.topics import Topics
from broker.traffic import Traffic
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import NO_REQUEST
from txn.coordinator import Coordinator

REFUSE_SECONDS_MAX: Final = 1
"""How long it may take to tell a client that it is refused for lack of room."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PulsarServices:
    """The parts of the broker that this listener's sessions serve."""

    topics: Topics
    controller: Controller
    layouts: Layouts
    feeds: LayoutFeeds
    namespaces: NamespaceFeeds
    groups: ConsumerGroups
    reports: ConsumerReports
    elections: Elections
    locator: Locator
    partitioned: PartitionedTopics
    regular: RegularService
    segment_owners: SegmentOwners
    segment_work: SegmentWork
    schemas: Schemas
    coordinator: Coordinator
    shards: Shards
    traffic: Traffic
    budgets: Budgets
    server_version: str
    message_bytes_max: int
    ports: Ports = NO_PORTS
    dags: EncodedDags = field(default_factory=EncodedDags)

    @classmethod
    def of(cls, broker: Broker, ports: Ports = NO_PORTS) -> Self:
        """Take the parts from a broker that listens on these ports."""
        base = broker.foundation
        return cls(
            topics=broker.topics,
            controller=broker.controller,
            layouts=broker.layouts,
            feeds=broker.feeds,
            namespaces=broker.namespaces,
            groups=broker.groups,
            reports=broker.consumer_reports,
            elections=broker.elections,
            locator=broker.locator,
            partitioned=broker.partitioned_topics,
            regular=broker.administration.regular,
            segment_owners=broker.segment_owners,
            segment_work=broker.segment_work,
            schemas=broker.schemas,
            coordinator=broker.transactions.coordinator,
            shards=broker.shards,
            traffic=base.traffic,
            budgets=base.budgets,
            server_version=f"Tidewire {base.version}",
            message_bytes_max=int(base.settings.message_bytes_max),
            ports=ports,
        )


async def serve_pulsar(
    listener: trio.SocketListener, services: PulsarServices, advertised: Callable[[Address], Address]
) -> None:
    """Run a session for every connection until cancelled.

    Args:
        listener: an open socket; this function closes it.
        services: the parts of the broker to serve.
        advertised: maps the address that a client connected to, to the address that it is told to use.
    """

    async def serve(accepted: Accepted) -> None:
        if services.traffic.connections >= services.budgets.connections_max:
            await _refuse(accepted.stream, services.budgets.connections_max)
            return
        service_url = f"pulsar://{advertised(accepted.reached)}"
        services.traffic.connections += 1
        try:
            async with trio.open_nursery() as nursery:
                peer = Peer(accepted.client.host)
                await open_session(accepted.stream, peer, services, service_url, nursery).run()
                nursery.cancel_scope.cancel()
        except* Exception:
            # A task of a producer or consumer failed. As in the session, that ends only this connection.
            log.exception("connection ended by an unexpected error")
        finally:
            services.traffic.connections -= 1

    await serve_clients(listener, serve)


async def _refuse(stream: trio.abc.Stream, connections_max: int) -> None:
    """Tell a client that there are too many connections. Clients retry with growing pauses."""
    reason = f"The broker has {connections_max} connections, its maximum. Try again later, or raise connections_max."
    log.warning("connection refused", reason=reason)
    with trio.move_on_after(REFUSE_SECONDS_MAX):
        async with stream:
            try:
                await stream.send_all(encode_command(commands.error(NO_REQUEST, pb.ServiceNotReady, reason)))
            except trio.BrokenResourceError:
                return


def open_session(
    stream: trio.abc.Stream, peer: Peer, services: PulsarServices, service_url: str, nursery: trio.Nursery
) -> PulsarSession:
    """Make a session with all groups of commands, over any stream. Its `run` serves the client."""
    budgets = services.budgets
    connection = Connection(Outbox(budgets.sending), budgets.receiving.share(), peer, service_url, nursery)
    session = PulsarSession(
        stream,
        connection,
        server_version=services.server_version,
        message_bytes_max=services.message_bytes_max,
        ports=services.ports,
    )
    session.use(LookupHandler(connection, services.locator, services.partitioned, services.regular))
    schemas = SchemaGate(services.schemas, services.topics, services.layouts, services.segment_work)
    session.use(SchemaHandler(connection, schemas))
    registry = Registry(services.reports)
    session.use(ProducerHandler(connection, registry, services.topics, schemas, services.traffic))
    session.use(
        ScalableHandler(
            connection,
            registry,
            services.layouts,
            services.feeds,
            services.groups,
            services.elections,
            services.segment_owners,
            services.dags,
        )
    )
    session.use(NamespaceHandler(connection, registry, services.namespaces))
    session.use(ConsumerHandler(connection, registry, services.topics, services.controller, schemas, services.traffic))
    session.use(TransactionHandler(connection, services.coordinator, services.traffic))
    session.use(CoordinatorWatchHandler(connection, services.shards))
    return session
