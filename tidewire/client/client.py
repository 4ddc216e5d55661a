"""The client: everything a program does with brokers begins at `connect`.

A client owns one task group. Its connections, producers and consumers do their background work there, and leaving
`async with` ends all of it. An error of that work is raised by the call that it concerns, not by the task group. An
error of the program passes through unchanged, not inside an exception group.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
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
from tidewire.client.troubles import ShownTroubles
from tidewire.protocol.addresses import BrokerAddress, ServiceAddresses, parse_addresses
from tidewire.protocol.backoff import DELAY_SECONDS_MAX
from tidewire.protocol.errors import is_retriable
from tidewire.protocol.silence import KEEP_ALIVE_SECONDS

TRANSACTION_SECONDS: Final = 60.0
"""The broker aborts a transaction after this time, unless the caller gives another."""

ATTEMPTS_MAX: Final = 10
"""How often `run_transaction` runs its work, unless the caller gives another number."""

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

    @property
    def troubles(self) -> ShownTroubles:
        """Why parts of the client retry at the moment, such as a broker that is away: `troubles.current`."""
        return self._network.troubles

    def statistics(self) -> ClientStatistics:
        """The client's current state."""
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

        Leaving it normally waits until everything that was enqueued is answered. Leaving it by an exception closes it
        at once; then unanswered messages may or may not be stored.

        Args:
            topic: `topic://...` or `persistent://...`.
            name: unique among the topic's producers; by default the broker chooses one.
            compression: how messages are compressed, in transit and in the store.
            batching: whether messages that wait at the same time may share a frame, and how many of them.
            chunking: whether to send a message in chunks when it is larger than the broker's limit, or than a size of
                your own. This client's consumers and Pulsar's join the chunks. On a shared subscription one consumer
                must get all chunks of a message, which not every broker ensures.
            schema: how values are encoded; by default they are bytes. If it is incompatible with the topic's schema,
                the first send is refused.

        Raises:
            TopicNotFound, InvalidName: there is no such topic, or the name is not valid.
            TidewireError: the topic could not be reached. On leaving: the first send that failed and whose receipt
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
        """Consumes a scalable topic in order, and shares its segments with other consumers of the subscription.

        Args:
            topic: `topic://...`.
            subscription: its progress is kept by the broker; it is created if it does not exist.
            name: unique within the subscription.
            initial: where a new subscription begins.
            queue_messages_max: messages of each segment that may be prefetched.
            schema: how values are decoded; by default they are bytes.

        Raises:
            TidewireError: the subscription could not be opened.
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
        """Consumes a scalable topic message by message: each goes to one consumer of the subscription, unordered.

        Args:
            topic: `topic://...`.
            subscription: its progress is kept by the broker; it is created if it does not exist.
            name: the consumer's name in the broker's statistics.
            initial: where a new subscription begins.
            queue_messages_max: messages of each segment that may be prefetched. Other consumers do not get these.
            schema: how values are decoded; by default they are bytes.
            negative_ack_backoff: the delay before a negatively acknowledged message is redelivered.
            processing_timeout_seconds: a message that is neither acknowledged nor negatively acknowledged this long
                after `receive` returned it is redelivered. Without it, redelivery waits until this consumer ends.
            processing_timeout_backoff: a delay added to that timeout, which may grow with each redelivery.
            dead_letter_policy: after how many redeliveries a message becomes a dead letter, and where it goes.

        Raises:
            TopicNotFound: there is no such topic, or no such dead-letter topic.
            TidewireError: the subscription could not be opened.
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
        """Consumes a `persistent://` topic, or all of its partitions.

        Args:
            topic: `persistent://...`.
            subscription: its progress is kept by the broker; it is created if it does not exist.
            type: "exclusive": only this consumer; "shared": each message goes to one of the subscription's consumers.
            name: unique within the subscription.
            initial: where a new subscription begins.
            queue_messages_max: messages of each partition that may be prefetched.
            schema: how values are decoded; by default they are bytes.

        Raises:
            SubscriptionBusy: another consumer holds it exclusively.
            TidewireError: the subscription could not be opened.
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
        """Reads a topic of either kind from any position. The broker keeps no progress.

        Args:
            topic: `topic://...` or `persistent://...`.
            start: "earliest", "latest" (only messages sent from now on), or a message's id, to begin right behind it.
            queue_messages_max: messages of each segment that may be prefetched.
            schema: how values are decoded; by default they are bytes.

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
        """Reads a topic of either kind, and returns its position on all segments as a checkpoint for you to store.

        For programs that store their position together with their results. The broker keeps no progress.

        Args:
            topic: `topic://...` or `persistent://...`.
            start: "earliest", "latest" (only messages sent from now on), a checkpoint, or a time with its zone: begin
                with what was published then or later.
            queue_messages_max: messages of each segment that may be prefetched.
            schema: how values are decoded; by default they are bytes.

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
        """Begin a transaction. End it with `commit` or `abort`; the broker aborts it after `timeout_seconds`.

        Raises:
            UnsupportedBroker: the broker has no transactions.
            TidewireError: no transaction could be begun in time.
        """
        if not timeout_seconds > 0:
            raise ValueError(f"a transaction's timeout must be more than 0 s, not {timeout_seconds} s")
        timeout_ms = max(1, round(timeout_seconds * 1000))
        return Transaction(self._coordinators, await self._coordinators.new_transaction(timeout_ms))

    def join_transaction(self, transaction_id: tuple[int, int]) -> Transaction:
        """A transaction that was begun elsewhere, by its id: to send more in it, or to end it. Makes no request.

        This object knows only its own sends. Before it commits, make sure that all other sends were answered.
        """
        return Transaction(self._coordinators, transaction_id)

    @asynccontextmanager
    async def transaction(self, timeout_seconds: float = TRANSACTION_SECONDS) -> AsyncIterator[Transaction]:
        """A transaction for the length of an `async with`. Leaving it commits; leaving it by an exception aborts.

        Raises:
            TransactionConflict: the broker has already aborted it, by its timeout for instance.
            OutcomeUnknown: the commit was not answered.
            TidewireError: one of its sends failed, and it was aborted; or it could not be begun.
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

        After a retriable failure it aborts the transaction and runs `work` again in a new one, up to `attempts_max`
        times. Such failures are a lost connection with an unanswered send, a segment that moved, and the
        transaction's timeout. So `work` must have no effects outside its transaction. On return, the committed
        attempt is durable, and no other attempt ever becomes visible.

        Raises:
            OutcomeUnknown: a commit was not answered in time, even on new connections. It may have happened, so it is
                not tried again.
            Exception: an error of `work` or of the commit that is not retriable, or that came at the last attempt.
        """
        backoff = self._network.backoff()
        for attempts_left in range(attempts_max - 1, -1, -1):
            try:
                async with self.transaction(timeout_seconds) as transaction:
                    return await work(transaction)
            except Exception as error:
                # An unknown outcome is not retriable: work that may have been committed must not run again.
                if not attempts_left or not is_retriable(error):
                    raise
            await backoff.wait()
        raise ValueError(f"attempts_max must be at least 1, not {attempts_max}")


async def _closed(what: Producer[Any] | Receiving[Any]) -> None:
    """Close it cleanly even when the program is being cancelled, but only for a limited time."""
    with anyio.move_on_after(CLOSE_SECONDS_MAX, shield=True):
        await what.aclose()


@asynccontextmanager
async def connect(
    url: str,
    *,
    connect_timeout_seconds: float = 10.0,
    operation_timeout_seconds: float = 30.0,
    reconnect_seconds_max: float = DELAY_SECONDS_MAX,
    keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
) -> AsyncIterator[Client]:
    """A client of the broker at `url` and of its whole cluster, for the length of an `async with`.

    Works under asyncio and under Trio. The first connection is made before this returns, so a wrong address fails at
    once. Connections that are lost later are made again when they are needed.

    Args:
        url: `pulsar://HOST[:PORT]`, or `pulsar://HOST[:PORT],HOST[:PORT]` for several brokers of one cluster. The
            client asks the first one, and goes on to the next when that one cannot be reached.
        connect_timeout_seconds: the time limit for one connection attempt.
        operation_timeout_seconds: the time limit for a request, including reconnects. Sends and `receive` have no
            limit of their own.
        reconnect_seconds_max: the longest pause between two attempts to reach an unreachable broker.
        keep_alive_seconds: how long a connected broker may be silent before the client asks it for a sign of life. If
            none comes for as long again, the client gives the connection up and goes on at the other brokers.

    Raises:
        InvalidName: `url` holds something else than brokers' addresses.
        ConnectFailed: nothing answers there.
        Refused, ProtocolViolation: the peer refuses the handshake or does not speak the protocol.
    """
    settings = Settings(connect_timeout_seconds, operation_timeout_seconds, reconnect_seconds_max, keep_alive_seconds)
    async with open_client(parse_addresses(url), settings) as client:
        yield client


@asynccontextmanager
async def open_client(
    addresses: Sequence[BrokerAddress], settings: Settings, *, dial: Dial = dial_tcp
) -> AsyncIterator[Client]:
    """As `connect`, over streams that `dial` opens.

    Raises:
        As `connect`.
    """
    async with background_tasks() as tasks:
        network = Network(ServiceAddresses(addresses), tasks, settings=settings, dial=dial)
        try:
            await network.service()
            yield Client(network)
        finally:
            await network.aclose()
