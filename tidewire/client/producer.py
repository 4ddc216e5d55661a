"""Producing to a topic: each message goes to the segment that currently holds its key's hash.

A topic's producer routes; its segments' producers send (segment_producer.py). A segment gets one at its first message.
`send` and `enqueue` wait for room, so the unanswered messages of all segments together are bounded, in number and in
bytes. A send has no timeout: it waits until the broker is back. To limit the wait, wrap it in `anyio.fail_after`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Final, Generic, Literal, TypeAlias

import anyio

from tidewire.client.background import BackgroundTask
from tidewire.client.errors import Closed
from tidewire.client.layout_watch import TopicLayout, open_layout
from tidewire.client.network import Network
from tidewire.client.publish_span import PublishSpan, publish_span
from tidewire.client.schema import Schema, T
from tidewire.client.segment_producer import SegmentProducer
from tidewire.client.sending import Batching, Chunking, Outgoing, Receipt, Tally, size_of
from tidewire.client.transactions import Transaction
from tidewire.client.troubles import ShownTroubles
from tidewire.protocol.errors import MessageTooLarge, TidewireError, fresh
from tidewire.protocol.layout import Segment
from tidewire.protocol.positions import MessageId
from tidewire.wire.pulsar.building import CHUNKED_MESSAGE_SIZE_MAX
from tidewire.wire.pulsar.frames import MAX_MESSAGE_SIZE
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.hashing import key_hash

PENDING_MESSAGES_MAX: Final = 10_000
PENDING_BYTES_MAX: Final = 32 * 1024 * 1024
"""Unanswered messages of one producer, and their size. Further ones wait until some are answered."""

CHUNKED_ATTACHED_BYTES_MAX: Final = MAX_MESSAGE_SIZE // 2
"""The size limit for key and properties of a message that may be sent in chunks, since every chunk carries both."""

FAILURES_KEPT_MAX: Final = 1000
"""Failed sends that are kept because nobody awaited their receipts; `flush` raises the first. The oldest go first."""

EVENT_TIME_MS_MAX: Final = 2**63 - 1

Compression: TypeAlias = Literal["none", "lz4", "zlib", "zstd", "snappy"]

_CODECS: Final[dict[str, pb.CompressionType]] = {
    "none": pb.CompressionType.NONE,
    "lz4": pb.CompressionType.LZ4,
    "zlib": pb.CompressionType.ZLIB,
    "zstd": pb.CompressionType.ZSTD,
    "snappy": pb.CompressionType.SNAPPY,
}
_ALONE: Final = Batching(messages_max=1)


@dataclass(frozen=True, slots=True)
class ProducerStatistics:
    """A producer at one moment."""

    topic: str
    pending_messages: int
    pending_bytes: int
    segments_connected: int


class Producer(Generic[T]):
    """Sends messages to one topic, scalable or not. Made by `Client.producer`; any number of tasks may use it."""

    def __init__(
        self,
        network: Network,
        topic: str,
        name: str | None,
        compression: Compression,
        batching: Batching | bool,
        chunking: Chunking | bool,
        schema: Schema[T],
    ) -> None:
        """For the client's own use; `open` comes next."""
        if compression not in _CODECS:
            raise ValueError(f"{compression!r} is not a compression type; use one of {', '.join(_CODECS)}")
        self.network = network
        self.topic = topic
        self.name = name
        """The name that the caller gave; without one, each segment's broker chooses."""
        self.batching = batching if isinstance(batching, Batching) else Batching() if batching else _ALONE
        self.chunking = chunking if isinstance(chunking, Chunking) else Chunking() if chunking else None
        # What a compressed message takes is known when it is sent (sending.py).
        may_shrink = self.chunking is not None or compression != "none"
        self._size_max = CHUNKED_MESSAGE_SIZE_MAX if may_shrink else MAX_MESSAGE_SIZE
        self.codec = _CODECS[compression]
        self.declared = schema.declared
        self._schema = schema
        self.layout = TopicLayout(topic)
        self.troubles = ShownTroubles(whole=network.troubles)
        """Why unanswered messages wait, while the producer retries: `troubles.current`. Sends have no time limit."""
        self._tally = Tally(
            messages_max=PENDING_MESSAGES_MAX, bytes_max=PENDING_BYTES_MAX, failures_max=FAILURES_KEPT_MAX
        )
        self._turn = count()
        self._segments: dict[int, SegmentProducer] = {}
        self._failure: TidewireError | None = None
        self._watch: BackgroundTask | None = None
        self._follow: BackgroundTask | None = None

    async def open(self) -> None:
        """Fetch the topic's layout.

        Raises:
            TidewireError: there is no such topic, or no broker answered in time.
        """
        self.layout, self._watch = await open_layout(self.network, self.topic, self.troubles)
        if self._watch is not None:
            self._follow = self.network.start(self._follow_layout(), f"producer of {self.topic}", self.fail)

    def statistics(self) -> ProducerStatistics:
        """The producer's current state."""
        return ProducerStatistics(
            self.topic,
            self._tally.room.messages,
            self._tally.room.bytes,
            sum(segment.is_connected for segment in self._segments.values()),
        )

    # --------------------------------------------------------------------------------------------------------- sending

    async def send(
        self,
        value: T,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        txn: Transaction | None = None,
    ) -> MessageId:
        """Send a message and wait until the broker has stored it.

        The topic's policy says how durably it is stored then; by default it is synced to disk. If the call is
        cancelled, the message may or may not be sent.

        Args:
            value: the message, in the form that the producer's schema takes; by default bytes.
            key: messages of one key are read in the order they were sent. Without a key, segments take turns.
            properties: names and texts to send with it.
            event_time_ms: when the event happened, milliseconds since the epoch.
            txn: the message becomes visible when this transaction commits.

        Raises:
            MessageTooLarge: the message is larger than the limit. With compression, the limit is for its compressed
                form, and the message may have up to 64 MiB.
            TransactionEnded: the transaction takes no more work.
            SendUnanswered: in a transaction: the connection was lost meanwhile, or the broker closed the producer and
                does not remember it. Run the transaction again.
            TidewireError: the broker refused the message, or the producer is closed.
        """
        receipt = await self.enqueue(value, key=key, properties=properties, event_time_ms=event_time_ms, txn=txn)
        return await receipt.wait()

    async def enqueue(
        self,
        value: T,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        txn: Transaction | None = None,
    ) -> Receipt:
        """As `send`, but return once the message is in the queue. Await the receipt for the rest.

        Waits only while PENDING_MESSAGES_MAX messages or PENDING_BYTES_MAX bytes are unanswered. You need not await the
        receipt. `flush` and the end of the producer's `async with` raise the first failure that nobody awaited; in a
        transaction, the commit does. If the call is cancelled, the message is not sent.

        Raises:
            MessageTooLarge, TransactionEnded, TidewireError: as `send`, as far as known before sending.
        """
        data = self._schema.encode(value)
        span = publish_span(self.topic, properties, len(data), txn)
        if span is None:
            return Receipt(await self._enqueue(data, key, properties, event_time_ms, txn))
        with span.ends_at_failure():
            return Receipt(await self._enqueue(data, key, span.properties, event_time_ms, txn, span))

    async def _enqueue(
        self,
        data: bytes,
        key: str | None,
        properties: Mapping[str, str] | None,
        event_time_ms: int | None,
        txn: Transaction | None,
        span: PublishSpan | None = None,
    ) -> Outgoing:
        size = size_of(data, key, properties)
        self._check_size(size, size - len(data))
        if event_time_ms is not None and not 0 <= event_time_ms <= EVENT_TIME_MS_MAX:
            raise ValueError(f"event_time_ms must be 0 to {EVENT_TIME_MS_MAX}, not {event_time_ms}")
        self._check(txn)
        hashed = None if key is None else key_hash(key)
        room = self._tally.room
        await room.take(size)
        try:
            segment = self._route(hashed) if txn is None else await self._route_in(txn, hashed)
            self._check(txn)
            target = self._producer_of(segment)
        except BaseException:
            room.give_back(1, size)
            raise
        message = Outgoing(data, key, hashed, properties, event_time_ms, txn, size, self._tally, span)
        if txn is not None:
            txn.send_begins(message)
        target.append(message)
        return message

    async def flush(self) -> None:
        """Wait for the answers to everything that was enqueued before.

        Raises:
            TidewireError: the first failure since the last `flush` whose receipt nobody awaited. Failures in
                transactions do not count.
        """
        outstanding = [message for segment in self._segments.values() for message in segment.outstanding()]
        for message in outstanding:
            await message.answered()
        failure = self._tally.take_failure()
        if failure is not None:
            raise fresh(failure)

    def _check_size(self, size: int, attached: int) -> None:
        if size > self._size_max:
            raise MessageTooLarge(f"the message has {size} bytes; the limit is {self._size_max}")
        if self.chunking is not None and attached > CHUNKED_ATTACHED_BYTES_MAX:
            raise MessageTooLarge(
                f"the key and properties have {attached} bytes; the limit is {CHUNKED_ATTACHED_BYTES_MAX}"
            )

    def _check(self, txn: Transaction | None) -> None:
        if self._failure is not None:
            raise fresh(self._failure)
        if txn is not None:
            txn.check_open()

    # --------------------------------------------------------------------------------------------------------- routing

    def _route(self, hashed: int | None) -> Segment:
        layout = self.layout.current
        if hashed is None:
            return layout.active[next(self._turn) % len(layout.active)]
        return layout.segment_of(hashed)

    async def _route_in(self, txn: Transaction, hashed: int | None) -> Segment:
        while True:
            segment = self._route(hashed)
            if txn.includes(segment.wire_name):
                return segment
            await txn.include(segment.wire_name)
            # The layout may have changed meanwhile. Do not route again: that gives a message without key another turn.
            if self.layout.current.is_active(segment.segment_id):
                return segment

    def _producer_of(self, segment: Segment) -> SegmentProducer:
        producer = self._segments.get(segment.segment_id)
        if producer is None:
            forerunners = {
                other
                for other in self._segments.values()
                if not self.layout.current.is_active(other.segment.segment_id) and other.segment.overlaps(segment)
            }
            producer = SegmentProducer(self, segment, forerunners)
            producer.start()
            self._segments[segment.segment_id] = producer
        return producer

    async def _follow_layout(self) -> None:
        while True:
            await self.layout.changes.wait()
            for segment in self._segments.values():
                segment.layout_changed()

    # ------------------------------------------------------------------------------------------ what its segments tell

    def hand_over(self, segment: SegmentProducer, messages: list[Outgoing]) -> None:
        """See `Owner`."""
        del self._segments[segment.segment.segment_id]
        for message in messages:
            if self._failure is None:
                try:
                    self._producer_of(self._route(message.key_hash)).inherit(message)
                except TidewireError as error:
                    self.fail(error)
            if self._failure is not None:
                message.finish(self._failure)
        for other in tuple(self._segments.values()):
            other.forerunner_finished(segment)

    def fail(self, error: TidewireError) -> None:
        """See `Owner`."""
        if self._failure is None:
            self._failure = error
        for segment in self._segments.values():
            for message in segment.take_all():
                message.finish(error)

    async def aclose(self) -> None:
        """Close the segments' sessions. Unanswered messages fail with `Closed`; call `flush` first to wait for them."""
        self.fail(Closed(f"the producer of {self.topic} was closed"))
        for task in (self._watch, self._follow):
            if task is not None:
                task.cancel()
        async with anyio.create_task_group() as tasks:
            for segment in self._segments.values():
                tasks.start_soon(segment.aclose)
