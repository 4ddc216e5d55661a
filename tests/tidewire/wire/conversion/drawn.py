"""Records and messages to convert, as Hypothesis draws them; and short ways to convert them."""

from base64 import b64encode
from typing import NamedTuple

import google_crc32c
from hypothesis import strategies as st

from tidewire.wire.conversion.to_kafka import KafkaBatch, to_kafka
from tidewire.wire.conversion.to_pulsar import to_pulsar
from tidewire.wire.kafka import records
from tidewire.wire.kafka.record_batches import Compression, read_header
from tidewire.wire.kafka.records import Header, Record
from tidewire.wire.pulsar.building import build_batch, build_message
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.steps import finished

NOW_MS = 1_700_000_000_000
"""When the broker took each entry."""
BASE = 7_000
"""The index of each entry's first message."""

# The longest words of escapes are here too, so that names meet that look like an escape.
_WORDS = ("", "a", "kafka:", "kafka::", "2", "base64", "name64", "null", ",", ":", "pulsar:ordering_key", "AP8=", "é\0")
texts = st.lists(st.sampled_from(_WORDS), max_size=5).map("".join)
raw = st.sampled_from([word.encode() for word in _WORDS]) | st.binary(max_size=6) | texts.map(str.encode)
maybe_raw = st.none() | raw
headers = st.lists(st.builds(Header, raw, maybe_raw), max_size=6).map(tuple)
moments = st.integers(1, 2**63 - 1)
some_records = st.lists(st.builds(Record, maybe_raw, maybe_raw, moments, headers), min_size=1, max_size=6)


class Message(NamedTuple):
    """A Pulsar message, as its producer's application gives it."""

    key: bytes | None
    key_is_base64: bool
    value: bytes | None
    event_time_ms: int | None
    properties: dict[str, str]
    ordering_key: bytes | None


def _message(
    key: bytes | None, value: bytes | None, moment: int | None, properties: dict[str, str], order: bytes | None
) -> Message:
    return Message(key, key is not None and not _is_text(key), value, moment, properties, order)


def _is_text(key: bytes) -> bool:
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True


plain_texts = st.text(max_size=4)
some_messages = st.lists(
    st.builds(
        _message,
        maybe_raw,
        maybe_raw,
        st.none() | moments,
        st.dictionaries(plain_texts, plain_texts, max_size=4),
        st.none() | st.binary(max_size=3),
    ),
    min_size=1,
    max_size=6,
)
codecs = st.sampled_from([0, 1, 2, 3, 4])


def pulsar_of(batch: bytes, *, count: int | None = None, size_max: int = 100_000) -> bytes:
    """The payload for a batch. It holds as many messages as it says, unless the entry has another count."""
    count = read_header(batch).record_count if count is None else count
    steps = to_pulsar(batch, message_count=count, base_index=BASE, publish_time_ms=NOW_MS, size_max=size_max)
    return finished(steps)


def kafka_of(payload: bytes, count: int, *, size_max: int = 100_000) -> KafkaBatch:
    """The batch for a payload. Its checksum and its offsets are always right."""
    found = finished(to_kafka(payload, message_count=count, timestamp_ms=NOW_MS, size_max=size_max))
    header = read_header(found.batch)
    assert header.size == len(found.batch)
    assert (header.base_offset, header.offset_count) == (0, count)
    assert header.crc == google_crc32c.value(found.batch[21:])
    return found


def records_of(found: KafkaBatch) -> list[Record]:
    """The records of a converted entry. None of its offsets is free."""
    assert found.reason is None
    read = list(records.read(read_header(found.batch), found.batch, 1_000_000))
    assert [place for place, _ in read] == list(range(len(read)))
    return [record for _, record in read]


def batch_of(some: list[Record], codec: int = 0) -> bytes:
    """A batch as a producer sends it."""
    return records.build(some, Compression(codec))


def payload_of(messages: list[Message], codec: int = 0, *, publish_time_ms: int = 5) -> bytes:
    """A batch as a producer sends it; a single message is sent alone."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=publish_time_ms)
    if len(messages) == 1:
        _describe(metadata, messages[0])
        return build_message(metadata, messages[0].value or b"", codec)  # type: ignore[arg-type]
    singles = []
    for message in messages:
        single = pb.SingleMessageMetadata()
        _describe(single, message)
        singles.append((single, message.value or b""))
    return build_batch(metadata, singles, codec)  # type: ignore[arg-type]


def _describe(made: pb.MessageMetadata | pb.SingleMessageMetadata, message: Message) -> None:
    if message.key is not None:
        made.partition_key = b64encode(message.key).decode() if message.key_is_base64 else message.key.decode()
        made.partition_key_b64_encoded = message.key_is_base64
    if message.value is None:
        made.null_value = True
    if message.event_time_ms is not None:
        made.event_time = message.event_time_ms
    made.properties.extend(pb.KeyValue(key=name, value=text) for name, text in message.properties.items())
    if message.ordering_key is not None:
        made.ordering_key = message.ordering_key
