"""Reads the metadata that producers wrote into entries in Pulsar's format.

    [u16 0x0e01][u32 crc32c][u32 size][MessageMetadata][payload]

`chunk_of` is called for each entry that a shared subscription delivers. So it parses the metadata only if their bytes
contain the tag of a chunk field. This check costs a fifth of the parsing.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Final

from broker.contents import Contents
from broker.entry_codecs import Send, SendId
from broker.pulsar.contents import contents_of
from broker.tracing.contexts import (
    CONTEXTS_MAX,
    TRACEPARENT,
    TRACEPARENT_SIZE,
    TRACESTATE,
    TraceContext,
    marked,
    parsed,
)
from dispatch.chunks import Chunk
from storage.entry import Entry
from tidewire.wire.pulsar.checksums import CHECKSUM_MAGIC
from tidewire.wire.pulsar.compression import decompress
from tidewire.wire.pulsar.errors import WireError
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.messages import metadata_span, parse_payload, partition_key
from tidewire.wire.steps import Steps

_FIELD: Final = pb.MessageMetadata.NUM_CHUNKS_FROM_MSG_FIELD_NUMBER << 3
_MARK: Final = bytes((_FIELD & 0x7F | 0x80, _FIELD >> 7))
"""The tag of the field with the number of chunks: its field number and type, a varint of two bytes."""

_HEAD_SIZE: Final = len(CHECKSUM_MAGIC) + 4 + 4
"""The size of magic, checksum and metadata size."""

_TRACEPARENT: Final = bytes((0x0A, len(TRACEPARENT), *TRACEPARENT.encode(), 0x12, TRACEPARENT_SIZE))
"""How a property of this name begins, up to its value: a KeyValue's fields are the key (1) and the value (2)."""

INFLATED_BYTES_MAX: Final = 1024 * 1024
"""A compressed batch with more decompressed bytes has no trace contexts, because the question may not pause (E7)."""

_BATCH_TAG: Final = pb.MessageMetadata.NUM_MESSAGES_IN_BATCH_FIELD_NUMBER << 3
"""A byte that the metadata of every batch have. Others may have it by chance."""


class PulsarEntryCodec:
    """See `EntryCodec`."""

    def chunk_of(self, entry: Entry) -> Chunk | None:
        """See `EntryCodec`."""
        payload = entry.payload
        if entry.message_count > 1:
            return None
        if payload.startswith(CHECKSUM_MAGIC):
            end = _HEAD_SIZE + int.from_bytes(payload[_HEAD_SIZE - 4 : _HEAD_SIZE], "big")
            if payload.find(_MARK, _HEAD_SIZE, end) < 0:
                return None
        metadata = _metadata_of(entry)
        if metadata is None or not metadata.uuid or metadata.num_chunks_from_msg <= 1:
            return None
        # A hash takes the same memory, however long a producer's names are.
        message = hash((metadata.producer_name, metadata.uuid))
        return Chunk(message, metadata.chunk_id >= metadata.num_chunks_from_msg - 1)

    def key_of(self, entry: Entry) -> bytes | None:
        """See `EntryCodec`. The ordering key comes before the partition key. A batch has its first message's keys."""
        metadata = _metadata_of(entry)
        if metadata is None:
            return None
        if metadata.HasField("ordering_key"):
            return metadata.ordering_key
        return partition_key(metadata)

    def send_of(self, entry: Entry) -> Send | None:
        """See `EntryCodec`."""
        metadata = _metadata_of(entry)
        if metadata is None:
            return None
        return Send(
            metadata.producer_name,
            SendId(
                metadata.sequence_id,
                max(metadata.sequence_id, metadata.highest_sequence_id),
                metadata.chunk_id,
                max(metadata.num_chunks_from_msg, 1),
            ),
        )

    def contents_of(self, entry: Entry, first: int, count: int) -> Steps[Contents]:
        """See `EntryCodec`."""
        return contents_of(entry, first, count)

    def control_of(self, _entry: Entry) -> str:
        """See `EntryCodec`. No entry in this format is one."""
        return ""

    def trace_contexts_of(self, payload: bytes, message_count: int) -> Sequence[TraceContext]:
        """See `EntryCodec`. A batch has its messages' properties in its body, others have theirs in the metadata."""
        start, end = metadata_span(payload)
        if payload.find(_TRACEPARENT, start, end) >= 0:
            return _contexts_in(payload)
        if message_count > 1 or payload.find(_BATCH_TAG, start, end) >= 0:
            return _contexts_in_batch(payload)
        return ()


def _contexts_in(payload: bytes) -> list[TraceContext]:
    """Return the contexts in the metadata's properties."""
    try:
        metadata, _body = parse_payload(payload)
    except WireError:
        return []
    state = next((pair.value for pair in metadata.properties if pair.key == TRACESTATE), "")
    # A client may repeat the property very often.
    named = islice((pair.value for pair in metadata.properties if pair.key == TRACEPARENT), CONTEXTS_MAX)
    found = (parsed(value, str(state)) for value in named)
    return [context for context in found if context is not None]


def _contexts_in_batch(payload: bytes) -> Sequence[TraceContext]:
    """Return the contexts in the properties of a batch's messages, if it is one."""
    try:
        metadata, body = parse_payload(payload)
        if not metadata.HasField("num_messages_in_batch") or metadata.encryption_keys:
            return ()
        if metadata.compression == pb.CompressionType.NONE:
            return marked(payload, _TRACEPARENT, len(payload) - len(body))
        size = metadata.uncompressed_size
        return marked(bytes(decompress(metadata.compression, body, size, size_max=INFLATED_BYTES_MAX)), _TRACEPARENT)
    except WireError:
        return ()


def send_id(send: pb.CommandSend, payload: bytes) -> SendId:
    """Return the identity of a send among its producer's sends.

    Raises:
        WireError: the command says that it is a chunk, but its payload does not say which one.
    """
    last = max(send.sequence_id, send.highest_sequence_id)
    if not send.is_chunk:
        return SendId(send.sequence_id, last)
    metadata, _body = parse_payload(payload)
    return SendId(send.sequence_id, last, metadata.chunk_id, max(metadata.num_chunks_from_msg, 1))


def _metadata_of(entry: Entry) -> pb.MessageMetadata | None:
    try:
        metadata, _body = parse_payload(entry.payload)
    except WireError:
        return None
    return metadata
