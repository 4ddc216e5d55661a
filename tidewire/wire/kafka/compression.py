"""The codecs that may compress the records of a batch, in the formats that Kafka's clients write and read.

GZIP, LZ4 and ZSTD are their usual containers. Snappy is either one raw block, or blocks in the framing of the Java
client. The original's size is not on record for most of them. So decompression tries growing buffers up to a bound,
and no data can make it use more.

Decompression goes in steps that an event loop can take (E7). GZIP is the slowest, and is inflated in slices. Of the
others, each attempt with a buffer is a step.
"""

import struct
from collections.abc import Callable
from typing import Final

import cramjam

from tidewire.wire.inflating import Format, InflateError, inflate
from tidewire.wire.kafka.record_batches import Compression, CorruptBatch
from tidewire.wire.steps import Steps

_GROWTH: Final = 4
"""How much larger than its data the first buffer is, and each one than the one before."""

_FIRST_BYTES: Final = 64 * 1024

_FRAMED_SNAPPY: Final = b"\x82SNAPPY\0"
_FRAMED_SNAPPY_VERSIONS: Final = struct.pack(">ii", 1, 1)
_FRAMED_SNAPPY_HEADER: Final = len(_FRAMED_SNAPPY) + len(_FRAMED_SNAPPY_VERSIONS)
_BLOCK_SIZE: Final = struct.Struct(">i")
_BLOCK_BYTES: Final = 32 * 1024
"""The size of the Java client's blocks."""

_BLOCKS_AT_ONCE: Final = 1_000
"""Blocks of snappy that one step reads. A client may send hundreds of thousands of tiny ones."""

_ZSTD_LEVEL: Final = 3

_Bytes = bytes | bytearray | memoryview


def compress(codec: Compression, data: bytes) -> bytes:
    """The records as the codec writes them."""
    match codec:
        case Compression.NONE:
            return data
        case Compression.GZIP:
            return bytes(cramjam.gzip.compress(data))
        case Compression.LZ4:
            return bytes(cramjam.lz4.compress(data))
        case Compression.ZSTD:
            return bytes(cramjam.zstd.compress(data, _ZSTD_LEVEL))
        case Compression.SNAPPY:
            return _framed_snappy(data)


def decompress_steps(codec: Compression, data: bytes | memoryview, size_max: int) -> Steps[_Bytes]:
    """The original of compressed records.

    Raises:
        CorruptBatch: the data are damaged, or the original has more than `size_max` bytes.
    """
    match codec:
        case Compression.NONE:
            return data
        case Compression.GZIP:
            return (yield from _inflated(data, size_max))
        case Compression.LZ4:
            return (yield from _grown(cramjam.lz4.decompress_into, data, size_max))
        case Compression.ZSTD:
            return (yield from _grown(cramjam.zstd.decompress_into, data, size_max))
        case Compression.SNAPPY:
            return (yield from _from_snappy(data, size_max))


def _inflated(data: bytes | memoryview, size_max: int) -> Steps[bytes]:
    try:
        return (yield from inflate(data, Format.GZIP, size_max))
    except InflateError as error:
        raise CorruptBatch(f"records do not decompress to {size_max} bytes or less: {error}") from error


def _grown(read_into: Callable[[_Bytes, bytearray], int], data: _Bytes, size_max: int) -> Steps[bytes]:
    size = max(_FIRST_BYTES, _GROWTH * len(data))
    while True:
        output = bytearray(min(size, size_max))
        try:
            return bytes(memoryview(output)[: read_into(data, output)])
        except cramjam.DecompressionError as error:
            # The buffer is too small, or the data are damaged. Damage shows with every buffer.
            if size >= size_max:
                raise CorruptBatch(f"records do not decompress to {size_max} bytes or less: {error}") from error
        size *= _GROWTH
        yield


def _framed_snappy(data: bytes) -> bytes:
    pieces = [_FRAMED_SNAPPY, _FRAMED_SNAPPY_VERSIONS]
    for start in range(0, len(data), _BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _BLOCK_BYTES]))
        pieces += [_BLOCK_SIZE.pack(len(block)), block]
    return b"".join(pieces)


def _from_snappy(data: bytes | memoryview, size_max: int) -> Steps[bytes]:
    if bytes(data[: len(_FRAMED_SNAPPY)]) != _FRAMED_SNAPPY:
        return _snappy_block(data, size_max)
    at, blocks, left = _FRAMED_SNAPPY_HEADER, [], size_max
    while at < len(data):
        if len(data) - at < _BLOCK_SIZE.size:
            raise CorruptBatch("a block of snappy is cut short")
        (size,) = _BLOCK_SIZE.unpack_from(data, at)
        at += _BLOCK_SIZE.size
        if not 0 < size <= len(data) - at:
            raise CorruptBatch("a block of snappy is longer than its batch")
        blocks.append(_snappy_block(data[at : at + size], left))
        left -= len(blocks[-1])
        at += size
        if len(blocks) % _BLOCKS_AT_ONCE == 0:
            yield
    return b"".join(blocks)


def _snappy_block(block: bytes | memoryview, size_max: int) -> bytes:
    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > size_max:
            raise CorruptBatch(f"a block of snappy decompresses to {size} bytes; at most {size_max} are allowed")
        output = bytearray(size)
        written = cramjam.snappy.decompress_raw_into(block, output)
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"a block of snappy is damaged: {error}") from error
    if written != size:
        raise CorruptBatch(f"a block of snappy has {written} bytes, but claims {size}")
    return bytes(output)
