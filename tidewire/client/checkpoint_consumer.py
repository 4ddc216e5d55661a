"""Reading a topic for programs that store the position themselves, together with their results.

It is a reader (reader.py) with another position: that of the whole consumer instead of one message. This position also
knows the finished segments, and those that were begun but have delivered nothing.
"""

from datetime import datetime
from typing import Literal, TypeAlias

from tidewire.client.checkpoint import Checkpoint
from tidewire.client.network import Network
from tidewire.client.reader import Reader
from tidewire.client.schema import Schema, T
from tidewire.client.seeking import milliseconds_of

CheckpointStart: TypeAlias = Literal["earliest", "latest"] | Checkpoint | datetime
"""Where to begin: at the first message, after the last one, at a checkpoint, or at a time."""


class CheckpointConsumer(Reader[T]):
    """Reads a topic, scalable or not, and returns its position. Made by `Client.checkpoint_consumer`."""

    def __init__(
        self, network: Network, topic: str, start: CheckpointStart, queue_messages_max: int, schema: Schema[T]
    ) -> None:
        """For the client's own use; `open` comes next."""
        since_ms = None
        if isinstance(start, datetime):
            since_ms = milliseconds_of(start)
            start = "earliest"
        begin = "earliest" if isinstance(start, Checkpoint) else start
        super().__init__(network, topic, begin, queue_messages_max, schema)
        self._since_ms = since_ms
        if isinstance(start, Checkpoint):
            self._places = start.places
            self._since_ms = start.since_ms
            # The segments that it names have been begun, and some had delivered a message.
            self._is_past_since = frozenset(start.places) - start.waiting
            self._start_finished = start.finished

    def checkpoint(self) -> Checkpoint:
        """The position behind the last message that `receive` returned, on all segments together.

        A consumer that starts from it receives exactly what this one would receive next, even if the topic is split or
        merged meanwhile. One exception: when the chunks of several messages interleave, some messages may come again.
        The broker does not learn the position: store it (`to_bytes`) with your results.

        Raises:
            TidewireError: the consumer has failed or is closed.
        """
        self._inbox.check()
        places, waiting = {}, set()
        for segment_id, consumer in self._segments.items():
            if consumer.is_finished:
                continue
            places[segment_id] = consumer.place
            if consumer.since_ms is not None:
                waiting.add(segment_id)
        done = self._finished.union(self._segments.keys() - places.keys())
        return Checkpoint(places, frozenset(done), self._since_ms, frozenset(waiting))
