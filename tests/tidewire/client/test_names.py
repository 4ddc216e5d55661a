import pytest

from tidewire.client.names import is_scalable, partition_topic, segment_topic
from tidewire.protocol.errors import InvalidName


def test_the_two_kinds_of_topics_are_told_apart() -> None:
    assert is_scalable("topic://public/default/x")
    assert not is_scalable("persistent://public/default/x")
    for other in ("x", "segment://t/n/x/0000-ffff-0", "non-persistent://t/n/x", ""):
        with pytest.raises(InvalidName):
            is_scalable(other)


def test_segments_and_partitions_are_named_as_the_broker_names_them() -> None:
    assert segment_topic("topic://t/n/x", 0x8000, 0xFFFF, 12) == "segment://t/n/x/8000-ffff-12"
    assert partition_topic("persistent://t/n/x", 3) == "persistent://t/n/x-partition-3"
