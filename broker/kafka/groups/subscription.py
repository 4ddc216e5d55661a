"""What a consumer tells its group: the topics that it reads; and what its leader assigns to it. Pure.

In every version of Kafka's consumer protocol, both begin with a version (int16) and an array. It has the topics
(strings), or the assigned topics, each with the numbers of its partitions (an array of int32).
"""

import struct
from collections.abc import Iterator
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


def partitions_in(assignment: bytes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the topics that a member is assigned partitions of, as far as these bytes say so."""
    try:
        (count,) = struct.unpack_from(">i", assignment, 2)
        position = 6
        # Each topic takes six bytes at least, so the bytes bound the loop.
        for _ in range(count):
            (length,) = struct.unpack_from(">H", assignment, position)
            (partitions,) = struct.unpack_from(">i", assignment, position + 2 + length)
            topic = assignment[position + 2 : position + 2 + length].decode()
            position += 6 + length
            if not 0 <= partitions <= (len(assignment) - position) // 4:
                return
            yield topic, struct.unpack_from(f">{partitions}i", assignment, position)
            position += 4 * partitions
    except (struct.error, UnicodeDecodeError):
        return
