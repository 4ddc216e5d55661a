"""Which protocol a client speaks, by its first bytes. Pure.

A client that was given the wrong port speaks another protocol there. Its first bytes are then a size of gigabytes or a
request of an unknown version, and an error about these misleads people. Each protocol's first bytes are distinct:

    TLS     16 03: a handshake record of version 3.x
    HTTP    a method, or a response's version; as a size, these four letters are more than a gigabyte
    Pulsar  [u32 size][u32 size - 4][08 02]: a frame that has only a CONNECT
    Kafka   [u32 size][00 12][00 version]: ApiVersions, the first request of every client since 2016 (KIP-35)
"""

import struct
from enum import StrEnum
from typing import Final

_TLS: Final = b"\x16\x03"
_HTTP: Final = frozenset((b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"PRI ", b"HTTP"))
_HTTP_BYTES: Final = 4

_PULSAR: Final = struct.Struct(">IIH")
_CONNECT: Final = 0x0802
"""The field of a command's type, and CONNECT's number."""

_KAFKA: Final = struct.Struct(">IHH")
_API_VERSIONS: Final = 18
_VERSIONS: Final = 16
"""More than ApiVersions has. A bound is needed, because as a Pulsar frame these bytes would be a large command."""
_KAFKA_BYTES_MAX: Final = 64 * 1024
"""More than a first request of Kafka's protocol has."""


class SpokenProtocol(StrEnum):
    """A protocol, by the name that people know."""

    PULSAR = "Pulsar"
    KAFKA = "Kafka"
    HTTP = "HTTP"
    TLS = "TLS"


def protocol_of(first: bytes | bytearray) -> SpokenProtocol | None:
    """Return the protocol of a stream that begins with these bytes; None if it is unknown or if more are needed.

    Four bytes tell TLS and HTTP, eight Kafka, and ten Pulsar.
    """
    if first.startswith(_TLS):
        return SpokenProtocol.TLS
    if bytes(first[:_HTTP_BYTES]) in _HTTP:
        return SpokenProtocol.HTTP
    if len(first) >= _KAFKA.size:
        size, api_key, version = _KAFKA.unpack_from(first)
        if api_key == _API_VERSIONS and version < _VERSIONS and size < _KAFKA_BYTES_MAX:
            return SpokenProtocol.KAFKA
    if len(first) >= _PULSAR.size:
        size, command_size, begin = _PULSAR.unpack_from(first)
        if begin == _CONNECT and command_size + 4 == size:
            return SpokenProtocol.PULSAR
    return None
