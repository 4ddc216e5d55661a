"""What a consumer tells its group about itself: here, only the topics that it reads. Pure.

The bytes begin with a version (int16) and the topics (an array of strings), in every version of Kafka's consumer
protocol.
"""

import struct
from typing import Final

CONSUMER: Final = "consumer"
"""The protocol type of groups whose members say that."""


def topics_in(metadata: bytes) -> frozenset[str] | None:
    """Return the topics that a member reads; None if these bytes do not say so."""
    try:
        (count,) = struct.unpack_from(">i", metadata, 2)
        position = 6
        topics: list[str] = []
        # Each topic takes two bytes at least, so the bytes bound the loop.
        for _ in range(count):
            (length,) = struct.unpack_from(">H", metadata, position)
            position += 2
            if position + length > len(metadata):
                return None
            topics.append(metadata[position : position + length].decode())
            position += length
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)
