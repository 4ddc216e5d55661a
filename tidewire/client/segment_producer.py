"""The producer of one segment (or partition, or plain topic): it connects, sends, and ends when the segment is sealed.

One task does all of it. It opens a session at the segment's owner, sends what may leave, and sleeps until something
happens: messages to send, answers, a lost connection, a session that the broker closed, a new layout. After a lost
connection it opens another session and sends again what was unanswered, except for transactions, whose sends in doubt
fail so that their transactions are run again. After a session that the broker closed, because the segment moves or its
disk is full, it sends those again as well, if the broker shows that it remembers this producer's last send.

**A sealed segment.** The broker answers every send it appended before it says that the segment is sealed (by refusing
a send or by closing the session), so whatever is unanswered then was not appended, and is handed to the segment's
children in order. A child does not begin before all its sealed forerunners have handed over; so the messages of a key
stay in order through any number of splits and merges, even when several come at once.

A session that the broker closes while the layout calls the segment active is either the same thing seen early or a
change of owner. Opening the next session tells: refused as terminated, it is sealed; accepted, it has moved.
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
from tidewire.client.transactions import Transaction
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
"""What tells a broker that the producer of an older, regular topic came through a scalable one."""


class Owner(Protocol):
    """The producer of the whole topic."""

    network: Network
    layout: TopicLayout
    name: str | None
    batching: Batching
    chunking: Chunking | None
    codec: pb.CompressionType
    declared: pb.Schema | None

    def hand_over(self, segment: "SegmentProducer", messages: list[Outgoing]) -> None:
        """The segment is sealed; these messages, in order, were not appended. It is finished."""
        ...

    def fail(self, error: TidewireError) -> None:
        """Producing to this topic is over, and why."""
        ...


class SegmentProducer:
    """Sends the messages of one segment. `run` does it; everything else may be called by any task."""

    def __init__(self, owner: Owner, segment: Segment, forerunners: "set[SegmentProducer]") -> None:
        """A producer of `segment` that does not begin before every one of `forerunners` has handed over."""
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
        self._backoff = owner.network.backoff()
        self._session: ProducerSession | None = None
        """The one that is attached to a connection. None between two sessions."""
        self._name = owner.name
        self._attempts = 0
        """To open a session; the first may find another producer of the name, a later one its own of before."""
        self._is_stopping = False
        """Set once, by `aclose`. The session that there is then is the last."""
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
        """One more message, behind all others."""
        self._outbox.append(message)
        self._wake.set()

    def inherit(self, message: Outgoing) -> None:
        """A message that a sealed segment did not take; it stands before this segment's own."""
        if self._may_begin.is_set():
            # Only a message without a key gets here, and those have no order among segments.
            self.append(message)
        else:
            self._inherited.append(message)

    def forerunner_finished(self, forerunner: "SegmentProducer") -> None:
        """It has handed over."""
        self._forerunners.discard(forerunner)
        if not self._forerunners and not self._may_begin.is_set():
            self._outbox.prepend(self._inherited)
            self._inherited.clear()
            self._may_begin.set()

    def layout_changed(self) -> None:
        """There is a newer layout, or none any more."""
        self._wake.set()

    def outstanding(self) -> list[Outgoing]:
        """Everything unanswered, in order."""
        return [*self._inherited, *self._outbox.outstanding()]

    def take_all(self) -> list[Outgoing]:
        """Everything unanswered, in order; nothing is left."""
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
                except NameTaken:
                    # Unless this was the first attempt: our own session of before, which the broker still believes in.
                    if self._attempts == 1:
                        raise
                except (TopicTerminated, TopicNotFound) as error:
                    await self._until_replaced(error)
                if self._goes_on():
                    await self._backoff.wait()
            if not self._is_stopping:
                self._owner.hand_over(self, self.take_all())
        except TidewireError as error:
            self._owner.fail(error)

    def _goes_on(self) -> bool:
        return not self._is_stopping and self._is_active()

    def _is_active(self) -> bool:
        return self._owner.layout.current.is_active(self.segment.segment_id)

    async def _until_replaced(self, error: TidewireError) -> None:
        # The broker pushes the layout first, and an older one soon after; a topic that has none is gone for good.
        if not self.segment.wire_name.startswith("segment://"):
            raise error
        try:
            with anyio.fail_after(self._network.settings.operation_timeout_seconds):
                await self._owner.layout.until(self._is_replaced_in)
        except TimeoutError:
            raise error from None

    def _is_replaced_in(self, layout: Layout) -> bool:
        return not layout.is_active(self.segment.segment_id)

    def _doubt(self, reason: str, *, remembered_upto: int | None = None) -> None:
        for frame in self._outbox.take_back(remembered_upto=remembered_upto):
            frame.fail(SendUnanswered(reason))

    async def _hold_session(self) -> None:
        connection = await self._network.owner_of(self.segment.wire_name)
        session = self._session = ProducerSession(connection, self)
        try:
            remembered_upto = await self._open(session)
            self._backoff.reset()
            # The broker closed the session before and opens this one: the segment has moved, or there was no space.
            reason = f"{self.segment.wire_name} moved to another broker before the answer came"
            self._doubt(reason, remembered_upto=remembered_upto)
            session.happened(Event.OPENED)
            try:
                await self._send(session)
            except TRANSIENT:
                self._doubt(f"{self.segment.wire_name}: the connection was lost before the answer came")
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
        """Open the session; the last sequence id of this producer that the broker remembers, -1 for none."""
        epoch = self._attempts
        self._attempts += 1
        answer = await session.connection.request(
            partial(
                commands.producer,
                self.segment.wire_name,
                session.producer_id,
                name=self._name,
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
        # Returns when the session is of no further use: closed by the broker, or nothing can be sent or answered any
        # more because the segment is sealed.
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
        return not self._is_active() and not self._outbox.frames_in_flight

    async def _send_what_may_leave(self, session: ProducerSession) -> None:
        # After each wait everything is looked at anew: whatever leaves the queue leaves on a session that stands.
        connection = session.connection
        while not self._is_over(session) and self._is_active():
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
        # What was begun is finished, also when the segment is being replaced meanwhile.
        for chunk in chunks:
            while not session.connection.is_writable:
                await session.connection.writable()
                if self._is_over(session):
                    return
            session.connection.write(chunk)

    def _drop_frame(self, txn: Transaction, error: TidewireError) -> None:
        # Nothing of it was sent; what comes behind it is not concerned. Aborted meanwhile, it is gone already.
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
        self._wake.set()

    def _refused(self, session: ProducerSession, refused: pb.CommandSendError) -> None:
        if refused.error in SEALING:
            # The frame stays: it and all behind it go to the children.
            session.happened(Event.SEALED, refusal(refused.error, refused.message))
            return
        frame: SendFrame | None = self._outbox.with_message(refused.sequence_id)
        if frame is None:
            return
        error = refusal(refused.error, refused.message, of_transactional_send=frame.txn is not None)
        if frame.txn is None and isinstance(error, TRANSIENT):
            # Sent again, in order, as after a lost connection. Pulsar refuses like this what meets a seal.
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
        """Tell the broker that no more will come and wait until it knows: the name is free then. Cancelled, don't."""
        self._is_stopping = True
        self._wake.set()
        if self._task is None:
            return
        try:
            if self.is_connected:
                await self._task.wait()
        finally:
            self._task.cancel()
