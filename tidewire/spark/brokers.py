"""The brokers as one planner or one task sees them: a connection by address, and who serves a topic.

A topic or segment may be at any broker and may move, so everybody asks anew where it is, by LOOKUP at the broker the
user named, and follows the answer. Nothing about where things are travels from the planner to the tasks.
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Final, Protocol, Self

from tidewire.protocol.addresses import BrokerAddress
from tidewire.protocol.errors import ConnectFailed, ProtocolViolation
from tidewire.protocol.lookup import Lookup, named_address
from tidewire.spark.connection import BlockingConnection
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

Connect = Callable[[BrokerAddress, BrokerAddress | None], BlockingConnection]
"""Connects to an address, which is to pass everything on to the second one, if there is one."""


class Contact(Protocol):
    """What the options say of brokers."""

    @property
    def service(self) -> BrokerAddress:
        """The one that the user named."""
        ...

    @property
    def operation_timeout_seconds(self) -> float:
        """How long one may take to answer."""
        ...


class Brokers:
    """Connections that live as long as the block that this object manages."""

    def __init__(self, options: Contact, connect: Connect | None = None) -> None:
        """The brokers behind `options.service`; `connect` makes connections, over TCP unless it is given."""
        self.timeout_seconds: Final = options.operation_timeout_seconds
        """How long one may take to answer."""
        self._service = options.service
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
        """End all connections."""
        self._open.close()

    def service(self) -> BlockingConnection:
        """A connection to the broker that the user named.

        Raises:
            TidewireError: it could not be made.
        """
        return self._connection(self._service)

    def at(self, url: str, what: str) -> BlockingConnection:
        """A connection to a broker that another one named, as the one that serves `what`.

        Raises:
            TidewireError: it could not be made.
        """
        connection = self.service()
        return self._connection(named_address(url, connection.address, what))

    def connected(self) -> Iterable[BlockingConnection]:
        """The connections that have been made."""
        return self._connections.values()

    def owner_of(self, topic: str) -> BlockingConnection:
        """A connection to the broker that serves the topic, segment or partition now.

        Raises:
            TidewireError: there is no such topic, or nobody could be asked.
        """
        lookup = Lookup(topic, self._service)
        connection = self._connection(*lookup.route)
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
            if address != self._service:
                raise
            raise ConnectFailed(f"{error}; check that a broker runs there, and option service_url") from error
        except ProtocolViolation as error:
            if address != self._service:
                raise
            question = "does option service_url name the port for pulsar://, not that for HTTP or TLS?"
            raise ProtocolViolation(f"{error}; {question}") from error


def connect_by_tcp(
    timeout_seconds: float, address: BrokerAddress, proxied_to: BrokerAddress | None
) -> BlockingConnection:
    """A connection that has shaken hands."""
    return BlockingConnection.open(address, timeout_seconds=timeout_seconds, proxied_to=proxied_to)
