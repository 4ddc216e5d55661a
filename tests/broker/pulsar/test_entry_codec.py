"""What the broker reads from entries in Pulsar's format."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.entry_codecs import Send, SendId
from broker.pulsar.entry_codec import PulsarEntryCodec
from storage.entry import Entry, EntryFormat
from storage.position import Position
from tidewire.wire.pulsar.building import build_batch, build_chunks, build_payload
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

CODEC = PulsarEntryCodec()
chunk_of = CODEC.chunk_of


def metadata(name: str = "p", sequence_id: int = 7) -> pb.MessageMetadata:
    return pb.MessageMetadata(producer_name=name, sequence_id=sequence_id, publish_time=1)


def entry(payload: bytes, *, messages: int = 1, form: EntryFormat = EntryFormat.PULSAR) -> Entry:
    return Entry(Position(1, 0), payload, 0, messages, 0, None, form)


def test_chunks_are_told_by_their_metadata() -> None:
    first, second = (
        [
            chunk_of(entry(payload))
            for payload in build_chunks(metadata(name), bytes(25), pb.CompressionType.NONE, chunk_size_max=10)
        ]
        for name in ("p", "q")
    )
    assert [chunk is not None and chunk.is_last for chunk in first] == [False, False, True]
    assert None not in [*first, *second]
    assert len({chunk.message for chunk in first if chunk is not None}) == 1
    assert first[0] != second[0]


def test_a_payload_without_checksum_may_be_a_chunk_too() -> None:
    payload, *_ = build_chunks(metadata(), bytes(25), pb.CompressionType.NONE, chunk_size_max=10)
    assert chunk_of(entry(payload[6:])) == chunk_of(entry(payload))


def test_other_entries_are_none() -> None:
    """This holds even if a chunk's tag appears by chance: in the value, in a number, in a batch."""
    mark = bytes((0xD8, 0x01, 0x03))
    assert chunk_of(entry(build_payload(metadata(), mark))) is None
    by_chance = metadata(sequence_id=0xD8)
    assert mark[:2] in build_payload(by_chance, b"")
    assert chunk_of(entry(build_payload(by_chance, b""))) is None
    single = pb.SingleMessageMetadata(payload_size=1)
    assert chunk_of(entry(build_batch(metadata(), [(single, b"x")] * 2), messages=2)) is None


@pytest.mark.parametrize("wrong", ["no uuid", "one chunk", "cut off", "not metadata"])
def test_what_makes_no_sense_is_no_chunk(wrong: str) -> None:
    described = metadata()
    described.uuid, described.num_chunks_from_msg, described.chunk_id = "u", 3, 0
    if wrong == "no uuid":
        described.ClearField("uuid")
    elif wrong == "one chunk":
        described.num_chunks_from_msg = 1
    payload = build_payload(described, b"x")
    if wrong == "cut off":
        payload = payload[:20]
    elif wrong == "not metadata":
        payload = payload[:6] + struct.pack(">I", 4) + b"\xd8\x01\xff\xff"
    assert chunk_of(entry(payload)) is None


@pytest.mark.parametrize(
    ("described", "key"),
    [
        ({}, None),
        ({"partition_key": "k"}, b"k"),
        ({"partition_key": ""}, b""),
        ({"partition_key": "", "null_partition_key": True}, None),
        ({"partition_key": "AP8=", "partition_key_b64_encoded": True}, b"\x00\xff"),
        ({"partition_key": "not base64", "partition_key_b64_encoded": True}, b"not base64"),
        ({"partition_key": "k", "ordering_key": b"o"}, b"o"),
        ({"ordering_key": b""}, b""),
    ],
)
def test_the_ordering_key_comes_before_the_partition_key(described: dict[str, Any], key: bytes | None) -> None:
    """Binary keys arrive in base64. Other text is taken unchanged, so equal keys stay equal."""
    written = metadata()
    written.MergeFrom(pb.MessageMetadata(**described))
    assert CODEC.key_of(entry(build_payload(written, b"x"))) == key


def test_a_key_that_is_no_text_is_still_a_key() -> None:
    raw = metadata().SerializeToString() + b"\x32\x02\xff\xfe"
    payload = struct.pack(">I", len(raw)) + raw + b"x"
    assert CODEC.key_of(entry(payload)) == b"\xff\xfe"


def test_a_send_is_told_by_its_metadata() -> None:
    """E6: batches have a first and a last sequence id, chunks have their index."""
    one = build_payload(metadata("p", 7), b"x")
    assert CODEC.send_of(entry(one)) == Send("p", SendId(7, 7))
    batched = metadata("p", 7)
    batched.highest_sequence_id = 9
    single = pb.SingleMessageMetadata(payload_size=1)
    batch = build_batch(batched, [(single, b"x")] * 3)
    assert CODEC.send_of(entry(batch, messages=3)) == Send("p", SendId(7, 9))
    chunks = build_chunks(metadata("p", 7), bytes(25), pb.CompressionType.NONE, chunk_size_max=10)
    assert [CODEC.send_of(entry(chunk)) for chunk in chunks] == [
        Send("p", SendId(7, 7, number, 3)) for number in range(3)
    ]


@pytest.mark.parametrize("payload", [b"", b"\x0e\x01", bytes(40), b"\xff" * 40])
def test_of_what_cannot_be_read_nothing_is_told(payload: bytes) -> None:
    """E7: clients choose the bytes, and no bytes may end a topic."""
    odd = entry(payload)
    assert (CODEC.chunk_of(odd), CODEC.key_of(odd), CODEC.send_of(odd)) == (None, None, None)


@given(st.binary(max_size=60))
def test_no_bytes_raise(payload: bytes) -> None:
    """E7: this also holds for arbitrary bytes after the checksum's magic."""
    for odd in (payload, b"\x0e\x01" + payload):
        CODEC.chunk_of(entry(odd))
        CODEC.key_of(entry(odd))
        CODEC.send_of(entry(odd))
