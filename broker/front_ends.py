"""The front ends: one listening socket for each protocol.

The sockets are opened before any file is touched, so a start on an address in use changes nothing. They stay open as
long as the process. One broker after another serves them (`metadata_sessions.py`). Between two brokers, clients are
refused.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final, NamedTuple

import trio
from starlette.types import Receive, Scope, Send

from broker.addresses import Address, advertised_address
from broker.broker import Broker
from broker.config import BrokerSettings
from broker.console.routes import ConsoleServices
from broker.console.routes import routes as console_routes
from broker.console.settings import settings_view
from broker.entry_codecs import EntryCodecs
from broker.http.application import build_application
from broker.http.listener import serve_http
from broker.http.refusals import refusal
from broker.kafka.entry_codec import KafkaEntryCodec
from broker.kafka.listener import KafkaServices, serve_kafka
from broker.listening import adopt_listener, open_listener
from broker.ports import Ports
from broker.pulsar.entry_codec import PulsarEntryCodec
from broker.pulsar.listener import PulsarServices, serve_pulsar
from storage.backup.cut import BackupCuts
from storage.entry import EntryFormat

ENTRY_CODECS: Final = EntryCodecs({EntryFormat.PULSAR: PulsarEntryCodec(), EntryFormat.KAFKA: KafkaEntryCodec()})
"""What topics ask about the entries that each front end writes."""


class Ready(NamedTuple):
    """The addresses of a broker that accepts connections."""

    pulsar: Address
    http: Address
    kafka: Address | None = None
    """None if Kafka's protocol is not served."""


class Shared(NamedTuple):
    """Descriptors of listening sockets that several brokers of this machine share.

    Each connection goes to one of them. So a stopped broker gets none. Clients begin here, and are then told the
    owner's own address.
    """

    pulsar: int
    http: int
    kafka: int | None = None
    """None if Kafka's protocol is not served."""


class Listeners(NamedTuple):
    """Open sockets, one for each protocol."""

    pulsar: trio.SocketListener
    http: trio.SocketListener
    kafka: trio.SocketListener | None
    """None if Kafka's protocol is not served."""


class FrontEnds:
    """See the module's docstring."""

    def __init__(
        self,
        settings: BrokerSettings,
        own: Listeners,
        shared: Listeners | None,
        internal: trio.SocketListener | None,
    ) -> None:
        self._settings = settings
        self._own = own
        self._shared = shared
        self.internal = internal
        """Where other brokers on this data folder connect; None if it is alone."""
        self._bound = _bound(own.pulsar)
        kafka = self.kafka_address
        self._ports = Ports(self.service_url, self.http_url, None if kafka is None else str(kafka))

    @property
    def service_url(self) -> str:
        """Where other brokers redirect this broker's clients."""
        return f"pulsar://{self._advertised(self._bound)}"

    @property
    def kafka_address(self) -> Address | None:
        """Where other brokers send Kafka's clients; None if this broker does not serve them."""
        if self._own.kafka is None:
            return None
        bound = _bound(self._own.kafka)
        # A listener on all networks has the host of `service_url`.
        reached = Address(self._advertised(self._bound).host, bound.port) if bound.is_wildcard else bound
        return self._advertised_kafka(reached)

    @property
    def http_url(self) -> str:
        """Where other brokers reach this broker's HTTP. A listener on all networks has the host of `service_url`."""
        bound = _bound(self._own.http)
        host = self._advertised(self._bound).host if bound.is_wildcard else bound.host
        return f"http://{Address(host, bound.port)}"

    async def serve(self, broker: Broker, *, task_status: trio.TaskStatus[Ready] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled, then end every connection. It reports as started once it accepts connections."""
        application = build_application(
            broker.administration,
            broker.monitor,
            broker.metadata,
            broker.cluster_administration,
            hosts=_hosts_of(self._settings),
            version=broker.foundation.version,
            console=console_routes(
                ConsoleServices(
                    store=broker.metadata,
                    monitor=broker.monitor,
                    cluster=broker.cluster_administration,
                    live=broker.live,
                    now_ms=broker.foundation.now_ms,
                    kafka_namespace=self._settings.kafka_namespace,
                    settings=settings_view(self._settings, broker.foundation.version),
                )
            ),
            cuts=_cuts_of(broker),
            retention_default=broker.retention.default,
        )
        async with trio.open_nursery() as nursery:
            each = [self._own] if self._shared is None else [self._own, self._shared]
            bound = []
            for listeners in each:
                nursery.start_soon(
                    serve_pulsar, _again(listeners.pulsar), PulsarServices.of(broker, self._ports), self._advertised
                )
                bound.append(
                    await nursery.start(partial(serve_http, application, _again(listeners.http), ports=self._ports))
                )
            kafka = None
            if self._own.kafka is not None:
                kafka = _bound(self._own.kafka)
                too = [_again(listeners.kafka) for listeners in each if listeners.kafka is not None]
                nursery.start_soon(serve_kafka, too, KafkaServices.of(broker, self._ports), self._advertised_kafka)
            task_status.started(Ready(self._bound, bound[0], kafka))

    async def turn_away(self) -> None:
        """Refuse every client of this broker's own address until cancelled. Others may serve a shared address."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_close_connections, _again(self._own.pulsar))
            if self._own.kafka is not None:
                nursery.start_soon(_close_connections, _again(self._own.kafka))
            nursery.start_soon(partial(serve_http, _refuse_http, _again(self._own.http), ports=self._ports))

    def _advertised(self, reached: Address) -> Address:
        return advertised_address(self._settings.advertised_pulsar, bound=self._bound, reached=reached)

    def _advertised_kafka(self, reached: Address) -> Address:
        assert self._own.kafka is not None, "asked about Kafka's clients alone"
        return advertised_address(self._settings.advertised_kafka, bound=_bound(self._own.kafka), reached=reached)


@asynccontextmanager
async def open_front_ends(settings: BrokerSettings, shared: Shared | None = None) -> AsyncIterator[FrontEnds]:
    """Open the listening sockets for the length of the context, and take over those that are `shared`.

    Raises:
        ListenerError: the broker cannot listen on an address.
    """
    async with AsyncExitStack() as stack:

        async def opened(address: Address, setting: str, *, is_optional: bool = False) -> trio.SocketListener:
            listener = await open_listener(address, setting, is_optional=is_optional)
            return await stack.enter_async_context(listener)

        own = Listeners(
            await opened(settings.pulsar, "--pulsar"),
            await opened(settings.http, "--http"),
            None if settings.kafka is None else await opened(settings.kafka, "--kafka", is_optional=True),
        )
        internal = None if settings.internal is None else await opened(settings.internal, "--internal")
        too = None
        if shared is not None:
            too = Listeners(
                adopt_listener(shared.pulsar),
                adopt_listener(shared.http),
                None if shared.kafka is None else adopt_listener(shared.kafka),
            )
            for listener in too:
                if listener is not None:
                    await stack.enter_async_context(listener)
        yield FrontEnds(settings, own, too, internal)


async def _refuse_http(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer 503 to every HTTP request."""
    if scope["type"] == "http":
        reason = "The broker has lost its session in the metadata store and waits for a new one. Check the store."
        await refusal(503, reason)(scope, receive, send)


async def _close_connections(listener: trio.SocketListener) -> None:
    """Accept and close every connection until cancelled. Clients then retry with growing delays.

    In the listener's queue they would wait until their operations time out. This function closes the listener.
    """
    await trio.serve_listeners(trio.SocketStream.aclose, [listener])


def _bound(listener: trio.SocketListener) -> Address:
    """Return the address that a socket listens on, with its real port."""
    return Address(*listener.socket.getsockname()[:2])


def _again(listener: trio.SocketListener) -> trio.SocketListener:
    """Return another handle of a listening socket. Each broker closes its own handle, and the socket stays open."""
    return trio.SocketListener(listener.socket.dup())


def _hosts_of(settings: BrokerSettings) -> set[str]:
    """Return the host names that HTTP clients may use, besides those of this machine alone."""
    addresses = {settings.http, settings.pulsar, settings.advertised_pulsar or settings.pulsar}
    return {address.host for address in addresses if not address.is_wildcard}.union(settings.http_hosts)


def _cuts_of(broker: Broker) -> BackupCuts:
    base = broker.foundation
    return BackupCuts(base.files, base.settings.data_dir, base.metadata, base.now_ms)
