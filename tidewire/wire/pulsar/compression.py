"""The codecs that may compress a message's body, in the formats that Pulsar's clients write and read.

LZ4 is the raw block format without a leading size. Snappy is the raw format without framing. ZLIB and ZSTD are their
usual containers. The metadata of the message gives the original size. Decompression writes into a buffer of exactly
that size, so no data can make it use more.
"""

from collections.abc import Callable
from typing import Final

import cramjam

from tidewire.wire.inflating import Format, InflateError, inflate
from tidewire.wire.pulsar.errors import MalformedMessage, MessageTooLarge, UnsupportedCompression
from tidewire.wire.pulsar.frames import MAX_MESSAGE_SIZE
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.steps import Steps

# cramjam's own default, 11, is ten times slower for a few percent; 3 is what the codec itself and Pulsar's clients use.
_ZSTD_LEVEL: Final = 3
_ZLIB_LEVEL: Final = 6

_Bytes = bytes | bytearray | memoryview


def _lz4(data: _Bytes) -> bytes:
    return bytes(cramjam.lz4.compress_block(data, store_size=False))


def _zlib(data: _Bytes) -> bytes:
    return bytes(cramjam.zlib.compress(data, _ZLIB_LEVEL))


def _zstd(data: _Bytes) -> bytes:
    return bytes(cramjam.zstd.compress(data, _ZSTD_LEVEL))


def _snappy(data: _Bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def _lz4_into(data: _Bytes, output: bytearray) -> int:
    # Without a length, the codec would look for one in the data.
    return cramjam.lz4.decompress_block_into(data, output, len(output))


_COMPRESS: Final[dict[int, Callable[[_Bytes], bytes]]] = {
    pb.CompressionType.LZ4: _lz4,
    pb.CompressionType.ZLIB: _zlib,
    pb.CompressionType.ZSTD: _zstd,
    pb.CompressionType.SNAPPY: _snappy,
}
_DECOMPRESS_INTO: Final[dict[int, Callable[[_Bytes, bytearray], int]]] = {
    pb.CompressionType.LZ4: _lz4_into,
    pb.CompressionType.ZLIB: cramjam.zlib.decompress_into,
    pb.CompressionType.ZSTD: cramjam.zstd.decompress_into,
    pb.CompressionType.SNAPPY: cramjam.snappy.decompress_raw_into,
}


def compress(codec: int, data: bytes) -> bytes:
    """The data as the codec (a `pb.CompressionType`) writes it; for NONE the data itself.

    Raises:
        UnsupportedCompression: the codec is not known.
    """
    if codec == pb.CompressionType.NONE:
        return data
    write = _COMPRESS.get(codec)
    if write is None:
        raise UnsupportedCompression(f"{codec} is not a known compression type")
    return write(data)


def decompress(
    codec: int, data: bytes | memoryview, uncompressed_size: int, *, size_max: int = MAX_MESSAGE_SIZE
) -> bytes | bytearray | memoryview:
    """The original of compressed data, exactly `uncompressed_size` bytes. For NONE, the data itself, whatever its size.

    Uses no more memory than `uncompressed_size`, and allocates that only after the check against `size_max`.

    Raises:
        UnsupportedCompression: the codec is not known.
        MessageTooLarge: the size is above `size_max`.
        MalformedMessage: the data are damaged, or decompress to another size.
    """
    if codec == pb.CompressionType.NONE:
        return data
    read_into = _DECOMPRESS_INTO.get(codec)
    if read_into is None:
        raise UnsupportedCompression(f"{codec} is not a known compression type")
    _require_size(uncompressed_size, size_max)
    output = bytearray(uncompressed_size)
    try:
        written = read_into(data, output)
    except cramjam.DecompressionError as error:
        raise MalformedMessage(f"a body does not decompress to {uncompressed_size} bytes: {error}") from error
    _require_written(written, uncompressed_size)
    return output


def decompress_steps(
    codec: int, data: bytes | memoryview, uncompressed_size: int, *, size_max: int = MAX_MESSAGE_SIZE
) -> Steps[bytes | bytearray | memoryview]:
    """As `decompress`, in steps that an event loop can take (E7). Only ZLIB needs more than one."""
    if codec != pb.CompressionType.ZLIB:
        return decompress(codec, data, uncompressed_size, size_max=size_max)
    _require_size(uncompressed_size, size_max)
    try:
        output = yield from inflate(data, Format.ZLIB, uncompressed_size)
    except InflateError as error:
        raise MalformedMessage(f"a body does not decompress to {uncompressed_size} bytes: {error}") from error
    _require_written(len(output), uncompressed_size)
    return output


def _require_size(uncompressed_size: int, size_max: int) -> None:
    if not 0 <= uncompressed_size <= size_max:
        raise MessageTooLarge(f"a body would decompress to {uncompressed_size} bytes; at most {size_max} are allowed")


def _require_written(written: int, uncompressed_size: int) -> None:
    if written != uncompressed_size:
        raise MalformedMessage(f"a body decompresses to {written} bytes, but claims {uncompressed_size}")
