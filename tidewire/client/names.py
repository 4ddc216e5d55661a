"""The little the client has to know about names: whose kind they are. Everything else about them the broker checks."""

from typing import Final

from tidewire.protocol.errors import InvalidName

_SCALABLE: Final = "topic://"
_PERSISTENT: Final = "persistent://"


def is_scalable(topic: str) -> bool:
    """Whether the name is a scalable topic's; if not it is a `persistent://` one.

    Raises:
        InvalidName: it begins with neither.
    """
    if topic.startswith(_SCALABLE):
        return True
    if topic.startswith(_PERSISTENT):
        return False
    raise InvalidName(f"{topic!r} is no topic name; expected topic://TENANT/NAMESPACE/NAME or persistent://...")


def segment_topic(topic: str, hash_start: int, hash_end: int, segment_id: int) -> str:
    """The name of a scalable topic's segment: `segment://public/default/x/8000-ffff-1`."""
    assert topic.startswith(_SCALABLE), topic
    return f"segment://{topic.removeprefix(_SCALABLE)}/{hash_start:04x}-{hash_end:04x}-{segment_id}"


def partition_topic(topic: str, index: int) -> str:
    """The name of one partition of a partitioned topic."""
    return f"{topic}-partition-{index}"
