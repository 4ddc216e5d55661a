"""From Pulsar's payload to the record batch that a Kafka consumer gets.

The batch takes the offsets 0 to n-1, where n is the entry's number of messages, whatever the payload claims. The reader
places it (`record_batches.placed`). It is not compressed and has no producer. Its records have the event time of their
messages, or else the publish time.

An entry that cannot be converted becomes a batch without records. It takes the entry's offsets, so consumers pass over
it (K21). These cannot be converted:

- a damaged payload, or one with another number of messages than its entry;
- a payload that decompresses to more than `size_max` bytes. Pulsar's clients send it if it is small when compressed;
- an encrypted payload, because only its consumers have the key;
- a part of a message that was sent in chunks. The parts of other messages may stand in between, and a record has one
  offset. So Kafka's consumers do not get chunked messages;
- a message with more than HEADERS_MAX properties, or with metadata of more than METADATA_BYTES_MAX bytes.

Messages that compaction removed leave gaps between the offsets.

The batch may be larger than the payload. A batch of tiny messages needs up to half as much again. Above twice
`size_max`, it is not converted; only tiny messages with ordering keys lead there.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from tidewire.wire.conversion.errors import Unconvertible
from tidewire.wire.conversion.headers import HEADERS_MAX, headers_of
from tidewire.wire.kafka.records import BatchBuilder, Header, Record, build_filler
from tidewire.wire.pulsar.compression import decompress_steps
from tidewire.wire.pulsar.errors import WireError
from tidewire.wire.pulsar.frames import MAX_MESSAGE_SIZE
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.messages import metadata_span, parse_payload, partition_key, read_batch, require_readable
from tidewire.wire.steps import Steps

METADATA_BYTES_MAX: Final = 256 * 1024
"""The most metadata of one message. Parsing so many bytes takes up to 4 ms (E7)."""

WORK_AT_ONCE: Final = 400
"""Messages and properties that one step converts, in about 4 ms. A message with more has a step of its own."""

_GROWTH_MAX: Final = 2
"""How many times larger than `size_max` a batch may be."""

_TIME_MAX: Final = (1 << 63) - 1

_Described = pb.MessageMetadata | pb.SingleMessageMetadata


class KafkaBatch(NamedTuple):
    """What a Kafka consumer gets for an entry."""

    batch: bytes
    reason: str | None
    """Why it has no records although its entry has messages; None if it was converted. For the log."""


def to_kafka(
    payload: bytes, *, message_count: int, timestamp_ms: int, size_max: int = MAX_MESSAGE_SIZE
) -> Steps[KafkaBatch]:
    """The batch for a payload, which the broker stored as one entry.

    Args:
        payload: the stored bytes.
        message_count: messages in the entry.
        timestamp_ms: when the broker took the entry.
        size_max: bytes of the decompressed payload.
    """
    try:
        batch = yield from _converted(payload, message_count, timestamp_ms, size_max)
    except (WireError, Unconvertible) as error:
        return KafkaBatch(build_filler(message_count, timestamp_ms), str(error))
    return KafkaBatch(batch, None)


def _converted(payload: bytes, message_count: int, timestamp_ms: int, size_max: int) -> Steps[bytes]:
    start, end = metadata_span(payload)
    if end - start > METADATA_BYTES_MAX:
        raise Unconvertible(f"the payload's metadata have {end - start} bytes; at most {METADATA_BYTES_MAX} are read")
    metadata, body = parse_payload(payload)
    if metadata.num_chunks_from_msg > 1:
        raise Unconvertible("the payload is a part of a message that was sent in chunks")
    is_batch = metadata.HasField("num_messages_in_batch")
    count = metadata.num_messages_in_batch if is_batch else 1
    if count != message_count:
        raise Unconvertible(f"the payload has {count} messages, but its entry has {message_count}")
    require_readable(metadata, body)
    size = metadata.uncompressed_size
    data = bytes((yield from decompress_steps(metadata.compression, body, size, size_max=size_max)))
    yield
    sent_ms = _time(metadata.publish_time) or timestamp_ms
    messages = read_batch(metadata, data, metadata_size_max=METADATA_BYTES_MAX) if is_batch else [(0, metadata, data)]
    builder = yield from _records(messages, sent_ms, _GROWTH_MAX * size_max)
    # Compaction may have removed all.
    return builder.finish(message_count) if builder.count else build_filler(message_count, timestamp_ms)


def _records(messages: Iterable[tuple[int, _Described, bytes]], sent_ms: int, size_max: int) -> Steps[BatchBuilder]:
    builder = BatchBuilder()
    last = -1
    work = 0
    for place, described, value in messages:
        if place <= last:
            raise Unconvertible(f"message {place} of the batch stands behind message {last}")
        last = place
        work += 1 + len(described.properties)
        if work >= WORK_AT_ONCE:
            # In front of this message, because it may be most of the work.
            yield
        if not (isinstance(described, pb.SingleMessageMetadata) and described.compacted_out):
            builder.add(place, _record(described, value, sent_ms))
        if builder.size > size_max:
            raise Unconvertible(f"as a record batch, the payload would have more than {size_max} bytes")
        if work >= WORK_AT_ONCE:
            yield
            work = 0
    return builder


def _record(described: _Described, value: bytes, sent_ms: int) -> Record:
    return Record(
        partition_key(described),
        None if described.null_value else value,
        _time(described.event_time) or sent_ms,
        _headers(described),
    )


def _headers(described: _Described) -> tuple[Header, ...]:
    has_ordering_key = described.HasField("ordering_key")
    count = len(described.properties) + has_ordering_key
    if not count:
        return ()
    if count > HEADERS_MAX:
        raise Unconvertible(f"a message has {count} properties; at most {HEADERS_MAX} are converted")
    properties = [(pair.key, pair.value) for pair in described.properties]
    return headers_of(properties, described.ordering_key if has_ordering_key else None)


def _time(moment_ms: int) -> int | None:
    """The moment, if the field has one that Kafka can write."""
    return moment_ms if 0 < moment_ms <= _TIME_MAX else None
