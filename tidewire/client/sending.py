"""A message in flight, its receipt, and the frame it is sent in. No IO.

A message is answered exactly once, by its id or by an error. The answer gives back the message's room, informs its
transaction, and wakes whoever awaits the receipt.
"""

from collections import deque
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from time import time_ns
from typing import Any, Final

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from tidewire.client.publish_span import PublishSpan
from tidewire.client.transactions import Transaction
from tidewire.client.waking import Room
from tidewire.protocol.errors import MessageTooLarge, TidewireError, fresh
from tidewire.protocol.positions import MessageId
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.building import build_batch, build_chunks, message_metadata, single_message_metadata
from tidewire.wire.pulsar.frames import MAX_MESSAGE_SIZE, encode_payload_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

BATCH_MESSAGES_LIMIT: Final = 10_000
BATCH_BYTES_LIMIT: Final = MAX_MESSAGE_SIZE // 2
"""The largest batches that may be configured. A message's own metadata take up to about 50 bytes beside its size."""

CHUNK_OVERHEAD_BYTES: Final = 512
"""What a chunk's metadata take beside the message's: the message's UUID, the chunk's number, and a long name."""

NEVER_SPLIT_BYTES: Final = 2**62
"""A size of chunks that no message exceeds."""

PROPERTY_OVERHEAD_BYTES: Final = 8
"""What a property takes in a message beside its name and value."""


@dataclass(frozen=True, slots=True)
class Batching:
    """How many messages may share a frame."""

    messages_max: int = 1000
    bytes_max: int = 128 * 1024

    def __post_init__(self) -> None:
        """Check that a full batch, with its messages' metadata, fits into a frame."""
        if not 1 <= self.messages_max <= BATCH_MESSAGES_LIMIT:
            raise ValueError(f"a batch must hold 1 to {BATCH_MESSAGES_LIMIT} messages")
        if not 1 <= self.bytes_max <= BATCH_BYTES_LIMIT:
            raise ValueError(f"a batch must hold 1 to {BATCH_BYTES_LIMIT} bytes")


@dataclass(frozen=True, slots=True)
class Chunking:
    """How to split a message that is larger than one payload may be."""

    chunk_size_max: int = MAX_MESSAGE_SIZE
    """Larger messages are split, after compression. Chunks are smaller if the broker's limit needs it."""

    def __post_init__(self) -> None:
        """Check the size."""
        if not 1 <= self.chunk_size_max <= MAX_MESSAGE_SIZE:
            raise ValueError(f"a chunk must hold 1 to {MAX_MESSAGE_SIZE} bytes")


class Outgoing:
    """A message that waits or is sent, and in the end is answered exactly once, by its id or by an error."""

    __slots__ = (
        "_answered",
        "_span",
        "_tally",
        "answer",
        "event_time_ms",
        "is_seen",
        "is_sent",
        "key",
        "key_hash",
        "properties",
        "size",
        "txn",
        "value",
    )

    def __init__(
        self,
        value: bytes,
        key: str | None,
        key_hash: int | None,
        properties: Mapping[str, str] | None,
        event_time_ms: int | None,
        txn: Transaction | None,
        size: int,
        tally: "Tally",
        span: PublishSpan | None = None,
    ) -> None:
        """A message of `size` bytes, for which `tally` has given room. `span` ends when it is answered."""
        self.value = value
        self.key = key
        self.key_hash = key_hash
        self.properties = properties
        self.event_time_ms = event_time_ms
        self.txn = txn
        self.size = size
        self.answer: MessageId | TidewireError | None = None
        self.is_sent = False
        """Whether it is in a frame that was written to a connection and is unanswered."""
        self.is_seen = False
        """Whether the answer was awaited."""
        self._tally = tally
        self._span = span
        self._answered: anyio.Event | None = None

    def take_back(self) -> None:
        """It is in no frame on a connection any more, and waits to be sent again."""
        self.is_sent = False
        if self.txn is not None:
            self.txn.send_waits()

    def finish(self, answer: MessageId | TidewireError) -> None:
        """Answer it. A second answer is ignored."""
        if self.answer is not None:
            return
        self.answer = answer
        self._tally.message_finished(self)
        if self._span is not None:
            self._span.end(answer)
        if self.txn is not None:
            self.txn.send_ends(self)
        if self._answered is not None:
            self._answered.set()

    async def answered(self) -> None:
        """Return when there is an answer."""
        if self.answer is not None:
            await checkpoint_if_cancelled()
            return
        if self._answered is None:
            self._answered = anyio.Event()
        await self._answered.wait()

    async def wait(self) -> MessageId:
        """The message's id, once it is answered.

        Raises:
            TidewireError: the answer, if it is an error.
        """
        await self.answered()
        self.is_seen = True
        assert self.answer is not None
        if isinstance(self.answer, TidewireError):
            raise fresh(self.answer)
        return self.answer


class Tally:
    """A producer's totals: the room that its messages take, and the failures that nobody has awaited."""

    __slots__ = ("_failures", "room")

    def __init__(self, *, messages_max: int, bytes_max: int, failures_max: int) -> None:
        """Room up to the two limits; when there are more failures, the oldest are dropped."""
        self.room = Room(messages_max=messages_max, bytes_max=bytes_max)
        self._failures: deque[Outgoing] = deque(maxlen=failures_max)

    def message_finished(self, message: Outgoing) -> None:
        """A message was answered."""
        self.room.give_back(1, message.size)
        # The transaction's commit reports the failures in it.
        if message.txn is None and isinstance(message.answer, TidewireError):
            self._failures.append(message)

    def take_failure(self) -> TidewireError | None:
        """The first failure whose receipt nobody has awaited so far. All failures are dropped."""
        unseen = [message.answer for message in self._failures if not message.is_seen]
        self._failures.clear()
        first = unseen[0] if unseen else None
        return first if isinstance(first, TidewireError) else None


class Receipt:
    """The pending answer to one message: `await` it for the message's id or its error."""

    __slots__ = ("_message",)

    def __init__(self, message: Outgoing) -> None:
        """For the client's own use."""
        self._message = message

    @property
    def is_answered(self) -> bool:
        """Whether awaiting it returns at once."""
        return self._message.answer is not None

    async def wait(self) -> MessageId:
        """The message's id: the broker has stored it, as durably as its topic's policy says.

        If the call is cancelled, the message is sent nevertheless. The receipt can be awaited again.

        Raises:
            TidewireError: the message was refused, or it is unknown whether it was stored.
        """
        return await self._message.wait()

    def __await__(self) -> Generator[Any, Any, MessageId]:
        """As `wait`."""
        return self._message.wait().__await__()


class SendFrame:
    """Messages that are sent together, with the sequence ids from `sequence_id` on."""

    __slots__ = ("_chunks", "_stored", "messages", "sequence_id", "txn")

    def __init__(self, sequence_id: int, messages: list[Outgoing], txn: Transaction | None) -> None:
        """A frame of at least one message; all are of the same transaction."""
        self.sequence_id = sequence_id
        self.messages = messages
        self.txn = txn
        # For a frame of one message: the number of its chunks, and the positions of those that are stored.
        self._chunks = 1
        self._stored: list[tuple[int, int]] = []

    def encode(
        self,
        producer_id: int,
        producer_name: str,
        codec: pb.CompressionType,
        chunking: Chunking | None = None,
        schema_version: bytes = b"",
        *,
        message_bytes_max: int = MAX_MESSAGE_SIZE,
    ) -> list[bytes]:
        """The bytes that send it: one command, or with `chunking` one for each chunk.

        Raises:
            MessageTooLarge: what each chunk carries beside the value is already above the broker's limit. Without
                chunking, the caller compares the command with the limit.
        """
        txn = None if self.txn is None else self.txn.transaction_id
        count = len(self.messages)
        last_id = self.sequence_id + count - 1
        first = self.messages[0]
        if count == 1:
            metadata = message_metadata(
                producer_name,
                self.sequence_id,
                _now_ms(),
                key=first.key,
                properties=first.properties,
                event_time_ms=first.event_time_ms,
                txn=txn,
            )
            if schema_version:
                metadata.schema_version = schema_version
            size_max = NEVER_SPLIT_BYTES
            if chunking is not None:
                # Every chunk carries the metadata.
                attached = metadata.ByteSize() + CHUNK_OVERHEAD_BYTES
                size_max = min(chunking.chunk_size_max, message_bytes_max - attached)
                if size_max < 1:
                    raise MessageTooLarge(
                        f"the key and properties have {attached} bytes; the broker's limit is {message_bytes_max}"
                    )
            payloads = build_chunks(metadata, first.value, codec, chunk_size_max=size_max)
            self._chunks, self._stored = len(payloads), []
            command = commands.send(producer_id, self.sequence_id, txn=txn, is_chunk=self._chunks > 1)
            return [encode_payload_command(command, payload) for payload in payloads]
        metadata = message_metadata(producer_name, self.sequence_id, _now_ms(), txn=txn)
        metadata.highest_sequence_id = last_id
        if schema_version:
            metadata.schema_version = schema_version
        payload = build_batch(
            metadata,
            [
                (
                    single_message_metadata(
                        sequence_id,
                        key=message.key,
                        properties=message.properties,
                        event_time_ms=message.event_time_ms,
                    ),
                    message.value,
                )
                for sequence_id, message in enumerate(self.messages, self.sequence_id)
            ],
            codec,
        )
        command = commands.send(producer_id, self.sequence_id, num_messages=count, highest_sequence_id=last_id, txn=txn)
        return [encode_payload_command(command, payload)]

    def is_last_receipt(self, ledger_id: int, entry_id: int) -> bool:
        """The broker has stored it, or one of its chunks, at this place. Returns whether all of it is stored."""
        self._stored.append((ledger_id, entry_id))
        return len(self._stored) >= self._chunks

    @property
    def is_answered(self) -> bool:
        """Whether all of its messages are answered, because their transaction was aborted."""
        return all(message.answer is not None for message in self.messages)

    def succeed(self, segment_id: int, ledger_id: int, entry_id: int) -> None:
        """The broker has stored it, at this place."""
        if len(self.messages) == 1:
            self.messages[0].finish(MessageId(segment_id, ledger_id, entry_id, chunks=tuple(self._stored[:-1])))
            return
        count = len(self.messages)
        for index, message in enumerate(self.messages):
            message.finish(MessageId(segment_id, ledger_id, entry_id, index, count))

    def fail(self, error: TidewireError) -> None:
        """The broker has not stored it, or that is unknown."""
        for message in self.messages:
            message.finish(error)


def size_of(value: bytes, key: str | None, properties: Mapping[str, str] | None) -> int:
    """A message's size: its value, key and properties, and the overhead of the properties."""
    size = len(value)
    if key is not None:
        size += len(key.encode())
    if properties:
        size += sum(len(name.encode()) + len(text.encode()) for name, text in properties.items())
        size += PROPERTY_OVERHEAD_BYTES * len(properties)
    return size


def _now_ms() -> int:
    return time_ns() // 1_000_000
