"""The producers and consumers of a topic, as the topic sees them: who is connected, and what it tells them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import trio

from broker.errors import ProducerNameTaken
from dispatch.consumer import Consumer


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


class TopicClients:
    """Who is connected to one topic, and when that changed last."""

    def __init__(self, topic: str, *, is_retired: bool) -> None:
        self.is_retired = is_retired
        """Whether the topic takes no more producers, because clients know what replaces it."""
        self._topic = topic
        self._producers: dict[str, TopicProducer] = {}
        self._producers_left = trio.Event()
        self._consumers: dict[Consumer, TopicClient] = {}
        # Those of them that take messages of whatever schema the topic has.
        self._undemanding: set[Consumer] = set()
        self._holds = 0
        self._changed = trio.Event()

    @property
    def producers(self) -> tuple[TopicProducer, ...]:
        """The connected producers."""
        return tuple(self._producers.values())

    @property
    def consumer_count(self) -> int:
        """Connected consumers and readers."""
        return len(self._consumers)

    @property
    def is_in_use(self) -> bool:
        """Whether anybody is connected."""
        return bool(self._producers or self._consumers)

    @property
    def is_demanding(self) -> bool:
        """Whether anybody is connected but consumers that take any schema."""
        return bool(self._producers or self._consumers.keys() - self._undemanding)

    @property
    def old_client_count(self) -> int:
        """Connected producers, consumers and readers that will not follow the topic where its layout goes."""
        return sum(not client.follows_layout for client in (*self._producers.values(), *self._consumers.values()))

    def add_producer(self, producer: TopicProducer) -> None:
        """Register a producer under its name.

        Raises:
            ProducerNameTaken: another one has the name.
        """
        if producer.name in self._producers:
            raise ProducerNameTaken(f"a producer named {producer.name} is connected to {self._topic}")
        self._producers[producer.name] = producer
        self.touch()

    def remove_producer(self, producer: TopicProducer) -> None:
        """Give the name back; harmless when it was not registered."""
        if self._producers.get(producer.name) is producer:
            del self._producers[producer.name]
            self.touch()
            if self.is_retired and not self._producers:
                self._producers_left.set()

    def retire(self) -> None:
        """Clients know what replaces this segment: take no more producers, and go on with those there are."""
        self.is_retired = True
        if not self._producers:
            self._producers_left.set()

    async def producers_left(self) -> None:
        """Return once the last producer of a retired segment has left."""
        await self._producers_left.wait()

    def add_consumer(self, consumer: Consumer, client: TopicClient, *, takes_any_schema: bool = False) -> None:
        """Register a connected consumer, to be told when it has to go."""
        self._consumers[consumer] = client
        self.touch()
        if takes_any_schema:
            self._undemanding.add(consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        """Undo `add_consumer`; harmless when it was not registered."""
        if self._consumers.pop(consumer, None) is not None:
            self.touch()
        self._undemanding.discard(consumer)

    def tell_disconnected(self) -> None:
        """Tell those consumers that their subscription disconnected that they have to subscribe anew.

        To follow whatever disconnects them, also where that fails or is cancelled: they are disconnected all the same.
        """
        for consumer, client in tuple(self._consumers.items()):
            if consumer.was_disconnected:
                client.topic_closed()

    def send_away(self) -> None:
        """Tell everybody that the topic is no longer served here, and forget them."""
        for client in (*self._producers.values(), *self._consumers.values()):
            client.topic_closed()
        self._producers.clear()
        self._consumers.clear()
        self._undemanding.clear()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the topic loaded for the block, as a connected client does."""
        self._holds += 1
        self.touch()
        try:
            yield
        finally:
            self._holds -= 1
            self.touch()

    def touch(self) -> None:
        """Note that somebody began or ended to use the topic: `wait_unused` counts from here."""
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def wait_unused(self, seconds: float) -> None:
        """Return once nobody has used the topic for so long."""
        while True:
            changed = self._changed
            if self.is_in_use or self._holds:
                await changed.wait()
                continue
            with trio.move_on_after(seconds):
                await changed.wait()
            if changed is self._changed:
                return
