"""CRC32C: the sender of a message computes it over metadata and body, and every receiver may verify it.

The broker verifies a payload once, when it arrives. It then stores and sends those bytes unchanged. So the sender's own
checksum protects a message from producer to consumer.
"""

from typing import Final

import google_crc32c

from tidewire.wire.pulsar.errors import ChecksumMismatch, MalformedMessage

CHECKSUM_MAGIC: Final = b"\x0e\x01"
"""Stands in front of a checksum: `[0x0e01][u32 crc32c of all that follows]`."""

BROKER_METADATA_MAGIC: Final = b"\x0e\x02"
"""Stands in front of metadata that a broker added, outside the checksum: `[0x0e02][u32 size][BrokerEntryMetadata]`."""

_MAGIC_SIZE: Final = 2
_U32_SIZE: Final = 4


def crc32c(data: bytes) -> int:
    """The CRC32C (Castagnoli) of the bytes, unsigned."""
    return int(google_crc32c.value(data))


def checksum_start(payload: bytes | memoryview) -> int:
    """Where the checksum's magic would begin: at 0, or behind the metadata that a broker put in front of it.

    Raises:
        MalformedMessage: the broker's metadata would reach beyond the payload.
    """
    if payload[:_MAGIC_SIZE] != BROKER_METADATA_MAGIC:
        return 0
    size_end = _MAGIC_SIZE + _U32_SIZE
    end = size_end + int.from_bytes(payload[_MAGIC_SIZE:size_end], "big")
    if len(payload) < end or len(payload) < size_end:
        raise MalformedMessage("the broker's metadata reach beyond the payload")
    return end


def verify_payload(payload: bytes) -> None:
    """Verify a payload against its checksum. A payload without a checksum passes.

    Raises:
        ChecksumMismatch: they differ.
        MalformedMessage: the payload ends before its checksum does.
    """
    start = checksum_start(payload)
    if payload[start : start + _MAGIC_SIZE] != CHECKSUM_MAGIC:
        return
    checksum_end = start + _MAGIC_SIZE + _U32_SIZE
    if len(payload) < checksum_end:
        raise MalformedMessage("the payload ends within its checksum")
    claimed = int.from_bytes(payload[start + _MAGIC_SIZE : checksum_end], "big")
    computed = crc32c(payload[checksum_end:])
    if computed != claimed:
        raise ChecksumMismatch(f"the payload's crc32c is {computed:08x}, its sender computed {claimed:08x}")
