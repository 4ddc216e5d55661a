"""Shared consumption of a scalable topic: each message goes to one of the subscription's consumers.

The consumer subscribes, with the type Shared, to every segment of the topic, including sealed and later ones. So it
needs no controller, and there is no order, not even by key. It acknowledges messages one by one, so a slow consumer
does not block others.

`negative_acknowledge` returns a message that cannot be processed; the broker redelivers it later, to this consumer or
another. With a processing timeout, the same happens to messages that are not acknowledged in time. The broker counts
redeliveries, and a message redelivered too often becomes a dead letter (dead_letters.py).

The only timer is for the next message to request again (redelivery.py). It runs only while there is such a message.
"""

from collections.abc import Iterable, Sequence
from random import Random
from typing import Any, Final, Self

import anyio

from tidewire.client.acknowledgements import together
from tidewire.client.background import BackgroundTask
from tidewire.client.consumers import Initial, Receiving, all_confirmed, initial_position, new_name
from tidewire.client.dead_letters import SUFFIX, DeadLetterPolicy, DeadLetters
from tidewire.client.layout_watch import TopicLayout, open_layout
from tidewire.client.message import Message
from tidewire.client.network import Network
from tidewire.client.redelivery import BackoffPolicy, EntryKey, Redeliveries
from tidewire.client.schema import BYTES, Schema, T
from tidewire.client.seeking import SeekTarget, places_of, seek_all
from tidewire.client.subscribing import SubscriptionPlan
from tidewire.client.topic_consumer import TopicConsumer
from tidewire.client.transactions import Transaction
from tidewire.client.waking import Signal
from tidewire.protocol.errors import InvalidName, TidewireError
from tidewire.protocol.positions import MessageId, Position
from tidewire.protocol.refusals import TopicNotFound, TransactionConflict
from tidewire.protocol.topic_names import is_scalable
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

NEGATIVE_ACK_BACKOFF_DEFAULT: Final = BackoffPolicy.exponential(1.0, 60.0)
"""The delay before a negatively acknowledged message is redelivered, unless the caller gives another."""

AT_ONCE: Final = BackoffPolicy.fixed(0.0)
"""No delay."""


class QueueConsumer(Receiving[T]):
    """Consumes a scalable topic together with others, message by message. Made by `Client.queue_consumer`."""

    def __init__(
        self,
        network: Network,
        topic: str,
        subscription: str,
        name: str | None,
        initial: Initial,
        queue_messages_max: int,
        schema: Schema[T],
        *,
        negative_ack_backoff: BackoffPolicy = NEGATIVE_ACK_BACKOFF_DEFAULT,
        processing_timeout_seconds: float | None = None,
        processing_timeout_backoff: BackoffPolicy = AT_ONCE,
        dead_letter_policy: DeadLetterPolicy | None = None,
    ) -> None:
        """For the client's own use; `open` comes next."""
        super().__init__(network, topic, queue_messages_max, schema)
        if not is_scalable(topic):
            raise InvalidName(f"{topic} is not a scalable topic; use a plain consumer of type 'shared'")
        if processing_timeout_seconds is not None and not processing_timeout_seconds > 0:
            raise ValueError(f"processing_timeout_seconds must be more than 0, not {processing_timeout_seconds}")
        self.subscription = subscription
        self._schema = schema
        self.name = name or new_name("queue")
        self._initial = initial_position(initial)
        self._negative_ack_backoff = negative_ack_backoff
        self._processing_timeout_seconds = processing_timeout_seconds
        self._processing_timeout_backoff = processing_timeout_backoff
        self._random = Random()  # noqa: S311 - spreads redeliveries, guards nothing
        self._layout = TopicLayout(topic)
        self._redeliveries = Redeliveries()
        self._sooner = Signal()
        self._dead_letter_policy = dead_letter_policy
        self._dead_letters: DeadLetters | None = None
        self._tasks: list[BackgroundTask] = []

    async def open(self) -> Self:
        """Subscribe to every segment.

        Raises:
            TidewireError: there is no such topic or dead-letter topic, it was refused, or no broker answered in time.
        """
        policy = self._dead_letter_policy
        if policy is not None:
            if policy.initial_subscription_name is not None:
                await self._keep_dead_letters_for(policy, policy.initial_subscription_name)
            self._dead_letters = DeadLetters(
                self._network,
                policy,
                self.topic,
                self.subscription,
                self._schema,
                put_aside=self._acknowledge_one,
                failed=self._give_back,
            )
            await self._dead_letters.open()
        self._layout, watch = await open_layout(self._network, self.topic)
        if watch is not None:
            self._tasks.append(watch)
        self._follow(self._initial)
        for work, name in ((self._follow_layout(), "queue consumer"), (self._give_back_when_due(), "redelivery")):
            self._tasks.append(self._network.start(work, f"{name} of {self.topic}", self._inbox.fail))
        await self._within_operation_time(self._until_opened(list(self._segments.values())))
        return self

    async def _keep_dead_letters_for(self, policy: DeadLetterPolicy, subscription: str) -> None:
        topic = policy.dead_letter_topic or self.topic + SUFFIX
        if not is_scalable(topic):
            raise ValueError(f"{topic}: only topic:// topics support subscriptions created in advance")
        consumer = QueueConsumer(self._network, topic, subscription, None, "earliest", 1, BYTES)
        try:
            await consumer.open()
        finally:
            await consumer.aclose()

    # ----------------------------------------------------------------------------------------------------- its segments

    async def _follow_layout(self) -> None:
        try:
            while True:
                # All messages of a later segment are newer than the subscription.
                self._follow(pb.CommandSubscribe.InitialPosition.Earliest)
                await self._layout.changes.wait()
        except TidewireError as error:
            self._inbox.fail(error)

    def _follow(self, initial: pb.CommandSubscribe.InitialPosition) -> None:
        layout = self._layout.current
        for segment_id in [known for known in self._segments if known not in layout.segments]:
            consumer = self._segments.pop(segment_id)
            consumer.stop()
            self._inbox.left(segment_id)
            self._redeliveries.forget_segment(segment_id)
            self._network.start(consumer.aclose(), f"leaving {consumer.topic}")
        for segment_id, segment in layout.segments.items():
            if segment_id in self._segments:
                continue
            plan = SubscriptionPlan(
                self.subscription,
                f"{self.name}-seg-{segment_id}",
                pb.CommandSubscribe.SubType.Shared,
                initial,
                queue_messages_max=self._queue_messages_max,
                schema=self._schema.declared,
                # The segment may be removed because everything in it was acknowledged. The next layout says so.
                bears=(TopicNotFound,),
            )
            self._segments[segment_id] = consumer = TopicConsumer(
                self._network,
                self._inbox,
                plan,
                segment_id=segment_id,
                topic=segment.wire_name,
                on_loss=self._redeliveries.forget_segment,
            )
            consumer.start()

    # -------------------------------------------------------------------------------------------------------- receiving

    async def receive(self) -> Message[T]:
        """The next message; waits for one without a time limit. A cancelled call loses no message.

        Raises:
            MessageCorrupted: the next entry cannot be read. The next call continues after it.
            TidewireError: there will be no further message; the error says why.
        """
        while True:
            if self._dead_letters is not None:
                await self._dead_letters.room()
            message = await self._inbox.receive()
            # There is no await below, so that a cancelled call takes no message.
            if self._dead_letters is None or not self._dead_letters.takes(message):
                break
            self._dead_letters.put(message)
        if self._processing_timeout_seconds is not None:
            delay = self._processing_timeout_backoff.delay_seconds(message.redelivery_count, self._random)
            self._hold(message.message_id, self._processing_timeout_seconds + delay)
        return message

    async def __anext__(self) -> Message[T]:
        """As `receive`."""
        return await self.receive()

    # ---------------------------------------------------------------------------------------------------- acknowledging

    async def acknowledge(
        self, *messages: Message[Any] | MessageId, confirmed: bool = False, transaction: Transaction | None = None
    ) -> None:
        """Acknowledge messages: they were processed and are not redelivered. Sent soon, in groups.

        If the connection is lost before that, they are redelivered. With `confirmed`, return only when the broker has
        stored the acknowledgement (on Tidewire: durably).

        In a `transaction`, they are acknowledged if it commits; otherwise they are redelivered, to any consumer.
        Returns when the broker has recorded that durably. Several messages in one call cost one request for each
        segment. A commit waits for acknowledgements in flight, and fails when one of them failed.

        After a failure this consumer still holds the messages. They are redelivered when their processing timeout
        passes, when you negatively acknowledge them, or when the consumer ends. In a conflict, another transaction has
        acknowledged them, so they only matter if that one does not commit. (The Java client forgets their processing
        timeout, too.)

        Raises:
            ConnectionLost: only if `confirmed`: the messages may be redelivered. In a transaction: run it again.
            TransactionConflict: a message is already acknowledged, or acknowledged in another open transaction. Or it
                was passed twice, because it was redelivered.
            TransactionEnded: the transaction takes no more work.
            Refused: only if `confirmed` or in a transaction: the broker does not accept the acknowledgement.
        """
        self._inbox.check()
        ids = [message.message_id if isinstance(message, Message) else message for message in messages]
        places: dict[int, list[Position]] = {}
        for message_id in ids:
            places.setdefault(message_id.segment_id, []).extend(message_id.places())
        consumers = {segment_id: self._consumer_of(segment_id) for segment_id in places}
        if transaction is not None:
            _require_once(ids, transaction)
            await transaction.acknowledge(
                self.subscription,
                [
                    (consumer, together(places[segment_id]))
                    for segment_id, consumer in consumers.items()
                    if consumer is not None
                ],
            )
        for message_id in ids:
            self._redeliveries.settle(message_id)
        if transaction is not None:
            return
        confirmations = []
        for segment_id, consumer in consumers.items():
            # A removed segment is acknowledged to its end.
            if consumer is not None:
                *others, last = places[segment_id]
                for place in others:
                    consumer.acknowledge(place)
                if confirmed:
                    confirmations.append(consumer.confirmation(last, upto=False))
                else:
                    consumer.acknowledge(last)
        await all_confirmed(confirmations)

    async def negative_acknowledge(self, *messages: Message[Any] | MessageId) -> None:
        """Return messages that could not be processed: they are redelivered later, to this consumer or another.

        The consumer's `negative_ack_backoff` sets the delay, which grows with the redelivery count. Only a `Message`
        knows its count; an id counts as not redelivered. Of a batch, everything unacknowledged is redelivered.
        """
        self._inbox.check()
        for message in messages:
            if isinstance(message, Message):
                self._give_back(message)
            else:
                self._hold(message, self._negative_ack_backoff.delay_seconds(0, self._random))

    def _consumer_of(self, segment_id: int) -> TopicConsumer | None:
        consumer = self._segments.get(segment_id)
        if consumer is None and segment_id < 0:
            raise ValueError(f"the message id does not name a segment of {self.topic}")
        return consumer

    def _acknowledge_one(self, message: Message[Any]) -> None:
        self._redeliveries.settle(message.message_id)
        consumer = self._segments.get(message.message_id.segment_id)
        if consumer is not None:
            for place in message.message_id.places():
                consumer.acknowledge(place)

    def _give_back(self, message: Message[Any]) -> None:
        delay = self._negative_ack_backoff.delay_seconds(message.redelivery_count, self._random)
        self._hold(message.message_id, delay)

    def _hold(self, message_id: MessageId, seconds: float) -> None:
        if self._redeliveries.hold(message_id, anyio.current_time() + seconds):
            self._sooner.set()

    async def _give_back_when_due(self) -> None:
        while True:
            due = self._redeliveries.next_due
            if due is None:
                await self._sooner.wait()
                continue
            with anyio.move_on_after(max(0.0, due - anyio.current_time())):
                await self._sooner.wait()
            self._ask_again(self._redeliveries.take_due(anyio.current_time()))

    def _ask_again(self, entries: Iterable[EntryKey]) -> None:
        by_segment: dict[int, list[tuple[int, int]]] = {}
        for segment_id, *entry in entries:
            by_segment.setdefault(segment_id, []).append((entry[0], entry[1]))
        for segment_id, wanted in by_segment.items():
            consumer = self._segments.get(segment_id)
            if consumer is not None:
                consumer.redeliver(wanted)

    # ---------------------------------------------------------------------------------------------- moving, and the end

    async def seek(self, to: SeekTarget) -> None:
        """Move the subscription, for all of its consumers: the message behind the target comes next.

        Do not acknowledge messages that any of them received before the seek: the acknowledgement would still take
        effect. So would the commit of a transaction that has already acknowledged them.

        Args:
            to: "earliest", "latest" (skip everything stored), behind a message, or the first message published at a
                time or later. Behind a message means: behind it on its segment. On the others it means behind what this
                consumer had received when it received that message.

        Raises:
            TidewireError: a broker refused it, or it did not succeed in time. Some segments may have moved.
        """
        self._inbox.check()
        await seek_all(self._network, self._segments, places_of(self._layout.current, to), self.topic)

    async def skip_all(self) -> None:
        """Acknowledge everything that the topic holds now, for the whole subscription, as `seek("latest")` does.

        Raises:
            TidewireError: as `seek`.
        """
        await self.seek("latest")

    async def aclose(self) -> None:
        """Send the remaining acknowledgements, and leave. Other consumers get the unacknowledged messages at once."""
        for task in self._tasks:
            task.cancel()
        if self._dead_letters is not None:
            await self._dead_letters.aclose()
        await super().aclose()


def _require_once(ids: Sequence[MessageId], transaction: Transaction) -> None:
    if len(set(ids)) < len(ids):
        twice = next(message_id for message_id in ids if ids.count(message_id) > 1)
        conflict = TransactionConflict(
            f"{twice} was passed twice; it was probably redelivered. Run the transaction again.",
            pb.ServerError.TransactionConflict,
        )
        transaction.doom(conflict)
        raise conflict
