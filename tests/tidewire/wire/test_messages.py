import contextlib
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tidewire.wire.protobufs import encoded_without, field
from tidewire.wire.pulsar.building import (
    build_batch,
    build_message,
    build_payload,
    encode_batch,
    message_metadata,
    single_message_metadata,
)
from tidewire.wire.pulsar.checksums import verify_payload
from tidewire.wire.pulsar.errors import (
    EncryptedMessage,
    MalformedMessage,
    MessageTooLarge,
    UnsupportedCompression,
    WireError,
)
from tidewire.wire.pulsar.frames import MAX_MESSAGE_SIZE
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import ack_set_of_bits
from tidewire.wire.pulsar.messages import SingleMessage, parse_payload, split_body, split_messages

CODECS = [
    pb.CompressionType.NONE,
    pb.CompressionType.LZ4,
    pb.CompressionType.ZLIB,
    pb.CompressionType.ZSTD,
    pb.CompressionType.SNAPPY,
]
codecs = st.sampled_from(CODECS)
keys = st.none() | st.text(max_size=5)
properties = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2)
event_times = st.none() | st.integers(1, 2**64 - 1)
transactions = st.none() | st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
values = st.binary(max_size=100)
damages = st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1)


def batch_of(*texts: bytes, codec: pb.CompressionType = pb.CompressionType.NONE) -> bytes:
    messages = [(single_message_metadata(10 + place), text) for place, text in enumerate(texts)]
    return build_batch(message_metadata("p", 10, 1000), messages, codec)


def split_values(payload: bytes, ack_set: tuple[int, ...] = ()) -> list[bytes]:
    return [message.value for message in split_messages(payload, ack_set)]


def test_a_payload_is_magic_checksum_size_metadata_and_body() -> None:
    payload = build_payload(message_metadata("p", 1, 2), b"body")
    assert payload.hex(" ", 1) == "0e 01 95 e7 a2 e4 00 00 00 07 0a 01 70 10 01 18 02 62 6f 64 79"


def test_a_batch_is_sizes_metadata_and_values() -> None:
    body = encode_batch([(pb.SingleMessageMetadata(), b"ab"), (pb.SingleMessageMetadata(sequence_id=1), b"")])
    assert body == bytes.fromhex("00000002 1802 6162 00000004 1800 4001")


@given(codecs, values, keys, properties, event_times, transactions, st.integers(0, 2**64 - 1), st.booleans())
def test_a_message_sent_alone_arrives(
    codec: pb.CompressionType,
    value: bytes,
    key: str | None,
    described: dict[str, str],
    event_time_ms: int | None,
    txn: tuple[int, int] | None,
    sequence_id: int,
    null_value: bool,
) -> None:
    metadata = message_metadata(
        "producer",
        sequence_id,
        1234,
        key=key,
        properties=described,
        event_time_ms=event_time_ms,
        txn=txn,
        null_value=null_value,
    )
    payload = build_message(metadata, value, codec)
    verify_payload(payload)
    assert split_messages(payload) == [
        SingleMessage(None, 1, key, value, described, event_time_ms, 1234, sequence_id, "producer", txn, null_value)
    ]


@given(
    codecs,
    st.lists(st.tuples(values, keys, properties, event_times, st.booleans()), min_size=1, max_size=80),
    transactions,
    st.data(),
)
def test_a_batch_arrives_but_for_what_is_acknowledged(
    codec: pb.CompressionType,
    sent: list[tuple[bytes, str | None, dict[str, str], int | None, bool]],
    txn: tuple[int, int] | None,
    data: st.DataObject,
) -> None:
    messages = [
        (
            single_message_metadata(
                100 + place, key=key, properties=described, event_time_ms=event_time_ms, null_value=null_value
            ),
            value,
        )
        for place, (value, key, described, event_time_ms, null_value) in enumerate(sent)
    ]
    payload = build_batch(message_metadata("producer", 100, 1234, txn=txn), messages, codec)
    verify_payload(payload)
    expected = [
        SingleMessage(
            place, len(sent), key, value, described, event_time_ms, 1234, 100 + place, "producer", txn, null_value
        )
        for place, (value, key, described, event_time_ms, null_value) in enumerate(sent)
    ]
    assert split_messages(payload) == expected
    bits = data.draw(st.integers(0, 2 ** len(sent) - 1))
    left = [message for message in expected if bits >> (message.batch_index or 0) & 1]
    assert split_messages(payload, ack_set_of_bits(bits)) == left


def test_a_batch_of_one_is_a_batch() -> None:
    (message,) = split_messages(batch_of(b"only"))
    assert (message.batch_index, message.batch_size) == (0, 1)


def test_building_leaves_the_metadata_as_they_are() -> None:
    metadata = message_metadata("p", 1, 2)
    before = metadata.SerializeToString()
    build_batch(metadata, [(single_message_metadata(1), b"x")], pb.CompressionType.LZ4)
    assert metadata.SerializeToString() == before


def test_the_metadata_say_how_the_body_was_compressed() -> None:
    metadata, body = parse_payload(batch_of(b"a" * 100, codec=pb.CompressionType.ZSTD))
    assert metadata.compression == pb.CompressionType.ZSTD
    assert metadata.uncompressed_size == 4 + 4 + 100
    assert len(body) < metadata.uncompressed_size
    plain, _ = parse_payload(batch_of(b"a" * 100))
    assert not plain.HasField("compression")


@pytest.mark.parametrize("codec", CODECS)
def test_an_empty_body_is_not_compressed(codec: pb.CompressionType) -> None:
    metadata, body = parse_payload(build_message(message_metadata("p", 1, 2), b"", codec))
    assert not metadata.HasField("compression")
    assert bytes(body) == b""


def test_an_ack_set_that_ends_early_acknowledges_the_rest() -> None:
    """Zero words at the end are not sent."""
    payload = batch_of(*(b"%d" % place for place in range(70)))
    assert split_values(payload, (0b10,)) == [b"1"]
    assert split_values(payload, (0, 1)) == [b"64"]
    assert split_values(payload, (-(2**63),)) == [b"63"]
    assert split_values(payload, (0,)) == []
    assert len(split_values(payload)) == 70


def test_messages_that_compaction_removed_are_left_out() -> None:
    messages = [(pb.SingleMessageMetadata(compacted_out=place == 1), b"%d" % place) for place in range(3)]
    got = split_messages(build_batch(message_metadata("p", 1, 2), messages))
    assert [(message.batch_index, message.value) for message in got] == [(0, b"0"), (2, b"2")]


def test_a_batch_compacted_as_a_whole_keeps_its_indexes() -> None:
    metadata = message_metadata("p", 1, 2)
    metadata.num_messages_in_batch = 2**31 - 1
    metadata.compacted_batch_indexes.extend([0, 5, 2**31 - 2])
    body = encode_batch([(pb.SingleMessageMetadata(), b"%d" % place) for place in range(3)])
    tracemalloc.start()
    got = split_messages(build_payload(metadata, body))
    _, memory_bytes_max = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert memory_bytes_max < 100_000, "what the batch claims to have been costs nothing"
    assert [(message.batch_index, message.batch_size) for message in got] == [
        (0, 2**31 - 1),
        (5, 2**31 - 1),
        (2**31 - 2, 2**31 - 1),
    ]
    assert split_values(build_payload(metadata, body), (0b100001,)) == [b"0", b"1"]


def test_a_message_without_sequence_id_has_its_batch_s() -> None:
    (message,) = split_messages(build_batch(message_metadata("p", 77, 2), [(pb.SingleMessageMetadata(), b"")]))
    assert message.sequence_id == 77


def test_a_key_that_is_said_to_be_none_is_none() -> None:
    metadata = pb.SingleMessageMetadata(partition_key="", null_partition_key=True)
    (message,) = split_messages(build_batch(message_metadata("p", 1, 2), [(metadata, b"")]))
    assert message.key is None


def test_keys_of_bytes_and_ordering_keys_are_told() -> None:
    metadata = pb.SingleMessageMetadata(partition_key="AAE=", partition_key_b64_encoded=True, ordering_key=b"\0")
    (message,) = split_messages(build_batch(message_metadata("p", 1, 2), [(metadata, b"")]))
    assert (message.key, message.key_is_base64, message.ordering_key) == ("AAE=", True, b"\0")
    plain, *_ = split_messages(batch_of(b""))
    assert (plain.key_is_base64, plain.ordering_key) == (False, None)


def test_text_that_is_not_utf_8_does_not_stop_a_reader() -> None:
    payload = build_message(message_metadata("p", 1, 2, key="@@", properties={"@@": "@@"}), b"value")
    (message,) = split_messages(payload.replace(b"@@", b"\xff\xfe"))
    assert message.key == "\ufffd\ufffd"
    assert message.properties == {"\ufffd\ufffd": "\ufffd\ufffd"}
    assert message.value == b"value"


def test_the_checksum_and_the_broker_s_metadata_are_optional() -> None:
    payload = build_message(message_metadata("p", 1, 2), b"value")
    broker_metadata = pb.BrokerEntryMetadata(broker_timestamp=5, index=6).SerializeToString()
    prefix = b"\x0e\x02" + struct.pack(">I", len(broker_metadata)) + broker_metadata
    for variant in (payload, payload[6:], prefix + payload, prefix + payload[6:]):
        metadata, body = parse_payload(variant)
        assert metadata.producer_name == "p"
        assert bytes(body) == b"value"


def test_splitting_does_not_verify_the_checksum() -> None:
    payload = build_message(message_metadata("p", 1, 2), b"value")
    assert split_values(payload[:-1] + b"E") == [b"valuE"]


@pytest.mark.parametrize("name", ["producer_name", "sequence_id", "publish_time"])
def test_metadata_lacking_what_they_require_are_refused(name: str) -> None:
    encoded = encoded_without(message_metadata("p", 1, 2), name)
    with pytest.raises(MalformedMessage, match="lack"):
        parse_payload(struct.pack(">I", len(encoded)) + encoded)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param("", id="nothing"),
        pytest.param("000000", id="within the size"),
        pytest.param("00000001", id="metadata beyond the end"),
        pytest.param("ffffffff", id="metadata of 4 GiB"),
        pytest.param("00000001 ff", id="metadata that do not parse"),
        pytest.param("0e01 00000000", id="nothing after the checksum"),
        pytest.param("0e01 0000", id="within the checksum"),
        pytest.param("0e02 0000", id="within the broker's metadata"),
    ],
)
def test_a_payload_whose_lengths_lie_is_refused(data: str) -> None:
    with pytest.raises(MalformedMessage):
        parse_payload(bytes.fromhex(data))


def bad_batch(count: int, body: bytes) -> bytes:
    metadata = message_metadata("p", 1, 2)
    metadata.num_messages_in_batch = count
    return build_payload(metadata, body)


ONE = bytes.fromhex("00000002 1802 6162")
LONGER = bytes.fromhex("00000002 1806 616263646566")


@pytest.mark.parametrize(
    ("count", "body", "match"),
    [
        pytest.param(0, b"", "cannot hold a batch of 0", id="no messages"),
        pytest.param(-1, ONE, "cannot hold a batch of -1", id="less than none"),
        pytest.param(2**31 - 1, ONE, "cannot hold", id="more than there is room for"),
        pytest.param(2, LONGER + bytes(3), "ends before message 1", id="fewer than claimed"),
        pytest.param(1, ONE + ONE, "8 bytes are left", id="more than claimed"),
        pytest.param(1, b"\0\0\0\x09" + ONE[4:], "within the metadata", id="metadata beyond the end"),
        pytest.param(1, ONE[:-1], "within the value", id="a value beyond the end"),
        pytest.param(1, b"\0\0\0\x02\x28\x01", "no size", id="no size"),
        pytest.param(1, bytes.fromhex("0000000b 18ffffffffffffffffff01"), "negative", id="a size below zero"),
        pytest.param(1, b"\0\0\0\x02\xff\xff", "do not parse", id="metadata that do not parse"),
    ],
)
def test_a_batch_that_does_not_add_up_is_refused(count: int, body: bytes, match: str) -> None:
    with pytest.raises(MalformedMessage, match=match):
        split_messages(bad_batch(count, body))


@pytest.mark.parametrize("index", [-1, 2])
def test_an_index_outside_its_batch_is_refused(index: int) -> None:
    metadata = message_metadata("p", 1, 2)
    metadata.num_messages_in_batch = 2
    metadata.compacted_batch_indexes.append(index)
    with pytest.raises(MalformedMessage, match=f"no message {index} in a batch of 2"):
        split_messages(build_payload(metadata, ONE))


def test_a_bomb_is_refused() -> None:
    metadata = message_metadata("p", 1, 2)
    metadata.compression = pb.CompressionType.ZLIB
    metadata.uncompressed_size = MAX_MESSAGE_SIZE + 1
    with pytest.raises(MessageTooLarge):
        split_messages(build_payload(metadata, b"x"))


@pytest.mark.parametrize("codec", CODECS)
def test_a_message_no_reader_would_take_is_not_built(codec: pb.CompressionType) -> None:
    build_message(message_metadata("p", 1, 2), bytes(MAX_MESSAGE_SIZE), codec)
    with pytest.raises(MessageTooLarge):
        build_message(message_metadata("p", 1, 2), bytes(MAX_MESSAGE_SIZE + 1), codec)
    with pytest.raises(MessageTooLarge):
        build_batch(message_metadata("p", 1, 2), [(single_message_metadata(1), bytes(MAX_MESSAGE_SIZE))], codec)


def test_a_codec_nobody_knows_is_not_taken_for_none() -> None:
    """The parser drops an unknown value, and a missing one means NONE."""
    encoded = message_metadata("p", 1, 2).SerializeToString() + bytes.fromhex("4009")
    with pytest.raises(UnsupportedCompression):
        split_messages(struct.pack(">I", len(encoded)) + encoded + b"compressed")


def test_metadata_of_a_newer_producer_are_read() -> None:
    encoded = message_metadata("p", 1, 2).SerializeToString() + bytes.fromhex("88 02 05") + field(10, b"new")
    assert split_values(struct.pack(">I", len(encoded)) + encoded + b"value") == [b"value"]


def test_an_encrypted_message_is_refused_by_name() -> None:
    metadata = message_metadata("p", 1, 2)
    metadata.encryption_keys.add(key="k", value=b"v")
    with pytest.raises(EncryptedMessage):
        split_messages(build_payload(metadata, b"secret"))


def test_a_chunk_is_refused_and_the_joined_chunks_are_read() -> None:
    metadata = message_metadata("p", 1, 2)
    metadata.num_chunks_from_msg = 2
    metadata.total_chunk_msg_size = 6
    with pytest.raises(MalformedMessage, match="one chunk"):
        split_messages(build_payload(metadata, b"abc"))
    assert split_body(metadata, b"abcdef")[0].value == b"abcdef"


def test_a_chunked_message_may_be_allowed_more() -> None:
    value = bytes(MAX_MESSAGE_SIZE + 1)
    metadata = message_metadata("p", 1, 2)
    metadata.compression = pb.CompressionType.LZ4
    metadata.uncompressed_size = len(value)
    from_lz4, _ = parse_payload(build_payload(metadata, b""))
    with pytest.raises(MessageTooLarge):
        split_body(from_lz4, b"x")
    with pytest.raises(MalformedMessage):
        split_body(from_lz4, b"x", size_max=len(value))


@given(st.binary(max_size=100), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=2))
def test_no_payload_raises_anything_but_a_wire_error(data: bytes, ack_set: list[int]) -> None:
    for payload in (data, b"\x0e\x01\0\0\0\0" + data, bad_batch(2, data)):
        with contextlib.suppress(WireError):
            split_messages(payload, ack_set)


@given(
    codecs,
    st.lists(values, min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1),
)
def test_no_damage_raises_anything_but_a_wire_error(
    codec: pb.CompressionType, texts: list[bytes], damage: list[tuple[int, int]]
) -> None:
    payload = bytearray(batch_of(*texts, codec=codec))
    for place, value in damage:
        payload[place % len(payload)] = value
    with contextlib.suppress(WireError):
        split_messages(bytes(payload))
