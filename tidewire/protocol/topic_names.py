"""Names of topics, segments and partitions on the wire.

    topic://public/default/x                        a scalable topic
    segment://public/default/x/8000-ffff-1          its segment 1, which takes the keys with hashes 8000 to ffff
    persistent://public/default/y                   a regular topic
    persistent://public/default/y-partition-3       its partition 3, if it has partitions

Within its topic, a segment's name is `8000-ffff-1` and a partition's name is `partition-3`.
"""

import re
from typing import Final

from tidewire.protocol.errors import InvalidName

SCALABLE: Final = "topic://"
PERSISTENT: Final = "persistent://"

NO_SEGMENT: Final = -1
"""The segment id of a plain topic, which is neither scalable nor partitioned."""

_SEGMENT: Final = re.compile(r"([0-9a-f]{4})-([0-9a-f]{4})-\d+")


def is_scalable(topic: str) -> bool:
    """Return whether the name is a scalable topic's. If not, it is a `persistent://` topic's.

    Raises:
        InvalidName: the name has neither prefix.
    """
    if topic.startswith(SCALABLE):
        return True
    if topic.startswith(PERSISTENT):
        return False
    raise InvalidName(f"{topic!r} is not a topic name; give it as topic://TENANT/NAMESPACE/NAME or persistent://...")


def segment_name(first_hash: int, last_hash: int, segment_id: int) -> str:
    """Return the name of a segment within its scalable topic."""
    return f"{first_hash:04x}-{last_hash:04x}-{segment_id}"


def segment_topic(topic: str, name: str) -> str:
    """Return the wire name of a scalable topic's segment."""
    assert topic.startswith(SCALABLE), topic
    return f"segment://{topic.removeprefix(SCALABLE)}/{name}"


def partition_name(index: int) -> str:
    """Return the name of a partition within its topic."""
    return f"partition-{index}"


def partition_topic(topic: str, name: str) -> str:
    """Return the wire name of a topic's partition."""
    return f"{topic}-{name}"


def segment_id_of(name: str) -> int:
    """Return the id of the segment or partition with this name; NO_SEGMENT for the empty name."""
    return int(name.rpartition("-")[2]) if name else NO_SEGMENT


def hashes_of(name: str) -> tuple[int, int] | None:
    """Return the lowest and the highest hash of the segment with this name; None for any other name."""
    found = _SEGMENT.fullmatch(name)
    return None if found is None else (int(found[1], 16), int(found[2], 16))
