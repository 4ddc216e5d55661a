"""Turns messages into the payload that carries them (`messages.py` describes a payload).

A message that is too large for one payload is sent in chunks. Each chunk is a payload with the same metadata. This
module builds nothing that a reader would refuse.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import google_crc32c

from tidewire.wire.pulsar.checksums import BROKER_METADATA_MAGIC, CHECKSUM_MAGIC
from tidewire.wire.pulsar.compression import compress
from tidewire.wire.pulsar.errors import MessageTooLarge
from tidewire.wire.pulsar.frames import MAX_MESSAGE_SIZE, frame_of
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

CHUNKED_MESSAGE_SIZE_MAX: Final = 64 * 1024 * 1024
"""The largest message before compression, chunked or not, that is sent or read. A reader holds all of it in memory.

Pulsar's clients have no such limit: only the compressed size counts for them."""

_SIZE: Final = struct.Struct(">I")
_CHECKSUM: Final = struct.Struct(">2sI")
_WIRE_TYPE_BYTES: Final = 2


def encode_broker_metadata(*, last_index: int, timestamp_ms: int) -> bytes:
    """What a broker puts in front of a payload: the index of its last message, and the time when the broker took it."""
    known = pb.BrokerEntryMetadata(broker_timestamp=timestamp_ms, index=last_index).SerializeToString()
    return b"".join((BROKER_METADATA_MAGIC, _SIZE.pack(len(known)), known))


def encode_scalable_topic_update(session_id: int, dag: bytes, resolved_topic_name: str) -> bytes:
    """The frame of an encoded layout. Many sessions receive the same layout, so it is encoded once."""
    # Protobuf allows any order of fields, so the encoded layout can follow the other fields.
    content = pb.CommandScalableTopicUpdate(session_id=session_id, resolved_topic_name=resolved_topic_name)
    update = content.SerializeToString() + _field(pb.CommandScalableTopicUpdate.DAG_FIELD_NUMBER, dag)
    head = pb.BaseCommand(type=pb.BaseCommand.SCALABLE_TOPIC_UPDATE).SerializeToString()
    return frame_of(head + _field(pb.BaseCommand.SCALABLE_TOPIC_UPDATE_FIELD_NUMBER, update))


def _field(number: int, encoded: bytes) -> bytes:
    """The encoding of a field that holds a message."""
    return b"".join((_varint(number << 3 | _WIRE_TYPE_BYTES), _varint(len(encoded)), encoded))


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def build_payload(metadata: pb.MessageMetadata, body: bytes) -> bytes:
    """A payload with its checksum. `metadata` must already describe `body`."""
    return b"".join((payload_head(metadata, body), body))


def payload_head(metadata: pb.MessageMetadata, body: bytes) -> bytes:
    """The bytes in front of the body, for a sender that passes on a large body without copying it."""
    encoded = metadata.SerializeToString()
    head = _SIZE.pack(len(encoded)) + encoded
    checksum = google_crc32c.extend(google_crc32c.value(head), body)
    return _CHECKSUM.pack(CHECKSUM_MAGIC, checksum) + head


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
    """The metadata of a payload.

    For a message sent alone, that is all of it. For a batch, it omits what belongs to single messages.
    """
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
    """The metadata of one message in a batch; `encode_batch` adds its size."""
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
    return b"".join([part for metadata, value in messages for part in batched_message(metadata, value)])


def batched_message(metadata: pb.SingleMessageMetadata, value: bytes) -> tuple[bytes, bytes, bytes]:
    """One message as it stands in a batch's body, in parts. Sets the metadata's `payload_size`."""
    metadata.payload_size = len(value)
    encoded = metadata.SerializeToString()
    return _SIZE.pack(len(encoded)), encoded, value


def build_message(
    metadata: pb.MessageMetadata, value: bytes, codec: pb.CompressionType = pb.CompressionType.NONE
) -> bytes:
    """The payload of a message that is sent alone. `metadata` is not changed.

    Raises:
        MessageTooLarge: the value has more than MAX_MESSAGE_SIZE bytes before compression, so no reader would accept
            it.
        UnsupportedCompression: the codec is not known.
    """
    return _build(metadata, value, codec, None)


def build_chunks(
    metadata: pb.MessageMetadata, value: bytes, codec: pb.CompressionType, *, chunk_size_max: int
) -> list[bytes]:
    """The payloads of a message that is sent alone, in order.

    It is one payload, or as many as bodies of at most `chunk_size_max` bytes require.

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
    """The payload of a batch of at least one message. `metadata` is not changed.

    Raises:
        MessageTooLarge: the batch has more than MAX_MESSAGE_SIZE bytes before compression, so no reader would accept
            it.
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
        raise MessageTooLarge(f"the body has {len(body)} bytes; at most {size_max} are allowed")
    if not body:
        # Compressing nothing gains nothing, and Pulsar's C++ client cannot read ZLIB's output for it.
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
