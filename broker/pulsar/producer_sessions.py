"""One producer of a connection: publishes its sends in order, and answers them in order.

Each producer has two tasks. The first one takes its sends in order and publishes them. A transaction's first write to a
segment waits for its op record, and the producer's later sends wait with it. So the transactions of queued sends join
the segment before their turn (`early_joins.py`). The second task waits until the entries are durable and sends the
receipts. They are in order too, because clients match receipts to sends by order.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import trio

from broker.budgets import ReceiveShare
from broker.deduplication.sequences import Stored
from broker.errors import sentences
from broker.outbox import Outbox
from broker.pulsar.early_joins import EarlyJoins
from broker.pulsar.faults import Fault, fault_of
from broker.pulsar.sends import CheckedSend, check_send
from broker.pulsar.unsupported import Peer
from broker.topic import Topic
from broker.tracing.spans import Span
from broker.traffic import Traffic
from storage.entry import EntryFormat
from storage.errors import LedgerFailed, LedgerSealed, NoSpace
from storage.position import Position
from storage.signal import Signal
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import unsigned
from txn.errors import TransactionNotFound

INBOX_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of one producer's sends that wait to be published or answered. Above this, the connection is not read."""

SEND_BYTES: Final = 512
"""The memory that a waiting send takes in addition to its payload. Once published, the topic bounds the payload."""

REPLACED_SECONDS_MAX: Final = 30
"""How long a send to a sealed segment waits until its client has the new layout."""

SENDS_AT_ONCE: Final = 32
"""Sends published or answered in one step of the event loop, which takes about 2 ms if they are small."""


# Plain tuples: every send needs one of each, and a named tuple takes several times as long to make.
_Queued = tuple[pb.CommandSend, bytes, CheckedSend | Fault, int, float]
"""A send that waits to be published: its command and payload, what the check found, and the topic's moment and Trio's
time when it arrived."""

_Answer = tuple[pb.CommandSend, int, Position | Stored | Fault, float, Sequence[Span]]
"""A send that was published or refused: its command, the size of its payload, the outcome, when it arrived, and the
spans of its traced messages. It is answered once the outcome is durable."""


class ProducerSession:
    """One producer, with its sends that are not yet published or answered."""

    def __init__(
        self,
        producer_id: int,
        name: str,
        topic: Topic,
        outbox: Outbox,
        peer: Peer,
        share: ReceiveShare,
        traffic: Traffic,
        on_closed: Callable[[int], None],
        *,
        follows_layout: bool,
        is_unnamed: bool = False,
    ) -> None:
        """Set up; `run` does the work.

        Args:
            producer_id: the client's number for it on this connection.
            name: the producer's name, unique on the topic.
            topic: the topic that it publishes to.
            outbox: the connection's outbox.
            peer: the client.
            share: the connection's share of the broker's memory.
            traffic: the broker's counters.
            on_closed: called when the broker closes the producer on its own initiative.
            follows_layout: see `TopicClient`.
            is_unnamed: whether its user gave it no name, so that nobody else uses its name.
        """
        self.producer_id = producer_id
        self.name = name
        self.topic = topic
        self.follows_layout = follows_layout
        self._is_unnamed = is_unnamed
        self._outbox = outbox
        self._peer = peer
        self._share = share
        self._traffic = traffic
        self._on_closed = on_closed
        self._inbox: deque[_Queued] = deque()
        self._inbox_bytes = 0
        self._inbox_wake = Signal()
        self._inbox_room = trio.Event()
        self._answers: deque[_Answer] = deque()
        self._answers_wake = Signal()
        self._receipts = _Receipts(producer_id)
        self._scope = trio.CancelScope()
        self._publishing = False
        self._early_joins: EarlyJoins | None = None
        """None while `run` is not running."""
        self._replaced = False
        self._held_back = False
        """Whether the disk is full. The producer is then closed once its published sends are answered."""
        self._finishing: trio.Event | None = None
        """If the client is closing the producer: set once everything is answered."""
        self._is_leaving = False
        """Whether the client has said that it closes the producer."""
        self._is_closed = False

    async def submit(self, send: pb.CommandSend, payload: bytes) -> None:
        """Queue a send. Waits while too much is queued for this producer, or for all connections together."""
        arrived = trio.current_time()
        while self._waiting_bytes > INBOX_BYTES_MAX and not self._is_closed:
            self._inbox_room = trio.Event()
            await self._inbox_room.wait()
        size = SEND_BYTES + len(payload)
        if not self._share.take_at_once(size):
            await self._share.take(size)
        if self._is_closed or self._held_back:
            # The client resends unanswered sends.
            self._share.give(size)
            return
        checked = self._check(send, payload)
        self._join_early(checked)
        self._inbox.append((send, payload, checked, self.topic.moment(), arrived))
        self._inbox_bytes += size
        self._inbox_wake.set()

    async def run(self) -> None:
        """Publish and answer until closed."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self._early_joins = EarlyJoins(self.topic, nursery)
                    nursery.start_soon(self._publish_all)
                    nursery.start_soon(self._answer_all)
        finally:
            # It refers to the nursery, whose task would keep this producer until a garbage collection.
            self._early_joins = None

    def leaves(self) -> None:
        """The client closes the producer. Its connection may end before that is done."""
        self._is_leaving = True

    async def finish(self) -> None:
        """Wait until every queued send is answered. At the close, the client fails sends without an answer."""
        if self._finishing is None:
            self._finishing = trio.Event()
        self._inbox_wake.set()
        await self._finishing.wait()

    def close(self) -> None:
        """End the tasks and release the name. Unanswered sends stay unanswered."""
        self._is_closed = True
        self._inbox_room.set()
        self._drop_inbox()
        if self._finishing is not None:
            self._finishing.set()
        self._scope.cancel()
        self.topic.remove_producer(self, is_final=self._is_leaving and self._is_unnamed)

    def topic_replaced(self) -> None:
        """See `TopicProducer`. The new layout has been pushed. Answer queued sends, then close the producer."""
        self._replaced = True
        self._inbox_wake.set()

    def topic_closed(self, assigned_url: str | None = None) -> None:
        """See `TopicClient`. The client is told to look up the topic again, or where to go."""
        self._outbox.put(encode_command(commands.close_producer(self.producer_id, assigned_url=assigned_url)))
        self.close()
        self._on_closed(self.producer_id)

    async def _publish_all(self) -> None:
        published = 0
        while True:
            await self._inbox_wake.wait()
            while self._inbox:
                # A separate function, so that no local variable holds the message while this task waits for the next.
                await self._publish_one()
                # Publishing and answering usually do not wait, so many small sends would be one long step.
                published += 1
                if published % SENDS_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
            if self._replaced or self._finishing is not None:
                self._answers_wake.set()

    async def _publish_one(self) -> None:
        send, payload, checked, moment, arrived = self._inbox.popleft()
        size = SEND_BYTES + len(payload)
        self._inbox_bytes -= size
        self._note_room()
        self._publishing = True
        try:
            outcome = await self._publish(checked, payload, moment)
            spans = () if self.topic.spans is None else self._spans_of(checked, payload, outcome, arrived)
            self._answers.append((send, len(payload), outcome, arrived, spans))
        except NoSpace:
            self._hold_back()
        finally:
            self._share.give(size)
        self._publishing = False
        self._answers_wake.set()

    def _hold_back(self) -> None:
        """Drop this send and the later ones, because the disk is full. The client resends them.

        An error for a send would fail it, or close the connection with its consumers. Closing the producer does
        neither. It cannot be opened again until there is space (`faults.py`). Before the close, earlier sends are
        answered. Otherwise they would be resent and stored twice.
        """
        self._held_back = True
        self._drop_inbox()
        self._note_room()

    def _drop_inbox(self) -> None:
        if self._early_joins is not None:
            self._early_joins.drop()
        self._share.give(self._inbox_bytes)
        self._inbox.clear()
        self._inbox_bytes = 0

    @property
    def _waiting_bytes(self) -> int:
        # A refusal waits for the receipts before it, perhaps for long. Meanwhile it takes as much memory as a send.
        return self._inbox_bytes + SEND_BYTES * len(self._answers)

    def _note_room(self) -> None:
        if self._waiting_bytes <= INBOX_BYTES_MAX:
            self._inbox_room.set()

    def _check(self, send: pb.CommandSend, payload: bytes) -> CheckedSend | Fault:
        try:
            return check_send(send, payload)
        except Exception as error:
            return fault_of(error)

    def _join_early(self, checked: CheckedSend | Fault) -> None:
        """Start the join of a send's transaction, if the send must wait for its turn."""
        if isinstance(checked, Fault) or checked.txn is None or self._early_joins is None:
            return
        has_turn = not self._inbox and not self._publishing
        if not has_turn and self.topic.would_join(self.name, checked.id, checked.txn):
            self._early_joins.start(checked.txn)

    async def _publish(
        self, checked: CheckedSend | Fault, payload: bytes, arrived_at: int
    ) -> Position | Stored | Fault:
        if isinstance(checked, Fault):
            return checked
        try:
            return await self.topic.publish_once(
                self.name,
                checked.id,
                payload,
                message_count=checked.message_count,
                txn=checked.txn,
                entry_format=EntryFormat.PULSAR,
                arrived_at=arrived_at,
            )
        except LedgerSealed as sealed:
            # The client gets the new layout before this refusal, so it knows the child to send to
            # (docs/design.md#topics).
            with trio.move_on_after(REPLACED_SECONDS_MAX):
                await self.topic.replaced.wait()
            return Fault(pb.TopicTerminatedError, sentences(sealed))
        except NoSpace:
            raise
        except TransactionNotFound as unknown:
            # This code is permanent. At the code of other requests, the Java client would reconnect and resend forever.
            return Fault(pb.NotAllowedError, sentences(unknown))
        except Exception as error:
            return fault_of(error)

    def _spans_of(
        self, checked: CheckedSend | Fault, payload: bytes, outcome: Position | Stored | Fault, arrived: float
    ) -> Sequence[Span]:
        """Begin the spans of the traced messages that were appended."""
        if isinstance(checked, Fault) or not isinstance(outcome, Position):
            return ()
        assert self.topic.spans is not None, "the caller has looked"
        return self.topic.spans.appended(
            payload,
            checked.message_count,
            EntryFormat.PULSAR,
            transaction=checked.txn,
            waited_seconds=trio.current_time() - arrived,
        )

    async def _answer_all(self) -> None:
        while True:
            await self._answers_wake.wait()
            while self._answers:
                outcome = self._answers[0][2]
                try:
                    await self._wait_durable(outcome)
                except LedgerFailed:
                    # Whoever wrote the ledger reports it. The client resends to the next owner.
                    self.topic_closed()
                    return
                if self._answer_durable() == SENDS_AT_ONCE:
                    await trio.lowlevel.checkpoint()
            if not self._inbox and not self._publishing:
                if self._finishing is not None:
                    self._finishing.set()
                elif self._replaced or self._held_back:
                    self.topic_closed()

    async def _wait_durable(self, outcome: Position | Stored | Fault) -> None:
        if isinstance(outcome, Stored):
            # It is a resend, perhaps over another connection. The first copy may not be durable yet.
            await self.topic.ledger.confirmed.wait_for(outcome.durable_at)
        elif isinstance(outcome, Position):
            await self.topic.ledger.confirmed.wait_for(outcome)

    def _answer_durable(self) -> int:
        """Answer sends in order, up to the first one that is not durable, at most `SENDS_AT_ONCE`. Return how many."""
        confirmed = self.topic.ledger.confirmed.value
        frames: list[bytes] = []
        answers, now = self._answers, trio.current_time()
        while answers and len(frames) < SENDS_AT_ONCE:
            send, size, outcome, arrived, spans = answers[0]
            if isinstance(outcome, Position):
                if outcome > confirmed:
                    break
                self._traffic.messages_in += max(send.num_messages, 1)
                self._traffic.bytes_in += size
                self._traffic.pulsar.publish.count(now - arrived)
                frames.append(self._receipts.frame(send, outcome))
                for span in spans:
                    span.end()
            elif isinstance(outcome, Stored):
                if outcome.durable_at > confirmed:
                    break
                frames.append(self._receipts.frame(send, outcome.position))
            else:
                frames.append(refusal_of(send, self._for_peer(outcome)))
            answers.popleft()
        self._note_room()
        self._outbox.put(*frames)
        return len(frames)

    def _for_peer(self, fault: Fault) -> Fault:
        """Return the refusal with the code that its client understands: a permanent one needs a special code."""
        return fault._replace(code=self._peer.fails_send_at) if fault.code == pb.NotAllowedError else fault


class _Receipts:
    """Makes one producer's receipts. One message object is reused, because creating one takes twice as long."""

    def __init__(self, producer_id: int) -> None:
        self._command = commands.send_receipt(producer_id, 0, 0, 0)
        self._receipt = self._command.send_receipt
        self._position = self._receipt.message_id

    def frame(self, send: pb.CommandSend, stored_at: Position) -> bytes:
        """Return the SEND_RECEIPT frame for a send that is stored at `stored_at`."""
        receipt = self._receipt
        receipt.sequence_id = send.sequence_id
        if highest_sequence_id := send.highest_sequence_id:
            receipt.highest_sequence_id = highest_sequence_id
        else:
            receipt.ClearField("highest_sequence_id")
        ledger, entry = stored_at
        self._position.ledger_id = unsigned(ledger)
        self._position.entry_id = unsigned(entry)
        return encode_command(self._command)


def refusal_of(send: pb.CommandSend, fault: Fault) -> bytes:
    """Return the SEND_ERROR frame for a send. Clients identify a failed batch by the id of its last message."""
    sequence_id = max(send.sequence_id, send.highest_sequence_id)
    return encode_command(commands.send_error(send.producer_id, sequence_id, fault.code, fault.message))
