"""The front ends: one listening socket for each protocol.

The sockets are opened before any file is touched, so a start on an address in use changes nothing. They stay open as
long as the process. One broker after another serves them (`metadata_sessions.py`). Between two brokers, clients are
refused.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, NamedTuple

import trio
from starlette.types import Receive, Scope, Send

from broker.addresses import Address, advertised_address
from broker.broker import Broker
from broker.config import BrokerSettings
from broker.entry_codecs import EntryCodecs
from broker.http.application import build_application
from broker.http.listener import serve_http
from broker.http.refusals import refusal
from broker.kafka.entry_codec import KafkaEntryCodec
from broker.kafka.listener import KafkaServices, serve_kafka
from broker.listening import adopt_listener, open_listener
from broker.pulsar.entry_codec import PulsarEntryCodec
from broker.pulsar.listener import PulsarServices, serve_pulsar
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


class FrontEnds:
    """See the module's docstring."""

    def __init__(
        self,
        settings: BrokerSettings,
        pulsar: trio.SocketListener,
        http: trio.SocketListener,
        shared: tuple[trio.SocketListener, trio.SocketListener] | None,
        internal: trio.SocketListener | None,
        kafka: trio.SocketListener | None,
    ) -> None:
        self._settings = settings
        self._pulsar = pulsar
        self._http = http
        self._shared = shared
        self.internal = internal
        """Where other brokers on this data folder connect; None if it is alone."""
        self._kafka = kafka
        self._bound = _bound(pulsar)

    @property
    def service_url(self) -> str:
        """Where other brokers redirect this broker's clients."""
        return f"pulsar://{self._advertised(self._bound)}"

    @property
    def kafka_address(self) -> Address | None:
        """Where other brokers send Kafka's clients; None if this broker does not serve them."""
        if self._kafka is None:
            return None
        bound = _bound(self._kafka)
        # A listener on all networks has the host of `service_url`.
        reached = Address(self._advertised(self._bound).host, bound.port) if bound.is_wildcard else bound
        return self._advertised_kafka(reached)

    @property
    def http_url(self) -> str:
        """Where other brokers reach this broker's HTTP. A listener on all networks has the host of `service_url`."""
        bound = _bound(self._http)
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
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_pulsar, _again(self._pulsar), PulsarServices.of(broker), self._advertised)
            http = await nursery.start(serve_http, application, _again(self._http))
            if self._shared is not None:
                pulsar_too, http_too = self._shared
                nursery.start_soon(serve_pulsar, _again(pulsar_too), PulsarServices.of(broker), self._advertised)
                await nursery.start(serve_http, application, _again(http_too))
            kafka = None
            if self._kafka is not None:
                kafka = _bound(self._kafka)
                services = KafkaServices.of(broker)
                nursery.start_soon(serve_kafka, _again(self._kafka), services, self._advertised_kafka)
            task_status.started(Ready(self._bound, http, kafka))

    async def turn_away(self) -> None:
        """Refuse every client of this broker's own address until cancelled. Others may serve a shared address."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_close_connections, _again(self._pulsar))
            if self._kafka is not None:
                nursery.start_soon(_close_connections, _again(self._kafka))
            nursery.start_soon(serve_http, _refuse_http, _again(self._http))

    def _advertised(self, reached: Address) -> Address:
        return advertised_address(self._settings.advertised_pulsar, bound=self._bound, reached=reached)

    def _advertised_kafka(self, reached: Address) -> Address:
        assert self._kafka is not None, "asked about Kafka's clients alone"
        return advertised_address(self._settings.advertised_kafka, bound=_bound(self._kafka), reached=reached)


@asynccontextmanager
async def open_front_ends(settings: BrokerSettings, shared: Shared | None = None) -> AsyncIterator[FrontEnds]:
    """Open the listening sockets for the length of the context, and take over those that are `shared`.

    Raises:
        ListenerError: the broker cannot listen on an address.
    """
    async with AsyncExitStack() as stack:
        pulsar = await open_listener(settings.pulsar)
        stack.push_async_callback(pulsar.aclose)
        http = await open_listener(settings.http)
        stack.push_async_callback(http.aclose)
        too = None
        if shared is not None:
            too = adopt_listener(shared.pulsar), adopt_listener(shared.http)
            for listener in too:
                stack.push_async_callback(listener.aclose)
        internal = None
        if settings.internal is not None:
            internal = await open_listener(settings.internal)
            stack.push_async_callback(internal.aclose)
        kafka = None
        if settings.kafka is not None:
            kafka = await open_listener(settings.kafka)
            stack.push_async_callback(kafka.aclose)
        yield FrontEnds(settings, pulsar, http, too, internal, kafka)


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
