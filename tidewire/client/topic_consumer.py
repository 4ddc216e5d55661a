"""The consumer of one segment (or partition, or plain topic): it subscribes, receives and acknowledges until closed.

One task holds the session and opens another at the topic's owner, wherever that then is, after it was lost. What had
arrived and was not delivered is dropped then: the broker sends it again. Acknowledgements name messages, not sessions,
so those of messages from a session that is gone are told on the next one.

Flow permits count messages. So many are given at the start, and as many as were taken out of the inbox are given again
once they are half of that; what is in the inbox is bounded by them (and by one batch, which a broker never cuts).
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import anyio

from tidewire.client.acknowledgements import IDS_PER_COMMAND_MAX, AckCommand, Acknowledgements
from tidewire.client.background import BackgroundTask
from tidewire.client.chunks import Chunks
from tidewire.client.confirmations import Confirmation, acknowledge_answered
from tidewire.client.connection import Connection
from tidewire.client.definitions import definition_of
from tidewire.client.errors import ConnectionLost, DataDamaged, NotAllowed, SubscriptionBusy, TidewireError, fresh
from tidewire.client.inbox import Delivery, Inbox, Trouble
from tidewire.client.message import MessageId, Position
from tidewire.client.network import TRANSIENT, Network
from tidewire.client.reading_place import ReadingPlace
from tidewire.client.recipients import Kind
from tidewire.client.subscribing import AFTER_ALL, SubscriptionPlan, seek_command, subscribe_command
from tidewire.client.waking import Signal
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import message_id, position

_log: Final = logging.getLogger(__name__)


class TopicConsumer:
    """Consumes one segment into an inbox. `run` does it; everything else may be called by any task."""

    def __init__(
        self,
        network: Network,
        inbox: Inbox[Any],
        plan: SubscriptionPlan,
        *,
        segment_id: int,
        topic: str,
        start_after: Position | None = None,
        since_ms: int | None = None,
        on_change: Callable[[], None] = lambda: None,
        on_loss: Callable[[int], None] = lambda _segment_id: None,
    ) -> None:
        """A consumer of `topic`; `start` begins.

        Args:
            network: how to reach its owner.
            inbox: where its messages go, and what is told of its failure.
            plan: how to subscribe.
            segment_id: what its message ids say.
            topic: the topic, partition or segment.
            start_after: of a reader: the last message that is not wanted; moves on with what is delivered.
            since_ms: of a reader: its first message is one published at this time or later, ms since the epoch.
            on_change: called when it may have finished, and at each refusal that the plan bears; from the task that
                reads the connection or that receives, so it returns at once and raises nothing.
            on_loss: called with `segment_id` when a session has ended: what it brought and was not acknowledged comes
                again by itself. Returns at once and raises nothing.
        """
        self.segment_id = segment_id
        self.topic = topic
        self.opened = anyio.Event()
        """Set when it has subscribed for the first time, or will never."""
        self._network = network
        self._inbox = inbox
        self._plan = plan
        self.since_ms = since_ms
        """See `Source`."""
        self.chunks = Chunks()
        """See `Source`."""
        self._place = ReadingPlace(start_after)
        self._on_change = on_change
        self._on_loss = on_loss
        self._acknowledgements = Acknowledgements()
        self._permits_due = 0
        self._wake = Signal()
        self._backoff = network.backoff()
        self._connection: Connection | None = None
        self._consumer_id = 0
        self._attempts = 0
        self.last_failure: TidewireError | None = None
        """Why it had no session lately, though another attempt may help."""
        self._lost: TidewireError | None = None
        self._is_closed_by_broker = False
        # The broker says that on this session nothing comes after what has come.
        self._is_ended = False
        # The subscription is being moved: what still comes is from where it stood before; and the session's end is due.
        self._is_moving = False
        self._is_moved = False
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
        return self._acknowledgements.upto if self._plan.is_durable else self._place.unwanted_upto

    @property
    def place(self) -> Position:
        """Of a reader: behind it comes all that was not delivered."""
        assert self._place.last is not None, "a reader begins somewhere"
        return self.chunks.resume_after(self._place.last)

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
                    self.last_failure = error
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
        self._lost, self._is_closed_by_broker, self._is_moving, self._is_moved = None, False, False, False
        self._consumer_id = connection.attach(Kind.CONSUMER, self)
        try:
            await self._subscribe(connection)
            self._connection = connection
            self._backoff.reset()
            self._permits_due = 0
            # First, so that what was dealt with on an earlier session is not sent again.
            await self._tell(connection)
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
            self._place.session_ended(self.chunks)
            self.chunks.forget()
            if self._plan.is_durable:
                # All that is not acknowledged comes again, perhaps from further back: ids of other segments' messages
                # must not say any more that it was received.
                self._inbox.forget(self.segment_id)
            self._on_loss(self.segment_id)
            connection.detach(Kind.CONSUMER, self._consumer_id)
            if not self._is_closed_by_broker:
                connection.write(encode_command(commands.close_consumer(self._consumer_id)))

    async def _subscribe(self, connection: Connection) -> None:
        self._attempts += 1
        after = self._place.subscribe_after
        await connection.request(
            partial(subscribe_command, self.topic, self._plan, self._consumer_id, after, self.since_ms),
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
            self._place.pin(Position(*position(answer.last_message_id)))

    def _is_over(self) -> bool:
        if self._lost is not None:
            raise fresh(self._lost)
        return self._is_stopping or self._is_closed_by_broker or self._is_moved

    async def _tell(self, connection: Connection) -> None:
        while self._acknowledgements:
            if not connection.is_writable:
                await connection.writable()
            self._tell_now(connection)

    def _tell_now(self, connection: Connection) -> None:
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
        """This message and all before it, but nothing of a message that is not yet whole; the broker is told soon."""
        covered = self.chunks.covered(place)
        if covered is not None and self._acknowledgements.add_upto(covered):
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
            covered = self.chunks.covered(place)
            told = [] if covered is None else self._acknowledgements.take_to_confirm(covered)
            return Confirmation(connection, self._consumer_id, told, self._acknowledgements, covered or place)
        self._acknowledgements.add(place)
        return Confirmation(connection, self._consumer_id, self._acknowledgements.take(), None, place)

    async def acknowledge_in(self, txn: tuple[int, int], command: AckCommand) -> None:
        """Acknowledge in a transaction; returns when the broker has taken it in.

        Raises:
            ConnectionLost: there is no session, or it ended first: the transaction has to be run again.
            Refused: the broker does not accept it.
        """
        if self._connection is None:
            raise ConnectionLost(f"{self.topic} is not connected at the moment")
        await acknowledge_answered(self._connection, self._consumer_id, command, txn)

    # ------------------------------------------------------------------------------------------------- going back

    def redeliver(self, entries: Sequence[tuple[int, int]]) -> None:
        """Ask for these (ledger, entry) again, behind what was acknowledged until now. Without a session, they come."""
        connection = self._connection
        if connection is None:
            return
        self._tell_now(connection)
        for entry in entries:
            self._inbox.drop_entry(self, *entry)
        for start in range(0, len(entries), IDS_PER_COMMAND_MAX):
            ids = [message_id(*entry) for entry in entries[start : start + IDS_PER_COMMAND_MAX]]
            connection.write(encode_command(commands.redeliver(self._consumer_id, ids)))

    async def seek(self, to: Position | int) -> None:
        """Move the subscription: behind a message, or to the first one that came at a time, in ms since the epoch.

        What was acknowledged before is told before. From then on nothing is delivered of what had come until then; a
        new session brings what is to come, also when this fails or is cancelled.

        Raises:
            ConnectionLost: there is no session, or it ended first; the broker may have done it.
            Refused: the broker does not do it.
        """
        connection, consumer_id = self._connection, self._consumer_id
        if connection is None:
            raise ConnectionLost(f"{self.topic} is not connected at the moment")
        self.begin_move()
        try:
            await connection.request(partial(seek_command, consumer_id, to), pb.CommandSuccess)
            if isinstance(to, Position) and not to.is_whole_entry:
                # A broker goes on with whole entries.
                for index in range(to.batch_index + 1):
                    self._acknowledgements.add(to._replace(batch_index=index))
        finally:
            if self._consumer_id == consumer_id:
                self.end_session()

    def begin_move(self) -> None:
        """Tell what was acknowledged, and from then on deliver nothing until there is another session."""
        if self._connection is not None:
            self._tell_now(self._connection)
        self._is_moving = True
        self._inbox.drop(self)
        self._inbox.forget(self.segment_id)
        self._acknowledgements.forget()

    def end_session(self) -> None:
        """Go on with another session."""
        self._is_moved = True
        self._wake.set()

    # ------------------------------------------------------------------------------------------------- what is heard

    def received(self, command: pb.BaseCommand, payload: bytes | None) -> None:
        """See `Listener`."""
        if command.type == pb.BaseCommand.MESSAGE:
            assert payload is not None, "the decoder refuses a MESSAGE without payload"
            message = command.message
            if self._is_stopping or self._is_moving:
                # What came before it may have been dropped already, and a gap must not be delivered.
                return
            self._inbox.put(
                Delivery(self, *position(message.message_id), message.redelivery_count, tuple(message.ack_set), payload)
            )
        elif command.type == pb.BaseCommand.REACHED_END_OF_TOPIC:
            self._is_ended = True
            self._on_change()
        elif command.type == pb.BaseCommand.ERROR:
            self._inbox.put(Trouble(self, DataDamaged(f"{self.topic}: {command.error.message}")))
        elif command.type == pb.BaseCommand.CLOSE_CONSUMER:
            self._is_closed_by_broker = True
            self._acknowledgements.rewind()
            self._wake.set()

    def connection_lost(self, error: TidewireError) -> None:
        """See `Listener`."""
        self._lost = error
        self._acknowledgements.rewind()
        self._wake.set()

    async def definition(self, version: bytes) -> bytes | None:
        """See `Source`."""
        return await definition_of(self._network, self.topic, version)

    def taken(self, messages: int) -> None:
        """See `Source`."""
        self._permits_due += messages
        if self._connection is not None and 2 * self._permits_due >= self._plan.queue_messages_max:
            self._connection.write(encode_command(commands.flow(self._consumer_id, self._permits_due)))
            self._permits_due = 0

    def delivered(self, message_id: MessageId, *, ends_entry: bool) -> None:
        """See `Source`. A reader goes on from here after a lost connection, and tells the broker what it has read."""
        if not self._plan.is_durable:
            self._place.delivered(message_id.position)
        if ends_entry:
            self.kept(message_id.ledger_id, message_id.entry_id)

    def kept(self, ledger_id: int, entry_id: int) -> None:
        """See `Source`."""
        if self._plan.is_durable:
            return
        # Brokers tell the end of a sealed topic by it. Not past what is begun, which comes again in another session.
        self.acknowledge_upto(Position(ledger_id, entry_id))
        if self._is_ended:
            self._on_change()

    # --------------------------------------------------------------------------------------------------------- the end

    def stop(self) -> None:
        """Begin to close: from now on nothing that comes is delivered, nor what is waiting."""
        self._is_stopping = True
        self._inbox.drop(self)
        self.opened.set()
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
