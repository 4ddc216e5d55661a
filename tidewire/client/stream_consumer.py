"""Ordered consumption of a scalable topic, shared by all stream consumers of the same subscription.

The topic's controller divides its segments among them and pushes each its share. The consumer subscribes exclusively to
every segment of its share, and leaves the segments that are no longer in it. The controller assigns a child segment
only when its parents are acknowledged to their end. So a consumer that follows the assignments reads each key in order,
through splits and merges.

The protocol has no command for leaving the controller. The consumer closes the consumer id that it registered.
Tidewire understands that; other brokers ignore it.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal, Self

import anyio

from tidewire.client.acknowledgements import upto
from tidewire.client.background import BackgroundTask
from tidewire.client.consumers import Initial, Receiving, all_confirmed, initial_position, new_name
from tidewire.client.layout_watch import controller_of
from tidewire.client.message import Message
from tidewire.client.network import Network
from tidewire.client.registration import Event, Phase, Registration
from tidewire.client.schema import Schema, T
from tidewire.client.seeking import place_of
from tidewire.client.subscribing import SubscriptionPlan, seek_command
from tidewire.client.topic_consumer import TopicConsumer
from tidewire.client.transactions import Transaction
from tidewire.client.waking import Signal
from tidewire.protocol.errors import ConnectionLost, InvalidName, TidewireError, fresh
from tidewire.protocol.positions import MessageId, Position
from tidewire.protocol.refusals import TRANSIENT, SubscriptionBusy, TopicNotFound
from tidewire.protocol.topic_names import is_scalable
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

LEFT_MAX: Final = 1_000
"""Segments that have left the share, and of which the consumer remembers what is acknowledged. Messages that came
before may still name them."""

_log: Final = logging.getLogger(__name__)


class StreamConsumer(Receiving[T]):
    """Consumes its share of a scalable topic in order. Made by `Client.stream_consumer`."""

    def __init__(
        self,
        network: Network,
        topic: str,
        subscription: str,
        name: str | None,
        initial: Initial,
        queue_messages_max: int,
        schema: Schema[T],
    ) -> None:
        """For the client's own use; `open` comes next."""
        super().__init__(network, topic, queue_messages_max, schema)
        self._declared = schema.declared
        if not is_scalable(topic):
            raise InvalidName(f"{topic} is not a scalable topic; use a plain consumer or a reader")
        self.subscription = subscription
        self.name = name or new_name("stream")
        """A consumer that returns soon under the same name gets the same segments again."""
        self._initial = initial_position(initial)
        self._backoff = network.backoff()
        # By segment: all up to here is acknowledged, outside transactions or by committed ones.
        self._settled: dict[int, Position] = {}
        # Segments that have left the share; the first one left first.
        self._left: dict[int, None] = {}
        self._has_share = anyio.Event()
        self._wake = Signal()
        self._registration: Registration | None = None
        """The registration that is attached to a connection. None between two registrations."""
        self._is_stopping = False
        """Set once, by `aclose`. The current registration is then the last."""
        self._task: BackgroundTask | None = None

    async def open(self) -> Self:
        """Register, and subscribe to the first share.

        Raises:
            TidewireError: there is no such topic, it was refused, or no broker answered in time.
        """
        self._task = self._network.start(self._run(), f"stream consumer of {self.topic}", self._inbox.fail)
        await self._within_operation_time(self._until_first_share())
        return self

    async def _until_first_share(self) -> None:
        await self._has_share.wait()
        self._inbox.check()
        await self._until_opened(list(self._segments.values()))

    async def acknowledge_cumulative(
        self, *messages: Message[Any] | MessageId, confirmed: bool = False, transaction: Transaction | None = None
    ) -> None:
        """Acknowledge a message, and all that this consumer had delivered before it on any segment.

        The acknowledgement is sent soon. If a connection is lost before that, its messages are redelivered. Segments
        that are no longer in this consumer's share are left to their present consumer. With `confirmed`, return only
        when the broker has stored the acknowledgement (on Tidewire: durably).

        In a `transaction`, they are acknowledged if it commits. Otherwise they and all later messages are redelivered,
        to whichever consumer has the segment. Returns when the broker has recorded that durably. A commit waits for
        acknowledgements in flight, and fails when one of them failed.

        When a segment's session has ended, its messages are redelivered. Then a transaction cannot acknowledge the
        earlier copies: they would count in two transactions. A message does not cover a segment whose session ended
        before the message came. So pass all messages that the transaction processed.

        Raises:
            ConnectionLost: only if `confirmed` or in a transaction: the messages may be redelivered, to this consumer
                or to another that has their segment now. Run the transaction again.
            TransactionConflict: another open transaction has acknowledged some of them.
            TransactionEnded: the transaction takes no more work.
            Refused: only if `confirmed` or in a transaction: the broker does not accept the acknowledgement.
        """
        self._inbox.check()
        vector = _furthest(message.message_id if isinstance(message, Message) else message for message in messages)
        places = [
            (consumer, place)
            for segment_id, place in vector.items()
            if (consumer := self._segments.get(segment_id)) is not None
        ]
        if transaction is not None:
            self._require_present(vector, transaction)
            told = [
                (consumer, upto(covered))
                for consumer, place in places
                # No chunk of an incomplete message.
                if (covered := consumer.chunks.covered(place)) is not None
            ]
            transaction.when_committed(partial(self._settle, vector))
            await transaction.acknowledge(self.subscription, told)
            return
        self._settle(vector)
        if not confirmed:
            for consumer, place in places:
                consumer.acknowledge_upto(place)
        else:
            await self._confirm(vector, places)

    def _require_present(self, vector: Mapping[int, Position], transaction: Transaction) -> None:
        """Check that all of it came on a session that still stands, or is already acknowledged."""
        past = sorted(
            segment_id
            for segment_id, place in vector.items()
            if not (self._inbox.has_delivered(segment_id, place) or _covers(self._settled.get(segment_id), place))
        )
        if past:
            lost = ConnectionLost(
                f"messages of segments {past} of {self.topic} are redelivered, because their session has ended; "
                "run the transaction again"
            )
            transaction.doom(lost)
            raise lost

    def _settle(self, vector: Mapping[int, Position]) -> None:
        for segment_id, place in vector.items():
            is_known = segment_id in self._segments or segment_id in self._left
            if is_known and not _covers(self._settled.get(segment_id), place):
                self._settled[segment_id] = place

    async def _confirm(self, vector: Mapping[int, Position], places: Sequence[tuple[TopicConsumer, Position]]) -> None:
        lost = None
        if left := sorted(vector.keys() - self._segments.keys()):
            lost = ConnectionLost(f"segments {left} of {self.topic} are no longer assigned to this consumer")
        confirmations = []
        for consumer, place in places:
            try:
                confirmations.append(consumer.confirmation(place, upto=True))
            except ConnectionLost as error:
                # Acknowledge the other segments all the same.
                lost = error
        await all_confirmed(confirmations)
        if lost is not None:
            raise lost

    # ----------------------------------------------------------------------------------------------------- moving

    async def seek(self, to: Literal["earliest", "latest"] | datetime) -> None:
        """Move the subscription, for all of its consumers: the messages behind the target come next, in order.

        Do not acknowledge messages that any of them received before the seek: that would acknowledge all before them,
        too. Only Tidewire supports this call; other brokers leave it to their administrators.

        Args:
            to: "earliest", "latest" (skip everything stored), or a time with its zone: the first message published then
                or later.

        Raises:
            ConnectionLost: there is no session with the controller, or it ended first. The broker may have done it.
            Refused: the broker refuses it.
        """
        self._inbox.check()
        place = place_of(to)
        registration = self._registration
        if registration is None or registration.phase is not Phase.JOINED:
            raise ConnectionLost(f"{self.topic} has no connection to its controller at the moment")
        consumers = list(self._segments.values())
        for consumer in consumers:
            consumer.begin_move()
        # What was acknowledged may come again.
        self._settled.clear()
        is_done = False
        try:
            command = partial(seek_command, registration.consumer_id, place)
            await registration.connection.request(command, pb.CommandSuccess)
            is_done = True
        finally:
            closed = [consumer.end_move(is_done=is_done) for consumer in consumers]
            if any(closed) or not is_done:
                # New sessions bring what was dropped. Closing all sessions means leaving, so get a new share, too.
                (self._registration or registration).leave()
                self._wake.set()

    async def skip_all(self) -> None:
        """Acknowledge everything that the topic holds now, for the whole subscription, as `seek("latest")` does.

        Raises:
            ConnectionLost, Refused: as `seek`.
        """
        await self.seek("latest")

    # ------------------------------------------------------------------------------------------------ its share

    async def _run(self) -> None:
        try:
            while not self._is_stopping:
                try:
                    await self._hold_registration()
                except TRANSIENT as error:
                    _log.info("the stream consumer of %s lost its controller: %s", self.topic, error)
                    self._network.troubles.met(self, error)
                if not self._is_stopping:
                    await self._backoff.wait()
        except TidewireError as error:
            if not self._is_stopping:
                self._inbox.fail(error)
            self._has_share.set()
        finally:
            self._network.troubles.over(self)

    async def _hold_registration(self) -> None:
        connection = await controller_of(self._network, self.topic)
        registration = self._registration = Registration(connection, self)
        try:
            answer = await connection.request(
                partial(
                    commands.scalable_topic_subscribe,
                    topic=self.topic,
                    subscription=self.subscription,
                    consumer_name=self.name,
                    consumer_id=registration.consumer_id,
                ),
                pb.CommandScalableTopicSubscribeResponse,
            )
            registration.answered(answer)
            self._backoff.reset()
            self._network.troubles.over(self)
            while not self._is_over(registration):
                while registration.shares:
                    self._take_up(registration.shares.popleft())
                await self._wake.wait()
            if self._is_stopping:
                await connection.request(partial(commands.close_consumer, registration.consumer_id), pb.CommandSuccess)
                registration.happened(Event.CLOSED)
        finally:
            self._registration = None
            registration.end()

    def _is_over(self, registration: Registration) -> bool:
        if registration.error is not None:
            raise fresh(registration.error)
        return self._is_stopping or registration.phase is Phase.CLOSED

    def _take_up(self, assignment: pb.ScalableConsumerAssignment) -> None:
        share = {segment.segment_id: segment for segment in assignment.segments}
        for segment_id, consumer in tuple(self._segments.items()):
            if segment_id in share and share[segment_id].segment_topic == consumer.topic:
                continue
            # Another segment has its id if the topic was deleted and made again.
            del self._segments[segment_id]
            # Stopped before anything else of the segment can come.
            consumer.stop()
            self._inbox.left(segment_id)
            self._network.start(consumer.aclose(), f"leaving {consumer.topic}")
            self._left[segment_id] = None
        for segment_id in share:
            self._left.pop(segment_id, None)
        while len(self._left) > LEFT_MAX:
            first = next(iter(self._left))
            del self._left[first]
            self._settled.pop(first, None)
        is_first = not self._has_share.is_set()
        for segment_id, segment in share.items():
            if segment_id not in self._segments:
                plan = SubscriptionPlan(
                    self.subscription,
                    f"{self.name}-seg-{segment_id}",
                    # All messages of a later segment are newer than the subscription.
                    initial_position=self._initial if is_first else pb.CommandSubscribe.InitialPosition.Earliest,
                    queue_messages_max=self._queue_messages_max,
                    schema=self._declared,
                    # The previous consumer may not have left yet. Or the segment is gone, and the next share says so.
                    bears=(SubscriptionBusy, TopicNotFound),
                )
                consumer = TopicConsumer(
                    self._network, self._inbox, plan, segment_id=segment_id, topic=segment.segment_topic
                )
                self._segments[segment_id] = consumer
                consumer.start()
        self._has_share.set()

    # -------------------------------------------------------------------------------------------------- what is heard

    def received(self, command: pb.BaseCommand, payload: bytes | None) -> None:
        """See `Listener`."""
        assert payload is None
        registration = self._registration
        assert registration is not None, "it is detached when it ends"
        if command.type == pb.BaseCommand.SCALABLE_TOPIC_ASSIGNMENT_UPDATE:
            registration.assigned(command.scalable_topic_assignment_update.assignment)
        elif command.type == pb.BaseCommand.CLOSE_CONSUMER:
            registration.happened(Event.CLOSED)
        self._wake.set()

    def connection_lost(self, error: TidewireError) -> None:
        """See `Listener`."""
        if self._registration is not None:
            self._registration.happened(Event.LOST, error)
        self._wake.set()

    # ---------------------------------------------------------------------------------------------------------- the end

    async def aclose(self) -> None:
        """Send the remaining acknowledgements, and leave, so that others get this consumer's share."""
        self._is_stopping = True
        try:
            await super().aclose()
            self._wake.set()
            registration = self._registration
            if self._task is not None and registration is not None and registration.phase is not Phase.JOINING:
                await self._task.wait()
        finally:
            if self._task is not None:
                self._task.cancel()


def _covers(upto: Position | None, place: Position) -> bool:
    return upto is not None and place.order <= upto.order


def _furthest(ids: Iterable[MessageId]) -> dict[int, Position]:
    """By segment, the last message delivered up to and including any of these ids."""
    vector: dict[int, Position] = {}
    for message_id in ids:
        for segment_id, place in message_id.vector().items():
            if not _covers(vector.get(segment_id), place):
                vector[segment_id] = place
    return vector
