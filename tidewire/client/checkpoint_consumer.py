"""Reading a topic with the position kept by the program: for those who store it together with what they make of it.

Everything is the reader's (reader.py) but the position: not that of one message, but of the consumer as a whole, which
also knows what it has finished and what it has begun without receiving anything.
"""

from datetime import datetime
from typing import Literal, TypeAlias

from tidewire.client.checkpoint import Checkpoint
from tidewire.client.network import Network
from tidewire.client.reader import Reader
from tidewire.client.schema import Schema, T
from tidewire.client.seeking import milliseconds_of

CheckpointStart: TypeAlias = Literal["earliest", "latest"] | Checkpoint | datetime
"""Where to begin: at the first message there is, at the first to come, where a checkpoint says, or at a time."""


class CheckpointConsumer(Reader[T]):
    """Reads a topic, scalable or not, and tells its position. Made by `Client.checkpoint_consumer`."""

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
            # Segments that are named have been begun, and some had received something by then.
            self._is_past_since = frozenset(start.places) - start.waiting
            self._start_finished = start.finished

    def checkpoint(self) -> Checkpoint:
        """The position behind the last message that `receive` returned, on all segments together.

        A consumer that starts from it receives exactly what this one would receive next, however the topic is split or
        merged meanwhile; only of messages in chunks that lie between each other, some may come again. It says nothing
        to the broker: keep it (`to_bytes`) where the results are kept.

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
