"""The consumer of one segment (or partition, or plain topic): it subscribes, receives and acknowledges until closed.

One task holds the session and opens another at the topic's owner, wherever that then is, after it was lost. What had
arrived and was not delivered is dropped then: the broker sends it again. Acknowledgements name messages, not sessions,
so those of messages from a session that is gone are told on the next one.

Flow permits count messages. So many are given at the start, and as many as were taken out of the inbox are given again
once they are half of that; what is in the inbox is bounded by them (and by one batch, which a broker never cuts).
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import anyio

from tidewire.client.acknowledgements import AckCommand, Acknowledgements
from tidewire.client.background import BackgroundTask
from tidewire.client.connection import Connection, Kind
from tidewire.client.errors import ConnectionLost, NotAllowed, Refused, SubscriptionBusy, TidewireError, fresh
from tidewire.client.inbox import Delivery, Inbox
from tidewire.client.message import MessageId, Position
from tidewire.client.network import TRANSIENT, Network
from tidewire.client.waking import Signal
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import message_id, position

_log: Final = logging.getLogger(__name__)

QUEUE_MESSAGES_MAX: Final = 1000
"""Messages of one segment that may wait in the inbox, unless the consumer was given another number."""

BEFORE_ALL: Final = Position(-1, -1)
AFTER_ALL: Final = Position(2**63 - 1, 2**63 - 1)
"""What a reader starts after: everything to come, whatever there is; or only what is not there yet."""


@dataclass(frozen=True, slots=True)
class SubscriptionPlan:
    """How to subscribe."""

    subscription: str
    consumer_name: str | None = None
    sub_type: pb.CommandSubscribe.SubType = pb.CommandSubscribe.SubType.Exclusive
    initial_position: pb.CommandSubscribe.InitialPosition = pb.CommandSubscribe.InitialPosition.Earliest
    """Where a subscription that does not exist yet begins."""
    is_durable: bool = True
    """Whether the broker keeps the position; a reader keeps it by itself."""
    queue_messages_max: int = QUEUE_MESSAGES_MAX
    bears: tuple[type[Refused], ...] = ()
    """Refusals that ask for patience rather than for giving up."""


class TopicConsumer:
    """Consumes one segment into an inbox. `run` does it; everything else may be called by any task."""

    def __init__(
        self,
        network: Network,
        inbox: Inbox,
        plan: SubscriptionPlan,
        *,
        segment_id: int,
        topic: str,
        start_after: Position | None = None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """A consumer of `topic`; `start` begins.

        Args:
            network: how to reach its owner.
            inbox: where its messages go, and what is told of its failure.
            plan: how to subscribe.
            segment_id: what its message ids say.
            topic: the topic, partition or segment.
            start_after: of a reader: the last message that is not wanted; moves on with what is delivered.
            on_change: called when it may have finished, and at each refusal that the plan bears; from the task that
                reads the connection or that receives, so it returns at once and raises nothing.
        """
        self.segment_id = segment_id
        self.topic = topic
        self.opened = anyio.Event()
        """Set when it has subscribed for the first time, or will never."""
        self._network = network
        self._inbox = inbox
        self._plan = plan
        self._start_after = start_after
        self._on_change = on_change
        self._acknowledgements = Acknowledgements()
        self._permits_due = 0
        self._wake = Signal()
        self._backoff = network.backoff()
        self._connection: Connection | None = None
        self._consumer_id = 0
        self._attempts = 0
        self._lost: TidewireError | None = None
        self._is_closed_by_broker = False
        # The broker says that on this session nothing comes after what has come.
        self._is_ended = False
        self._is_stopping = False
        self._task: BackgroundTask | None = None

    @property
    def is_connected(self) -> bool:
        """Whether it has a session."""
        return self._connection is not None

    @property
    def is_finished(self) -> bool:
        """Whether all of a sealed topic was received: the broker has sent its last, and nothing of it waits here.

        Brokers differ in when they say so to readers: when all is sent, or when all is acknowledged.
        """
        return self._is_ended and not self._inbox.holds(self)

    @property
    def start_after(self) -> Position | None:
        """See `Source`. Of a durable subscription: what was acknowledged; the broker may have sent it just before."""
        if self._plan.is_durable:
            return self._acknowledgements.upto
        # Of a "latest" that could not be pinned, nothing is to be left out.
        return None if self._start_after == AFTER_ALL else self._start_after

    def start(self) -> None:
        """Begin to consume, in the client's task group.

        Raises:
            Closed: the client is closed.
        """
        self._task = self._network.start(self.run(), f"consumer of {self.topic}", self._inbox.fail)

    # -------------------------------------------------------------------------------------------------------- the task

    async def run(self) -> None:
        """Consume until stopped; an error that patience does not cure fails the inbox."""
        try:
            while not self._is_stopping:
                try:
                    await self._hold_session()
                except TRANSIENT as error:
                    _log.info("the consumer of %s lost its session: %s", self.topic, error)
                except self._plan.bears as error:
                    _log.debug("the consumer of %s waits: %s", self.topic, error)
                    self._on_change()
                except SubscriptionBusy:
                    # Unless this was the first attempt: our own session of before, which the broker still believes in.
                    if self._attempts == 1:
                        raise
                if not self._is_stopping:
                    await self._backoff.wait()
        except TidewireError as error:
            if not self._is_stopping:
                self._inbox.fail(error)
            self.opened.set()

    async def _hold_session(self) -> None:
        connection = await self._network.owner_of(self.topic)
        self._lost, self._is_closed_by_broker = None, False
        self._consumer_id = connection.attach(Kind.CONSUMER, self)
        try:
            await self._subscribe(connection)
            self._connection = connection
            self._backoff.reset()
            self._permits_due = 0
            connection.write(encode_command(commands.flow(self._consumer_id, self._plan.queue_messages_max)))
            self.opened.set()
            while not self._is_over():
                await self._tell(connection)
                await self._wake.wait()
            if self._is_stopping:
                await self._tell(connection)
                await connection.request(partial(commands.close_consumer, self._consumer_id), pb.CommandSuccess)
                self._is_closed_by_broker = True
        finally:
            self._connection = None
            # What is dropped comes again on the next session, and the end after it.
            self._is_ended = False
            self._inbox.drop(self)
            connection.detach(Kind.CONSUMER, self._consumer_id)
            if not self._is_closed_by_broker:
                connection.write(encode_command(commands.close_consumer(self._consumer_id)))

    async def _subscribe(self, connection: Connection) -> None:
        self._attempts += 1
        plan = self._plan
        after = self._start_after
        await connection.request(
            partial(
                commands.subscribe,
                self.topic,
                plan.subscription,
                self._consumer_id,
                sub_type=plan.sub_type,
                name=plan.consumer_name,
                durable=plan.is_durable,
                initial_position=plan.initial_position,
                start=None if after is None else _start_id(after),
                consumer_epoch=0,
            ),
            pb.CommandSuccess,
        )
        if after == AFTER_ALL:
            await self._pin_latest(connection)

    async def _pin_latest(self, connection: Connection) -> None:
        # "Latest" means now: after a lost connection it must not mean a later now, which would skip messages.
        try:
            answer = await connection.request(
                partial(commands.get_last_message_id, self._consumer_id), pb.CommandGetLastMessageIdResponse
            )
        except NotAllowed as error:
            _log.info("%s does not tell the last message of %s: %s", connection.address, self.topic, error)
        else:
            self._start_after = Position(*position(answer.last_message_id))

    def _is_over(self) -> bool:
        if self._lost is not None:
            raise fresh(self._lost)
        return self._is_stopping or self._is_closed_by_broker

    async def _tell(self, connection: Connection) -> None:
        while self._acknowledgements:
            if not connection.is_writable:
                await connection.writable()
            for command in self._acknowledgements.take():
                connection.write(
                    encode_command(commands.ack(self._consumer_id, command.message_ids, cumulative=command.cumulative))
                )

    # ----------------------------------------------------------------------------------------------- acknowledging

    def acknowledge(self, place: Position) -> None:
        """This message; the broker is told soon."""
        self._acknowledgements.add(place)
        self._wake.set()

    def acknowledge_upto(self, place: Position) -> None:
        """This message and all before it; the broker is told soon."""
        if self._acknowledgements.add_upto(place):
            self._wake.set()

    def confirmation(self, place: Position, *, upto: bool) -> "Confirmation":
        """As `acknowledge` or `acknowledge_upto`; awaiting the result's `wait` says when the broker has taken it in.

        Raises:
            ConnectionLost: there is no session now; it is told on the next one, unconfirmed.
        """
        connection = self._connection
        if connection is None:
            if upto:
                self.acknowledge_upto(place)
            else:
                self.acknowledge(place)
            raise ConnectionLost(f"{self.topic} is not connected at the moment")
        if upto:
            told = self._acknowledgements.take_to_confirm(place)
            return Confirmation(connection, self._consumer_id, told, self._acknowledgements, place)
        self._acknowledgements.add(place)
        return Confirmation(connection, self._consumer_id, self._acknowledgements.take(), None, place)

    # ------------------------------------------------------------------------------------------------- what is heard

    def received(self, command: pb.BaseCommand, payload: bytes | None) -> None:
        """See `Listener`."""
        if command.type == pb.BaseCommand.MESSAGE:
            assert payload is not None, "the decoder refuses a MESSAGE without payload"
            message = command.message
            if self._is_stopping:
                # What came before it may have been dropped already, and a gap must not be delivered.
                return
            self._inbox.put(
                Delivery(self, *position(message.message_id), message.redelivery_count, tuple(message.ack_set), payload)
            )
        elif command.type == pb.BaseCommand.REACHED_END_OF_TOPIC:
            self._is_ended = True
            self._on_change()
        elif command.type == pb.BaseCommand.CLOSE_CONSUMER:
            self._is_closed_by_broker = True
            self._acknowledgements.rewind()
            self._wake.set()

    def connection_lost(self, error: TidewireError) -> None:
        """See `Listener`."""
        self._lost = error
        self._acknowledgements.rewind()
        self._wake.set()

    def taken(self, messages: int) -> None:
        """See `Source`."""
        self._permits_due += messages
        if self._connection is not None and 2 * self._permits_due >= self._plan.queue_messages_max:
            self._connection.write(encode_command(commands.flow(self._consumer_id, self._permits_due)))
            self._permits_due = 0

    def delivered(self, message_id: MessageId, *, ends_entry: bool) -> None:
        """See `Source`. A reader goes on from here after a lost connection, and tells the broker what it has read."""
        if self._plan.is_durable:
            return
        self._start_after = message_id.position
        if ends_entry:
            # The broker keeps nothing of it; it tells the end of a sealed topic by it.
            self.acknowledge_upto(Position(message_id.ledger_id, message_id.entry_id))
            if self._is_ended:
                self._on_change()

    # --------------------------------------------------------------------------------------------------------- the end

    def stop(self) -> None:
        """Begin to close: from now on nothing that comes is delivered, nor what is waiting."""
        self._is_stopping = True
        self._inbox.drop(self)
        self._wake.set()

    async def aclose(self) -> None:
        """Tell what was acknowledged, close the session, and wait until the broker has done so. Cancelled, don't."""
        self.stop()
        if self._task is None:
            return
        try:
            if self._connection is not None:
                await self._task.wait()
        finally:
            self._task.cancel()


class Confirmation:
    """Acknowledgements taken out to be told now, on the session of this moment, with an answer."""

    __slots__ = ("_acknowledgements", "_connection", "_consumer_id", "_place", "_told")

    def __init__(
        self,
        connection: Connection,
        consumer_id: int,
        told: list[AckCommand],
        acknowledgements: Acknowledgements | None,
        place: Position,
    ) -> None:
        """What is `told`; once answered, `acknowledgements` learn that all up to `place` is confirmed."""
        self._connection = connection
        self._consumer_id = consumer_id
        self._told = told
        self._acknowledgements = acknowledgements
        self._place = place

    async def wait(self) -> None:
        """Tell, and return when the broker has taken it in.

        Raises:
            ConnectionLost: the session ended first; the messages may come again.
            Refused: the broker does not accept it.
        """
        for command in self._told:
            acknowledge = partial(_confirmed_ack, self._consumer_id, command)
            try:
                await self._connection.request(acknowledge, pb.CommandAckResponse)
            except Refused as refused:
                if refused.code == pb.ServerError.ConsumerNotFound:
                    raise ConnectionLost(f"the session ended before the acknowledgement came: {refused}") from refused
                raise
        if self._acknowledgements is not None and self._told:
            self._acknowledgements.confirmed(self._place)


def _start_id(after: Position) -> pb.MessageIdData:
    if after.is_whole_entry:
        return message_id(after.ledger_id, after.entry_id)
    return message_id(after.ledger_id, after.entry_id, batch_index=after.batch_index, batch_size=after.batch_size)


def _confirmed_ack(consumer_id: int, command: AckCommand, request_id: int) -> pb.BaseCommand:
    return commands.ack(consumer_id, command.message_ids, cumulative=command.cumulative, request_id=request_id)
