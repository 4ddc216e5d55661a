"""From Kafka's record batch to the payload that a Pulsar consumer gets in a MESSAGE.

An entry of n records becomes a batch of n messages, in order. So message ids, acknowledged bits and the count of the
entry fit together. A single record becomes a message alone: its id is that of its entry, like its acknowledgement, and
no client needs batches to read it.

The body is not compressed, so every client can read it. Clients refuse a payload of more than MAX_MESSAGE_SIZE bytes,
and one entry cannot be two payloads. So a batch that would be larger is not converted.

The producer's name is `kafka`. The sequence id of a message is its index in the topic, which is its offset in Kafka. It
rises, as clients may expect.
"""

from base64 import b64encode
from typing import Final

from tidewire.wire.conversion.errors import Unconvertible
from tidewire.wire.conversion.headers import HEADERS_MAX, properties_of
from tidewire.wire.kafka.record_batches import BatchHeader, CorruptBatch, UnsupportedFormat, read_header
from tidewire.wire.kafka.records import Record, opened, parse
from tidewire.wire.pulsar.building import batched_message, build_payload
from tidewire.wire.pulsar.frames import MAX_MESSAGE_SIZE
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.steps import Steps

PRODUCER_NAME: Final = "kafka"

WORK_AT_ONCE: Final = 400
"""Records and headers that one step converts, in about 4 ms. A record with more headers has a step of its own."""

_TIME_MAX: Final = (1 << 63) - 1


def to_pulsar(
    batch: bytes, *, message_count: int, base_index: int, publish_time_ms: int, size_max: int = MAX_MESSAGE_SIZE
) -> Steps[bytes]:
    """The payload for a batch, which the broker stored as one entry. Its checksum was verified when it came.

    Args:
        batch: the stored bytes.
        message_count: messages in the entry.
        base_index: the index of its first message in the topic.
        publish_time_ms: when the broker took the entry. Kafka's timestamps become event times.
        size_max: bytes of the decompressed records, and of the payload.

    Raises:
        Unconvertible: the batch is damaged, too large, a marker, or has another number of messages. Or one of its
            records has more than HEADERS_MAX headers.
    """
    try:
        header = read_header(batch)
        _require_messages(header, batch, message_count)
        data = yield from opened(header, batch, size_max)
        yield
        metadata = pb.MessageMetadata(producer_name=PRODUCER_NAME, sequence_id=base_index, publish_time=publish_time_ms)
        body = yield from _body(header, data, metadata, size_max)
    except (CorruptBatch, UnsupportedFormat) as error:
        raise Unconvertible(str(error)) from error
    metadata.uncompressed_size = len(body)
    payload = build_payload(metadata, body)
    if len(payload) > size_max:
        raise _too_large(size_max)
    return payload


def _require_messages(header: BatchHeader, batch: bytes, message_count: int) -> None:
    if header.is_control:
        raise Unconvertible("the batch has a marker of a transaction, and no messages")
    if header.size != len(batch):
        raise Unconvertible(f"{len(batch) - header.size} bytes are behind the batch")
    if not header.record_count == header.offset_count == message_count:
        raise Unconvertible(
            f"the batch counts {header.record_count} records in {header.offset_count} offsets, but its entry has "
            f"{message_count} messages"
        )


def _body(header: BatchHeader, data: bytes, metadata: pb.MessageMetadata, size_max: int) -> Steps[bytes]:
    """The body of the payload. Completes the metadata, but for the size."""
    if header.record_count > 1:
        metadata.num_messages_in_batch = header.record_count
        metadata.highest_sequence_id = metadata.sequence_id + header.record_count - 1
    body = bytearray()
    work = 0
    for due, (place, record) in enumerate(parse(header, data)):
        if place != due:
            raise Unconvertible(f"record {due} of the batch stands at the offset of record {place}")
        if len(record.headers) > HEADERS_MAX:
            raise Unconvertible(f"a record has {len(record.headers)} headers; at most {HEADERS_MAX} are converted")
        work += 1 + len(record.headers)
        if work >= WORK_AT_ONCE:
            # In front of this record, because it may be most of the work.
            yield
        if header.record_count == 1:
            _describe(metadata, record)
            return record.value or b""
        single = pb.SingleMessageMetadata(sequence_id=metadata.sequence_id + place)
        _describe(single, record)
        for part in batched_message(single, record.value or b""):
            body += part
        if len(body) > size_max:
            raise _too_large(size_max)
        if work >= WORK_AT_ONCE:
            yield
            work = 0
    return bytes(body)


def _describe(made: pb.MessageMetadata | pb.SingleMessageMetadata, record: Record) -> None:
    key, value, timestamp_ms, headers = record
    if key is not None:
        try:
            made.partition_key = key.decode()
        except UnicodeDecodeError:
            made.partition_key = b64encode(key).decode()
            made.partition_key_b64_encoded = True
    if value is None:
        made.null_value = True
    if 0 < timestamp_ms <= _TIME_MAX:
        # Pulsar has no event times before 1970, and 0 means none.
        made.event_time = timestamp_ms
    if headers:
        properties, ordering_key = properties_of(headers)
        made.properties.extend([pb.KeyValue(key=name, value=text) for name, text in properties])
        if ordering_key is not None:
            made.ordering_key = ordering_key


def _too_large(size_max: int) -> Unconvertible:
    return Unconvertible(f"as a Pulsar message, the batch would have more than {size_max} bytes")
