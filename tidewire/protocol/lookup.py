"""Finds the broker that serves a topic: which broker to ask first, and which one next. No IO.

    connection = connect(service)
    lookup = Lookup(topic, service)
    while not lookup.is_done:
        lookup.hear(connection.request(lookup.ask, pb.CommandLookupTopicResponse), connection.address)
        connection = connect(*lookup.route)

Any broker may own a topic or segment, and ownership moves. So each new session begins with a lookup.
"""

from typing import Final, NamedTuple

from tidewire.protocol.addresses import BrokerAddress, parse_address
from tidewire.protocol.errors import InvalidName, ProtocolViolation
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

LOOKUP_REDIRECTS_MAX: Final = 20
"""How many brokers one lookup may ask."""


class Route(NamedTuple):
    """How to reach a broker."""

    address: BrokerAddress
    """The address to connect to."""
    proxied_to: BrokerAddress | None = None
    """The broker behind the proxy, if a proxy listens at the address."""


class Lookup:
    """See the module's docstring."""

    def __init__(self, topic: str, service: BrokerAddress) -> None:
        """Begin a lookup of `topic` at the broker or proxy that the user named."""
        self.route = Route(service)
        """Leads to the broker to ask next. Once `is_done`, it leads to the broker that serves the topic."""
        self.is_done = False
        """Whether the broker that serves the topic is known."""
        self._topic = topic
        self._service = service
        self._is_authoritative = False
        self._asked = 0

    def ask(self, request_id: int) -> pb.BaseCommand:
        """Make the command for the broker at `route`."""
        return commands.lookup(self._topic, request_id, authoritative=self._is_authoritative)

    def hear(self, answer: pb.CommandLookupTopicResponse, by: BrokerAddress) -> None:
        """Take the answer of the broker at `by`. An answer with an error has already raised it.

        Raises:
            ProtocolViolation: the answer has no valid address, or the brokers redirect in a circle.
        """
        self._asked += 1
        named = named_address(answer.broker_service_url, by, self._topic)
        if answer.response != pb.CommandLookupTopicResponse.Redirect:
            self.is_done = True
            is_hidden = answer.proxy_through_service_url and named != self._service
            self.route = Route(self._service, named) if is_hidden else Route(named)
        elif self._asked == LOOKUP_REDIRECTS_MAX:
            raise ProtocolViolation(
                f"the brokers redirected the lookup of {self._topic} {LOOKUP_REDIRECTS_MAX} times, so it was given up"
            )
        else:
            self.route = Route(named)
            self._is_authoritative = answer.authoritative


def named_route(url: str, by: Route, what: str) -> Route:
    """Return the route to the broker of `what` that another broker has named, which was reached by `by`.

    If that one was reached through a proxy, so is the next one.

    Raises:
        ProtocolViolation: the URL is invalid. The mistake is the broker's, not the caller's.
    """
    named = named_address(url, by.address, what)
    return Route(named) if by.proxied_to is None else Route(by.address, named)


def named_address(url: str, by: BrokerAddress, what: str) -> BrokerAddress:
    """Parse the address that the broker at `by` named as the broker of `what`.

    Raises:
        ProtocolViolation: the URL is invalid. The mistake is the broker's, not the caller's.
    """
    try:
        return parse_address(url)
    except InvalidName as error:
        raise ProtocolViolation(f"{by} named no valid address for the broker of {what}: {error}") from error
