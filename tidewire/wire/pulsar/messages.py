"""A payload to the messages in it, and back.

    payload = [0x0e02][u32 size][BrokerEntryMetadata]?  [0x0e01][u32 crc32c]?  [u32 size][MessageMetadata]  body
    body    = one message's value, or a batch, compressed as the metadata say
    batch   = ([u32 size][SingleMessageMetadata] value)*

The broker never takes a payload apart: it holds it against its checksum, stores it and sends it on. Reading messages is
the client's and Spark's part, and what they read may come from any producer, so every length is checked before use.

Two leniencies, both so that one odd message does not stop a reader for good: text that is not UTF-8 is read with
replacement characters, as Pulsar's Java client does, and a payload may come without a checksum. A batch that does not
add up exactly is refused, because guessing would lose or invent messages.

A message too large for one payload is sent in chunks, a payload each with the same metadata (`build_chunks`). Left out
here: encryption (an encrypted body is refused by name), and putting chunks together, which needs the other chunks;
whoever has collected them passes the joined body to `split_body`.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import google_crc32c
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from tidewire.wire.pulsar.checksums import BROKER_METADATA_MAGIC, CHECKSUM_MAGIC, checksum_start
from tidewire.wire.pulsar.compression import compress, decompress
from tidewire.wire.pulsar.errors import (
    EncryptedMessage,
    MalformedMessage,
    MessageTooLarge,
    UnsupportedCompression,
)
from tidewire.wire.pulsar.frames import MAX_MESSAGE_SIZE
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import bits_of_ack_set

CHUNKED_MESSAGE_SIZE_MAX: Final = 64 * 1024 * 1024
"""The largest message that is sent or put together in chunks, before compression: whoever reads it holds all of it."""

_SIZE: Final = struct.Struct(">I")
_CHECKSUM: Final = struct.Struct(">2sI")
# A size, and metadata that hold at least their one required field.
_BATCHED_SIZE_MIN: Final = _SIZE.size + 2


class SingleMessage(NamedTuple):
    """One message as its consumer sees it."""

    batch_index: int | None
    """Its place in its batch; None for a message that was sent alone."""
    batch_size: int
    """Messages in the batch as it was sent, whether or not all of them are still there; 1 for one sent alone."""
    key: str | None
    value: bytes
    properties: dict[str, str]
    event_time_ms: int | None
    """What the producer's application said, milliseconds since the epoch."""
    publish_time_ms: int
    """When the producer sent it, by its own clock."""
    sequence_id: int
    producer_name: str
    txn: tuple[int, int] | None
    """Most and least significant half of the transaction's id, unsigned."""
    null_value: bool
    """The producer sent no value at all (a deletion, to compaction), which is not the same as an empty one."""
    key_is_base64: bool = False
    """The key was bytes; `key` holds them in base64."""
    ordering_key: bytes | None = None
    """Decides the order in key-shared subscriptions in place of the key."""


def parse_payload(payload: bytes) -> tuple[pb.MessageMetadata, memoryview]:
    """The metadata and the body, still compressed, which is a view of the payload. Does not verify the checksum.

    Raises:
        MalformedMessage: a length reaches beyond the payload, or the metadata do not parse or are incomplete.
    """
    start = checksum_start(payload)
    if payload[start : start + len(CHECKSUM_MAGIC)] == CHECKSUM_MAGIC:
        start += _CHECKSUM.size
    metadata_start = start + _SIZE.size
    if len(payload) < metadata_start:
        raise MalformedMessage("the payload ends before its metadata")
    (metadata_size,) = _SIZE.unpack_from(payload, start)
    metadata_end = metadata_start + metadata_size
    if len(payload) < metadata_end:
        raise MalformedMessage(f"the payload has {len(payload)} bytes, its metadata would end at {metadata_end}")
    try:
        metadata = pb.MessageMetadata.FromString(payload[metadata_start:metadata_end])
    except DecodeError as error:
        raise MalformedMessage(f"the metadata do not parse: {error}") from error
    if not metadata.IsInitialized():
        raise MalformedMessage("the metadata lack producer name, sequence id or publish time")
    return metadata, memoryview(payload)[metadata_end:]


def with_broker_metadata(payload: bytes, *, last_index: int, timestamp_ms: int) -> bytes:
    """The payload with what the broker knows of it in front: its last message's index, and when it was taken."""
    known = pb.BrokerEntryMetadata(broker_timestamp=timestamp_ms, index=last_index).SerializeToString()
    return b"".join((BROKER_METADATA_MAGIC, _SIZE.pack(len(known)), known, payload))


def broker_metadata(payload: bytes) -> pb.BrokerEntryMetadata | None:
    """What a broker put in front of the payload, or None.

    Raises:
        MalformedMessage: it reaches beyond the payload, or does not parse.
    """
    end = checksum_start(payload)
    if not end:
        return None
    try:
        return pb.BrokerEntryMetadata.FromString(payload[len(BROKER_METADATA_MAGIC) + _SIZE.size : end])
    except DecodeError as error:
        raise MalformedMessage(f"the broker's metadata do not parse: {error}") from error


def build_payload(metadata: pb.MessageMetadata, body: bytes) -> bytes:
    """A payload with checksum, of a body that is already as `metadata` describe it."""
    encoded = metadata.SerializeToString()
    head = _SIZE.pack(len(encoded)) + encoded
    checksum = google_crc32c.extend(google_crc32c.value(head), body)
    return b"".join((_CHECKSUM.pack(CHECKSUM_MAGIC, checksum), head, body))


def split_messages(payload: bytes, ack_set: Sequence[int] = ()) -> list[SingleMessage]:
    """The messages of a payload that its consumer is to see, in order.

    Left out are those whose bit in `ack_set` (from CommandMessage; empty means that none is acknowledged) is not set,
    and those that compaction removed. Does not verify the checksum.

    Raises:
        MalformedMessage: lengths, counts or the compressed data contradict each other.
        MessageTooLarge: the body would decompress to more than MAX_MESSAGE_SIZE bytes.
        UnsupportedCompression, EncryptedMessage: the body cannot be read here.
    """
    metadata, body = parse_payload(payload)
    return split_body(metadata, body, ack_set)


def split_body(
    metadata: pb.MessageMetadata,
    body: bytes | memoryview,
    ack_set: Sequence[int] = (),
    *,
    size_max: int = MAX_MESSAGE_SIZE,
) -> list[SingleMessage]:
    """As `split_messages`, of a body apart from its metadata; of a chunked message the joined bodies of all chunks.

    Raises:
        As `split_messages`, with `size_max` in place of MAX_MESSAGE_SIZE.
    """
    data = open_body(metadata, body, size_max=size_max)
    if metadata.HasField("num_messages_in_batch"):
        return list(_split_batch(metadata, data, ack_set))
    return [_alone(metadata, data)]


def open_body(metadata: pb.MessageMetadata, body: bytes | memoryview, *, size_max: int = MAX_MESSAGE_SIZE) -> bytes:
    """The body as it was before its producer compressed it: one message's value, or a batch.

    Raises:
        As `split_messages`, with `size_max` in place of MAX_MESSAGE_SIZE; what is in a batch is not looked at.
    """
    if metadata.encryption_keys:
        raise EncryptedMessage(f"the message is encrypted for {len(metadata.encryption_keys)} keys")
    if metadata.num_chunks_from_msg > 1 and len(body) != metadata.total_chunk_msg_size:
        raise MalformedMessage(f"{len(body)} bytes of the {metadata.total_chunk_msg_size} of a message sent in chunks")
    if not metadata.HasField("compression") and _has_unknown_field(
        metadata, pb.MessageMetadata.COMPRESSION_FIELD_NUMBER
    ):
        # The parser drops an enum's unknown value, and absent means NONE: compressed bytes would pass for the value.
        raise UnsupportedCompression("the message is compressed by a codec that is not known")
    # One copy here makes each message's slices cheap.
    return bytes(decompress(metadata.compression, body, metadata.uncompressed_size, size_max=size_max))


def _has_unknown_field(metadata: pb.MessageMetadata, number: int) -> bool:
    unknown = UnknownFieldSet(metadata)
    return any(unknown[place].field_number == number for place in range(len(unknown)))


def _alone(metadata: pb.MessageMetadata, value: bytes) -> SingleMessage:
    return SingleMessage(
        None,
        1,
        _key(metadata),
        value,
        _properties(metadata),
        metadata.event_time or None,
        metadata.publish_time,
        metadata.sequence_id,
        _text(metadata.producer_name),
        _txn(metadata),
        metadata.null_value,
        metadata.partition_key_b64_encoded,
        metadata.ordering_key if metadata.HasField("ordering_key") else None,
    )


def _split_batch(metadata: pb.MessageMetadata, data: bytes, ack_set: Sequence[int]) -> Iterator[SingleMessage]:
    batch_size = metadata.num_messages_in_batch
    # Of a batch compacted as a whole, only the messages with these indexes are left.
    indexes: Sequence[int] = metadata.compacted_batch_indexes or range(batch_size)
    if batch_size < 1 or len(indexes) * _BATCHED_SIZE_MIN > len(data):
        raise MalformedMessage(f"{len(data)} bytes cannot hold a batch of {batch_size} messages")
    unacknowledged = bits_of_ack_set(ack_set) if ack_set else -1
    producer_name = _text(metadata.producer_name)
    publish_time_ms = metadata.publish_time
    txn = _txn(metadata)
    parse = pb.SingleMessageMetadata.FromString
    offset = 0
    for index in indexes:
        if not 0 <= index < batch_size:
            raise MalformedMessage(f"message {index} of a batch of {batch_size}")
        start = offset + _SIZE.size
        if len(data) < start:
            raise MalformedMessage(f"the batch ends before message {index}")
        value_start = start + _SIZE.unpack_from(data, offset)[0]
        if len(data) < value_start:
            raise MalformedMessage(f"the batch ends within the metadata of message {index}")
        try:
            single = parse(data[start:value_start])
        except DecodeError as error:
            raise MalformedMessage(f"the metadata of message {index} do not parse: {error}") from error
        # An absent size reads as 0, so only that one has to be looked at again.
        value_size = single.payload_size
        if value_size < 0 or (value_size == 0 and not single.HasField("payload_size")):
            raise MalformedMessage(f"message {index} has no size or a negative one")
        offset = value_start + value_size
        if len(data) < offset:
            raise MalformedMessage(f"the batch ends within the value of message {index}")
        if single.compacted_out or not unacknowledged >> index & 1:
            continue
        yield SingleMessage(
            index,
            batch_size,
            _key(single),
            data[value_start:offset],
            _properties(single),
            single.event_time or None,
            publish_time_ms,
            single.sequence_id if single.HasField("sequence_id") else metadata.sequence_id,
            producer_name,
            txn,
            single.null_value,
            single.partition_key_b64_encoded,
            single.ordering_key if single.HasField("ordering_key") else None,
        )
    if offset != len(data):
        raise MalformedMessage(f"{len(data) - offset} bytes are left after the last message of a batch")


def _text(value: str | bytes) -> str:
    # The parser hands out text that is not UTF-8 as bytes, whatever the declared type says.
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def _key(source: pb.MessageMetadata | pb.SingleMessageMetadata) -> str | None:
    if source.HasField("partition_key") and not source.null_partition_key:
        return _text(source.partition_key)
    return None


def _properties(source: pb.MessageMetadata | pb.SingleMessageMetadata) -> dict[str, str]:
    return {_text(pair.key): _text(pair.value) for pair in source.properties}


def _txn(metadata: pb.MessageMetadata) -> tuple[int, int] | None:
    if metadata.HasField("txnid_most_bits") and metadata.HasField("txnid_least_bits"):
        return metadata.txnid_most_bits, metadata.txnid_least_bits
    return None


def message_metadata(
    producer_name: str,
    sequence_id: int,
    publish_time_ms: int,
    *,
    key: str | None = None,
    properties: Mapping[str, str] | None = None,
    event_time_ms: int | None = None,
    txn: tuple[int, int] | None = None,
    null_value: bool = False,
) -> pb.MessageMetadata:
    """Metadata of a payload: of a message sent alone all of it, of a batch without what belongs to single messages."""
    made = pb.MessageMetadata(producer_name=producer_name, sequence_id=sequence_id, publish_time=publish_time_ms)
    if txn is not None:
        made.txnid_most_bits, made.txnid_least_bits = txn
    _describe(made, key, properties, event_time_ms, null_value)
    return made


def single_message_metadata(
    sequence_id: int,
    *,
    key: str | None = None,
    properties: Mapping[str, str] | None = None,
    event_time_ms: int | None = None,
    null_value: bool = False,
) -> pb.SingleMessageMetadata:
    """Metadata of one message of a batch; `encode_batch` adds its size."""
    made = pb.SingleMessageMetadata(sequence_id=sequence_id)
    _describe(made, key, properties, event_time_ms, null_value)
    return made


def _describe(
    made: pb.MessageMetadata | pb.SingleMessageMetadata,
    key: str | None,
    properties: Mapping[str, str] | None,
    event_time_ms: int | None,
    null_value: bool,
) -> None:
    if key is not None:
        made.partition_key = key
    if properties:
        made.properties.extend(pb.KeyValue(key=name, value=text) for name, text in properties.items())
    if event_time_ms is not None:
        made.event_time = event_time_ms
    if null_value:
        made.null_value = True


def encode_batch(messages: Iterable[tuple[pb.SingleMessageMetadata, bytes]]) -> bytes:
    """A batch's body before compression. Sets each metadata's `payload_size`."""
    parts: list[bytes] = []
    for metadata, value in messages:
        metadata.payload_size = len(value)
        encoded = metadata.SerializeToString()
        parts += (_SIZE.pack(len(encoded)), encoded, value)
    return b"".join(parts)


def build_message(
    metadata: pb.MessageMetadata, value: bytes, codec: pb.CompressionType = pb.CompressionType.NONE
) -> bytes:
    """The payload of a message sent alone; leaves `metadata` as they are.

    Raises:
        MessageTooLarge: the value has more than MAX_MESSAGE_SIZE bytes before compression; no reader would take it.
        UnsupportedCompression: the codec is not known.
    """
    return _build(metadata, value, codec, None)


def build_chunks(
    metadata: pb.MessageMetadata, value: bytes, codec: pb.CompressionType, *, chunk_size_max: int
) -> list[bytes]:
    """The payloads of a message sent alone, in order: one, or as many as it takes for bodies of `chunk_size_max` bytes.

    Raises:
        MessageTooLarge: the value has more than CHUNKED_MESSAGE_SIZE_MAX bytes before compression.
        UnsupportedCompression: the codec is not known.
    """
    described, body = _described(metadata, value, codec, None, size_max=CHUNKED_MESSAGE_SIZE_MAX)
    if len(body) <= chunk_size_max:
        return [build_payload(described, body)]
    pieces = [body[start : start + chunk_size_max] for start in range(0, len(body), chunk_size_max)]
    described.uuid = f"{metadata.producer_name}-{metadata.sequence_id}"
    described.num_chunks_from_msg = len(pieces)
    described.total_chunk_msg_size = len(body)
    payloads = []
    for number, piece in enumerate(pieces):
        described.chunk_id = number
        payloads.append(build_payload(described, piece))
    return payloads


def build_batch(
    metadata: pb.MessageMetadata,
    messages: Sequence[tuple[pb.SingleMessageMetadata, bytes]],
    codec: pb.CompressionType = pb.CompressionType.NONE,
) -> bytes:
    """The payload of a batch of at least one message; leaves `metadata` as they are.

    Raises:
        MessageTooLarge: the batch has more than MAX_MESSAGE_SIZE bytes before compression; no reader would take it.
        UnsupportedCompression: the codec is not known.
    """
    assert messages, "a batch holds at least one message"
    return _build(metadata, encode_batch(messages), codec, len(messages))


def _build(metadata: pb.MessageMetadata, body: bytes, codec: pb.CompressionType, batch_size: int | None) -> bytes:
    return build_payload(*_described(metadata, body, codec, batch_size, size_max=MAX_MESSAGE_SIZE))


def _described(
    metadata: pb.MessageMetadata, body: bytes, codec: pb.CompressionType, batch_size: int | None, *, size_max: int
) -> tuple[pb.MessageMetadata, bytes]:
    if len(body) > size_max:
        raise MessageTooLarge(f"a body of {len(body)} bytes; {size_max} are allowed")
    if not body:
        # Nothing is gained by compressing nothing, and Pulsar's C++ client does not read what ZLIB makes of it.
        codec = pb.CompressionType.NONE
    compressed = compress(codec, body)
    described = pb.MessageMetadata()
    described.CopyFrom(metadata)
    described.uncompressed_size = len(body)
    if codec != pb.CompressionType.NONE:
        described.compression = codec
    if batch_size is not None:
        described.num_messages_in_batch = batch_size
    return described, compressed
