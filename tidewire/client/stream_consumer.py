"""Ordered consumption of a scalable topic, together with all stream consumers of the same subscription.

The topic's controller divides its segments among them and pushes each its share. For every segment of its share the
consumer subscribes exclusively, and leaves those it no longer has. A child segment is given to somebody only when its
parents are read and acknowledged to their end, so whoever follows the assignments reads each key in order, through
splits and merges.

There is no command to leave the controller by; closing the consumer id that was registered says it, to brokers that
listen, and costs nothing with others.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal, Self

import anyio

from tidewire.client.acknowledgements import upto
from tidewire.client.background import BackgroundTask
from tidewire.client.consumers import (
    Initial,
    Receiving,
    all_confirmed,
    initial_position,
    new_name,
)
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
        """Who comes back under the same name soon enough gets the same segments again."""
        self._initial = initial_position(initial)
        self._backoff = network.backoff()
        # By segment: all up to there is acknowledged, outside transactions or by ones whose commit was answered.
        self._settled: dict[int, Position] = {}
        self._has_share = anyio.Event()
        self._wake = Signal()
        self._registration: Registration | None = None
        """The one that is attached to a connection. None between two registrations."""
        self._is_stopping = False
        """Set once, by `aclose`. The registration that there is then is the last."""
        self._task: BackgroundTask | None = None

    async def open(self) -> Self:
        """Register, and subscribe to the first share.

        Raises:
            TidewireError: there is no such topic, or it was refused or could not be asked for in time.
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
        """A message, and all that this consumer had delivered before it on any segment, were dealt with.

        The broker is told soon; what is not told when a connection is lost comes again. Segments that are no longer
        in this consumer's share are left to whoever has them now. With `confirmed`, return only when the broker has
        taken it in (on Tidewire: durably).

        In a `transaction`, they are acknowledged if it commits; if not, they come again, and with them all that came
        after them, whoever has it. Returns when the broker has noted it, durably. A commit waits for acknowledgements
        that are on their way, and fails when one of them failed. Of messages that will come again anyway, since their
        session ended, none can be acknowledged in a transaction: they would count in two. The last message does not
        speak for a segment whose session ended before it came, so pass all that were dealt with in the transaction.

        Raises:
            ConnectionLost: only if `confirmed` or in a transaction: the messages may come again, to this consumer or to
                whoever has their segment now. The transaction has to be run again.
            TransactionConflict: another open transaction has acknowledged some of them.
            TransactionEnded: the transaction takes no more.
            Refused: only if `confirmed` or in a transaction: the broker does not accept it.
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
                # Nothing of a message that is not yet whole.
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
        """That all of it came on a session that still is, or is acknowledged already."""
        past = sorted(
            segment_id
            for segment_id, place in vector.items()
            if not (self._inbox.has_delivered(segment_id, place) or _covers(self._settled.get(segment_id), place))
        )
        if past:
            lost = ConnectionLost(
                f"messages of segments {past} of {self.topic} are redelivered, because their session has ended"
            )
            transaction.doom(lost)
            raise lost

    def _settle(self, vector: Mapping[int, Position]) -> None:
        for segment_id, place in vector.items():
            if not _covers(self._settled.get(segment_id), place):
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
                # The other segments are told all the same.
                lost = error
        await all_confirmed(confirmations)
        if lost is not None:
            raise lost

    # ----------------------------------------------------------------------------------------------------- moving

    async def seek(self, to: Literal["earliest", "latest"] | datetime) -> None:
        """Move the subscription, for all of its consumers: what comes next is what follows the place, in order.

        What any of them had received before is to be left as it is: acknowledging it later acknowledges all before it.
        Only Tidewire does this; other brokers' administrators can.

        Args:
            to: "earliest", "latest" (skip all there is), or the first message that came at a time, with its zone.

        Raises:
            ConnectionLost: there is no session with the controller, or it ended first; the broker may have done it.
            Refused: the broker does not do it.
        """
        self._inbox.check()
        place = place_of(to)
        registration = self._registration
        if registration is None or registration.phase is not Phase.JOINED:
            raise ConnectionLost(f"{self.topic} has no session with its controller at the moment")
        consumers = list(self._segments.values())
        for consumer in consumers:
            consumer.begin_move()
        is_done = False
        try:
            command = partial(seek_command, registration.consumer_id, place)
            await registration.connection.request(command, pb.CommandSuccess)
            is_done = True
        finally:
            closed = [consumer.end_move(is_done=is_done) for consumer in consumers]
            if any(closed) or not is_done:
                # What was dropped comes again with new sessions, and a new share, since closing all of them is leaving.
                (self._registration or registration).leave()
                self._wake.set()

    async def skip_all(self) -> None:
        """Acknowledge everything that the topic holds now, for all consumers of the subscription; as `seek("latest")`.

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
                if not self._is_stopping:
                    await self._backoff.wait()
        except TidewireError as error:
            if not self._is_stopping:
                self._inbox.fail(error)
            self._has_share.set()

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
        for segment_id in [known for known in self._segments if known not in share]:
            consumer = self._segments.pop(segment_id)
            # Before anything else of it can come.
            consumer.stop()
            self._inbox.forget(segment_id)
            self._network.start(consumer.aclose(), f"leaving {consumer.topic}")
        is_first = not self._has_share.is_set()
        for segment_id, segment in share.items():
            if segment_id not in self._segments:
                plan = SubscriptionPlan(
                    self.subscription,
                    f"{self.name}-seg-{segment_id}",
                    # A segment that comes later holds messages that are later than the subscription.
                    initial_position=self._initial if is_first else pb.CommandSubscribe.InitialPosition.Earliest,
                    queue_messages_max=self._queue_messages_max,
                    schema=self._declared,
                    # Who had the segment before may not have left yet; or it is gone and the next share says so.
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
        """Tell the broker what was acknowledged, and leave, so that others get this consumer's share."""
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
    """By segment, the last message delivered up to and including any of these."""
    vector: dict[int, Position] = {}
    for message_id in ids:
        for segment_id, place in message_id.vector().items():
            if not _covers(vector.get(segment_id), place):
                vector[segment_id] = place
    return vector
