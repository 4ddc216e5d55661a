"""The client: everything a program does with brokers begins at `connect`.

A client owns one task group, in which the connections, producers and consumers that it made do their background work;
leaving `async with` ends all of it. Errors of that work come out of the calls that they concern, never out of the task
group, and an error of the program's own passes through as itself and not as a member of a group.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import anyio
import anyio.abc

from tidewire.client.background import background_tasks
from tidewire.client.checkpoint_consumer import CheckpointConsumer, CheckpointStart
from tidewire.client.connection import ConnectionStatistics, Dial
from tidewire.client.consumers import Consumer, Initial, Receiving, SubscriptionType
from tidewire.client.coordinators import Coordinators
from tidewire.client.dead_letters import DeadLetterPolicy
from tidewire.client.network import CLOSE_SECONDS_MAX, Network, Settings, dial_tcp
from tidewire.client.producer import Compression, Producer
from tidewire.client.queue_consumer import AT_ONCE, NEGATIVE_ACK_BACKOFF_DEFAULT, QueueConsumer
from tidewire.client.reader import Reader, Start
from tidewire.client.redelivery import BackoffPolicy
from tidewire.client.schema import BYTES, Schema, T
from tidewire.client.sending import Batching, Chunking
from tidewire.client.stream_consumer import StreamConsumer
from tidewire.client.subscribing import QUEUE_MESSAGES_MAX
from tidewire.client.transactions import Transaction, TransactionState
from tidewire.protocol.addresses import BrokerAddress, parse_address
from tidewire.protocol.backoff import DELAY_SECONDS_MAX
from tidewire.protocol.errors import is_retriable

TRANSACTION_SECONDS: Final = 60.0
"""After so long the broker aborts a transaction by itself, unless it was given another time."""

ATTEMPTS_MAX: Final = 10
"""How often `run_transaction` runs its work, unless it was given another number."""

R = TypeVar("R")
_BYTES: Final[Any] = BYTES


@dataclass(frozen=True, slots=True)
class ClientStatistics:
    """A client at one moment."""

    connections: list[ConnectionStatistics]


class Client:
    """A program's way to the brokers. Made by `connect`; any number of tasks may use it."""

    def __init__(self, network: Network) -> None:
        """For `connect`'s own use."""
        self._network = network
        self._coordinators = Coordinators(network)

    def statistics(self) -> ClientStatistics:
        """How it stands."""
        return ClientStatistics(self._network.statistics())

    @asynccontextmanager
    async def producer(
        self,
        topic: str,
        name: str | None = None,
        *,
        compression: Compression = "none",
        batching: Batching | bool = True,
        chunking: Chunking | bool = False,
        schema: Schema[T] = _BYTES,
    ) -> AsyncIterator[Producer[T]]:
        """A producer for the length of an `async with`.

        Leaving it normally waits until everything that was enqueued is answered; leaving it by an exception closes it
        at once, and what is unanswered then may or may not arrive.

        Args:
            topic: `topic://...` or `persistent://...`.
            name: unique among the topic's producers; the broker chooses one unless given.
            compression: how messages travel and are stored.
            batching: whether messages that wait at the same time may share a frame, or how many of them.
            chunking: whether a message that is larger than the broker takes is sent in pieces, or than what size. This
                client's consumers and Pulsar's put them together again. On a subscription that several consumers share
                all pieces must come to one, which not every broker sees to.
            schema: what values are; bytes without one. One that does not go with the topic's is refused at the first
                send.

        Raises:
            TopicNotFound, InvalidName: there is no such topic, or can be none.
            TidewireError: it could not be reached; and on leaving, the first send that failed and whose receipt
                nobody awaited.
        """
        producer = Producer(self._network, topic, name, compression, batching, chunking, schema)
        try:
            await producer.open()
            yield producer
            await producer.flush()
        finally:
            await _closed(producer)

    @asynccontextmanager
    async def stream_consumer(
        self,
        topic: str,
        subscription: str,
        name: str | None = None,
        *,
        initial: Initial = "earliest",
        queue_messages_max: int = QUEUE_MESSAGES_MAX,
        schema: Schema[T] = _BYTES,
    ) -> AsyncIterator[StreamConsumer[T]]:
        """A consumer of a scalable topic, in order, which shares the topic with others of the same subscription.

        Args:
            topic: `topic://...`.
            subscription: whose progress the broker keeps; made if there is none of this name.
            name: unique within the subscription.
            initial: where a new subscription begins.
            queue_messages_max: messages of each segment that may be fetched ahead.
            schema: what values are; bytes without one.

        Raises:
            TidewireError: it could not be subscribed to.
        """
        consumer = StreamConsumer(self._network, topic, subscription, name, initial, queue_messages_max, schema)
        try:
            yield await consumer.open()
        finally:
            await _closed(consumer)

    @asynccontextmanager
    async def queue_consumer(
        self,
        topic: str,
        subscription: str,
        name: str | None = None,
        *,
        initial: Initial = "earliest",
        queue_messages_max: int = QUEUE_MESSAGES_MAX,
        negative_ack_backoff: BackoffPolicy = NEGATIVE_ACK_BACKOFF_DEFAULT,
        processing_timeout_seconds: float | None = None,
        processing_timeout_backoff: BackoffPolicy = AT_ONCE,
        dead_letter_policy: DeadLetterPolicy | None = None,
        schema: Schema[T] = _BYTES,
    ) -> AsyncIterator[QueueConsumer[T]]:
        """A consumer of a scalable topic, message by message: each goes to one consumer of the subscription, unordered.

        Args:
            topic: `topic://...`.
            subscription: whose progress the broker keeps; made if there is none of this name.
            name: what to call it in the broker's statistics.
            initial: where a new subscription begins.
            queue_messages_max: messages of each segment that may be fetched ahead, and so are kept from others.
            schema: what values are; bytes without one.
            negative_ack_backoff: after what time a message that was given back comes again.
            processing_timeout_seconds: a message that is neither acknowledged nor given back so long after `receive`
                returned it comes again by itself; without, it waits for this consumer's end.
            processing_timeout_backoff: by how much longer that time gets, each time.
            dead_letter_policy: after how many times a message is put aside, and where.

        Raises:
            TopicNotFound: there is no such topic, or no such dead-letter topic.
            TidewireError: it could not be subscribed to.
        """
        consumer = QueueConsumer(
            self._network,
            topic,
            subscription,
            name,
            initial,
            queue_messages_max,
            schema,
            negative_ack_backoff=negative_ack_backoff,
            processing_timeout_seconds=processing_timeout_seconds,
            processing_timeout_backoff=processing_timeout_backoff,
            dead_letter_policy=dead_letter_policy,
        )
        try:
            yield await consumer.open()
        finally:
            await _closed(consumer)

    @asynccontextmanager
    async def consumer(
        self,
        topic: str,
        subscription: str,
        *,
        type: SubscriptionType = "exclusive",  # noqa: A002 - what everybody calls it
        name: str | None = None,
        initial: Initial = "earliest",
        queue_messages_max: int = QUEUE_MESSAGES_MAX,
        schema: Schema[T] = _BYTES,
    ) -> AsyncIterator[Consumer[T]]:
        """A consumer of a `persistent://` topic or of all of its partitions.

        Args:
            topic: `persistent://...`.
            subscription: whose progress the broker keeps; made if there is none of this name.
            type: "exclusive": for this consumer alone; "shared": each message goes to one of its consumers.
            name: unique within the subscription.
            initial: where a new subscription begins.
            queue_messages_max: messages of each partition that may be fetched ahead.
            schema: what values are; bytes without one.

        Raises:
            SubscriptionBusy: somebody else has it for himself.
            TidewireError: it could not be subscribed to.
        """
        consumer = Consumer(self._network, topic, subscription, type, name, initial, queue_messages_max, schema)
        try:
            yield await consumer.open()
        finally:
            await _closed(consumer)

    @asynccontextmanager
    async def reader(
        self,
        topic: str,
        start: Start = "earliest",
        *,
        queue_messages_max: int = QUEUE_MESSAGES_MAX,
        schema: Schema[T] = _BYTES,
    ) -> AsyncIterator[Reader[T]]:
        """Reads a topic of either kind from a place of your choosing; the broker keeps nothing of it.

        Args:
            topic: `topic://...` or `persistent://...`.
            start: "earliest", "latest" (what comes from now on), or right behind a message, by its id.
            queue_messages_max: messages of each segment that may be fetched ahead.
            schema: what values are; bytes without one.

        Raises:
            TidewireError: the topic could not be read.
        """
        reader = Reader(self._network, topic, start, queue_messages_max, schema)
        try:
            yield await reader.open()
        finally:
            await _closed(reader)

    @asynccontextmanager
    async def checkpoint_consumer(
        self,
        topic: str,
        start: CheckpointStart = "latest",
        *,
        queue_messages_max: int = QUEUE_MESSAGES_MAX,
        schema: Schema[T] = _BYTES,
    ) -> AsyncIterator[CheckpointConsumer[T]]:
        """Reads a topic of either kind, and tells its position on all of its segments for you to keep.

        For programs that store how far they have come together with what they make of it; the broker keeps nothing.

        Args:
            topic: `topic://...` or `persistent://...`.
            start: "earliest", "latest" (what comes from now on), where a checkpoint says, or a time with its zone: what
                was published then or later.
            queue_messages_max: messages of each segment that may be fetched ahead.
            schema: what values are; bytes without one.

        Raises:
            TidewireError: the topic could not be read.
        """
        consumer = CheckpointConsumer(self._network, topic, start, queue_messages_max, schema)
        try:
            yield await consumer.open()
        finally:
            await _closed(consumer)

    # ---------------------------------------------------------------------------------------------------- transactions

    async def new_transaction(self, timeout_seconds: float = TRANSACTION_SECONDS) -> Transaction:
        """Begin a transaction, to be ended by its `commit` or `abort`; the broker aborts it after `timeout_seconds`.

        Raises:
            UnsupportedBroker: the broker has no transactions.
            TidewireError: none was to be had in time.
        """
        if not timeout_seconds > 0:
            raise ValueError(f"the timeout of a transaction cannot be {timeout_seconds} s")
        timeout_ms = max(1, round(timeout_seconds * 1000))
        return Transaction(self._coordinators, await self._coordinators.new_transaction(timeout_ms))

    def join_transaction(self, transaction_id: tuple[int, int]) -> Transaction:
        """A transaction that was begun elsewhere, by its id, to send more in it or to end it. Nothing is asked yet.

        It knows only the sends of this object: whoever commits must know that all others were answered.
        """
        return Transaction(self._coordinators, transaction_id)

    @asynccontextmanager
    async def transaction(self, timeout_seconds: float = TRANSACTION_SECONDS) -> AsyncIterator[Transaction]:
        """A transaction for the length of an `async with`: committed on leaving it, aborted when left by an exception.

        Raises:
            TransactionConflict: the broker has aborted it meanwhile, by its time-out for instance.
            OutcomeUnknown: the commit was not answered.
            TidewireError: a send of it failed, and it was aborted; or it could not be begun.
        """
        transaction = await self.new_transaction(timeout_seconds)
        try:
            yield transaction
            if transaction.state is TransactionState.OPEN:
                await transaction.commit()
        except BaseException:
            await transaction.abandon()
            raise

    async def run_transaction(
        self,
        work: Callable[[Transaction], Awaitable[R]],
        *,
        timeout_seconds: float = TRANSACTION_SECONDS,
        attempts_max: int = ATTEMPTS_MAX,
    ) -> R:
        """Do `work` in a transaction, commit it, and return what `work` returned.

        When something retriable goes wrong (a lost connection with an unanswered send, a segment that moved, the
        transaction's time-out), the transaction is aborted and `work` is run again with another one, up to
        `attempts_max` times. So `work` must have no effects but those in its transaction. On return, the one that
        committed is durable and none of the others ever becomes visible.

        Raises:
            OutcomeUnknown: a commit was not answered in time, even on new connections. It is not tried again, since it
                may have happened.
            Exception: what `work` raised, or the commit, if it is not retriable or at the last attempt.
        """
        backoff = self._network.backoff()
        for attempts_left in range(attempts_max - 1, -1, -1):
            try:
                async with self.transaction(timeout_seconds) as transaction:
                    return await work(transaction)
            except Exception as error:
                # An unknown outcome is none of them: what may have happened is not done again.
                if not attempts_left or not is_retriable(error):
                    raise
            await backoff.wait()
        raise ValueError(f"attempts_max must be at least 1, not {attempts_max}")


async def _closed(what: Producer[Any] | Receiving[Any]) -> None:
    """Close it: properly, even when the program is being cancelled, but not for long."""
    with anyio.move_on_after(CLOSE_SECONDS_MAX, shield=True):
        await what.aclose()


@asynccontextmanager
async def connect(
    url: str,
    *,
    connect_timeout_seconds: float = 10.0,
    operation_timeout_seconds: float = 30.0,
    reconnect_seconds_max: float = DELAY_SECONDS_MAX,
) -> AsyncIterator[Client]:
    """A client of the broker at `url` and all others of its cluster, for the length of an `async with`.

    Works under asyncio and under Trio. The first connection is made before this returns, so a wrong address is known at
    once; connections that are lost later are made again as needed.

    Args:
        url: `pulsar://HOST[:PORT]`.
        connect_timeout_seconds: how long making one connection may take.
        operation_timeout_seconds: how long a question may stay unanswered, reconnecting included. Sends and `receive`
            wait as long as their callers do.
        reconnect_seconds_max: the longest pause between two attempts to reach a broker that is not there.

    Raises:
        InvalidName: `url` is no broker's address.
        ConnectFailed: nobody answers there.
        Refused, ProtocolViolation: somebody does, but not as hoped.
    """
    settings = Settings(connect_timeout_seconds, operation_timeout_seconds, reconnect_seconds_max)
    async with open_client(parse_address(url), settings) as client:
        yield client


@asynccontextmanager
async def open_client(address: BrokerAddress, settings: Settings, *, dial: Dial = dial_tcp) -> AsyncIterator[Client]:
    """As `connect`, over streams that `dial` opens.

    Raises:
        As `connect`.
    """
    async with background_tasks() as tasks:
        network = Network(address, tasks, settings=settings, dial=dial)
        try:
            await network.service()
            yield Client(network)
        finally:
            await network.aclose()
