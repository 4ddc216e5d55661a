"""Reading a topic from any position, with no progress kept at the broker.

The reader keeps its own position. Every message id holds all of it (message.py), so a reader can stop and start again
from a stored id. On a scalable topic it reads parents to their end before their children, which keeps each key in
order. The broker says when a sealed segment is read to its end.
"""

from collections.abc import AsyncGenerator, Mapping
from secrets import token_hex
from typing import Final, Literal, Self, TypeAlias

import anyio

from tidewire.client.background import BackgroundTask
from tidewire.client.consumers import Receiving
from tidewire.client.layout_watch import TopicLayout, open_layout
from tidewire.client.message import Message
from tidewire.client.network import Network
from tidewire.client.schema import Schema, T
from tidewire.client.subscribing import SubscriptionPlan
from tidewire.client.topic_consumer import TopicConsumer
from tidewire.protocol.errors import TidewireError
from tidewire.protocol.layout import Layout, ancestors, due
from tidewire.protocol.positions import AFTER_ALL, BEFORE_ALL, MessageId, Position
from tidewire.protocol.refusals import TopicNotFound

Start: TypeAlias = Literal["earliest", "latest"] | MessageId
"""Where a reader begins: at the first message, after the last one, or right behind a message."""

_NOWHERE: Final[Mapping[int, Position]] = {}


def finished_at_start(layout: Layout, start: Start) -> set[int]:
    """The segments of which a reader that begins at `start` reads nothing.

    A message id names the segments that were being read. Their ancestors had been read to their end.
    """
    if start == "latest":
        return {segment.segment_id for segment in layout.segments.values() if not segment.is_active}
    if isinstance(start, MessageId):
        return ancestors(start.vector(), layout.segments)
    return set()


class Reader(Receiving[T]):
    """Reads a topic, scalable or not. Made by `Client.reader`."""

    def __init__(self, network: Network, topic: str, start: Start, queue_messages_max: int, schema: Schema[T]) -> None:
        """For the client's own use; `open` comes next."""
        super().__init__(network, topic, queue_messages_max, schema)
        if not isinstance(start, MessageId) and start not in {"earliest", "latest"}:
            raise ValueError(f"start must be 'earliest', 'latest' or a message id, not {start!r}")
        self._start = start
        # By segment that was being read, behind which message to begin; and the same for all others.
        self._places = start.vector() if isinstance(start, MessageId) else _NOWHERE
        self._otherwise = AFTER_ALL if start == "latest" else BEFORE_ALL
        # The earliest publish time of wanted messages, and the segments on which one of them was received.
        self._since_ms: int | None = None
        self._is_past_since: frozenset[int] = frozenset()
        # Segments that were read to their end before.
        self._start_finished: frozenset[int] = frozenset()
        self._plan = SubscriptionPlan(
            f"reader-{token_hex(5)}",
            is_durable=False,
            queue_messages_max=queue_messages_max,
            schema=schema.declared,
            # The segment may be removed with all its messages. The next layout says so.
            bears=(TopicNotFound,),
        )
        self._layout = TopicLayout(topic)
        self._finished: set[int] = set()
        self._watch: BackgroundTask | None = None
        self._follow: BackgroundTask | None = None
        # While `until_end` iterates: the segments whose end it has not reached, and what ends its wait for a message.
        self._before_end: set[int] = set()
        self._waiting = anyio.CancelScope()

    async def open(self) -> Self:
        """Fetch the topic's layout and begin to read.

        Raises:
            TidewireError: there is no such topic, it was refused, or no broker answered in time.
        """
        self._layout, self._watch = await open_layout(self._network, self.topic)
        if self._watch is None:
            # A regular topic's refusal is final: no later layout can change it.
            self._plan = SubscriptionPlan(
                self._plan.subscription,
                is_durable=False,
                queue_messages_max=self._queue_messages_max,
                schema=self._plan.schema,
            )
        layout = self._layout.current
        self._finished = finished_at_start(layout, self._start)
        # Add the ancestors of segments that were begun: they had been read to their end.
        self._finished |= ancestors([*self._places, *self._start_finished], layout.segments)
        self._finished |= self._start_finished & layout.segments.keys()
        self._advance()
        # Segments that appear from now on are new, and are read from their beginning.
        self._otherwise = BEFORE_ALL
        self._follow = self._network.start(self._follow_layout(), f"reader of {self.topic}", self._inbox.fail)
        await self._within_operation_time(self._until_opened(list(self._segments.values())))
        return self

    async def until_end(self) -> AsyncGenerator[Message[T], None]:
        """The messages up to the end that the topic has when the iteration begins. One iteration at a time.

        The brokers tell the end, so nothing waits for silence. What an open transaction holds back is behind the end,
        and so are the children of a segment that it holds back. Of messages that are sent meanwhile, some may come,
        too, but none of segments that a split or merge makes meanwhile.

        Raises:
            NotAllowed: the broker does not tell where a segment ends.
            TidewireError: as `receive`. Another call goes on, to the end as it is then.
        """
        self._before_end = set(self._layout.current.segments) - self._finished
        for segment_id in self._before_end & self._segments.keys():
            self._segments[segment_id].ask_end()
        while True:
            self._look_for_end()
            if not self._before_end:
                return
            with anyio.CancelScope() as self._waiting:
                message = await self.receive()
            if not self._waiting.cancelled_caught:
                yield message

    def _look_for_end(self) -> None:
        if not self._before_end:
            return
        layout = self._layout.current
        held_back = {segment_id for segment_id, consumer in self._segments.items() if consumer.is_before_more}
        for segment_id in tuple(self._before_end):
            consumer = self._segments.get(segment_id)
            if consumer is None:
                # One that was not begun waits for its parents.
                is_over = (
                    segment_id in self._finished
                    or segment_id not in layout.segments
                    or not held_back.isdisjoint(ancestors([segment_id], layout.segments))
                )
            else:
                is_over = consumer.is_finished or consumer.is_at_end
            if is_over:
                self._before_end.discard(segment_id)
        if not self._before_end:
            self._waiting.cancel()

    async def _follow_layout(self) -> None:
        try:
            while True:
                self._advance()
                self._look_for_end()
                await self._layout.changes.wait()
        except TidewireError as error:
            self._inbox.fail(error)

    def _advance(self) -> None:
        layout = self._layout.current
        over = [
            segment_id
            for segment_id, consumer in self._segments.items()
            # A removed segment that is still connected may have messages left.
            if consumer.is_finished or (segment_id not in layout.segments and not consumer.is_connected)
        ]
        for segment_id in over:
            consumer = self._segments.pop(segment_id)
            self._finished.add(segment_id)
            self._network.start(consumer.aclose(), f"leaving {consumer.topic}")
        for gone in [known for known in self._finished if known not in layout.segments]:
            self._finished.discard(gone)
            self._inbox.left(gone)
        for segment_id in due(layout.segments.keys() - self._finished, layout.segments):
            if segment_id in self._segments:
                continue
            segment = layout.segments[segment_id]
            consumer = TopicConsumer(
                self._network,
                self._inbox,
                self._plan,
                segment_id=segment.segment_id,
                topic=segment.wire_name,
                start_after=self._places.get(segment.segment_id, self._otherwise),
                since_ms=None if segment.segment_id in self._is_past_since else self._since_ms,
                on_change=self._layout.changes.notify,
            )
            self._segments[segment.segment_id] = consumer
            if segment.segment_id in self._before_end:
                consumer.ask_end()
            consumer.start()

    async def aclose(self) -> None:
        """Stop reading. `receive` fails with `Closed` from now on."""
        for task in (self._watch, self._follow):
            if task is not None:
                task.cancel()
        await super().aclose()
