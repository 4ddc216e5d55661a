"""What topics ask about entries in Kafka's format."""

import struct
import tracemalloc

import pytest

from broker.kafka.entry_codec import KEY_BYTES_MAX, KafkaEntryCodec
from storage.entry import Entry, EntryFormat
from storage.position import Position
from tidewire.wire.kafka.record_batches import HEADER_SIZE, Compression, read_header
from tidewire.wire.kafka.records import Record, build

CODECS = [codec for codec in Compression if codec is not Compression.NONE]


def key_of(batch: bytes) -> bytes | None:
    return KafkaEntryCodec().key_of(Entry(Position(0, 0), batch, 0, 1, 0, None, EntryFormat.KAFKA))


@pytest.mark.parametrize("codec", list(Compression))
def test_the_key_is_that_of_the_first_record(codec: Compression) -> None:
    assert key_of(build([Record(b"k", bytes(1000), 1), Record(b"l", b"v", 1)], codec)) == b"k"
    assert key_of(build([Record(b"k", bytes(KEY_BYTES_MAX - 1000), 1)], codec)) == b"k"
    assert key_of(build([Record(None, b"v", 1)], codec)) is None


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_that_inflates_far_has_no_key(codec: Compression) -> None:
    """E7: the question may not pause, so it takes no more than a step."""
    batch = build([Record(b"k", bytes(32 * KEY_BYTES_MAX), 1)], codec)
    tracemalloc.start()
    try:
        assert key_of(batch) is None
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * KEY_BYTES_MAX + len(batch)


def test_a_batch_of_many_tiny_blocks_has_no_key() -> None:
    """E7: a block of snappy may hold nothing."""
    tiny = struct.pack(">i", 1) + b"\0"
    whole = build([Record(b"k", b"v", 1)], Compression.SNAPPY)
    batch = whole[: HEADER_SIZE + 16] + 10_000 * tiny + whole[HEADER_SIZE + 16 :]
    batch = batch[:8] + struct.pack(">i", len(batch) - 12) + batch[12:]
    assert read_header(batch).size == len(batch)
    assert key_of(batch) is None
    assert key_of(whole) == b"k"
