"""The producers and consumers that are connected to a topic, and how the topic notifies them."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import Protocol

import trio

from broker.errors import ProducerNameTaken
from dispatch.consumer import Consumer
from storage.signal import Bell


class TopicClient(Protocol):
    """A producer or consumer that is connected to the topic."""

    @property
    def follows_layout(self) -> bool:
        """Whether its client gets the topic's layout, so that it can follow splits and migrations."""

    def topic_closed(self, assigned_url: str | None = None) -> None:
        """Tell the client that this broker no longer serves the topic. It must not block.

        `assigned_url` is the broker that takes the topic over, if that is known.
        """


class TopicProducer(TopicClient, Protocol):
    """A producer connected to the topic."""

    @property
    def name(self) -> str:
        """The producer's name, unique on the topic."""

    def topic_replaced(self) -> None:
        """Refuse waiting sends and close: the segment is sealed, and clients know its successors. It must not block."""


class TopicClients:
    """The clients that are connected to one topic, and when that last changed."""

    def __init__(self, topic: str, *, is_retired: bool, changes: Bell) -> None:
        """Set up; `changes` rings when clients come or go."""
        self.is_retired = is_retired
        """Whether the topic takes no more producers, because clients know its successors."""
        self._topic = topic
        self._producers: dict[str, TopicProducer] = {}
        self._producers_left = trio.Event()
        self._consumers: dict[Consumer, TopicClient] = {}
        # Consumers that accept any schema of the topic.
        self._undemanding: set[Consumer] = set()
        self._holds = 0
        self._changed = trio.Event()
        self._changes = changes
        self._used_at = -inf
        """When it was last used, by Trio's clock."""

    @property
    def producers(self) -> tuple[TopicProducer, ...]:
        """The connected producers."""
        return tuple(self._producers.values())

    @property
    def consumer_count(self) -> int:
        """The number of connected consumers and readers."""
        return len(self._consumers)

    @property
    def count(self) -> int:
        """The number of connected producers, consumers and readers."""
        return len(self._producers) + len(self._consumers)

    @property
    def is_in_use(self) -> bool:
        """Whether any client is connected."""
        return bool(self._producers or self._consumers)

    @property
    def is_demanding(self) -> bool:
        """Whether any client is connected, apart from consumers that accept any schema."""
        return bool(self._producers or self._consumers.keys() - self._undemanding)

    @property
    def old_client_count(self) -> int:
        """Count the connected producers, consumers and readers that cannot follow the topic's layout."""
        return sum(not client.follows_layout for client in (*self._producers.values(), *self._consumers.values()))

    def add_producer(self, producer: TopicProducer) -> None:
        """Register a producer under its name.

        Raises:
            ProducerNameTaken: another producer has the name.
        """
        if producer.name in self._producers:
            raise ProducerNameTaken(
                f"A producer named {producer.name} is already connected to {self._topic}. Choose another name."
            )
        self._producers[producer.name] = producer
        self._note_change()

    def remove_producer(self, producer: TopicProducer) -> bool:
        """Release the producer's name. False if it was not registered."""
        if self._producers.get(producer.name) is not producer:
            return False
        del self._producers[producer.name]
        self._note_change()
        if self.is_retired and not self._producers:
            self._producers_left.set()
        return True

    def retire(self) -> None:
        """Take no more new producers, because clients know the successors. The connected producers continue."""
        self.is_retired = True
        if not self._producers:
            self._producers_left.set()

    async def producers_left(self) -> None:
        """Wait until the last producer of a retired segment has left."""
        await self._producers_left.wait()

    def add_consumer(self, consumer: Consumer, client: TopicClient, *, takes_any_schema: bool = False) -> None:
        """Register a connected consumer, so that it is told when it is disconnected."""
        self._consumers[consumer] = client
        self._note_change()
        if takes_any_schema:
            self._undemanding.add(consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        """Undo `add_consumer`. Does nothing if the consumer was not registered."""
        if self._consumers.pop(consumer, None) is not None:
            self._note_change()
        self._undemanding.discard(consumer)

    def tell_disconnected(self) -> None:
        """Tell consumers that their subscription has disconnected to resubscribe.

        Call it after everything that disconnects consumers, also if that fails or is cancelled: they are disconnected
        in any case.
        """
        for consumer, client in tuple(self._consumers.items()):
            if consumer.was_disconnected:
                client.topic_closed()

    def send_away(self, assigned_url: str | None = None) -> None:
        """Tell all clients that this broker no longer serves the topic, and forget them.

        `assigned_url` is the broker that takes the topic over, if that is known.
        """
        for client in (*self._producers.values(), *self._consumers.values()):
            client.topic_closed(assigned_url)
        self._producers.clear()
        self._consumers.clear()
        self._undemanding.clear()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the topic loaded for the block, as a connected client does."""
        self._holds += 1
        self._note_change()
        try:
            yield
        finally:
            self._holds -= 1
            self._note_change()

    def touch(self) -> None:
        """Note that the topic is used at this moment. `wait_unused` counts from here. It wakes nobody."""
        self._used_at = trio.current_time()

    def _note_change(self) -> None:
        """Note that a use of the topic began or ended."""
        self.touch()
        changed, self._changed = self._changed, trio.Event()
        changed.set()
        self._changes.set()

    async def wait_unused(self, seconds: float) -> None:
        """Wait until the topic was unused for `seconds`, counted from this call or a later use."""
        since = trio.current_time()
        while True:
            changed = self._changed
            if self.is_in_use or self._holds:
                await changed.wait()
                continue
            with trio.CancelScope(deadline=since + seconds):
                await changed.wait()
            if changed is self._changed and self._used_at <= since:
                return
            since = max(since, self._used_at)
