"""Reads and writes the fields of a frame's body. Whatever does not fit is refused, so no length is trusted.

Numbers are big-endian. A text or blob stands behind its length.

Pure: values in, bytes out, and back.
"""

import struct
from typing import Final

from storage.errors import ExpectedError

_U8: Final = struct.Struct(">B")
_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")

u8 = _U8.pack
u16 = _U16.pack
u32 = _U32.pack
u64 = _U64.pack


def text(value: str) -> bytes:
    """A text of at most 65,535 bytes in UTF-8, behind a length of two bytes."""
    encoded = value.encode()
    return _U16.pack(len(encoded)) + encoded


def blob(value: bytes) -> bytes:
    """Bytes behind a length of four bytes."""
    return _U32.pack(len(value)) + value


class LinkError(ExpectedError):
    """The other side of a link broke the protocol. The link must be closed. A new link may work."""

    retriable = True


class Fields:
    """Takes the fields off the front of a body, one after another.

    Raises:
        LinkError: the body ends before a field does, or a text is not UTF-8.
    """

    __slots__ = ("_body", "_offset")

    def __init__(self, body: bytes) -> None:
        self._body = body
        # How many bytes were taken; never above the body's length.
        self._offset = 0

    @property
    def is_empty(self) -> bool:
        """Whether everything was taken."""
        return self._offset == len(self._body)

    def u8(self) -> int:
        """A number of one byte."""
        return self._number(_U8)

    def u16(self) -> int:
        """A number of two bytes."""
        return self._number(_U16)

    def u32(self) -> int:
        """A number of four bytes."""
        return self._number(_U32)

    def u64(self) -> int:
        """A number of eight bytes."""
        return self._number(_U64)

    def flag(self) -> bool:
        """A byte that is 0 or 1."""
        value = self.u8()
        if value > 1:
            raise LinkError(f"a flag has the value {value}")
        return value == 1

    def text(self) -> str:
        """A text, see `text`."""
        data = self._take(self.u16())
        try:
            return data.decode()
        except UnicodeDecodeError as malformed:
            raise LinkError(f"a text is not UTF-8: {malformed}") from malformed

    def blob(self) -> bytes:
        """Bytes, see `blob`."""
        return self._take(self.u32())

    def rest(self) -> bytes:
        """Everything that was not taken yet."""
        return self._take(len(self._body) - self._offset)

    def _number(self, layout: struct.Struct) -> int:
        end = self._offset + layout.size
        if end > len(self._body):
            raise LinkError(f"a body of {len(self._body)} bytes ends within a number")
        (value,) = layout.unpack_from(self._body, self._offset)
        self._offset = end
        return int(value)

    def _take(self, size: int) -> bytes:
        end = self._offset + size
        if end > len(self._body):
            raise LinkError(f"a field claims {size} bytes, but {len(self._body) - self._offset} are left")
        data = self._body[self._offset : end]
        self._offset = end
        return data
