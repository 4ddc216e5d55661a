"""Pulsar's payloads as Kafka's record batches. `kio` reads them."""

import random
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.records.readers import read_batch as oracle_reads

from tests.tidewire.wire.conversion.drawn import (
    NOW_MS,
    Message,
    codecs,
    kafka_of,
    payload_of,
    records_of,
    some_messages,
)
from tidewire.wire.conversion.headers import HEADERS_MAX
from tidewire.wire.conversion.to_kafka import METADATA_BYTES_MAX, WORK_AT_ONCE, to_kafka
from tidewire.wire.kafka import records
from tidewire.wire.kafka.record_batches import CONTROL, NO_PRODUCER_ID, Compression, read_header
from tidewire.wire.kafka.records import Header, Record
from tidewire.wire.pulsar.building import build_batch, build_chunks, build_message, build_payload, encode_batch
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.messages import parse_payload

EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
PUBLISHED_MS = 1_600_000_000_000
CODECS = [pb.CompressionType.NONE, pb.CompressionType.LZ4, pb.CompressionType.ZLIB, pb.CompressionType.ZSTD]
CODECS.append(pb.CompressionType.SNAPPY)


def metadata(**more: object) -> pb.MessageMetadata:
    fields = {"producer_name": "p", "sequence_id": 1, "publish_time": PUBLISHED_MS, **more}
    return pb.MessageMetadata(**fields)  # type: ignore[arg-type]


def single(**fields: object) -> pb.SingleMessageMetadata:
    return pb.SingleMessageMetadata(**fields)  # type: ignore[arg-type]


def expected_of(message: Message, published_ms: int = 5) -> Record:
    headers = [Header(name.encode(), text.encode()) for name, text in message.properties.items()]
    if message.ordering_key is not None:
        headers.insert(0, Header(b"pulsar:ordering_key", message.ordering_key))
    return Record(message.key, message.value, message.event_time_ms or published_ms, tuple(headers))


@given(some_messages, codecs)
def test_messages_become_records(messages: list[Message], codec: int) -> None:
    """K42: keys, values, tombstones, properties, times, the ordering key; batches and messages alone."""
    found = kafka_of(payload_of(messages, codec), len(messages))
    assert records_of(found) == [expected_of(message) for message in messages]


seconds = st.integers(1, 4_000_000_000).map(lambda moment: moment * 1_000)  # The oracle keeps whole seconds.


@given(some_messages, st.lists(seconds, min_size=6, max_size=6))
def test_the_oracle_reads_what_is_converted(messages: list[Message], moments: list[int]) -> None:
    """K42: a reader that is not ours."""
    messages = [each._replace(event_time_ms=moment) for each, moment in zip(messages, moments, strict=False)]
    batch = kafka_of(payload_of(messages), len(messages)).batch
    found, size = oracle_reads(batch, 0)
    assert size == len(batch)
    for place, (message, other) in enumerate(zip(messages, found.records, strict=True)):
        record = expected_of(message)
        assert (other.offset, other.key, other.value) == (place, record.key, record.value)
        assert other.timestamp == EPOCH + timedelta(milliseconds=record.timestamp_ms)
        assert [(header.key, header.value) for header in other.headers] == list(record.headers)


def test_a_batch_is_plain() -> None:
    """K42: not compressed, without a producer, with the times of its messages."""
    payload = build_batch(metadata(), [(single(event_time=9), b"a"), (single(event_time=7), b"b"), (single(), b"c")])
    header = read_header(kafka_of(payload, 3).batch)
    assert header.compression == Compression.NONE
    assert header.attributes == 0
    assert (header.producer_id, header.base_sequence) == (NO_PRODUCER_ID, -1)
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (9, PUBLISHED_MS)


@pytest.mark.parametrize(
    ("event", "published", "moment"),
    [
        (7, 5, 7),
        (None, 5, 5),
        (0, 5, 5),
        (2**63 - 1, 5, 2**63 - 1),
        (2**63, 5, 5),
        (None, 0, NOW_MS),
        (None, 2**64 - 1, NOW_MS),
    ],
)
def test_a_record_has_the_first_time_that_there_is(event: int | None, published: int, moment: int) -> None:
    """K42: the application's, the producer's, the broker's. Kafka's are signed."""
    described = metadata(publish_time=published, event_time=event)
    (record,) = records_of(kafka_of(build_message(described, b"v"), 1))
    assert record.timestamp_ms == moment
    batch = build_batch(metadata(publish_time=published), [(single(event_time=event), b"v")] * 2)
    assert [record.timestamp_ms for record in records_of(kafka_of(batch, 2))] == [moment, moment]


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({}, None),
        ({"partition_key": ""}, b""),
        ({"partition_key": "käy"}, "käy".encode()),
        ({"partition_key": "AP8=", "partition_key_b64_encoded": True}, b"\0\xff"),
        ({"partition_key": "AP8="}, b"AP8="),
        ({"partition_key": "no base64", "partition_key_b64_encoded": True}, b"no base64"),
        ({"partition_key": "x", "null_partition_key": True}, None),
        ({"ordering_key": b"x"}, None),
    ],
)
def test_a_key_is_what_the_client_meant(fields: dict[str, object], key: bytes | None) -> None:
    """K42: the same bytes by which the broker tells keys apart."""
    (alone,) = records_of(kafka_of(build_message(metadata(**fields), b"v"), 1))
    (batched,) = records_of(kafka_of(build_batch(metadata(), [(single(**fields), b"v")]), 1))
    assert alone.key == batched.key == key


def test_text_that_is_not_utf8_stays_bytes() -> None:
    """K42: no client sends it, and nothing is replaced."""
    described = metadata(partition_key="KK", properties=[pb.KeyValue(key="NN", value="VV")])
    encoded = described.SerializeToString().replace(b"KK", b"\xffK").replace(b"NN", b"\xffN").replace(b"VV", b"\xffV")
    (record,) = records_of(kafka_of(with_metadata(encoded, b"v"), 1))
    assert record == Record(b"\xffK", b"v", PUBLISHED_MS, (Header(b"\xffN", b"\xffV"),))


def test_a_null_value_wins_over_bytes() -> None:
    """K42: a tombstone has no value."""
    (record,) = records_of(kafka_of(build_message(metadata(null_value=True), b"v"), 1))
    assert record.value is None


def test_what_compaction_removed_leaves_its_offset_free() -> None:
    """K21, K42: the others keep theirs."""
    messages = [(single(compacted_out=place in {0, 2}), b"%d" % place) for place in range(4)]
    found = kafka_of(build_batch(metadata(), messages), 4)
    assert found.reason is None
    read = list(records.read(read_header(found.batch), found.batch, 1_000))
    assert [(place, record.value) for place, record in read] == [(1, b"1"), (3, b"3")]


def test_a_batch_compacted_as_a_whole_keeps_its_offsets() -> None:
    """K21, K42: its indexes stand in its metadata."""
    described = metadata(num_messages_in_batch=9, compacted_batch_indexes=[2, 7])
    body = encode_batch([(single(), b"2"), (single(), b"7")])
    found = kafka_of(build_payload(described, body), 9)
    read = list(records.read(read_header(found.batch), found.batch, 1_000))
    assert [(place, record.value) for place, record in read] == [(2, b"2"), (7, b"7")]


def test_a_batch_of_which_nothing_is_left_takes_its_offsets() -> None:
    """K21: that is no damage."""
    found = kafka_of(build_batch(metadata(), [(single(compacted_out=True), b"")] * 3), 3)
    assert found.reason is None
    assert read_header(found.batch).is_control


def chunk() -> bytes:
    first, *_others = build_chunks(metadata(), b"v" * 100, pb.CompressionType.NONE, chunk_size_max=60)
    return first


UNKNOWN_CODEC = bytes((pb.MessageMetadata.COMPRESSION_FIELD_NUMBER << 3, 9))


def with_metadata(encoded: bytes, body: bytes) -> bytes:
    return len(encoded).to_bytes(4, "big") + encoded + body


UNREADABLE = {
    "nothing": (b"", 1, "ends before its metadata"),
    "damaged metadata": (b"\x0e\x01\0\0\0\0\0\0\0\x02\xff\xffbody", 1, "do not parse"),
    "incomplete metadata": (b"\0\0\0\0body", 1, "lack producer name"),
    "a chunk": (chunk(), 1, "a part of a message that was sent in chunks"),
    "encrypted": (build_message(metadata(encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")]), b"?"), 1, "encry"),
    "an encrypted batch": (
        build_batch(metadata(encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")]), [(single(), b"?")] * 5),
        5,
        "encry",
    ),
    "fewer messages": (build_batch(metadata(), [(single(), b"v")] * 2), 3, "has 2 messages, but its entry has 3"),
    "more messages": (build_batch(metadata(), [(single(), b"v")] * 2), 1, "has 2 messages, but its entry has 1"),
    "no batch": (build_message(metadata(), b"v"), 2, "has 1 messages, but its entry has 2"),
    "fewer than it claims": (
        build_payload(metadata(num_messages_in_batch=3), encode_batch([(single(), b"value")] * 2)),
        3,
        "ends before message 2",
    ),
    "more than it claims": (
        build_payload(metadata(num_messages_in_batch=2), encode_batch([(single(), b"value")] * 3)),
        2,
        "are left",
    ),
    "indexes that fall": (
        build_payload(
            metadata(num_messages_in_batch=9, compacted_batch_indexes=[5, 4]), encode_batch([(single(), b"")] * 2)
        ),
        9,
        "message 4 of the batch stands behind message 5",
    ),
    "one index twice": (
        build_payload(
            metadata(num_messages_in_batch=9, compacted_batch_indexes=[4, 4]), encode_batch([(single(), b"")] * 2)
        ),
        9,
        "message 4 of the batch stands behind message 4",
    ),
    "an unknown codec": (
        with_metadata(metadata().SerializeToString() + UNKNOWN_CODEC, b"?"),
        1,
        "codec that is not known",
    ),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_an_entry_that_cannot_be_converted_takes_its_offsets(name: str) -> None:
    """K20, K21, K42: consumers pass over it, and the log says why."""
    payload, count, why = UNREADABLE[name]
    found = kafka_of(payload, count)
    header = read_header(found.batch)
    assert (header.is_control, header.offset_count, header.max_timestamp_ms) == (True, count, NOW_MS)
    assert found.reason is not None
    assert why in found.reason
    assert oracle_reads(found.batch, 0)[0].attributes & CONTROL


@given(some_messages, codecs, st.integers(0), st.binary(min_size=1, max_size=3), st.integers(-2, 2))
def test_no_payload_raises(messages: list[Message], codec: int, at: int, new: bytes, more: int) -> None:
    """K20, K21, K42, E8: whatever a client wrote, the batch takes the entry's offsets."""
    payload = bytearray(payload_of(messages, codec))
    at %= len(payload)
    payload[at : at + len(new)] = new
    kafka_of(bytes(payload), max(1, len(messages) + more))


@pytest.mark.parametrize("codec", CODECS[1:], ids=pb.CompressionType.Name)
def test_a_bomb_harms_itself_only(codec: pb.CompressionType) -> None:
    """E8, K42: a payload says how large its original is, and may lie."""
    bomb = build_message(metadata(), bytes(3_000_000), codec)
    found = kafka_of(bomb, 1, size_max=1_000_000)
    assert "at most 1000000" in (found.reason or "")
    described, body = parse_payload(bomb)
    described.uncompressed_size = 30_000
    assert "decompress" in (kafka_of(build_payload(described, bytes(body)), 1, size_max=1_000_000).reason or "")


@pytest.mark.parametrize("codec", CODECS, ids=pb.CompressionType.Name)
def test_each_codec_is_read(codec: pb.CompressionType) -> None:
    """K42: also a body that takes several steps to inflate."""
    value = random.Random(1).randbytes(1_000_000) + bytes(2_000_000)
    (record,) = records_of(kafka_of(build_message(metadata(), value, codec), 1, size_max=3_000_000))
    assert record.value == value


def test_zlib_is_inflated_in_steps() -> None:
    """E7: the slowest codec."""
    payload = build_message(metadata(), bytes(3 * 1024 * 1024), pb.CompressionType.ZLIB)
    assert len(list(to_kafka(payload, message_count=1, timestamp_ms=NOW_MS))) == 3 + 1


def test_a_step_converts_a_bounded_number_of_messages() -> None:
    """E7: as many as `WORK_AT_ONCE`, those that compaction removed among them."""
    count = 20 * WORK_AT_ONCE
    for compacted_out in (False, True):
        payload = build_batch(metadata(), [(single(compacted_out=compacted_out), b"v")] * count)
        assert len(list(to_kafka(payload, message_count=count, timestamp_ms=NOW_MS))) == 1 + 2 * 20


def described(count: int) -> pb.SingleMessageMetadata:
    return single(properties=[pb.KeyValue(key=str(number), value="") for number in range(count)])


def test_a_message_with_many_properties_has_a_step_of_its_own() -> None:
    """E7: the step ends before it and after it."""
    messages = [(described(count), b"v") for count in (0, HEADERS_MAX, HEADERS_MAX, 0)]
    steps = to_kafka(build_batch(metadata(), messages), message_count=4, timestamp_ms=NOW_MS)
    assert len(list(steps)) == 1 + 2 * 2
    most = described(HEADERS_MAX)
    most.ordering_key = b"x"
    found = kafka_of(build_batch(metadata(), [(most, b"v")]), 1)
    assert f"a message has {HEADERS_MAX + 1} properties; at most {HEADERS_MAX}" in (found.reason or "")


def test_metadata_are_bounded_before_they_are_parsed() -> None:
    """E7, E8: parsing costs by the field, and these may have a million."""
    large = pb.KeyValue(key="k", value="v" * METADATA_BYTES_MAX)
    alone = kafka_of(build_message(metadata(properties=[large]), b""), 1, size_max=1_000_000)
    batched = kafka_of(build_batch(metadata(), [(single(properties=[large]), b"")]), 1, size_max=1_000_000)
    for found in (alone, batched):
        assert f"at most {METADATA_BYTES_MAX}" in (found.reason or "")


def test_the_batch_is_bounded() -> None:
    """E8: tiny messages with ordering keys grow most."""
    payload = build_batch(metadata(), [(single(ordering_key=b"x"), b"")] * 1_000)
    assert "more than 20000 bytes" in (kafka_of(payload, 1_000, size_max=10_000).reason or "")
    plain = build_batch(metadata(), [(single(), b"")] * 1_000)
    assert kafka_of(plain, 1_000, size_max=len(plain)).reason is None
