"""Compares the codecs' output with other decoders than the tested ones.

Python's own ZLIB is used, plain decoders below read LZ4 and Snappy, and ZSTD is recognised by its frame header.
`test_pulsar_client.py` compares all four with Pulsar's client library.
"""

import contextlib
import zlib
from collections.abc import Callable

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewire.wire.pulsar.compression import compress, decompress, decompress_steps
from tidewire.wire.pulsar.errors import MalformedMessage, MessageTooLarge, UnsupportedCompression, WireError
from tidewire.wire.pulsar.frames import MAX_MESSAGE_SIZE
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.steps import finished

NONE, LZ4, ZLIB, ZSTD, SNAPPY = range(5)
CODECS = [LZ4, ZLIB, ZSTD, SNAPPY]
TEXT = b"to be or not to be, that is the question; " * 50

contents = st.one_of(
    st.binary(max_size=200),
    st.builds(lambda part, times: part * times, st.binary(min_size=1, max_size=20), st.integers(1, 1000)),
)


def in_steps(codec: int, data: bytes, size: int, *, size_max: int = MAX_MESSAGE_SIZE) -> bytes | bytearray | memoryview:
    return finished(decompress_steps(codec, data, size, size_max=size_max))


ways = pytest.mark.parametrize("read", [decompress, in_steps])
Read = Callable[..., bytes | bytearray | memoryview]


def copied(output: bytearray, distance: int, length: int) -> None:
    assert 0 < distance <= len(output)
    for _ in range(length):
        output.append(output[-distance])


def read_lz4_block(data: bytes) -> bytes:
    """Decode sequences of literals and copies; each length has 4 bits, and more bytes while they are 255."""
    output = bytearray()
    place = 0

    def length(bits: int) -> int:
        nonlocal place
        total = bits
        goes_on = bits == 15
        while goes_on:
            total += data[place]
            goes_on = data[place] == 255
            place += 1
        return total

    while place < len(data):
        token = data[place]
        place += 1
        literals = length(token >> 4)
        output += data[place : place + literals]
        place += literals
        if place == len(data):
            break
        distance = int.from_bytes(data[place : place + 2], "little")
        place += 2
        copied(output, distance, length(token & 15) + 4)
    return bytes(output)


def read_snappy(data: bytes) -> bytes:
    """Decode the size as a varint, then literals and copies, which two bits distinguish."""
    size = shift = place = 0
    while True:
        size |= (data[place] & 127) << shift
        shift += 7
        place += 1
        if data[place - 1] < 128:
            break
    output = bytearray()
    while place < len(data):
        tag = data[place]
        place += 1
        if tag & 3 == 0:
            length = tag >> 2
            if length >= 60:
                width = length - 59
                length = int.from_bytes(data[place : place + width], "little")
                place += width
            output += data[place : place + length + 1]
            place += length + 1
        elif tag & 3 == 1:
            copied(output, (tag >> 5) << 8 | data[place], (tag >> 2 & 7) + 4)
            place += 1
        else:
            width = 2 if tag & 3 == 2 else 4
            copied(output, int.from_bytes(data[place : place + width], "little"), (tag >> 2) + 1)
            place += width
    assert len(output) == size
    return bytes(output)


@given(contents)
def test_lz4_is_the_raw_block_format_without_a_size(original: bytes) -> None:
    assert read_lz4_block(compress(LZ4, original)) == original


@given(contents)
def test_snappy_is_the_raw_format_without_frames(original: bytes) -> None:
    assert read_snappy(compress(SNAPPY, original)) == original


@given(contents)
def test_zlib_is_the_zlib_container(original: bytes) -> None:
    assert zlib.decompress(compress(ZLIB, original)) == original
    assert bytes(decompress(ZLIB, zlib.compress(original), len(original))) == original


@given(contents)
def test_zstd_is_one_frame(original: bytes) -> None:
    compressed = compress(ZSTD, original)
    assert compressed[:4] == b"\x28\xb5\x2f\xfd"
    assert bytes(cramjam.zstd.decompress(compressed)) == original


def test_blocks_written_by_others_are_read() -> None:
    """The blocks are handmade: one literal run; a run with a copy of itself, in LZ4 and in Snappy."""
    assert bytes(decompress(LZ4, b"\x50hello", 5)) == b"hello"
    assert bytes(decompress(LZ4, b"\x15a\x01\x00\x50aaaaa", 15)) == b"a" * 15
    assert bytes(decompress(SNAPPY, b"\x05\x10hello", 5)) == b"hello"
    assert bytes(decompress(SNAPPY, b"\x09\x00a\x1e\x01\x00", 9)) == b"a" * 9


def test_a_block_that_looks_as_if_its_size_stood_before_it_is_read_as_it_is() -> None:
    """Its first four bytes could be a size, and the rest is also a block."""
    literals, copy, end = b"\0\0\0\xf0", b"\1\0\x32", b"abcdefghijklm"
    block = b"\x4f" + literals + copy + b"\xd0" + end
    original = literals + b"\xf0" * (4 + 15 + 50) + end
    assert read_lz4_block(block) == original
    assert bytes(decompress(LZ4, block, len(original))) == original


@ways
@pytest.mark.parametrize("codec", CODECS)
@given(original=contents)
def test_what_is_compressed_is_decompressed(codec: int, read: Read, original: bytes) -> None:
    compressed = compress(codec, original)
    assert bytes(read(codec, compressed, len(original))) == original
    assert bytes(read(codec, memoryview(compressed), len(original))) == original


def test_no_codec_leaves_the_data_as_they_are() -> None:
    assert compress(NONE, TEXT) is TEXT
    assert decompress(NONE, TEXT, 0) is TEXT


@ways
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("difference", [-len(TEXT), -1, 1, 1000])
def test_the_size_must_be_exact(codec: int, read: Read, difference: int) -> None:
    with pytest.raises(MalformedMessage):
        read(codec, compress(codec, TEXT), len(TEXT) + difference)


@ways
@pytest.mark.parametrize("codec", CODECS)
def test_data_cut_short_are_refused(codec: int, read: Read) -> None:
    compressed = compress(codec, TEXT)
    for cut in (0, 1, len(compressed) // 2, len(compressed) - 1):
        with pytest.raises(MalformedMessage):
            read(codec, compressed[:cut], len(TEXT))


@ways
@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_is_refused_by_the_size_it_claims(codec: int, read: Read) -> None:
    compressed = compress(codec, bytes(MAX_MESSAGE_SIZE + 1))
    with pytest.raises(MessageTooLarge, match=f"{MAX_MESSAGE_SIZE} are allowed"):
        read(codec, compressed, MAX_MESSAGE_SIZE + 1)
    with pytest.raises(MessageTooLarge):
        read(codec, b"", 2**32 - 1)
    assert len(read(codec, compressed, MAX_MESSAGE_SIZE + 1, size_max=MAX_MESSAGE_SIZE + 1)) == MAX_MESSAGE_SIZE + 1


@ways
@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_that_claims_less_gets_no_more_memory_than_it_claims(codec: int, read: Read) -> None:
    with pytest.raises(MalformedMessage):
        read(codec, compress(codec, bytes(50_000_000)), 1000)


@ways
@pytest.mark.parametrize("codec", [5, -1, 100])
def test_an_unknown_codec_is_refused_by_name(codec: int, read: Read) -> None:
    with pytest.raises(UnsupportedCompression, match=str(codec)):
        compress(codec, b"")
    with pytest.raises(UnsupportedCompression, match=str(codec)):
        read(codec, b"", 0)


def test_every_codec_of_the_protocol_is_known() -> None:
    assert sorted(pb.CompressionType.values()) == [NONE, *CODECS]


@ways
@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary(max_size=60), size=st.integers(0, 500))
def test_no_data_raise_anything_but_a_wire_error(codec: int, read: Read, data: bytes, size: int) -> None:
    with contextlib.suppress(WireError):
        assert len(read(codec, data, size)) == size


@ways
@pytest.mark.parametrize("codec", CODECS)
@given(original=contents, place=st.integers(0), value=st.integers(0, 255))
def test_no_damage_raises_anything_but_a_wire_error(
    codec: int, read: Read, original: bytes, place: int, value: int
) -> None:
    damaged = bytearray(compress(codec, original))
    damaged[place % len(damaged)] = value
    with contextlib.suppress(WireError):
        assert len(read(codec, bytes(damaged), len(original))) == len(original)
