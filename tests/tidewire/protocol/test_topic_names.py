import pytest

from tidewire.protocol.errors import InvalidName
from tidewire.protocol.topic_names import (
    NO_SEGMENT,
    hashes_of,
    is_scalable,
    partition_name,
    partition_topic,
    segment_id_of,
    segment_name,
    segment_topic,
)


def test_the_two_kinds_of_topics_are_told_apart() -> None:
    assert is_scalable("topic://public/default/x")
    assert not is_scalable("persistent://public/default/x")
    for other in ("x", "segment://t/n/x/0000-ffff-0", "non-persistent://t/n/x", ""):
        with pytest.raises(InvalidName):
            is_scalable(other)


def test_segments_and_partitions_are_named_as_the_broker_names_them() -> None:
    name = segment_name(0x8000, 0xFFFF, 12)
    assert segment_topic("topic://t/n/x", name) == "segment://t/n/x/8000-ffff-12"
    assert partition_topic("persistent://t/n/x", partition_name(3)) == "persistent://t/n/x-partition-3"


def test_the_id_of_a_part_is_in_its_name() -> None:
    names = (segment_name(0, 0x7FFF, 12), partition_name(3), "")
    assert [segment_id_of(name) for name in names] == [12, 3, NO_SEGMENT]


@pytest.mark.parametrize(
    ("name", "hashes"),
    [("0000-7fff-12", (0, 0x7FFF)), ("partition-3", None), ("", None), ("0000-7FFF-12", None), ("0000-7fff-12 ", None)],
)
def test_the_hashes_of_a_segment_are_in_its_name(name: str, hashes: tuple[int, int] | None) -> None:
    assert hashes_of(name) == hashes
