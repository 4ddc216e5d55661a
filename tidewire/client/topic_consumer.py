"""The consumer of one segment (or partition, or plain topic): it subscribes, receives and acknowledges until closed.

One task holds the session. When it is lost, the task opens another one at the topic's current owner. Messages that had
arrived and were not delivered are dropped then, and the broker redelivers them. Acknowledgements name messages and not
sessions, so the next session carries those that were not sent.

Flow permits count messages. The consumer gives as many as its queue holds at the start. It gives new ones when messages
worth half of the queue have left the inbox. So the permits bound the inbox, plus one batch, which brokers never split.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

import anyio

from tidewire.client.acknowledgements import AckCommand, Acknowledgements
from tidewire.client.background import BackgroundTask
from tidewire.client.confirmations import Confirmation, acknowledge_answered
from tidewire.client.definitions import definition_of
from tidewire.client.errors import DataDamaged
from tidewire.client.inbox import Delivery, Inbox, Trouble
from tidewire.client.network import Network
from tidewire.client.reading_place import ReadingPlace
from tidewire.client.subscribing import SubscriptionPlan, end_of, last_position, seek_command, subscribe_command
from tidewire.client.topic_end import TopicEnd
from tidewire.client.topic_owner import TopicOwner
from tidewire.client.topic_session import DELIVERS, OVER, USABLE, Event, Moves, Phase, TopicSession
from tidewire.client.waking import Signal
from tidewire.protocol.chunks import Chunks
from tidewire.protocol.errors import ConnectionLost, TidewireError, fresh
from tidewire.protocol.positions import AFTER_ALL, EntryPosition, MessageId, Position
from tidewire.protocol.refusals import TRANSIENT, Refused, SubscriptionBusy
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import position

_log: Final = logging.getLogger(__name__)


class TopicConsumer:
    """Consumes one segment into an inbox. `run` does the work; any task may call the other methods."""

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
            network: how to reach the topic's owner.
            inbox: gets the messages, and the error if the consumer fails.
            plan: how to subscribe.
            segment_id: the segment id of its message ids.
            topic: the topic, partition or segment.
            start_after: readers only: the message behind which to begin.
            since_ms: readers only: begin with the first message published at this time or later, ms since the epoch.
            on_change: called when it may have finished, and at each refusal that the plan tolerates. The task that
                reads the connection or that receives calls it, so it returns at once and raises nothing.
            on_loss: called with `segment_id` when a session has ended, whose unacknowledged messages the broker
                redelivers. Returns at once and raises nothing.
        """
        self.segment_id = segment_id
        self.topic = topic
        self.opened = anyio.Event()
        """Set when it has subscribed for the first time, or never will."""
        self._network = network
        self._inbox = inbox
        self._plan = plan
        self.since_ms = since_ms
        """See `Source`."""
        self.chunks = Chunks(anyio.current_time)
        """See `Source`."""
        self._place = ReadingPlace(start_after)
        self._end = TopicEnd()
        self._on_change = on_change
        self._on_loss = on_loss
        self._acknowledgements = Acknowledgements()
        self._wake = Signal()
        self._topic_owner = TopicOwner(network, topic)
        self._session: TopicSession | None = None
        """The session that is attached to a connection. None between two sessions."""
        self._moves = Moves()
        self._attempts = 0
        """Attempts to subscribe. A refusal of a later one may be due to this consumer's own earlier session."""
        self.last_failure: TidewireError | None = None
        """The last transient failure."""
        self._is_stopping = False
        """Set once, by `stop`. The current session is then the last."""
        self._task: BackgroundTask | None = None

    @property
    def is_connected(self) -> bool:
        """Whether it has a session. Without one, undelivered messages are dropped."""
        return self._session is not None and self._session.phase is not Phase.SUBSCRIBING

    @property
    def is_finished(self) -> bool:
        """Whether all of a sealed topic was received: the broker has sent its last, and none of it waits here.

        Brokers differ in when they report the end to readers: when all is sent, or when all is acknowledged.
        """
        return self._has_ended and not self._inbox.holds(self)

    @property
    def is_at_end(self) -> bool:
        """Of a reader: whether it was handed everything up to the end of which `ask_end` has asked."""
        return self._end.is_reached

    @property
    def is_before_more(self) -> bool:
        """Of a reader: whether it is at that end, and more may follow."""
        return self._end.is_before_more

    def ask_end(self) -> None:
        """Of a reader: ask the broker where the topic ends now. `on_change` is called when it is at that place."""
        self._end.ask()
        self._wake.set()

    @property
    def start_after(self) -> Position | None:
        """See `Source`. A durable subscription skips acknowledged messages that the broker had already sent."""
        return self._acknowledgements.upto if self._plan.is_durable else self._place.unwanted_upto

    @property
    def place(self) -> Position:
        """Of a reader: the position behind which everything is undelivered."""
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
        """Consume until stopped. An error that a retry does not cure fails the inbox."""
        try:
            while not self._is_stopping:
                try:
                    await self._hold_session()
                except TRANSIENT as error:
                    self.last_failure = error
                    _log.info("the consumer of %s lost its session: %s", self.topic, error)
                    self._network.troubles.met(self, error)
                except self._plan.bears as error:
                    _log.debug("the consumer of %s waits: %s", self.topic, error)
                    self._on_change()
                except SubscriptionBusy:
                    # On a later attempt, the broker may still hold this consumer's earlier session.
                    if self._attempts == 1:
                        raise
                if not self._is_stopping:
                    await self._topic_owner.pause()
        except TidewireError as error:
            if not self._is_stopping:
                self._inbox.fail(error)
            self.opened.set()
        finally:
            self._network.troubles.over(self)

    async def _hold_session(self) -> None:
        connection = await self._topic_owner.connection()
        session = self._session = TopicSession(connection, self)
        self._moves.opening(session)
        try:
            await self._subscribe(session)
            session.happened(Event.OPENED)
            self._topic_owner.opened()
            self._network.troubles.over(self)
            # Before the permits, so that the broker does not redeliver what these acknowledgements cover.
            await self._tell(session)
            session.write(commands.flow(session.consumer_id, self._plan.queue_messages_max))
            self.opened.set()
            while not self._is_over(session):
                await self._tell(session)
                if self._end.is_due:
                    await self._learn_end(session)
                else:
                    await self._wake.wait()
            if self._is_stopping:
                await self._tell(session)
                await connection.request(partial(commands.close_consumer, session.consumer_id), pb.CommandSuccess)
                session.happened(Event.CLOSED)
        finally:
            # The next session brings what is dropped here, and reports the end again.
            self._session = None
            self._inbox.drop(self)
            self._place.session_ended(self.chunks)
            self.chunks.forget()
            if self._plan.is_durable:
                # The broker redelivers all unacknowledged messages, perhaps from further back. So the ids of other
                # segments' messages must no longer claim that they were received.
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
            # "Latest" means the time of the first subscribe. A later "latest" would skip messages.
            last = await last_position(session.connection, session.consumer_id, self.topic)
            if last is not None:
                self._place.pin(last)

    async def _learn_end(self, session: TopicSession) -> None:
        try:
            told = await end_of(session.connection, session.consumer_id)
        except Refused:
            # A broker that has closed the consumer does not know it any more. The next session asks again.
            if session.phase not in OVER:
                raise
        else:
            self._end.answered(told, self._place.last)
            self._on_change()

    def _is_over(self, session: TopicSession) -> bool:
        if session.error is not None:
            raise fresh(session.error)
        return self._is_stopping or session.phase in OVER

    @property
    def _has_ended(self) -> bool:
        return self._session is not None and self._session.phase is Phase.ENDED

    @property
    def _usable(self) -> TopicSession | None:
        """The session, if acknowledgements and requests can be sent on it."""
        session = self._session
        return session if session is not None and session.phase in USABLE else None

    async def _tell(self, session: TopicSession) -> None:
        while self._acknowledgements:
            if not session.connection.is_writable:
                await session.connection.writable()
            session.acknowledge(self._acknowledgements.take())

    # ----------------------------------------------------------------------------------------------- acknowledging

    def acknowledge(self, place: Position) -> None:
        """Acknowledge this message; sent soon."""
        self._acknowledgements.add(place)
        self._wake.set()

    def acknowledge_upto(self, place: Position) -> None:
        """Acknowledge this message and all before it, but no chunk of an incomplete message; sent soon."""
        covered = self.chunks.covered(place)
        if covered is not None and self._acknowledgements.add_upto(covered):
            self._wake.set()

    def confirmation(self, place: Position, *, upto: bool) -> "Confirmation":
        """As `acknowledge` or `acknowledge_upto`. Await the result's `wait` for the broker's confirmation.

        Raises:
            ConnectionLost: there is no session now. The next one sends the acknowledgement, unconfirmed.
        """
        session = self._usable
        if session is None:
            if upto:
                self.acknowledge_upto(place)
            else:
                self.acknowledge(place)
            raise ConnectionLost(f"{self.topic} has no connection to its broker at the moment")
        if upto:
            covered = self.chunks.covered(place)
            told = [] if covered is None else self._acknowledgements.take_to_confirm(covered)
            return Confirmation(session.connection, session.consumer_id, told, self._acknowledgements, covered or place)
        self._acknowledgements.add(place)
        return Confirmation(session.connection, session.consumer_id, self._acknowledgements.take(), None, place)

    def acknowledging(self, command: AckCommand) -> Callable[[tuple[int, int]], Awaitable[None]]:
        """A function that acknowledges in a transaction, and returns when the broker has answered.

        A cumulative command is sent on the present session only. A later session delivers the messages again, and the
        broker cannot tell their copies apart.

        The function raises:
            ConnectionLost: there is no session, or it ended first. Run the transaction again.
            Refused: the broker does not accept the acknowledgement.
        """
        present = self._usable

        async def acknowledge(txn: tuple[int, int]) -> None:
            session = self._usable
            if session is None or (command.cumulative and session is not present):
                raise ConnectionLost(f"{self.topic} has lost the connection to its broker")
            await acknowledge_answered(session.connection, session.consumer_id, command, txn)

        return acknowledge

    # ------------------------------------------------------------------------------------------------- going back

    def redeliver(self, entries: Sequence[tuple[int, int]]) -> None:
        """Send the acknowledgements, then request these (ledger, entry) again. A new session brings them anyway."""
        session = self._usable
        if session is None:
            return
        session.acknowledge(self._acknowledgements.take())
        for entry in entries:
            self._inbox.drop_entry(self, *entry)
        session.redeliver(entries)

    async def seek(self, to: Position | int) -> None:
        """Move the subscription behind a message, or to the first published at a time or later, in ms since the epoch.

        Acknowledgements made before are sent first. From then on, earlier arrivals are not delivered. A new session
        brings the messages at the new place, even if the call fails or is cancelled.

        Raises:
            ConnectionLost: there is no session, or it ended first. The broker may have moved the subscription.
            Refused: the broker does not move it.
        """
        session = self._usable
        if session is None:
            raise ConnectionLost(f"{self.topic} has no connection to its broker at the moment")
        self.begin_move()
        try:
            await session.connection.request(partial(seek_command, session.consumer_id, to), pb.CommandSuccess)
            if isinstance(to, Position) and not to.is_whole_entry:
                # Brokers seek to whole entries.
                for index in range(to.batch_index + 1):
                    self._acknowledgements.add(to._replace(batch_index=index))
        finally:
            self.end_move(is_done=False)

    def begin_move(self) -> None:
        """Send the acknowledgements. From then on nothing is delivered until `end_move` and another session."""
        if self._usable is not None:
            self._usable.acknowledge(self._acknowledgements.take())
        self._moves.begin(self._session)
        self._inbox.drop(self)
        self._inbox.forget(self.segment_id)
        self._acknowledgements.forget()

    def end_move(self, *, is_done: bool) -> bool:
        """End a move. With `is_done` the broker did it, else that is unknown. Returns whether this ends a session."""
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
            self._topic_owner.closed(session.connection, command.close_consumer.assigned_broker_service_url)
            self._acknowledgements.rewind()
            self._wake.set()

    def connection_lost(self, error: TidewireError) -> None:
        """See `Listener`."""
        if self._session is not None:
            self._session.happened(Event.LOST, error)
        self._acknowledgements.rewind()
        self._wake.set()

    async def definition(self, version: bytes) -> pb.Schema | None:
        """See `Source`."""
        return await definition_of(self._network, self.topic, version)

    def taken(self, messages: int) -> None:
        """See `Source`."""
        if self._usable is not None:
            self._usable.taken(messages, self._plan.queue_messages_max)

    def delivered(self, message_id: MessageId, *, ends_entry: bool) -> None:
        """See `Source`. Of a reader: remember the place for the next session, and acknowledge the entry."""
        if not self._plan.is_durable:
            self._place.delivered(message_id.position)
        if ends_entry:
            self.kept(message_id.ledger_id, message_id.entry_id)

    def kept(self, ledger_id: int, entry_id: int) -> None:
        """See `Source`."""
        if self._plan.is_durable:
            return
            # Brokers need it to report the end of a sealed topic. Not beyond an incomplete message's first chunk.
        self.acknowledge_upto(Position(ledger_id, entry_id))
        reaches_end = self._end.passed(EntryPosition(ledger_id, entry_id))
        if self._has_ended or reaches_end:
            self._on_change()

    # --------------------------------------------------------------------------------------------------------- the end

    def stop(self) -> None:
        """Begin to close: from now on deliver nothing, neither new messages nor queued ones."""
        self._is_stopping = True
        self._inbox.drop(self)
        self.opened.set()
        self._wake.set()

    async def aclose(self) -> None:
        """Send the acknowledgements, close the session, and wait for the broker. If cancelled, do not wait."""
        self.stop()
        if self._task is None:
            return
        try:
            if self.is_connected:
                await self._task.wait()
        finally:
            self._task.cancel()
