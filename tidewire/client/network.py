"""How the parts of one client reach brokers: connections by address, lookups by topic, and retries.

It holds what one client shares: its task group, its settings, and one connection per broker. It makes a connection when
one is needed, and again when a lost one is needed. Whoever holds a topic open (a producer, a consumer, a watch) calls
`owner_of` again after each loss, because another broker may own the topic then.
"""

import socket
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from random import Random
from typing import Any, Final, TypeVar

import anyio
import anyio.abc

from tidewire.client.background import Background, BackgroundTask, OnClose, nobody
from tidewire.client.backoff import Backoff
from tidewire.client.connection import Connection, ConnectionStatistics, Dial
from tidewire.client.errors import Closed
from tidewire.client.troubles import ShownTroubles
from tidewire.protocol.addresses import BrokerAddress, ServiceAddresses
from tidewire.protocol.backoff import DELAY_SECONDS_MAX
from tidewire.protocol.errors import ConnectFailed, OperationTimedOut, TidewireError, fresh
from tidewire.protocol.lookup import Lookup, named_address
from tidewire.protocol.refusals import TRANSIENT
from tidewire.protocol.silence import KEEP_ALIVE_SECONDS
from tidewire.protocol.sockets import SOCKET_OPTIONS
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

CLOSE_SECONDS_MAX: Final = 2.0
"""How long closing something may take, cancelled or not. The broker notices a lost client even without a goodbye."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Settings:
    """The client's time limits."""

    connect_timeout_seconds: float = 10.0
    """The time limit for one connection attempt."""
    operation_timeout_seconds: float = 30.0
    """The time limit for a request, including reconnects."""
    reconnect_seconds_max: float = DELAY_SECONDS_MAX
    """The longest pause between two attempts to reach an unreachable broker."""
    keep_alive_seconds: float = KEEP_ALIVE_SECONDS
    """How long a broker may be silent before it is asked for a sign of life, and then how long that may take."""


async def dial_tcp(address: BrokerAddress) -> anyio.abc.ByteStream:
    """A TCP connection that sends small packets at once, and whose dead peer the kernel notices.

    Raises:
        OSError: nothing answers there.
    """
    stream = await anyio.connect_tcp(address.host, address.port)
    plain = stream.extra(anyio.abc.SocketAttribute.raw_socket)  # noqa: S610 - no Django here
    for level, option, value in SOCKET_OPTIONS:
        if hasattr(socket, option):
            plain.setsockopt(getattr(socket, level), getattr(socket, option), value)
    return stream


@dataclass(eq=False, slots=True)
class _Attempt:
    """To connect to a broker."""

    ended: anyio.Event
    error: TidewireError | None = None


class Network:
    """The brokers, as one client sees them."""

    def __init__(
        self,
        service: ServiceAddresses,
        tasks: anyio.abc.TaskGroup,
        *,
        settings: Settings,
        dial: Dial = dial_tcp,
        random: Random | None = None,
    ) -> None:
        """The brokers behind `service`.

        Args:
            service: some of them; the client finds the others by lookups.
            tasks: runs the connections and whatever `start` is given.
            settings: the time limits.
            dial: opens streams.
            random: the source of the back-off's jitter.
        """
        self._service = service
        self.settings = settings
        self.troubles: Final = ShownTroubles()
        """Why parts of the client retry at the moment."""
        self._background = Background(tasks)
        self._dial = dial
        self._random = random or Random()  # noqa: S311 - spreads reconnects, guards nothing
        self._connections: dict[tuple[BrokerAddress, BrokerAddress | None], Connection] = {}
        self._dialing: dict[tuple[BrokerAddress, BrokerAddress | None], _Attempt] = {}

    def statistics(self) -> list[ConnectionStatistics]:
        """The open connections."""
        return [connection.statistics() for connection in self._connections.values() if connection.is_open]

    def backoff(self) -> Backoff:
        """The delays for one series of attempts."""
        return Backoff(self._random, self.settings.reconnect_seconds_max)

    def start(self, work: Coroutine[Any, Any, None], name: str, on_close: OnClose | None = None) -> BackgroundTask:
        """Run `work` until it ends, is cancelled by its task, or the client closes. No other cancellation reaches it.

        Args:
            work: what to run.
            name: the task's name, for diagnosis.
            on_close: called if the client closes before the work has ended.

        Raises:
            Closed: the client is closed.
        """
        return self._background.start(work, name, on_close=on_close or nobody)

    async def service(self) -> Connection:
        """A connection to one of the brokers whose addresses the client was given. It tries each once.

        Raises:
            ConnectFailed, Refused, ProtocolViolation: there is none, and none could be made now.
        """
        for _ in range(len(self._service)):
            address = self._service.current
            try:
                return await self.connection(address)
            except ConnectFailed as error:
                self._service.failed(address)
                last = error
        if len(self._service) == 1:
            raise last
        raise ConnectFailed(f"none of the brokers {self._service} can be reached; the last attempt: {last}") from last

    @property
    def service_address(self) -> BrokerAddress:
        """The address that `service` tries next."""
        return self._service.current

    async def connection(self, address: BrokerAddress, proxied_to: BrokerAddress | None = None) -> Connection:
        """The connection to a broker, made if there is none.

        Tasks that want the same one at the same time share the attempt, and its failure: a stopped broker costs all of
        them one timeout together.

        Raises:
            As `service`.
        """
        key = (address, proxied_to)
        while True:
            if (open_one := self._open(key)) is not None:
                return open_one
            attempt = self._dialing.get(key)
            if attempt is None:
                return await self._dialed(key)
            await attempt.ended.wait()
            if attempt.error is not None:
                raise fresh(attempt.error)
            # It succeeded, or its task was cancelled.

    async def _dialed(self, key: tuple[BrokerAddress, BrokerAddress | None]) -> Connection:
        attempt = self._dialing[key] = _Attempt(anyio.Event())
        try:
            self._connections[key] = connection = await self._connect(*key)
        except TidewireError as error:
            attempt.error = error
            raise
        finally:
            del self._dialing[key]
            attempt.ended.set()
        return connection

    def _open(self, key: tuple[BrokerAddress, BrokerAddress | None]) -> Connection | None:
        connection = self._connections.get(key)
        return connection if connection is not None and connection.is_open else None

    async def _connect(self, address: BrokerAddress, proxied_to: BrokerAddress | None) -> Connection:
        self._background.check_open()
        settings = self.settings
        try:
            with anyio.fail_after(settings.connect_timeout_seconds):
                stream = await self._dial(address)
        except TimeoutError as error:
            raise ConnectFailed(f"{address} did not answer within {settings.connect_timeout_seconds} s") from error
        except OSError as error:
            raise ConnectFailed(f"cannot connect to {address}: {error.__cause__ or error}") from error
        connection = Connection(
            stream,
            address,
            proxied_to=proxied_to,
            connect_timeout_seconds=settings.connect_timeout_seconds,
            operation_timeout_seconds=settings.operation_timeout_seconds,
            keep_alive_seconds=settings.keep_alive_seconds,
        )
        await self._background.tasks.start(connection.run, name=f"connection to {address}")
        try:
            self._background.check_open()
        except Closed:
            # The client was closed meanwhile, before it knew of this connection.
            await connection.aclose()
            raise
        return connection

    async def owner_of(self, topic: str) -> Connection:
        """A connection to the broker that currently serves the topic or segment.

        Raises:
            Refused: there is no such topic, or the lookup was refused.
            ConnectFailed, ConnectionLost, OperationTimedOut, ProtocolViolation: no broker could be asked.
        """
        connection = await self.service()
        lookup = Lookup(topic, connection.address)
        while not lookup.is_done:
            lookup.hear(await connection.request(lookup.ask, pb.CommandLookupTopicResponse), connection.address)
            connection = await self.connection(*lookup.route)
        return connection

    async def connection_to(self, url: str, by: BrokerAddress, what: str) -> Connection:
        """The connection to the broker of `what`, at the address that the broker at `by` gave.

        Raises:
            As `service`.
        """
        return await self.connection(named_address(url, by, what))

    async def persistently(self, work: Callable[[], Awaitable[T]], what: str) -> T:
        """Do `work`, and retry it after transient failures until it succeeds or the operation timeout has passed.

        Raises:
            OperationTimedOut: it did not succeed in time; the last failure is its cause.
            TidewireError: the error of `work`, if it is not transient.
        """
        backoff = self.backoff()
        last: TidewireError | None = None
        part = object()
        try:
            with anyio.fail_after(self.settings.operation_timeout_seconds):
                while True:
                    try:
                        return await work()
                    except TRANSIENT as error:
                        last = error
                        self.troubles.met(part, error)
                    await backoff.wait()
        except TimeoutError as error:
            seconds = self.settings.operation_timeout_seconds
            raise OperationTimedOut(f"{what} did not succeed within {seconds} s") from (last or error)
        finally:
            self.troubles.over(part)

    async def aclose(self) -> None:
        """End the background work, send what it has left in the buffers, and end the connections."""
        with anyio.CancelScope(shield=True):
            # Each task bounds the time of its own clean-up.
            await self._background.aclose()
            with anyio.move_on_after(CLOSE_SECONDS_MAX):
                async with anyio.create_task_group() as tasks:
                    for connection in self._connections.values():
                        tasks.start_soon(connection.aclose)
