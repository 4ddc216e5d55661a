"""The Pulsar listener: accepts connections and gives each a session with every group of commands."""

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Self

import structlog
import trio

from broker.addresses import Address
from broker.broker import Broker
from broker.budgets import Budgets
from broker.cluster.elections import Elections
from broker.layouts.store import Layouts
from broker.pulsar.consuming import ConsumerHandler
from broker.pulsar.layout_sessions import EncodedDags
from broker.pulsar.lookup import LookupHandler
from broker.pulsar.namespaces import NamespaceHandler
from broker.pulsar.outbox import Outbox
from broker.pulsar.producing import ProducerHandler
from broker.pulsar.scalable import ScalableHandler
from broker.pulsar.schemas import SchemaGate, SchemaHandler
from broker.pulsar.session import Session
from broker.pulsar.transactions import TransactionHandler
from broker.pulsar.unsupported import Peer
from broker.scalable.consumer_groups import ConsumerGroups
from broker.scalable.controller import Controller
from broker.scalable.feeds import LayoutFeeds
from broker.scalable.namespaces import NamespaceFeeds
from broker.schemas.registry import Schemas
from broker.topics import Topics
from broker.traffic import Traffic
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import NO_REQUEST
from txn.coordinator import Coordinator

KEEPALIVE_IDLE_SECONDS: Final = 30
KEEPALIVE_INTERVAL_SECONDS: Final = 10
KEEPALIVE_PROBES: Final = 3
USER_TIMEOUT_MS: Final = 60_000
"""How long sent bytes may stay unacknowledged before the peer counts as dead (TCP_USER_TIMEOUT)."""

REFUSE_SECONDS_MAX: Final = 1
"""How long a client for which there is no place may take to be told."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PulsarServices:
    """What the sessions of this listener translate for."""

    topics: Topics
    controller: Controller
    layouts: Layouts
    feeds: LayoutFeeds
    namespaces: NamespaceFeeds
    groups: ConsumerGroups
    elections: Elections
    schemas: Schemas
    coordinator: Coordinator
    traffic: Traffic
    budgets: Budgets
    server_version: str
    message_bytes_max: int
    dags: EncodedDags = field(default_factory=EncodedDags)

    @classmethod
    def of(cls, broker: Broker) -> Self:
        """What a broker offers to Pulsar's clients."""
        base = broker.foundation
        return cls(
            topics=broker.topics,
            controller=broker.controller,
            layouts=broker.layouts,
            feeds=broker.feeds,
            namespaces=broker.namespaces,
            groups=broker.groups,
            elections=broker.elections,
            schemas=broker.schemas,
            coordinator=broker.transactions.coordinator,
            traffic=base.traffic,
            budgets=base.budgets,
            server_version=f"Tidewire {base.version}",
            message_bytes_max=int(base.settings.message_bytes_max),
        )


async def serve_pulsar(
    listener: trio.SocketListener, services: PulsarServices, advertised: Callable[[Address], Address]
) -> None:
    """Run a session for every connection until cancelled.

    Args:
        listener: an open socket, of which this takes possession.
        services: what is behind the protocol.
        advertised: given the address by which a client reached us, the one it is told to connect to.
    """

    async def handle(stream: trio.SocketStream) -> None:
        if services.traffic.connections >= services.budgets.connections_max:
            await _refuse(stream, services.budgets.connections_max)
            return
        _keep_alive(stream)
        reached = Address(*stream.socket.getsockname()[:2])
        services.traffic.connections += 1
        try:
            async with trio.open_nursery() as nursery:
                peer = Peer(_host_of_peer(stream))
                session = _session(stream, peer, services, f"pulsar://{advertised(reached)}", nursery)
                await session.run()
                nursery.cancel_scope.cancel()
        except* Exception:
            # A producer's or consumer's task failed; as in the session, that ends this connection alone.
            log.exception("connection ended by an unexpected error")
        finally:
            services.traffic.connections -= 1

    await trio.serve_listeners(handle, [listener])


async def _refuse(stream: trio.SocketStream, connections_max: int) -> None:
    """Tell a client that there is no place for it. Clients try again, with growing pauses."""
    reason = f"The broker has {connections_max} connections, which is its bound; try again, or raise connections_max."
    log.warning("connection refused", reason=reason)
    async with stream:
        # The socket's buffer is empty, so this does not wait for the client.
        with trio.move_on_after(REFUSE_SECONDS_MAX):
            try:
                await stream.send_all(encode_command(commands.error(NO_REQUEST, pb.ServiceNotReady, reason)))
            except trio.BrokenResourceError:
                return


def _session(
    stream: trio.SocketStream, peer: Peer, services: PulsarServices, service_url: str, nursery: trio.Nursery
) -> Session:
    outbox, share = Outbox(services.budgets.sending), services.budgets.receiving.share()
    session = Session(
        stream,
        outbox=outbox,
        peer=peer,
        share=share,
        server_version=services.server_version,
        message_bytes_max=services.message_bytes_max,
    )
    session.use(LookupHandler(outbox, service_url=service_url))
    schemas = SchemaGate(services.schemas, services.topics, services.layouts)
    session.use(SchemaHandler(outbox, schemas))
    session.use(ProducerHandler(outbox, peer, share, services.topics, schemas, services.traffic, nursery))
    scalable = ScalableHandler(
        outbox,
        services.layouts,
        services.feeds,
        services.groups,
        services.elections,
        services.dags,
        service_url=service_url,
    )
    session.use(scalable)
    session.use(NamespaceHandler(outbox, services.namespaces, nursery))
    session.use(
        ConsumerHandler(
            outbox, share, services.topics, services.controller, scalable, schemas, services.traffic, nursery
        )
    )
    session.use(TransactionHandler(outbox, services.coordinator, service_url=service_url))
    return session


def _host_of_peer(stream: trio.SocketStream) -> str:
    try:
        return str(stream.socket.getpeername()[0])
    except OSError:
        return "one that has left"


def _keep_alive(stream: trio.SocketStream) -> None:
    """Let the kernel find dead peers, so that no timer of ours has to (docs/design.md#dispatch)."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_SECONDS)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_SECONDS)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
