"""ACK, and the answers to it: outside transactions taken at once, inside one a record until it is decided.

An acknowledgement that asks for an answer gets it when it is durable. Outside transactions one write of the cursor
answers all that came before it; what does not fit the cursor's record is refused by then, because only other
acknowledgements could make room. Inside a transaction each has an op record of its own, so each waits in a task of its
own; their number is bounded by keeping the connection unread.
"""

from collections.abc import Mapping
from typing import Final, Protocol

import structlog
import trio

from broker.budgets import ReceiveShare
from broker.pulsar.connection import Connection
from broker.pulsar.faults import Fault, fault_of
from broker.pulsar.outbox import Outbox
from broker.pulsar.replication import require_own_subscription
from broker.pulsar.sizes import ACK_SET_WORDS_MAX, pause_between, slices
from broker.topic import Topic
from dispatch.consumer import Consumer
from dispatch.subscription import (
    Acknowledgement,
    AcknowledgementRefused,
    Subscription,
    SubscriptionError,
)
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
"""Acknowledgements in transactions of one connection that are under way at once; above it nothing more is read."""

ANSWER_BYTES: Final = 256
"""What an acknowledgement outside transactions takes in memory while it waits for its answer."""

log = structlog.get_logger(__name__)


class DurableAnswers:
    """Answers the acknowledgements of one consumer, once they are durable."""

    def __init__(self, consumer_id: int, subscription: Subscription, outbox: Outbox, share: ReceiveShare) -> None:
        """Set up; whoever asks for an answer has taken ANSWER_BYTES of the share, which are given back here."""
        self._consumer_id = consumer_id
        self._subscription = subscription
        self._outbox = outbox
        self._share = share
        self._requests: list[tuple[int, Position]] = []
        """Who asked, and the highest position that each acknowledged."""
        self._wake = Signal()
        self._is_closed = False
        self._has_ended = False

    async def run(self) -> None:
        """Answer until closed and all are answered."""
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
        """Answer an acknowledgement of positions at or below `upto`, which was taken; False if it is too late."""
        if self._has_ended:
            return False
        self._requests.append((request_id, upto))
        self._wake.set()
        return True

    def close(self) -> None:
        """The consumer is gone; what was taken is answered all the same."""
        self._is_closed = True
        self._wake.set()


class AcknowledgingConsumer(Protocol):
    """A consumer of the connection, as far as it acknowledges."""

    @property
    def consumer(self) -> Consumer:
        """As its subscription knows it."""

    @property
    def topic(self) -> Topic:
        """What it consumes."""

    @property
    def subscription(self) -> Subscription:
        """By which."""

    @property
    def answers(self) -> DurableAnswers:
        """Its own."""

    @property
    def is_replicated(self) -> bool:
        """Whether its client asked for the subscription's progress to be told to other clusters."""


class Acknowledging:
    """Serves the acknowledgements of one connection."""

    def __init__(self, consumers: Mapping[int, AcknowledgingConsumer], connection: Connection) -> None:
        """Set up; `consumers` are those open now, by their ids."""
        self._consumers = consumers
        self._outbox = connection.outbox
        self._share = connection.share
        self._nursery = connection.nursery
        self._places = trio.Semaphore(IN_TRANSACTIONS_MAX)
        self._connection = object()
        """Stands for the connection in what outlives it."""

    def answers(self, consumer_id: int, subscription: Subscription) -> DurableAnswers:
        """For a consumer that opens; its `run` is to be started."""
        return DurableAnswers(consumer_id, subscription, self._outbox, self._share)

    async def take(self, frame: Frame) -> None:
        """One ACK."""
        ack = frame.command.ack
        consumer = self._consumers.get(ack.consumer_id)
        if consumer is None or consumer.consumer.was_disconnected:
            self._refuse(ack, _no_consumer(ack))
        elif ack.properties:
            self._refuse(ack, Fault(pb.NotAllowedError, "an acknowledgement keeps no properties; send it without them"))
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
        """Check all of it, then take all of it, both in slices; the highest position, or None if it was refused.

        Between two slices the subscription may be moved. What is left then is refused: the consumer was sent away.
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
            # From here on a consumer that is sent away is noticed by the subscription.
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
        """What a client keeps of a command that it sends again after it reconnected."""
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
    return Fault(pb.ConsumerNotFound, f"this connection has no consumer {ack.consumer_id}")


def _answer(outbox: Outbox, consumer_id: int, request_id: int, fault: Fault | None) -> None:
    if fault is None:
        outbox.put(encode_command(commands.ack_response(consumer_id, request_id)))
    else:
        refused = commands.ack_response(consumer_id, request_id, error=fault.code, message=fault.message)
        outbox.put(encode_command(refused))


async def _acknowledgements(ack: pb.CommandAck) -> list[EntryAck]:
    """What the command says.

    Raises:
        AcknowledgementRefused: an `ack_set` is larger than that of any batch.
    """
    found: list[EntryAck] = []
    for part in slices(ack.message_id):
        for given in part:
            if len(given.ack_set) > ACK_SET_WORDS_MAX:
                raise AcknowledgementRefused(
                    f"an ack_set has {len(given.ack_set)} words; a batch has at most {BATCH_MESSAGES_MAX} messages,"
                    f" whose bits fill {ACK_SET_WORDS_MAX} words"
                )
            acknowledged = Acknowledgement(Position(*position(given)), tuple(given.ack_set), given.batch_size)
            found.append(acknowledged.to_entry_ack())
        await pause_between(ack.message_id)
    return found


def _is_cumulative(ack: pb.CommandAck) -> bool:
    return ack.ack_type == pb.CommandAck.Cumulative
