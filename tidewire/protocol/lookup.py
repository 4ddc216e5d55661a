"""Finding the broker that serves a topic: whom to ask, and whom next, until one is named. No IO.

    lookup = Lookup(topic, service)
    while True:
        connection = connect(*lookup.route)
        if lookup.is_done:
            return connection
        lookup.hear(connection.request(lookup.ask, pb.CommandLookupTopicResponse), connection.address)

A topic or segment may be at any broker and may move. So everybody asks anew where it is, and follows the answer.
"""

from typing import Final, NamedTuple

from tidewire.protocol.addresses import BrokerAddress, parse_address
from tidewire.protocol.errors import InvalidName, ProtocolViolation
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

LOOKUP_REDIRECTS_MAX: Final = 20
"""How many brokers may be asked for one topic."""


class Route(NamedTuple):
    """How a broker is reached."""

    address: BrokerAddress
    """Where to connect to."""
    proxied_to: BrokerAddress | None = None
    """The broker that a proxy at the address is to pass everything on to."""


class Lookup:
    """See the module's docstring."""

    def __init__(self, topic: str, service: BrokerAddress) -> None:
        """A lookup of `topic` that begins at the broker or proxy that the user named."""
        self.route = Route(service)
        """To the broker to ask next; to the one that serves the topic once `is_done`."""
        self.is_done = False
        """Whether the broker that serves the topic is known."""
        self._topic = topic
        self._service = service
        self._is_authoritative = False
        self._asked = 0

    def ask(self, request_id: int) -> pb.BaseCommand:
        """The command for the broker at `route`."""
        return commands.lookup(self._topic, request_id, authoritative=self._is_authoritative)

    def hear(self, answer: pb.CommandLookupTopicResponse, by: BrokerAddress) -> None:
        """The broker at `by` has answered; one that fails the lookup raised an error instead.

        Raises:
            ProtocolViolation: it named no address, or brokers send each other round.
        """
        self._asked += 1
        named = named_address(answer.broker_service_url, by, self._topic)
        if answer.response != pb.CommandLookupTopicResponse.Redirect:
            self.is_done = True
            is_hidden = answer.proxy_through_service_url and named != self._service
            self.route = Route(self._service, named) if is_hidden else Route(named)
        elif self._asked == LOOKUP_REDIRECTS_MAX:
            raise ProtocolViolation(f"the lookup of {self._topic} was redirected {LOOKUP_REDIRECTS_MAX} times")
        else:
            self.route = Route(named)
            self._is_authoritative = answer.authoritative


def named_address(url: str, by: BrokerAddress, what: str) -> BrokerAddress:
    """The address of the broker that serves `what`, as another broker names it.

    Raises:
        ProtocolViolation: it is no address. That is the broker's mistake, not our caller's.
    """
    try:
        return parse_address(url)
    except InvalidName as error:
        raise ProtocolViolation(f"{by} names no broker of {what}: {error}") from error
