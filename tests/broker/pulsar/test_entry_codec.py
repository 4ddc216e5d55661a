"""Which stored entries are parts of a message."""

import struct

import pytest

from broker.pulsar.entry_codec import PulsarEntryCodec
from storage.entry import Entry, EntryFormat
from storage.position import Position
from tidewire.wire.pulsar.building import build_batch, build_chunks, build_payload
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

chunk_of = PulsarEntryCodec().chunk_of


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
    """Also where the mark of a chunk stands by chance: in the value, in a number, in a batch."""
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
