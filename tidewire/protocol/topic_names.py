"""Names of topics and of their parts, as brokers know them.

    topic://public/default/x                        a scalable topic
    segment://public/default/x/8000-ffff-1          its segment 1, which takes the keys with hashes 8000 to ffff
    persistent://public/default/y                   a regular topic
    persistent://public/default/y-partition-3       its partition 3, if it has partitions

The part's own name is `8000-ffff-1`, or `partition-3`.
"""

import re
from typing import Final

from tidewire.protocol.errors import InvalidName

SCALABLE: Final = "topic://"
PERSISTENT: Final = "persistent://"

NO_SEGMENT: Final = -1
"""The segment id of a topic that is neither scalable nor partitioned."""

_SEGMENT: Final = re.compile(r"([0-9a-f]{4})-([0-9a-f]{4})-\d+")


def is_scalable(topic: str) -> bool:
    """Whether the name is a scalable topic's; if not it is a `persistent://` one.

    Raises:
        InvalidName: it begins with neither.
    """
    if topic.startswith(SCALABLE):
        return True
    if topic.startswith(PERSISTENT):
        return False
    raise InvalidName(f"{topic!r} is not a topic name; give it as topic://TENANT/NAMESPACE/NAME or persistent://...")


def segment_name(first_hash: int, last_hash: int, segment_id: int) -> str:
    """The name of a segment within its scalable topic."""
    return f"{first_hash:04x}-{last_hash:04x}-{segment_id}"


def segment_topic(topic: str, name: str) -> str:
    """The name under which brokers know the segment of a scalable topic."""
    assert topic.startswith(SCALABLE), topic
    return f"segment://{topic.removeprefix(SCALABLE)}/{name}"


def partition_name(index: int) -> str:
    """The name of a partition within its topic."""
    return f"partition-{index}"


def partition_topic(topic: str, name: str) -> str:
    """The name under which brokers know the partition of a topic."""
    return f"{topic}-{name}"


def segment_id_of(name: str) -> int:
    """The id of the segment or partition of this name; NO_SEGMENT for the empty name."""
    return int(name.rpartition("-")[2]) if name else NO_SEGMENT


def hashes_of(name: str) -> tuple[int, int] | None:
    """The first and the last hash of the segment of this name; None for a partition and for the empty name."""
    found = _SEGMENT.fullmatch(name)
    return None if found is None else (int(found[1], 16), int(found[2], 16))
