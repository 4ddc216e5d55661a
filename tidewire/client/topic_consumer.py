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

from tidewire.client.acknowledgements import AckCommand, Acknowledgements
from tidewire.client.background import BackgroundTask
from tidewire.client.chunks import Chunks
from tidewire.client.confirmations import Confirmation, acknowledge_answered
from tidewire.client.definitions import definition_of
from tidewire.client.errors import DataDamaged
from tidewire.client.inbox import Delivery, Inbox, Trouble
from tidewire.client.network import Network
from tidewire.client.reading_place import ReadingPlace
from tidewire.client.subscribing import SubscriptionPlan, last_position, seek_command, subscribe_command
from tidewire.client.topic_session import DELIVERS, OVER, USABLE, Event, Moves, Phase, TopicSession
from tidewire.client.waking import Signal
from tidewire.protocol.errors import ConnectionLost, TidewireError, fresh
from tidewire.protocol.positions import AFTER_ALL, MessageId, Position
from tidewire.protocol.refusals import TRANSIENT, SubscriptionBusy
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import position

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
        self._wake = Signal()
        self._backoff = network.backoff()
        self._session: TopicSession | None = None
        """The one that is attached to a connection. None between two sessions."""
        self._moves = Moves()
        self._attempts = 0
        """To subscribe; the first may find another consumer's session, a later one its own of before."""
        self.last_failure: TidewireError | None = None
        """Why it had no session lately, though another attempt may help."""
        self._is_stopping = False
        """Set once, by `stop`. The session that there is then is the last."""
        self._task: BackgroundTask | None = None

    @property
    def is_connected(self) -> bool:
        """Whether it has a session. Once it has none, what that brought and was not delivered is dropped."""
        return self._session is not None and self._session.phase is not Phase.SUBSCRIBING

    @property
    def is_finished(self) -> bool:
        """Whether all of a sealed topic was received: the broker has sent its last, and nothing of it waits here.

        Brokers differ in when they say so to readers: when all is sent, or when all is acknowledged.
        """
        return self._has_ended and not self._inbox.holds(self)

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
        session = self._session = TopicSession(connection, self)
        self._moves.opening(session)
        try:
            await self._subscribe(session)
            session.happened(Event.OPENED)
            self._backoff.reset()
            # First, so that what was dealt with on an earlier session is not sent again.
            await self._tell(session)
            session.write(commands.flow(session.consumer_id, self._plan.queue_messages_max))
            self.opened.set()
            while not self._is_over(session):
                await self._tell(session)
                await self._wake.wait()
            if self._is_stopping:
                await self._tell(session)
                await connection.request(partial(commands.close_consumer, session.consumer_id), pb.CommandSuccess)
                session.happened(Event.CLOSED)
        finally:
            # What is dropped comes again on the next session, and the end after it.
            self._session = None
            self._inbox.drop(self)
            self._place.session_ended(self.chunks)
            self.chunks.forget()
            if self._plan.is_durable:
                # All that is not acknowledged comes again, perhaps from further back: ids of other segments' messages
                # must not say any more that it was received.
                self._inbox.forget(self.segment_id)
            self._on_loss(self.segment_id)
            session.detach()
            if session.phase is not Phase.CLOSED:
                session.write(commands.close_consumer(session.consumer_id))

    async def _subscribe(self, session: TopicSession) -> None:
        self._attempts += 1
        after = self._place.subscribe_after
        await session.connection.request(
            partial(subscribe_command, self.topic, self._plan, session.consumer_id, after, self.since_ms),
            pb.CommandSuccess,
        )
        if after == AFTER_ALL:
            # "Latest" means now: after a lost connection it must not mean a later now, which would skip messages.
            last = await last_position(session.connection, session.consumer_id, self.topic)
            if last is not None:
                self._place.pin(last)

    def _is_over(self, session: TopicSession) -> bool:
        if session.error is not None:
            raise fresh(session.error)
        return self._is_stopping or session.phase in OVER

    @property
    def _has_ended(self) -> bool:
        return self._session is not None and self._session.phase is Phase.ENDED

    @property
    def _usable(self) -> TopicSession | None:
        """The session, if the broker may be told and asked by it."""
        session = self._session
        return session if session is not None and session.phase in USABLE else None

    async def _tell(self, session: TopicSession) -> None:
        while self._acknowledgements:
            if not session.connection.is_writable:
                await session.connection.writable()
            session.acknowledge(self._acknowledgements.take())

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
        session = self._usable
        if session is None:
            if upto:
                self.acknowledge_upto(place)
            else:
                self.acknowledge(place)
            raise ConnectionLost(f"{self.topic} is not connected at the moment")
        if upto:
            covered = self.chunks.covered(place)
            told = [] if covered is None else self._acknowledgements.take_to_confirm(covered)
            return Confirmation(session.connection, session.consumer_id, told, self._acknowledgements, covered or place)
        self._acknowledgements.add(place)
        return Confirmation(session.connection, session.consumer_id, self._acknowledgements.take(), None, place)

    async def acknowledge_in(self, txn: tuple[int, int], command: AckCommand) -> None:
        """Acknowledge in a transaction; returns when the broker has taken it in.

        Raises:
            ConnectionLost: there is no session, or it ended first: the transaction has to be run again.
            Refused: the broker does not accept it.
        """
        session = self._usable
        if session is None:
            raise ConnectionLost(f"{self.topic} is not connected at the moment")
        await acknowledge_answered(session.connection, session.consumer_id, command, txn)

    # ------------------------------------------------------------------------------------------------- going back

    def redeliver(self, entries: Sequence[tuple[int, int]]) -> None:
        """Ask for these (ledger, entry) again, behind what was acknowledged until now. Without a session, they come."""
        session = self._usable
        if session is None:
            return
        session.acknowledge(self._acknowledgements.take())
        for entry in entries:
            self._inbox.drop_entry(self, *entry)
        session.redeliver(entries)

    async def seek(self, to: Position | int) -> None:
        """Move the subscription: behind a message, or to the first one that came at a time, in ms since the epoch.

        What was acknowledged before is told before. From then on nothing is delivered of what had come until then; a
        new session brings what is to come, also when this fails or is cancelled.

        Raises:
            ConnectionLost: there is no session, or it ended first; the broker may have done it.
            Refused: the broker does not do it.
        """
        session = self._usable
        if session is None:
            raise ConnectionLost(f"{self.topic} is not connected at the moment")
        self.begin_move()
        try:
            await session.connection.request(partial(seek_command, session.consumer_id, to), pb.CommandSuccess)
            if isinstance(to, Position) and not to.is_whole_entry:
                # A broker goes on with whole entries.
                for index in range(to.batch_index + 1):
                    self._acknowledgements.add(to._replace(batch_index=index))
        finally:
            self.end_move(is_done=False)

    def begin_move(self) -> None:
        """Tell what was acknowledged. From then on deliver nothing until `end_move`, and there is another session."""
        if self._usable is not None:
            self._usable.acknowledge(self._acknowledgements.take())
        self._moves.begin(self._session)
        self._inbox.drop(self)
        self._inbox.forget(self.segment_id)
        self._acknowledgements.forget()

    def end_move(self, *, is_done: bool) -> bool:
        """The broker has moved the subscription if `is_done`; otherwise nobody knows. Whether this closes a session."""
        self._wake.set()
        return self._moves.end(None if self._is_stopping else self._session, is_done=is_done)

    # ------------------------------------------------------------------------------------------------- what is heard

    def received(self, command: pb.BaseCommand, payload: bytes | None) -> None:
        """See `Listener`."""
        session = self._session
        assert session is not None, "it is detached when it ends"
        if command.type == pb.BaseCommand.MESSAGE:
            assert payload is not None, "the decoder refuses a MESSAGE without payload"
            message = command.message
            if self._is_stopping or session.phase not in DELIVERS:
                return
            self._inbox.put(
                Delivery(self, *position(message.message_id), message.redelivery_count, tuple(message.ack_set), payload)
            )
        elif command.type == pb.BaseCommand.REACHED_END_OF_TOPIC:
            session.happened(Event.END_REACHED)
            self._on_change()
        elif command.type == pb.BaseCommand.ERROR:
            self._inbox.put(Trouble(self, DataDamaged(f"{self.topic}: {command.error.message}")))
        elif command.type == pb.BaseCommand.CLOSE_CONSUMER:
            session.happened(Event.CLOSED)
            self._acknowledgements.rewind()
            self._wake.set()

    def connection_lost(self, error: TidewireError) -> None:
        """See `Listener`."""
        if self._session is not None:
            self._session.happened(Event.LOST, error)
        self._acknowledgements.rewind()
        self._wake.set()

    async def definition(self, version: bytes) -> bytes | None:
        """See `Source`."""
        return await definition_of(self._network, self.topic, version)

    def taken(self, messages: int) -> None:
        """See `Source`."""
        if self._usable is not None:
            self._usable.taken(messages, self._plan.queue_messages_max)

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
        if self._has_ended:
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
            if self.is_connected:
                await self._task.wait()
        finally:
            self._task.cancel()
