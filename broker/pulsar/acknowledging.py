"""ACK and its responses. Outside a transaction an ACK applies at once; inside one it is pending until the end.

An ACK that requests a response gets it when it is durable. Outside transactions, one write of the cursor answers all
ACKs before it. If an acknowledgement does not fit in the cursor's record, it is refused then, because only other
acknowledgements could make room. Inside a transaction, each ACK has its own op record, so each waits in its own task.
Their number is bounded: at the bound the connection is not read.
"""

from collections.abc import Mapping
from typing import Final, Protocol

import structlog
import trio

from broker.budgets import ReceiveShare
from broker.outbox import Outbox
from broker.pulsar.connection import Connection
from broker.pulsar.faults import Fault, fault_of
from broker.pulsar.replication import require_own_subscription
from broker.pulsar.sizes import ACK_SET_WORDS_MAX, pause_between, slices
from broker.topic import Topic
from dispatch.consumer import Consumer
from dispatch.errors import AcknowledgementRefused, SubscriptionError
from dispatch.subscription import Acknowledgement, Subscription
from storage.cursor import CursorError
from storage.entry import TxnId
from storage.position import EARLIEST, Position
from storage.ranges import EntryAck
from storage.signal import Signal
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import Frame, encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import position
from tidewire.wire.pulsar.messages import BATCH_MESSAGES_MAX
from txn.pending_transaction import CommandId

IN_TRANSACTIONS_MAX: Final = 256
"""Most transactional ACKs of one connection in progress. At this number, the connection is not read."""

ANSWER_BYTES: Final = 256
"""The memory that an ACK outside transactions takes while it waits for its response."""

log = structlog.get_logger(__name__)


class DurableAnswers:
    """Answers the ACKs of one consumer once they are durable."""

    def __init__(self, consumer_id: int, subscription: Subscription, outbox: Outbox, share: ReceiveShare) -> None:
        """Set up. For each response, the caller has taken ANSWER_BYTES of the share; this object releases them."""
        self._consumer_id = consumer_id
        self._subscription = subscription
        self._outbox = outbox
        self._share = share
        self._requests: list[tuple[int, Position]] = []
        """The ids of waiting requests, each with the highest position that it acknowledged."""
        self._wake = Signal()
        self._is_closed = False
        self._has_ended = False

    async def run(self) -> None:
        """Answer until it is closed and all requests are answered."""
        while self._requests or not self._is_closed:
            await self._wake.wait()
            requests, self._requests = self._requests, []
            shown, ended = EARLIEST, None
            try:
                shown = await self._subscription.written()
            except CursorError as error:
                ended = error
            for request_id, upto in requests:
                fault = None
                if upto > shown:
                    fault = fault_of(ended or self._subscription.too_many_holes())
                _answer(self._outbox, self._consumer_id, request_id, fault)
                self._share.give(ANSWER_BYTES)
        self._has_ended = True

    def answer_when_durable(self, request_id: int, upto: Position) -> bool:
        """Answer an ACK that was applied, of positions up to `upto`, once it is durable. Return False if closed."""
        if self._has_ended:
            return False
        self._requests.append((request_id, upto))
        self._wake.set()
        return True

    def close(self) -> None:
        """Close it, because the consumer is gone. ACKs that were applied are still answered."""
        self._is_closed = True
        self._wake.set()


class AcknowledgingConsumer(Protocol):
    """The parts of a connection's consumer that acknowledging needs."""

    @property
    def consumer(self) -> Consumer:
        """The consumer in its subscription."""

    @property
    def topic(self) -> Topic:
        """The topic that it consumes."""

    @property
    def subscription(self) -> Subscription:
        """Its subscription."""

    @property
    def answers(self) -> DurableAnswers:
        """The responses to its ACKs."""

    @property
    def is_replicated(self) -> bool:
        """Whether its client asked to replicate the subscription's state to other clusters."""


class Acknowledging:
    """Serves the acknowledgements of one connection."""

    def __init__(self, consumers: Mapping[int, AcknowledgingConsumer], connection: Connection) -> None:
        """Set up; `consumers` are the open ones, by id."""
        self._consumers = consumers
        self._outbox = connection.outbox
        self._share = connection.share
        self._nursery = connection.nursery
        self._places = trio.Semaphore(IN_TRANSACTIONS_MAX)
        self._connection = object()
        """Identifies the connection in objects that outlive it."""

    def answers(self, consumer_id: int, subscription: Subscription) -> DurableAnswers:
        """Make the responses for a consumer that opens. The caller must start `run`."""
        return DurableAnswers(consumer_id, subscription, self._outbox, self._share)

    async def take(self, frame: Frame) -> None:
        """Handle one ACK."""
        ack = frame.command.ack
        consumer = self._consumers.get(ack.consumer_id)
        if consumer is None or consumer.consumer.was_disconnected:
            self._refuse(ack, _no_consumer(ack))
        elif ack.properties:
            self._refuse(
                ack, Fault(pb.NotAllowedError, "The broker does not support properties on an ACK. Leave them out.")
            )
        elif ack.HasField("txnid_least_bits") or ack.HasField("txnid_most_bits"):
            size = ack.ByteSize()
            await self._share.take(size)
            await self._places.acquire()
            self._nursery.start_soon(self._take_in_transaction, consumer, ack, size)
        elif ack.HasField("request_id"):
            await self._take_and_answer(consumer, ack)
        else:
            await self._take_at_once(consumer, ack)

    async def _take_and_answer(self, consumer: AcknowledgingConsumer, ack: pb.CommandAck) -> None:
        await self._share.take(ANSWER_BYTES)
        upto = await self._take_at_once(consumer, ack)
        if upto is not None and consumer.answers.answer_when_durable(ack.request_id, upto):
            return
        self._share.give(ANSWER_BYTES)
        if upto is not None:
            self._refuse(ack, _no_consumer(ack))

    async def _take_at_once(self, consumer: AcknowledgingConsumer, ack: pb.CommandAck) -> Position | None:
        """Check the whole ACK, then apply it, both in slices. Return the highest position; None if it was refused.

        Between two slices the subscription may be moved. That disconnects the consumer, so the rest is refused.
        """
        subscription = consumer.subscription
        cumulative = _is_cumulative(ack)
        try:
            acks = await _acknowledgements(ack)
            for part in slices(acks):
                subscription.require_acknowledgeable(part, cumulative=cumulative)
                await pause_between(acks)
            is_kept = True
            for part in slices(acks):
                if consumer.consumer.was_disconnected:
                    self._refuse(ack, _no_consumer(ack))
                    return None
                is_kept &= not subscription.take(part, cumulative=cumulative)
                await pause_between(acks)
            if not is_kept:
                raise subscription.too_many_holes()
        except SubscriptionError as refused:
            self._refuse(ack, fault_of(refused))
            return None
        return max((each.position for each in acks), default=EARLIEST)

    async def _take_in_transaction(self, consumer: AcknowledgingConsumer, ack: pb.CommandAck, size: int) -> None:
        txn = TxnId(ack.txnid_most_bits, ack.txnid_least_bits)
        try:
            acks = await _acknowledgements(ack)
            # From here on, the subscription itself notices a consumer that was disconnected.
            if consumer.consumer.was_disconnected:
                self._refuse(ack, _no_consumer(ack))
                return
            require_own_subscription(is_replicated=consumer.is_replicated)
            await consumer.topic.acknowledge_in_transaction(
                consumer.subscription,
                txn,
                acks,
                cumulative=_is_cumulative(ack),
                identity=self._identity(consumer, ack),
            )
        except Exception as error:
            self._refuse(ack, fault_of(error))
        else:
            if ack.HasField("request_id"):
                self._outbox.put(encode_command(commands.ack_response(ack.consumer_id, ack.request_id, txn=txn)))
        finally:
            self._share.give(size)
            self._places.release()

    def _identity(self, consumer: AcknowledgingConsumer, ack: pb.CommandAck) -> CommandId | None:
        """Return what stays the same when a client resends a command after it reconnected."""
        name = consumer.consumer.name
        if not (name and ack.HasField("request_id")):
            return None
        return CommandId(name, ack.request_id, self._connection)

    def _refuse(self, ack: pb.CommandAck, fault: Fault) -> None:
        if ack.HasField("request_id"):
            _answer(self._outbox, ack.consumer_id, ack.request_id, fault)
        else:
            log.info("acknowledgement refused", reason=fault.message)


def _no_consumer(ack: pb.CommandAck) -> Fault:
    return Fault(pb.ConsumerNotFound, f"This connection has no consumer {ack.consumer_id}. Subscribe again.")


def _answer(outbox: Outbox, consumer_id: int, request_id: int, fault: Fault | None) -> None:
    if fault is None:
        outbox.put(encode_command(commands.ack_response(consumer_id, request_id)))
    else:
        refused = commands.ack_response(consumer_id, request_id, error=fault.code, message=fault.message)
        outbox.put(encode_command(refused))


async def _acknowledgements(ack: pb.CommandAck) -> list[EntryAck]:
    """Parse the command's acknowledgements.

    Raises:
        AcknowledgementRefused: an `ack_set` is larger than any batch allows.
    """
    found: list[EntryAck] = []
    for part in slices(ack.message_id):
        for given in part:
            if len(given.ack_set) > ACK_SET_WORDS_MAX:
                raise AcknowledgementRefused(
                    f"The acknowledgement has an ack_set of {len(given.ack_set)} words, but the largest batch "
                    f"({BATCH_MESSAGES_MAX} messages) needs only {ACK_SET_WORDS_MAX}."
                )
            acknowledged = Acknowledgement(Position(*position(given)), tuple(given.ack_set), given.batch_size)
            found.append(acknowledged.to_entry_ack())
        await pause_between(ack.message_id)
    return found


def _is_cumulative(ack: pb.CommandAck) -> bool:
    return ack.ack_type == pb.CommandAck.Cumulative
