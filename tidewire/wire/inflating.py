"""Decompresses ZLIB and GZIP data slice by slice.

Other codecs decompress the largest message within one step of an event loop. These two take longer than a step may
(E7). The bound on the output holds at every moment, so no data can make it use more memory.
"""

import zlib
from enum import IntEnum
from typing import Final

from tidewire.wire.steps import Steps

SLICE_BYTES: Final = 1024 * 1024
"""Output of one step, in about 6 ms."""


class Format(IntEnum):
    """The container around the compressed data, by zlib's number for it."""

    ZLIB = 15
    GZIP = 31


class InflateError(ValueError):
    """The data are damaged, or their original is too large."""


def inflate(data: bytes | memoryview, container: Format, size_max: int) -> Steps[bytes]:
    """The original of the data. They must be one whole container, without anything behind it.

    Raises:
        InflateError: they are not, or the original has more than `size_max` bytes.
    """
    inflater = zlib.decompressobj(container)
    output = bytearray()
    while not inflater.eof:
        room = size_max - len(output)
        try:
            # A limit of 0 would mean none. The byte above the room shows that there is too much.
            piece = inflater.decompress(data, min(room + 1, SLICE_BYTES))
        except zlib.error as error:
            raise InflateError(str(error)) from error
        if len(piece) > room:
            raise InflateError(f"there are more than {size_max} bytes")
        data = inflater.unconsumed_tail
        if not piece and not data and not inflater.eof:
            raise InflateError("the data are cut short")
        output += piece
        yield
    if inflater.unused_data:
        raise InflateError("there are bytes behind the end of the data")
    return bytes(output)
