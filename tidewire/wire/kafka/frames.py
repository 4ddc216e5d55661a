"""Requests in a stream of bytes, and the frame of a response.

    request  = [u32 size of all that follows][i16 api key][i16 version][i32 correlation id][i16 length][client id]
               [tagged fields, in flexible versions][body]
    response = [u32 size of all that follows][i32 correlation id][tagged fields, in flexible versions][body]

The response of ApiVersions has no tagged fields in its header, because a client may not know yet what the broker
speaks (KIP-511). A request whose version is not served still has the part up to the client id, so it can be refused.

The caller feeds the decoder what the network delivers, and asks for requests until there are none. What arrives of a
large request is kept as it is, and copied once when the request is complete.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from tidewire.wire.kafka.api_keys import ApiKey, is_flexible
from tidewire.wire.kafka.codec import Input
from tidewire.wire.kafka.errors import MalformedRequest, RequestTooLarge

_SIZE: Final = struct.Struct(">i")
_HEADER: Final = struct.Struct(">hhih")
_KIND: Final = struct.Struct(">h")
_KIND_END: Final = _SIZE.size + _KIND.size
_CORRELATION: Final = struct.Struct(">ii")
_NO_TAGGED_FIELDS: Final = b"\0"

LARGE_BYTES: Final = 64 * 1024
"""A request of this size is not collected in the buffer, which would copy it as it grows."""


class Request(NamedTuple):
    """One request, with its header read."""

    api_key: int
    """Its kind. It may be one that the broker does not know."""
    version: int
    correlation_id: int
    """The response repeats it."""
    client_id: str | None
    body: Input
    """The bytes behind the header."""

    @property
    def size(self) -> int:
        """Its bytes, with the header and without the four bytes of its size."""
        return len(self.body.data)


class RequestDecoder:
    """Divides a stream of bytes into requests. After an error, the stream has no next request."""

    __slots__ = ("_buffer", "_large", "_large_missing", "_large_size", "_produce_size_max", "_size_max", "_start")

    def __init__(self, size_max: int, produce_size_max: int = 0) -> None:
        """Begin. A request may have `size_max` bytes behind those of its size, and a Produce request may have more."""
        self._size_max = size_max
        self._produce_size_max = max(size_max, produce_size_max)
        self._buffer = bytearray()
        self._start = 0
        """Where the first request begins that was not handed out; 0 <= _start <= len(_buffer)."""
        self._large: list[bytes | memoryview] = []
        """What arrived of an unfinished large request, behind its size. The buffer is empty meanwhile."""
        self._large_size = 0
        self._large_missing = 0
        """Bytes that it still lacks. Not positive once it is complete."""

    @property
    def expected_bytes(self) -> int:
        """The size of the unfinished request, with its first four bytes; 0 while it is not known."""
        if self._large:
            return _SIZE.size + self._large_size
        if len(self._buffer) - self._start < _SIZE.size:
            return 0
        return _SIZE.size + int(_SIZE.unpack_from(self._buffer, self._start)[0])

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Add what arrived. Copies it unless it is bytes, so the caller may use its buffer again."""
        if self._large:
            self._large.append(bytes(data))
            self._large_missing -= len(data)
        else:
            self._buffer += data

    def clear(self) -> None:
        """Drop what was fed and not handed out. The stream has ended."""
        self._buffer = bytearray()
        self._start = 0
        self._large.clear()

    def next_request(self) -> Request | None:
        """The next request, or None if more bytes are needed for it.

        Raises:
            RequestTooLarge: it announces more bytes than the bound.
            MalformedRequest: it has no complete header.
        """
        if self._large:
            return self._next_large()
        buffer, start = self._buffer, self._start
        available = len(buffer) - start
        if available >= _SIZE.size:
            size = _SIZE.unpack_from(buffer, start)[0]
            if size > self._size_max:
                self._require_allowed(size, available)
                if available < _KIND_END:
                    return None
            if size < _HEADER.size:
                raise MalformedRequest(f"a request of {size} bytes is too short for its header")
            end = start + _SIZE.size + size
            if len(buffer) >= end:
                # With a view this is one copy. Slicing a bytearray would make two.
                data = bytes(memoryview(buffer)[start + _SIZE.size : end])
                self._start = end
                return read_header(data)
            if size >= LARGE_BYTES:
                self._large.append(bytes(memoryview(buffer)[start + _SIZE.size :]))
                self._large_size = size
                self._large_missing = end - len(buffer)
                start = len(buffer)
        if start:
            del buffer[:start]
            self._start = 0
        return None

    def _require_allowed(self, size: int, available: int) -> None:
        """Check a large request. While its kind has not arrived, it may be Produce."""
        bound = self._produce_size_max
        if available >= _KIND_END and _KIND.unpack_from(self._buffer, self._start + _SIZE.size)[0] != ApiKey.PRODUCE:
            bound = self._size_max
        if size > bound:
            raise RequestTooLarge(f"a request has {size} bytes; at most {bound} are allowed for its kind")

    def _next_large(self) -> Request | None:
        if self._large_missing > 0:
            return None
        last = memoryview(self._large.pop())
        end = len(last) + self._large_missing
        self._buffer += last[end:]
        data = b"".join((*self._large, last[:end]))
        self._large.clear()
        return read_header(data)


def read_header(data: bytes) -> Request:
    """Read the header of a request.

    Raises:
        MalformedRequest: a field of the header breaks a rule.
    """
    api_key, version, correlation_id, length = _HEADER.unpack_from(data)
    given = Input(data, _HEADER.size)
    client_id = None
    if length >= 0:
        try:
            client_id = str(given.take(length), "utf-8")
        except UnicodeDecodeError:
            raise MalformedRequest("a client id is not UTF-8") from None
    if is_flexible(api_key, version):
        for _ in range(given.count_elements(given.unsigned_varint())):
            given.unsigned_varint()
            given.take(given.unsigned_varint())
    return Request(api_key, version, correlation_id, client_id, given)


def response_pieces(request: Request, body: Sequence[bytes]) -> list[bytes]:
    """The bytes of a response: its size, its header, and the body that `codec.encoder` made."""
    has_tagged = is_flexible(request.api_key, request.version) and request.api_key != ApiKey.API_VERSIONS
    tagged = _NO_TAGGED_FIELDS if has_tagged else b""
    size = sum(map(len, body))
    head = _CORRELATION.pack(_CORRELATION.size - _SIZE.size + len(tagged) + size, request.correlation_id) + tagged
    # Most bodies are many pieces of a few bytes. One piece costs less from here on.
    return [b"".join((head, *body))] if size < LARGE_BYTES else [head, *body]
