"""Which entries are parts of a message that was sent in chunks, as the producer wrote into their metadata.

Asked of each entry that a shared subscription sends. So the metadata are parsed only if the mark of a chunk is among
their bytes at all, which costs a fifth.
"""

from typing import Final

from dispatch.chunks import Chunk
from storage.entry import Entry, EntryFormat
from tidewire.wire.pulsar.checksums import CHECKSUM_MAGIC
from tidewire.wire.pulsar.errors import MalformedMessage
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.messages import parse_payload

_FIELD: Final = pb.MessageMetadata.NUM_CHUNKS_FROM_MSG_FIELD_NUMBER << 3
_MARK: Final = bytes((_FIELD & 0x7F | 0x80, _FIELD >> 7))
"""How the number of chunks begins in metadata: its field number and type, a varint of two bytes."""

_HEAD_SIZE: Final = len(CHECKSUM_MAGIC) + 4 + 4
"""Magic, checksum, size of the metadata."""


def chunk_of(entry: Entry) -> Chunk | None:
    """Which part of a message the entry is; None for one that is whole."""
    payload = entry.payload
    if entry.message_count > 1 or entry.format is not EntryFormat.PULSAR:
        return None
    if payload.startswith(CHECKSUM_MAGIC):
        end = _HEAD_SIZE + int.from_bytes(payload[_HEAD_SIZE - 4 : _HEAD_SIZE], "big")
        if payload.find(_MARK, _HEAD_SIZE, end) < 0:
            return None
    try:
        metadata, _body = parse_payload(payload)
    except MalformedMessage:
        # It is stored and sent as it is; its consumer says what is wrong with it.
        return None
    if not metadata.uuid or metadata.num_chunks_from_msg <= 1:
        return None
    # A number takes the same memory whatever a producer calls its messages.
    message = hash((metadata.producer_name, metadata.uuid))
    return Chunk(message, metadata.chunk_id >= metadata.num_chunks_from_msg - 1)
