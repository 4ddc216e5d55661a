"""The producer of one segment (or partition, or plain topic): it connects, sends, and ends when the segment is sealed.

One task does all of it. It opens a session at the segment's owner, sends what may leave, and sleeps until it has
something to do. It wakes for messages, answers, a lost or closed session, and a new layout.

After a lost connection it opens another session and sends the unanswered messages again. Transactional sends are the
exception: they fail, so that their transactions are run again. The broker also closes sessions, because the segment
moves or its disk is full. Then the producer sends transactional messages again, too, if the broker shows that it
remembers this producer's last send.

**A sealed segment.** The broker answers every send that it stored before it reports the seal, by refusing a send or by
closing the session. So the unanswered messages are not stored, and the producer passes them to the segment's children,
in order. A child does not begin before all its sealed predecessors have done so. So the messages of a key stay in order
through any number of splits and merges, even when several happen at once.

The broker may close a session with unanswered sends. Then the segment is sealed, or it has another owner, whatever the
layout says: a replaced segment may move before it is sealed. The next session tells which. The broker refuses it as
terminated, or accepts it. Then the producer sends the unanswered messages again, and the broker recognises those that
are stored.
"""

import logging
from functools import partial
from typing import Final, Protocol

import anyio

from tidewire.client.background import BackgroundTask
from tidewire.client.errors import SendUnanswered
from tidewire.client.layout_watch import TopicLayout
from tidewire.client.network import Network
from tidewire.client.outbox import Outbox
from tidewire.client.producer_session import Event, Phase, ProducerSession
from tidewire.client.sending import Batching, Chunking, Outgoing, SendFrame
from tidewire.client.topic_owner import TopicOwner
from tidewire.client.transactions import Transaction
from tidewire.client.troubles import ShownTroubles
from tidewire.client.waking import Signal
from tidewire.protocol.errors import MessageTooLarge, TidewireError, fresh
from tidewire.protocol.layout import Layout, Segment
from tidewire.protocol.refusals import TRANSIENT, NameTaken, TopicNotFound, TopicTerminated, refusal
from tidewire.protocol.unanswered import SEALING
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import position

_log: Final = logging.getLogger(__name__)

_MANAGED: Final = {"__pulsar.v5.managed": "true"}
"""Tells a broker that the producer of an older, regular topic came through a scalable one."""


class Owner(Protocol):
    """The producer of the whole topic, as its segments see it."""

    network: Network
    layout: TopicLayout
    name: str | None
    batching: Batching
    chunking: Chunking | None
    codec: pb.CompressionType
    declared: pb.Schema | None
    troubles: ShownTroubles

    def hand_over(self, segment: "SegmentProducer", messages: list[Outgoing]) -> None:
        """The segment is sealed. These messages, in order, were not stored. The segment's producer has finished."""
        ...

    def fail(self, error: TidewireError) -> None:
        """Producing to this topic has ended, because of `error`."""
        ...


class SegmentProducer:
    """Sends the messages of one segment. `run` does the work; any task may call the other methods."""

    def __init__(self, owner: Owner, segment: Segment, forerunners: "set[SegmentProducer]") -> None:
        """A producer of `segment` that does not begin before each of `forerunners` has handed over its messages."""
        self.segment = segment
        self._owner = owner
        self._network = owner.network
        self._outbox = Outbox(owner.batching, owner.chunking)
        self._forerunners = forerunners
        self._inherited: list[Outgoing] = []
        self._may_begin = anyio.Event()
        if not forerunners:
            self._may_begin.set()
        self._wake = Signal()
        self._topic_owner = TopicOwner(owner.network, segment.wire_name)
        self._session: ProducerSession | None = None
        """The session that is attached to a connection. None between two sessions."""
        self._name = owner.name
        self._attempts = 0
        """Attempts to open a session. A refusal of a later one may be due to this producer's own earlier session."""
        self._is_refused = False
        """Whether the broker has refused the last session, or its unanswered sends, because the segment is sealed."""
        self._is_stopping = False
        """Set once, by `aclose`. The current session is then the last."""
        self._task: BackgroundTask | None = None

    def start(self) -> None:
        """Begin to send, in the client's task group.

        Raises:
            Closed: the client is closed.
        """
        self._task = self._network.start(self.run(), f"producer of {self.segment.wire_name}", self._owner.fail)

    @property
    def is_connected(self) -> bool:
        """Whether it has a session."""
        return self._session is not None and self._session.is_open

    def append(self, message: Outgoing) -> None:
        """Queue a message behind all others."""
        self._outbox.append(message)
        self._wake.set()

    def inherit(self, message: Outgoing) -> None:
        """Take over a message that a sealed segment did not store. It goes before this segment's own messages."""
        if self._may_begin.is_set():
            # Only a message without a key gets here, and such messages have no order among segments.
            self.append(message)
        else:
            self._inherited.append(message)

    def forerunner_finished(self, forerunner: "SegmentProducer") -> None:
        """A predecessor has handed over its messages."""
        self._forerunners.discard(forerunner)
        if not self._forerunners and not self._may_begin.is_set():
            self._outbox.prepend(self._inherited)
            self._inherited.clear()
            self._may_begin.set()

    def layout_changed(self) -> None:
        """There is a newer layout, or the watch has failed."""
        self._wake.set()

    def outstanding(self) -> list[Outgoing]:
        """Everything unanswered, in order."""
        return [*self._inherited, *self._outbox.outstanding()]

    def take_all(self) -> list[Outgoing]:
        """Take everything unanswered, in order. Nothing is left."""
        inherited, self._inherited = self._inherited, []
        return [*inherited, *self._outbox.take_all()]

    # -------------------------------------------------------------------------------------------------------- the task

    async def run(self) -> None:
        """Send until the segment is sealed, the topic is lost, or cancelled."""
        try:
            await self._may_begin.wait()
            while self._goes_on():
                try:
                    await self._hold_session()
                except TRANSIENT as error:
                    _log.info("the producer of %s lost its session: %s", self.segment.wire_name, error)
                    self._owner.troubles.met(self, error)
                except NameTaken:
                    # On a later attempt, the broker may still hold this producer's earlier session.
                    if self._attempts == 1:
                        raise
                except (TopicTerminated, TopicNotFound) as error:
                    self._is_refused = True
                    await self._until_replaced(error)
                if self._goes_on():
                    await self._topic_owner.pause()
            if not self._is_stopping:
                self._owner.hand_over(self, self.take_all())
        except TidewireError as error:
            self._owner.fail(error)
        finally:
            self._owner.troubles.over(self)

    def _goes_on(self) -> bool:
        if self._is_stopping:
            return False
        return self._is_active() or (self._outbox.is_in_doubt and not self._is_refused)

    def _is_active(self) -> bool:
        return self._owner.layout.current.is_active(self.segment.segment_id)

    async def _until_replaced(self, error: TidewireError) -> None:
        # The layout with a segment's successors is on its way. A topic without a layout has ended for good.
        if not self.segment.wire_name.startswith("segment://"):
            raise error
        try:
            with anyio.fail_after(self._network.settings.operation_timeout_seconds):
                await self._owner.layout.until(self._is_replaced_in)
        except TimeoutError:
            # A seal is never undone, so its layout comes, however late. The next session tells whether the topic is
            # still there. A segment that is not there, and that no layout replaces, was deleted with its topic.
            if not isinstance(error, TopicTerminated):
                raise error from None
            _log.info("the layout that replaces %s is late", self.segment.wire_name)

    def _is_replaced_in(self, layout: Layout) -> bool:
        return not layout.is_active(self.segment.segment_id)

    def _doubt(self, reason: str, *, remembered_upto: int | None = None) -> None:
        for frame in self._outbox.take_back(remembered_upto=remembered_upto):
            name = self.segment.wire_name
            frame.fail(SendUnanswered(f"{name}: {reason} before the send was answered; run the transaction again"))

    async def _hold_session(self) -> None:
        connection = await self._topic_owner.connection()
        session = self._session = ProducerSession(connection, self)
        try:
            remembered_upto = await self._open(session)
            self._topic_owner.opened()
            self._owner.troubles.over(self)
            self._is_refused = False
            # The broker closed the last session and has opened this one: the segment moved, or its disk was full.
            self._doubt("the broker closed the producer", remembered_upto=remembered_upto)
            session.happened(Event.OPENED)
            try:
                await self._send(session)
            except TRANSIENT:
                self._doubt("the connection was lost")
                raise
            self._outbox.rest()
            if self._is_stopping:
                await connection.request(partial(commands.close_producer, session.producer_id), pb.CommandSuccess)
                session.happened(Event.CLOSED)
        finally:
            self._session = None
            session.detach()
            if session.is_at_broker:
                connection.write(encode_command(commands.close_producer(session.producer_id)))

    async def _open(self, session: ProducerSession) -> int:
        """Open the session. Returns the last sequence id of this producer that the broker remembers, -1 for none."""
        epoch = self._attempts
        self._attempts += 1
        answer = await session.connection.request(
            partial(
                commands.producer,
                self.segment.wire_name,
                session.producer_id,
                name=self._name,
                # Nobody else uses it, so a broker forgets the producer soon after it was closed.
                is_generated=True,
                epoch=epoch,
                txn_enabled=True,
                schema=self._owner.declared,
                properties=_MANAGED if self.segment.is_legacy else None,
            ),
            pb.CommandProducerSuccess,
        )
        self._name = answer.producer_name
        session.schema_version = answer.schema_version
        self._outbox.begin_behind(answer.last_sequence_id)
        self._outbox.bound(session.connection.message_bytes_max)
        return answer.last_sequence_id

    async def _send(self, session: ProducerSession) -> None:
        # Returns when the session is of no further use: the broker closed it, or the segment is sealed and nothing is
        # in flight.
        while True:
            await self._send_what_may_leave(session)
            if self._is_over(session):
                return
            await self._wake.wait()

    def _is_over(self, session: ProducerSession) -> bool:
        if session.error is not None:
            raise fresh(session.error)
        if self._is_stopping or session.phase is Phase.CLOSED:
            return True
        return not self._is_active() and not self._outbox.is_in_doubt

    async def _send_what_may_leave(self, session: ProducerSession) -> None:
        # Check everything again after each await, so that a message leaves the queue only on an open session.
        connection = session.connection
        while not self._is_over(session) and (self._is_active() or self._outbox.is_sending_again):
            head = self._outbox.next_txn()
            if head is None:
                return
            if not connection.is_writable:
                await connection.writable()
                continue
            (txn,) = head
            if txn is not None and not txn.includes(self.segment.wire_name):
                try:
                    await txn.include(self.segment.wire_name)
                except TidewireError as error:
                    self._drop_frame(txn, error)
                continue
            frame = self._outbox.next_frame()
            assert self._name is not None
            owner = self._owner
            try:
                first, *chunks = frame.encode(
                    session.producer_id,
                    self._name,
                    owner.codec,
                    owner.chunking,
                    session.schema_version,
                    message_bytes_max=connection.message_bytes_max,
                )
                connection.check_frame(len(first))
            except MessageTooLarge as error:
                # The first chunk is the largest one, so nothing of it was sent.
                self._outbox.answered(frame.sequence_id)
                frame.fail(error)
                continue
            connection.write(first)
            await self._write_rest(session, chunks)

    async def _write_rest(self, session: ProducerSession, chunks: list[bytes]) -> None:
        # Finish a message that was begun, even if the segment is being replaced meanwhile.
        for chunk in chunks:
            while not session.connection.is_writable:
                await session.connection.writable()
                if self._is_over(session):
                    return
            session.connection.write(chunk)

    def _drop_frame(self, txn: Transaction, error: TidewireError) -> None:
        # Nothing of this frame was sent, and later frames are not affected. An aborted transaction's frame is gone.
        if self._outbox.next_txn() == (txn,):
            frame = self._outbox.next_frame()
            self._outbox.answered(frame.sequence_id)
            frame.fail(error)

    # ------------------------------------------------------------------------------------------------- what is heard

    def received(self, command: pb.BaseCommand, payload: bytes | None) -> None:
        """See `Listener`."""
        assert payload is None
        session = self._session
        assert session is not None, "it is detached when it ends"
        if command.type == pb.BaseCommand.SEND_RECEIPT:
            receipt = command.send_receipt
            place = position(receipt.message_id)
            frame = self._outbox.stored(receipt.sequence_id, *place)
            if frame is not None:
                frame.succeed(self.segment.segment_id, *place)
        elif command.type == pb.BaseCommand.SEND_ERROR:
            self._refused(session, command.send_error)
        else:
            session.happened(Event.CLOSED)
            self._topic_owner.closed(session.connection, command.close_producer.assigned_broker_service_url)
        self._wake.set()

    def _refused(self, session: ProducerSession, refused: pb.CommandSendError) -> None:
        if refused.error in SEALING:
            # The frame stays in flight: it and all later ones go to the segment's children.
            session.happened(Event.SEALED, refusal(refused.error, refused.message))
            return
        frame: SendFrame | None = self._outbox.with_message(refused.sequence_id)
        if frame is None:
            return
        error = refusal(refused.error, refused.message, of_transactional_send=frame.txn is not None)
        if frame.txn is None and isinstance(error, TRANSIENT):
            # Sent again in order, as after a lost connection. Pulsar refuses sends that meet a seal this way.
            session.happened(Event.LOST, error)
            return
        self._outbox.answered(frame.sequence_id)
        frame.fail(error)

    def connection_lost(self, error: TidewireError) -> None:
        """See `Listener`."""
        if self._session is not None:
            self._session.happened(Event.LOST, error)
        self._wake.set()

    # --------------------------------------------------------------------------------------------------------- the end

    async def aclose(self) -> None:
        """Close the session, and wait until the broker has freed the name. If cancelled, do not wait."""
        self._is_stopping = True
        self._wake.set()
        if self._task is None:
            return
        try:
            if self.is_connected:
                await self._task.wait()
        finally:
            self._task.cancel()
