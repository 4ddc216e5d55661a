"""What all consumers have in common, and the plain consumer of `persistent://` topics.

The plain consumer subscribes to the topic, or to each of its partitions. It acknowledges message by message. If the
subscription is not shared, it can also acknowledge cumulatively.
"""

from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, Final, Generic, Literal, Self, TypeAlias

import anyio

from tidewire.client.confirmations import Confirmation
from tidewire.client.errors import Closed
from tidewire.client.inbox import Inbox
from tidewire.client.layout_watch import partitions_of
from tidewire.client.message import Message
from tidewire.client.network import Network
from tidewire.client.schema import Schema, T
from tidewire.client.seeking import SeekTarget, places_of, seek_all
from tidewire.client.subscribing import SubscriptionPlan
from tidewire.client.topic_consumer import TopicConsumer
from tidewire.protocol.errors import InvalidName, OperationTimedOut, TidewireError, fresh
from tidewire.protocol.layout import Layout
from tidewire.protocol.positions import MessageId
from tidewire.protocol.topic_names import is_scalable
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

Initial: TypeAlias = Literal["earliest", "latest"]
"""Where a subscription that does not exist yet begins."""

SubscriptionType: TypeAlias = Literal["exclusive", "shared"]

_INITIAL: Final[dict[str, pb.CommandSubscribe.InitialPosition]] = {
    "earliest": pb.CommandSubscribe.InitialPosition.Earliest,
    "latest": pb.CommandSubscribe.InitialPosition.Latest,
}
_TYPES: Final[dict[str, pb.CommandSubscribe.SubType]] = {
    "exclusive": pb.CommandSubscribe.SubType.Exclusive,
    "shared": pb.CommandSubscribe.SubType.Shared,
}


@dataclass(frozen=True, slots=True)
class ConsumerStatistics:
    """A consumer or reader at one moment."""

    topic: str
    segments: int
    """Segments or partitions that it consumes."""
    segments_connected: int
    entries_waiting: int
    """Entries (batches, or messages sent alone) that have arrived and are still queued."""


def initial_position(initial: Initial) -> pb.CommandSubscribe.InitialPosition:
    """The wire's value for it.

    Raises:
        ValueError: `initial` is neither of the two.
    """
    if initial not in _INITIAL:
        raise ValueError(f"initial must be 'earliest' or 'latest', not {initial!r}")
    return _INITIAL[initial]


def new_name(kind: str) -> str:
    """A name that no other consumer has."""
    return f"tidewire-{kind}-{token_hex(5)}"


class Receiving(Generic[T]):
    """Receives from any number of segments. The base of every consumer and of the reader."""

    def __init__(self, network: Network, topic: str, queue_messages_max: int, schema: Schema[T]) -> None:
        """Make it; `open` of the subclass begins."""
        if queue_messages_max < 1:
            raise ValueError(f"queue_messages_max must be at least 1, not {queue_messages_max}")
        self.topic = topic
        self._network = network
        self._queue_messages_max = queue_messages_max
        self._inbox = Inbox(schema)
        self._segments: dict[int, TopicConsumer] = {}

    def statistics(self) -> ConsumerStatistics:
        """The consumer's current state."""
        consumers = self._segments.values()
        connected = sum(consumer.is_connected for consumer in consumers)
        return ConsumerStatistics(self.topic, len(consumers), connected, self._inbox.entries_waiting)

    async def receive(self) -> Message[T]:
        """The next message; waits for one without a time limit. A cancelled call loses no message.

        Raises:
            MessageCorrupted: the next entry cannot be read. The next call continues after it.
            TidewireError: there will be no further message; the error says why.
        """
        return await self._inbox.receive()

    def __aiter__(self) -> AsyncIterator[Message[T]]:
        """All messages from here on; the iteration does not end by itself."""
        return self

    async def __anext__(self) -> Message[T]:
        """As `receive`."""
        return await self._inbox.receive()

    async def _until_opened(self, consumers: "list[TopicConsumer]") -> None:
        # Returns when each of them has subscribed; raises if one of them never will.
        for consumer in consumers:
            await consumer.opened.wait()
            self._inbox.check()

    async def _within_operation_time(self, opening: Awaitable[None]) -> None:
        """Await the opening, but no longer than an operation may take.

        Raises:
            OperationTimedOut: it took longer. The error names the last failure, if there was one.
        """
        seconds = self._network.settings.operation_timeout_seconds
        try:
            with anyio.fail_after(seconds):
                await opening
        except TimeoutError as error:
            last = next((consumer.last_failure for consumer in self._segments.values() if consumer.last_failure), None)
            reason = "" if last is None else f". The last attempt failed: {last}"
            timed_out = f"subscribing to {self.topic} did not succeed within {seconds} s{reason}"
            raise OperationTimedOut(timed_out) from (last or error)

    async def aclose(self) -> None:
        """Send the remaining acknowledgements, and leave. From now on `receive` fails with `Closed`."""
        self._inbox.fail(Closed(f"the consumer of {self.topic} was closed"))
        await self._close_segments()

    async def _close_segments(self) -> None:
        async with anyio.create_task_group() as tasks:
            for consumer in self._segments.values():
                tasks.start_soon(consumer.aclose)


class Consumer(Receiving[T]):
    """Consumes a `persistent://` topic. Made by `Client.consumer`."""

    def __init__(
        self,
        network: Network,
        topic: str,
        subscription: str,
        subscription_type: SubscriptionType,
        name: str | None,
        initial: Initial,
        queue_messages_max: int,
        schema: Schema[T],
    ) -> None:
        """For the client's own use; `open` comes next."""
        super().__init__(network, topic, queue_messages_max, schema)
        if is_scalable(topic):
            raise InvalidName(f"{topic} is a scalable topic; use a stream consumer, a queue consumer or a reader")
        if subscription_type not in _TYPES:
            raise ValueError(f"type must be 'exclusive' or 'shared', not {subscription_type!r}")
        self.subscription = subscription
        self.name = name or new_name("consumer")
        self._layout = Layout(0, {})
        self._plan = SubscriptionPlan(
            subscription,
            self.name,
            _TYPES[subscription_type],
            initial_position(initial),
            queue_messages_max=queue_messages_max,
            schema=schema.declared,
        )

    async def open(self) -> Self:
        """Subscribe to the topic or to all of its partitions.

        Raises:
            SubscriptionBusy: another consumer holds it exclusively.
            TidewireError: it was refused for another reason, or did not succeed in time.
        """
        self._layout = await partitions_of(self._network, self.topic)
        for segment in self._layout.active:
            consumer = TopicConsumer(
                self._network, self._inbox, self._plan, segment_id=segment.segment_id, topic=segment.wire_name
            )
            self._segments[segment.segment_id] = consumer
            consumer.start()
        await self._within_operation_time(self._until_opened(list(self._segments.values())))
        return self

    async def acknowledge(self, message: Message[Any] | MessageId, *, confirmed: bool = False) -> None:
        """Acknowledge a message: it was processed and is not redelivered. The acknowledgement is sent soon, in groups.

        If the connection is lost before that, the message is redelivered. With `confirmed`, return only when the broker
        has stored the acknowledgement (on Tidewire: durably).

        Raises:
            ConnectionLost: only if `confirmed`: the message may be redelivered.
            Refused: only if `confirmed`: the broker does not accept the acknowledgement.
        """
        message_id = message.message_id if isinstance(message, Message) else message
        consumer = self._consumer_of(message_id)
        *others, last = message_id.places()
        for place in others:
            consumer.acknowledge(place)
        if confirmed:
            await consumer.confirmation(last, upto=False).wait()
        else:
            consumer.acknowledge(last)

    async def acknowledge_cumulative(self, message: Message[Any] | MessageId, *, confirmed: bool = False) -> None:
        """As `acknowledge`, for this message and all before it on its partition. Not on shared subscriptions.

        Raises:
            ValueError: the subscription is shared.
            ConnectionLost, Refused: as `acknowledge`.
        """
        if self._plan.sub_type == pb.CommandSubscribe.SubType.Shared:
            raise ValueError(
                "a shared subscription cannot acknowledge cumulatively: other consumers may have earlier messages"
            )
        message_id = message.message_id if isinstance(message, Message) else message
        consumer = self._consumer_of(message_id)
        if confirmed:
            await consumer.confirmation(message_id.position, upto=True).wait()
        else:
            consumer.acknowledge_upto(message_id.position)

    async def seek(self, to: SeekTarget) -> None:
        """Move the subscription, for all of its consumers: the message behind the target comes next.

        Do not acknowledge messages that were received before the seek: the acknowledgement would still take effect.

        Args:
            to: "earliest", "latest" (skip everything stored), behind a message, or the first message published at a
                time or later. Behind a message means: behind it on its partition. On the others it means behind what
                this consumer had received when it received that message.

        Raises:
            TidewireError: a broker refused it, or it did not succeed in time. Some partitions may have moved.
        """
        self._inbox.check()
        await seek_all(self._network, self._segments, places_of(self._layout, to), self.topic)

    async def skip_all(self) -> None:
        """Acknowledge everything that the topic holds now, as `seek("latest")` does.

        Raises:
            TidewireError: as `seek`.
        """
        await self.seek("latest")

    def _consumer_of(self, message_id: MessageId) -> TopicConsumer:
        self._inbox.check()
        consumer = self._segments.get(message_id.segment_id)
        if consumer is None:
            raise ValueError(f"{message_id} is not the id of a message in {self.topic}")
        return consumer


async def all_confirmed(confirmations: "list[Confirmation]") -> None:
    """Wait for several confirmations at once.

    Raises:
        TidewireError: the first failure, after all have ended.
    """
    errors: list[TidewireError] = []

    async def wait(confirmation: Confirmation) -> None:
        try:
            await confirmation.wait()
        except TidewireError as error:
            errors.append(error)

    async with anyio.create_task_group() as tasks:
        for confirmation in confirmations:
            tasks.start_soon(wait, confirmation)
    if errors:
        raise fresh(errors[0])
