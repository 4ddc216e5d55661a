"""The brokers as one planner or one task sees them: a connection by address, and the owner of a topic.

Any broker may own a topic or segment, and ownership may move. So planner and tasks each find the owner by LOOKUP, from
a broker that the user named. The planner sends no addresses to the tasks.
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Final, Protocol, Self, TypeVar

from tidewire.protocol.addresses import BrokerAddress, ServiceAddresses
from tidewire.protocol.errors import ConnectFailed, ConnectionLost, OperationTimedOut, ProtocolViolation, TidewireError
from tidewire.protocol.lookup import Lookup, named_address
from tidewire.spark.connection import BlockingConnection
from tidewire.spark.persisting import passes, persistently
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

_Answer = TypeVar("_Answer")

Connect = Callable[[BrokerAddress, BrokerAddress | None], BlockingConnection]
"""Connects to an address. The peer forwards everything to the second address, if there is one."""


class Contact(Protocol):
    """The options that concern brokers."""

    @property
    def service(self) -> tuple[BrokerAddress, ...]:
        """The brokers that the user named."""
        ...

    @property
    def operation_timeout_seconds(self) -> float:
        """The time limit for a broker's answer."""
        ...


class Brokers:
    """Connections that last as long as the `with` block of this object."""

    def __init__(self, options: Contact, connect: Connect | None = None) -> None:
        """The brokers behind `options.service`; `connect` makes connections, over TCP unless it is given."""
        self.timeout_seconds: Final = options.operation_timeout_seconds
        """The time limit for a broker's answer."""
        self._service = ServiceAddresses(options.service)
        self._connect = connect or partial(connect_by_tcp, options.operation_timeout_seconds)
        self._connections: dict[tuple[BrokerAddress, BrokerAddress | None], BlockingConnection] = {}
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._open.close()

    def service(self) -> BlockingConnection:
        """A connection to one of the brokers that the user named. It tries each once.

        Raises:
            TidewireError: none could be made.
        """
        for _ in range(len(self._service)):
            address = self._service.current
            try:
                return self._connection(address)
            except (ConnectFailed, ConnectionLost, OperationTimedOut) as error:
                # A broker without a metadata session accepts and closes, and a stopped one says nothing.
                self._service.failed(address)
                last = error
        if len(self._service) == 1:
            raise last
        raise ConnectFailed(f"none of the brokers {self._service} can be reached; the last attempt: {last}") from last

    def at(self, url: str, what: str) -> BlockingConnection:
        """A connection to the broker of `what`, at the URL that the user's broker gave.

        Raises:
            TidewireError: it could not be made.
        """
        connection = self.service()
        return self._connection(named_address(url, connection.address, what))

    def connected(self) -> Iterable[BlockingConnection]:
        """The connections made so far."""
        return self._connections.values()

    def owner_of(self, topic: str) -> BlockingConnection:
        """A connection to the broker that currently serves the topic, segment or partition.

        Raises:
            TidewireError: there is no such topic, or no broker could be asked.
        """
        connection = self.service()
        lookup = Lookup(topic, connection.address)
        while not lookup.is_done:
            asked = connection
            lookup.hear(asked.request(lookup.ask, pb.CommandLookupTopicResponse), asked.address)
            try:
                connection = self._connection(*lookup.route)
            except ConnectFailed as error:
                raise ConnectFailed(f"{error}; {asked.address} names it as the broker of {topic}") from error
        return connection

    def _connection(self, address: BrokerAddress, proxied_to: BrokerAddress | None = None) -> BlockingConnection:
        key = (address, proxied_to)
        connection = self._connections.get(key)
        if connection is None:
            connection = self._connections[key] = self._open.enter_context(self._connected(address, proxied_to))
        return connection

    def _connected(self, address: BrokerAddress, proxied_to: BrokerAddress | None) -> BlockingConnection:
        try:
            return self._connect(address, proxied_to)
        except ConnectFailed as error:
            if address not in self._service:
                raise
            raise ConnectFailed(f"{error}; check option service_url, and that a broker runs there") from error
        except ProtocolViolation as error:
            if address not in self._service:
                raise
            question = "does option service_url name the port for pulsar://, not that for HTTP or TLS?"
            raise ProtocolViolation(f"{error}; {question}") from error


def ask_persistently(brokers: Callable[[], Brokers], ask: Callable[[Brokers], _Answer], seconds: float) -> _Answer:
    """Return what `ask` returns. Retry it for `seconds`: a broker may have just ended, or hand a segment over.

    If none of the brokers that the user named can be reached at first, nothing is retried: the names may be wrong.

    Args:
        brokers: opens connections; called for each attempt.
        ask: may be called several times.
        seconds: how long to retry after the first error.

    Raises:
        TidewireError: none could be reached at first, the time is over, or an error does not pass.
    """
    is_reached = False

    def attempt() -> _Answer:
        nonlocal is_reached
        with brokers() as reached:
            reached.service()
            is_reached = True
            return ask(reached)

    def may_pass(error: TidewireError) -> bool:
        return is_reached and passes(error)

    return persistently(attempt, seconds, may_pass)


def connect_by_tcp(
    timeout_seconds: float, address: BrokerAddress, proxied_to: BrokerAddress | None
) -> BlockingConnection:
    """A connection with a completed handshake."""
    return BlockingConnection.open(address, timeout_seconds=timeout_seconds, proxied_to=proxied_to)
