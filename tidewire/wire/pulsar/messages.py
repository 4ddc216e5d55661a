"""From a payload to the messages in it.

    payload = [0x0e02][u32 size][BrokerEntryMetadata]?  [0x0e01][u32 crc32c]?  [u32 size][MessageMetadata]  body
    body    = one message's value, or a batch, compressed as the metadata say
    batch   = ([u32 size][SingleMessageMetadata] value)*

The broker never divides a payload: it verifies the checksum, stores the bytes and sends them on. The client and Spark
read messages. Their payloads may come from any producer, so every length is checked before use.

Two rules are lenient, so that one odd message does not stop a reader forever. Text that is not UTF-8 is read with
replacement characters, as in Pulsar's Java client. A payload may come without a checksum. A batch that does not add up
exactly is refused, because guessing would lose or invent messages.

Left out: encryption (an encrypted body is refused by name), and the assembly of chunked messages, which needs the other
chunks. A caller that has collected them passes the joined body to `split_body`. `building.py` makes payloads.
"""

import struct
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from tidewire.wire.pulsar.checksums import BROKER_METADATA_MAGIC, CHECKSUM_MAGIC, checksum_start
from tidewire.wire.pulsar.compression import decompress
from tidewire.wire.pulsar.errors import EncryptedMessage, MalformedMessage, UnsupportedCompression
from tidewire.wire.pulsar.frames import MAX_MESSAGE_SIZE
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import bits_of_ack_set

_SIZE: Final = struct.Struct(">I")
_CHECKSUM: Final = struct.Struct(">2sI")
# A size, and metadata with at least their one required field.
_BATCHED_SIZE_MIN: Final = _SIZE.size + 2

BATCH_MESSAGES_MAX: Final = MAX_MESSAGE_SIZE // _BATCHED_SIZE_MIN
"""The most messages of a batch. A decompressed batch may be as large as a message."""


class SingleMessage(NamedTuple):
    """One message, as its consumer sees it."""

    batch_index: int | None
    """Its place in its batch; None for a message that was sent alone."""
    batch_size: int
    """Messages in the batch when it was sent, whether or not all of them still exist; 1 for a message sent alone."""
    key: str | None
    value: bytes
    properties: dict[str, str]
    event_time_ms: int | None
    """The time that the producer's application gave, milliseconds since the epoch."""
    publish_time_ms: int
    """When the producer sent it, by its own clock."""
    sequence_id: int
    producer_name: str
    txn: tuple[int, int] | None
    """Most and least significant half of the transaction's id, unsigned."""
    null_value: bool
    """The producer sent no value at all (for compaction, a deletion). An empty value is something else."""
    key_is_base64: bool = False
    """The key was bytes; `key` holds them in base64."""
    ordering_key: bytes | None = None
    """Decides the order in key-shared subscriptions in place of the key."""


def parse_payload(payload: bytes) -> tuple[pb.MessageMetadata, memoryview]:
    """The metadata, and a view of the body, which is still compressed. Does not verify the checksum.

    Raises:
        MalformedMessage: a length reaches beyond the payload, or the metadata do not parse or are incomplete.
    """
    start = _metadata_size_start(payload)
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


def _metadata_size_start(payload: bytes) -> int:
    start = checksum_start(payload)
    if payload[start : start + len(CHECKSUM_MAGIC)] == CHECKSUM_MAGIC:
        start += _CHECKSUM.size
    return start


def metadata_span(payload: bytes) -> tuple[int, int]:
    """Where the metadata begin and end. The end is beyond the payload's end if the payload is cut short."""
    start = _metadata_size_start(payload)
    metadata_start = start + _SIZE.size
    if len(payload) < metadata_start:
        return metadata_start, metadata_start
    (metadata_size,) = _SIZE.unpack_from(payload, start)
    return metadata_start, metadata_start + metadata_size


def broker_metadata(payload: bytes) -> pb.BrokerEntryMetadata | None:
    """The metadata that a broker put in front of the payload, or None.

    Raises:
        MalformedMessage: they reach beyond the payload, or do not parse.
    """
    end = checksum_start(payload)
    if not end:
        return None
    try:
        return pb.BrokerEntryMetadata.FromString(payload[len(BROKER_METADATA_MAGIC) + _SIZE.size : end])
    except DecodeError as error:
        raise MalformedMessage(f"the broker's metadata do not parse: {error}") from error


def split_messages(payload: bytes, ack_set: Sequence[int] = ()) -> list[SingleMessage]:
    """The messages of a payload that its consumer should see, in order.

    Omits messages whose bit in `ack_set` is not set, and messages that compaction removed. An empty `ack_set` (from
    CommandMessage) means that none is acknowledged. Does not verify the checksum.

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
    """As `split_messages`, for a body without its metadata.

    For a chunked message, pass the joined bodies of all chunks.

    Raises:
        WireError: as `split_messages`, with `size_max` in place of MAX_MESSAGE_SIZE.
    """
    # One copy here makes each message's slices cheap.
    data = bytes(open_body(metadata, body, size_max=size_max))
    if metadata.HasField("num_messages_in_batch"):
        return list(_split_batch(metadata, data, ack_set))
    return [_alone(metadata, data)]


def open_body(
    metadata: pb.MessageMetadata, body: bytes | memoryview, *, size_max: int = MAX_MESSAGE_SIZE
) -> bytes | bytearray | memoryview:
    """The body before its producer compressed it: one message's value, or a batch. An uncompressed body is not copied.

    Raises:
        WireError: as `split_messages`, with `size_max` in place of MAX_MESSAGE_SIZE. The contents of a batch are not
            checked.
    """
    require_readable(metadata, body)
    return decompress(metadata.compression, body, metadata.uncompressed_size, size_max=size_max)


def require_readable(metadata: pb.MessageMetadata, body: bytes | memoryview) -> None:
    """Check that a body can be decompressed here, and is whole.

    Raises:
        EncryptedMessage, UnsupportedCompression: it cannot be decompressed.
        MalformedMessage: it is a part of a message.
    """
    if metadata.encryption_keys:
        raise EncryptedMessage(f"the message is encrypted for {len(metadata.encryption_keys)} keys")
    if metadata.num_chunks_from_msg > 1 and len(body) != metadata.total_chunk_msg_size:
        raise MalformedMessage(f"the body is one chunk: {len(body)} of {metadata.total_chunk_msg_size} bytes")
    if not metadata.HasField("compression") and _has_unknown_field(
        metadata, pb.MessageMetadata.COMPRESSION_FIELD_NUMBER
    ):
        # The parser drops an unknown enum value. Absent means NONE, so compressed bytes would pass for the value.
        raise UnsupportedCompression("the message is compressed by a codec that is not known")


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
    unacknowledged = bits_of_ack_set(ack_set) if ack_set else -1
    producer_name = _text(metadata.producer_name)
    publish_time_ms = metadata.publish_time
    txn = _txn(metadata)
    for index, single, value in read_batch(metadata, data):
        if single.compacted_out or not unacknowledged >> index & 1:
            continue
        yield SingleMessage(
            index,
            batch_size,
            _key(single),
            value,
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


def read_batch(
    metadata: pb.MessageMetadata, data: bytes, *, metadata_size_max: int = MAX_MESSAGE_SIZE
) -> Iterator[tuple[int, pb.SingleMessageMetadata, bytes]]:
    """Yield the messages of a decompressed batch: index, metadata, value. Those with `compacted_out` are among them.

    Text in the metadata that is not UTF-8 is of type bytes, whatever its declared type.

    Raises:
        MalformedMessage: lengths or counts contradict each other, or a message's metadata are larger than
            `metadata_size_max`. Messages before the damage were yielded.
    """
    batch_size = metadata.num_messages_in_batch
    # If the batch was compacted as a whole, only the messages with these indexes are left.
    indexes: Sequence[int] = metadata.compacted_batch_indexes or range(batch_size)
    if batch_size < 1 or len(indexes) * _BATCHED_SIZE_MIN > len(data):
        raise MalformedMessage(f"{len(data)} bytes cannot hold a batch of {batch_size} messages")
    parse = pb.SingleMessageMetadata.FromString
    offset = 0
    for index in indexes:
        if not 0 <= index < batch_size:
            raise MalformedMessage(f"there is no message {index} in a batch of {batch_size}")
        start = offset + _SIZE.size
        if len(data) < start:
            raise MalformedMessage(f"the batch ends before message {index}")
        size = _SIZE.unpack_from(data, offset)[0]
        value_start = start + size
        if len(data) < value_start:
            raise MalformedMessage(f"the batch ends within the metadata of message {index}")
        if size > metadata_size_max:
            raise MalformedMessage(f"the metadata of message {index} have {size} bytes; at most {metadata_size_max}")
        try:
            single = parse(data[start:value_start])
        except DecodeError as error:
            raise MalformedMessage(f"the metadata of message {index} do not parse: {error}") from error
        # An absent size reads as 0, so only 0 has to be checked again.
        value_size = single.payload_size
        if value_size < 0 or (value_size == 0 and not single.HasField("payload_size")):
            raise MalformedMessage(f"message {index} has no size or a negative one")
        offset = value_start + value_size
        if len(data) < offset:
            raise MalformedMessage(f"the batch ends within the value of message {index}")
        yield index, single, data[value_start:offset]
    if offset != len(data):
        raise MalformedMessage(f"{len(data) - offset} bytes are left after the last message of a batch")


def partition_key(source: pb.MessageMetadata | pb.SingleMessageMetadata) -> bytes | None:
    """The bytes of a message's partition key; None without one. A key that is no base64, but says so, is as it came."""
    if not source.HasField("partition_key") or source.null_partition_key:
        return None
    # The parser returns text that is not UTF-8 as bytes.
    key: str | bytes = source.partition_key
    raw = key.encode() if isinstance(key, str) else key
    if not source.partition_key_b64_encoded:
        return raw
    try:
        return b64decode(raw, validate=True)
    except Base64Error:
        return raw


def _text(value: str | bytes) -> str:
    # The parser returns text that is not UTF-8 as bytes, whatever the declared type says.
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
