"""The producers and consumers of a topic, as the topic sees them: what it tells them."""

from typing import Protocol


class TopicClient(Protocol):
    """A producer or consumer that is connected to the topic."""

    @property
    def follows_layout(self) -> bool:
        """Whether its client is told of the topic's layout, so that it goes where that goes."""

    def topic_closed(self) -> None:
        """The topic is no longer served here: tell the client. Must not block."""


class TopicProducer(TopicClient, Protocol):
    """A producer connected to the topic."""

    @property
    def name(self) -> str:
        """Unique on the topic."""

    def topic_replaced(self) -> None:
        """The segment is sealed and clients know what replaces it: refuse what waits, close. Must not block."""
