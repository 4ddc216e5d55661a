"""Takes entries in Pulsar's format apart, for people who look at messages. See `broker.contents`.

The payload may come from any producer. What cannot be taken apart is told as it is stored, with the reason.
"""

from typing import Final

from broker.contents import Content, Contents, Part
from broker.entry_codecs import undivided
from storage.entry import Entry
from tidewire.wire.pulsar.compression import decompress_steps
from tidewire.wire.pulsar.errors import WireError
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.messages import parse_payload, partition_key, read_batch, require_readable
from tidewire.wire.steps import Steps

MESSAGES_AT_ONCE: Final = 400
"""Messages of a batch that one step reads, in about a millisecond."""


def contents_of(entry: Entry, first: int, count: int) -> Steps[Contents]:
    """See `EntryCodec.contents_of`."""
    try:
        metadata, body = parse_payload(entry.payload)
    except WireError as problem:
        return undivided(entry, sentence(problem))
    compression = None
    if metadata.compression != pb.CompressionType.NONE:
        compression = pb.CompressionType.Name(metadata.compression).lower()
    if metadata.num_chunks_from_msg > 1 and metadata.uuid:
        part = Part(
            _text(metadata.uuid), metadata.chunk_id, metadata.num_chunks_from_msg, metadata.total_chunk_msg_size
        )
        is_stored_so = compression is None and not metadata.encryption_keys
        why = None if is_stored_so else "The parts of a message are encrypted or compressed together."
        return Contents((_alone(metadata, bytes(body)),), compression=compression, part=part, problem=why)
    try:
        require_readable(metadata, body)
        data = bytes((yield from decompress_steps(metadata.compression, body, metadata.uncompressed_size)))
        yield
        if not metadata.HasField("num_messages_in_batch"):
            found = [_alone(metadata, data)] if first == 0 and count else []
            return Contents(found, compression=compression)
        if metadata.num_messages_in_batch != entry.message_count:
            raise _OtherCount(
                f"the batch has {metadata.num_messages_in_batch} messages, but came as one of {entry.message_count}"
            )
        return Contents((yield from _batched(metadata, data, first, count)), compression=compression)
    except WireError as problem:
        whole = (_alone(metadata, bytes(body)),)
        return Contents(whole, is_whole=True, compression=compression, problem=sentence(problem))


class _OtherCount(WireError):
    """The producer gave two numbers of messages."""


def _batched(metadata: pb.MessageMetadata, data: bytes, first: int, count: int) -> Steps[list[Content]]:
    found: list[Content] = []
    for number, (index, single, value) in enumerate(read_batch(metadata, data), 1):
        if index >= first + count:
            break
        if index >= first:
            found.append(_of_batch(metadata, index, single, value))
        if number % MESSAGES_AT_ONCE == 0:
            yield
    return found


def _alone(metadata: pb.MessageMetadata, value: bytes) -> Content:
    return Content(
        None if metadata.null_value else value,
        partition_key(metadata),
        metadata.ordering_key if metadata.HasField("ordering_key") else None,
        _properties(metadata),
        metadata.publish_time,
        metadata.event_time or None,
        _text(metadata.producer_name),
        metadata.sequence_id,
        metadata.schema_version or None,
    )


def _of_batch(metadata: pb.MessageMetadata, index: int, single: pb.SingleMessageMetadata, value: bytes) -> Content:
    return Content(
        None if single.null_value else value,
        partition_key(single),
        single.ordering_key if single.HasField("ordering_key") else None,
        _properties(single),
        metadata.publish_time,
        single.event_time or None,
        _text(metadata.producer_name),
        single.sequence_id if single.HasField("sequence_id") else metadata.sequence_id + index,
        metadata.schema_version or None,
        number=index,
        is_deleted=single.compacted_out,
    )


def _properties(source: pb.MessageMetadata | pb.SingleMessageMetadata) -> list[tuple[str, str]]:
    return [(_text(pair.key), _text(pair.value)) for pair in source.properties]


def _text(value: str | bytes) -> str:
    # The parser returns text that is not UTF-8 as bytes.
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def sentence(problem: Exception) -> str:
    """An error of the wire as a sentence."""
    text = str(problem)
    return f"{text[:1].upper()}{text[1:]}."
