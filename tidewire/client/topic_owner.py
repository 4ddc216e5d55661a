"""Where a topic's next session is opened: at the broker that its last owner named, or where a lookup leads.

A broker that hands a topic over names the next owner when it closes the topic's clients (Pulsar:
`assigned_broker_service_url`). So a client goes there at once. That broker answers when it has the topic. If it does
not take the topic after all, the client pauses, and looks the topic up.
"""

from typing import Final

from tidewire.client.backoff import Backoff
from tidewire.client.connection import Connection
from tidewire.client.network import Network
from tidewire.protocol.lookup import Route, named_route


class TopicOwner:
    """See the module's docstring."""

    def __init__(self, network: Network, topic: str) -> None:
        """Nobody has named an owner of `topic` yet."""
        self._network = network
        self._topic = topic
        self._backoff: Final[Backoff] = network.backoff()
        self._named: Route | None = None

    async def connection(self) -> Connection:
        """A connection to the topic's owner. A named owner is tried once.

        Raises:
            As `Network.owner_of`.
        """
        named, self._named = self._named, None
        if named is None:
            return await self._network.owner_of(self._topic)
        return await self._network.connection(*named)

    def closed(self, by: Connection, url: str) -> None:
        """The broker behind this connection has closed a session, and has named the next owner, unless `url` is empty.

        Raises:
            ProtocolViolation: the URL is invalid.
        """
        if url:
            route = named_route(url, Route(by.address, by.proxied_to), self._topic)
            if route != (by.address, by.proxied_to):
                self._named = route

    def opened(self) -> None:
        """A session was opened, so the next pause is short."""
        self._backoff.reset()

    async def pause(self) -> None:
        """Wait before the next attempt, unless the next owner is named."""
        if self._named is None:
            await self._backoff.wait()
