"""The entries that have arrived for a consumer, from all its segments, in the order of arrival.

A connection's reading task only queues entries. The task that receives messages verifies, decompresses and splits them.
Each segment's flow permits bound what is queued; an entry counts against them until it is opened.

Each message id carries the positions of other segments (message.py). They are one mapping, shared by all messages of an
entry. The inbox replaces it, and never changes it, when the next entry is from another segment.
"""

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Generic, NamedTuple, Protocol

from tidewire.client.errors import MessageCorrupted
from tidewire.client.message import Message
from tidewire.client.schema import BYTES, Schema, T
from tidewire.client.waking import Changes, Fairness
from tidewire.protocol.chunks import Chunks
from tidewire.protocol.errors import TidewireError, fresh
from tidewire.protocol.positions import MessageId, Position
from tidewire.protocol.refusals import TRANSIENT
from tidewire.wire.pulsar.building import CHUNKED_MESSAGE_SIZE_MAX
from tidewire.wire.pulsar.checksums import verify_payload
from tidewire.wire.pulsar.errors import MessageError
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.messages import parse_payload, split_body

_log: Final = logging.getLogger(__name__)

# Never changed: the inbox replaces the mapping as a whole.
_NOTHING: Final[Mapping[int, Position]] = {}
_BYTES: Final[Any] = BYTES


class Source(Protocol):
    """The consumer of one segment, as the inbox sees it."""

    segment_id: int
    topic: str
    chunks: Chunks
    """Incomplete messages: some of their chunks have not come."""
    since_ms: int | None
    """Messages published before this time are not wanted; None once a message was handed out."""

    @property
    def start_after(self) -> Position | None:
        """Messages up to this one are not wanted."""
        ...

    async def definition(self, version: bytes) -> pb.Schema | None:
        """This version of the topic's schema; None if there is none.

        Raises:
            TidewireError: no broker could answer.
        """
        ...

    def taken(self, messages: int) -> None:
        """An entry of that many messages has left the queue."""
        ...

    def kept(self, ledger_id: int, entry_id: int) -> None:
        """An entry was opened that holds no message of its own: a chunk, or one that cannot be read."""
        ...

    def delivered(self, message_id: MessageId, *, ends_entry: bool) -> None:
        """A message was handed to the application; `ends_entry`: it is the last of its entry."""
        ...


class Delivery(NamedTuple):
    """One entry as it came."""

    source: Source
    ledger_id: int
    entry_id: int
    redelivery_count: int
    ack_set: tuple[int, ...]
    payload: bytes


class Trouble(NamedTuple):
    """An error that takes the place of a source's next entry. It does not affect other sources."""

    source: Source
    error: TidewireError


class Inbox(Generic[T]):
    """Entries in, messages out. Any number of tasks may wait for the next message."""

    def __init__(self, schema: Schema[T] = _BYTES) -> None:
        """Empty; decodes values by `schema`."""
        self._schema = schema
        # The definitions that the schema needs, by segment and version. None for one that the broker does not know.
        self._definitions: dict[int, dict[bytes, pb.Schema | None]] = {}
        self._deliveries: deque[Delivery | Trouble] = deque()
        self._arrivals = Changes()
        self._fairness = Fairness()
        self._failure: TidewireError | None = None
        # The messages of the entry that is open, and its source.
        self._ready: deque[Message] = deque()
        self._ready_source: Source | None = None
        self._ready_definition: pb.Schema | None = None
        # By segment, the last message delivered; that of the current segment is in _last.
        self._places: Mapping[int, Position] = _NOTHING
        self._last: MessageId | None = None

    @property
    def entries_waiting(self) -> int:
        """Entries that were not opened yet."""
        return len(self._deliveries)

    def put(self, delivery: Delivery | Trouble) -> None:
        """Queue an entry, or the error that takes its place."""
        self._deliveries.append(delivery)
        self._arrivals.notify()

    def drop(self, source: Source) -> None:
        """Drop what came from this source and is undelivered: the broker redelivers it, or the segment has left."""
        if any(delivery.source is source for delivery in self._deliveries):
            self._deliveries = deque(delivery for delivery in self._deliveries if delivery.source is not source)
        if self._ready_source is source:
            self._ready.clear()
            self._ready_source = None

    def drop_entry(self, source: Source, ledger_id: int, entry_id: int) -> None:
        """Drop the undelivered messages of the open entry, if it is this one: the broker redelivers them."""
        if self._ready and self._ready_source is source:
            place = self._ready[0].message_id
            if (place.ledger_id, place.entry_id) == (ledger_id, entry_id):
                self._ready.clear()

    def holds(self, source: Source) -> bool:
        """Whether something from this source is undelivered."""
        if self._ready and self._ready_source is source:
            return True
        return any(delivery.source is source for delivery in self._deliveries)

    def has_delivered(self, segment_id: int, place: Position) -> bool:
        """Whether this message of the segment was handed out, on a session that still stands."""
        last = self._last
        known = last.position if last is not None and last.segment_id == segment_id else self._places.get(segment_id)
        return known is not None and place.order <= known.order

    def forget(self, segment_id: int) -> None:
        """Leave this segment's position out of further message ids."""
        if segment_id in self._places:
            self._places = {segment: place for segment, place in self._places.items() if segment != segment_id}
        if self._last is not None and self._last.segment_id == segment_id:
            self._last = None

    def left(self, segment_id: int) -> None:
        """Forget everything about this segment, of which no more messages come."""
        self.forget(segment_id)
        self._definitions.pop(segment_id, None)

    def fail(self, error: TidewireError) -> None:
        """No more messages will come, because of `error`."""
        if self._failure is None:
            self._failure = error
        self._deliveries.clear()
        self._ready.clear()
        self._arrivals.notify()

    def check(self) -> None:
        """Check that more messages may come.

        Raises:
            TidewireError: no more will come; the error says why.
        """
        if self._failure is not None:
            raise fresh(self._failure)

    async def receive(self) -> Message[T]:
        """The next message; waits for it. A cancelled call takes nothing.

        Raises:
            MessageCorrupted: the next entry cannot be read; the next call continues after it.
            DataDamaged: the broker cannot read a segment's next entries; other segments continue.
            TidewireError: there will be no further message; the error says why.
        """
        await self._fairness.checkpoint()
        while True:
            self.check()
            if self._ready:
                return self._hand_out()
            if not self._deliveries:
                await self._arrivals.wait()
                continue
            first = self._deliveries[0]
            if isinstance(first, Trouble):
                self._deliveries.popleft()
                raise fresh(first.error)
            if (version := self._missing_version(first)) is not None:
                await self._learn(first.source, version)
            else:
                self._deliveries.popleft()
                self._open(first)

    async def _learn(self, source: Source, version: bytes) -> None:
        try:
            definition = await source.definition(version)
        except TRANSIENT as error:
            # Like a message, it is waited for without a time limit. When the session ends, the entry is dropped.
            _log.info("no broker gives version %s of the schema of %s now: %s", version.hex(), source.topic, error)
        else:
            self._definitions.setdefault(source.segment_id, {})[version] = definition

    def _missing_version(self, delivery: Delivery) -> bytes | None:
        # The version of the schema that the entry was written with, if its definition is not known yet.
        if not self._schema.needs_definition:
            return None
        version = _version_of(delivery.payload)
        return version if version and version not in self._definitions.get(delivery.source.segment_id, ()) else None

    def _hand_out(self) -> Message[T]:
        message = self._ready.popleft()
        self._last = message.message_id
        source = self._ready_source
        assert source is not None
        source.since_ms = None
        source.delivered(message.message_id, ends_entry=not self._ready)
        return self._read(message)

    def _read(self, message: Message) -> Message[T]:
        value: Any = None
        if self._schema is BYTES:
            value = message.data
        elif not message.is_null:
            try:
                value = self._schema.decode_written(message.data, self._ready_definition)
            except Exception as error:
                raise MessageCorrupted(f"{message.topic}: {error}", message.message_id) from error
        # The same message with the decoded value, so under another type.
        read: Any = message if value is message.data else replace(message, value=value)
        typed: Message[T] = read
        return typed

    def _open(self, delivery: Delivery) -> None:
        source = delivery.source
        segment_id = source.segment_id
        ledger_id, entry_id = delivery.ledger_id, delivery.entry_id
        if self._last is not None and self._last.segment_id != segment_id:
            self._places = {**self._places, self._last.segment_id: self._last.position}
            self._last = None
        places = self._places
        messages_in_entry = 1
        earlier_chunks: tuple[tuple[int, int], ...] = ()
        try:
            verify_payload(delivery.payload)
            metadata, body = parse_payload(delivery.payload)
            if metadata.num_chunks_from_msg > 1:
                whole = source.chunks.add(metadata, body, (ledger_id, entry_id))
                if whole is None:
                    source.kept(ledger_id, entry_id)
                    return
                earlier_chunks = whole.earlier
                singles = split_body(metadata, whole.body, size_max=CHUNKED_MESSAGE_SIZE_MAX)
            else:
                messages_in_entry = max(1, metadata.num_messages_in_batch)
                source.chunks.passed(metadata, (ledger_id, entry_id))
                # The limit for messages holds for the compressed body. Pulsar's clients send and read larger ones.
                singles = split_body(metadata, body, delivery.ack_set, size_max=CHUNKED_MESSAGE_SIZE_MAX)
        except MessageError as error:
            source.kept(ledger_id, entry_id)
            place = MessageId(segment_id, ledger_id, entry_id, others=places)
            raise MessageCorrupted(f"{source.topic} {ledger_id}:{entry_id}: {error}", place) from error
        finally:
            source.taken(messages_in_entry)
        redelivery_count = delivery.redelivery_count
        topic = source.topic
        self._ready_source = source
        if self._schema.needs_definition:
            self._ready_definition = self._definitions.get(segment_id, {}).get(metadata.schema_version)
        self._ready.extend(
            Message(
                single.value,
                single.key,
                single.properties,
                single.event_time_ms,
                single.publish_time_ms,
                MessageId(segment_id, ledger_id, entry_id, single.batch_index, single.batch_size, places)
                if single.batch_index is not None
                else MessageId(segment_id, ledger_id, entry_id, others=places, chunks=earlier_chunks),
                topic,
                single.producer_name,
                single.sequence_id,
                redelivery_count,
                single.null_value,
                single.value,
            )
            for single in singles
        )
        after = source.start_after
        if after is not None and (ledger_id, entry_id) <= after[:2]:
            # Brokers send whole entries. Drop the messages up to the reader's start.
            self._ready = deque(message for message in self._ready if message.message_id.position.order > after.order)
        since_ms = source.since_ms
        while since_ms is not None and self._ready and self._ready[0].publish_time_ms < since_ms:
            self._ready.popleft()
        if not self._ready:
            # Every message was dropped, so nothing else would report the end of this entry.
            source.delivered(MessageId(segment_id, ledger_id, entry_id), ends_entry=True)


def _version_of(payload: bytes) -> bytes:
    try:
        return parse_payload(payload)[0].schema_version
    except MessageError:
        # `_open` reports what is wrong with the entry.
        return b""
