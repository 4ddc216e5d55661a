import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewire.client.layout import Layout
from tidewire.client.message import NO_SEGMENT
from tidewire.protocol.errors import ProtocolViolation
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

TOPIC = "topic://public/default/x"


def dag(*segments: tuple[int, int, int, bool, tuple[int, ...]], legacy: str | None = None) -> pb.ScalableTopicDAG:
    made = pb.ScalableTopicDAG(epoch=3)
    for segment_id, start, end, active, parents in segments:
        made.segments.add(
            segment_id=segment_id,
            hash_start=start,
            hash_end=end,
            state=pb.SegmentState.ACTIVE if active else pb.SegmentState.SEALED,
            parent_ids=parents,
            created_at_epoch=0,
            created_at_ms=0,
            legacy_topic_name=legacy,
        )
    return made


@st.composite
def cuts(draw: st.DrawFn) -> list[tuple[int, int, int, bool, tuple[int, ...]]]:
    starts = sorted({0, *draw(st.lists(st.integers(1, 0xFFFF), max_size=20))})
    ends = [start - 1 for start in starts[1:]] + [0xFFFF]
    segments = [(index, start, end, True, ()) for index, (start, end) in enumerate(zip(starts, ends, strict=True))]
    return draw(st.permutations(segments))


@given(cuts(), st.integers(0, 0xFFFF))
def test_a_hash_belongs_to_the_segment_that_holds_it(
    segments: list[tuple[int, int, int, bool, tuple[int, ...]]], key_hash: int
) -> None:
    segment = Layout.of_dag(TOPIC, dag(*segments)).segment_of(key_hash)
    assert segment.hash_start <= key_hash <= segment.hash_end
    assert segment.topic == (
        f"segment://public/default/x/{segment.hash_start:04x}-{segment.hash_end:04x}-{segment.segment_id}"
    )


def test_sealed_segments_are_known_and_not_routed_to() -> None:
    layout = Layout.of_dag(
        TOPIC,
        dag((0, 0, 0xFFFF, False, ()), (1, 0, 0x7FFF, True, (0,)), (2, 0x8000, 0xFFFF, True, (0,))),
    )
    assert [segment.segment_id for segment in layout.active] == [1, 2]
    assert layout.segment_of(0x7FFF).segment_id == 1
    assert not layout.is_active(0)
    assert not layout.is_active(9)
    assert layout.segments[0].overlaps(layout.segments[2])
    assert not layout.segments[1].overlaps(layout.segments[2])


@pytest.mark.parametrize(
    "segments",
    [
        [],
        [(0, 0, 0xFFFE, True, ())],
        [(0, 1, 0xFFFF, True, ())],
        [(0, 0, 0x8000, True, ()), (1, 0x8000, 0xFFFF, True, ())],
        [(0, 0, 0x7FFE, True, ()), (1, 0x8000, 0xFFFF, True, ())],
        [(0, 0, 0xFFFF, False, ())],
    ],
)
def test_a_layout_with_a_gap_or_an_overlap_breaks_the_protocol(
    segments: list[tuple[int, int, int, bool, tuple[int, ...]]],
) -> None:
    with pytest.raises(ProtocolViolation):
        Layout.of_dag(TOPIC, dag(*segments))


def test_ancestors_are_found_at_any_distance() -> None:
    layout = Layout.of_dag(
        TOPIC,
        dag(
            (0, 0, 0xFFFF, False, ()),
            (1, 0, 0x7FFF, False, (0,)),
            (2, 0x8000, 0xFFFF, False, (0,)),
            (3, 0, 0xFFFF, True, (1, 2, 77)),
        ),
    )
    assert layout.ancestors([3]) == {0, 1, 2, 77}
    assert layout.ancestors([1]) == {0}
    assert layout.ancestors([0, 99]) == set()


def test_partitions_are_counted_off_and_a_plain_topic_takes_all() -> None:
    partitions = Layout.of_partitions("persistent://t/n/x", 3)
    assert [partitions.segment_of(key_hash).segment_id for key_hash in range(4)] == [0, 1, 2, 0]
    assert partitions.segments[2].topic == "persistent://t/n/x-partition-2"
    plain = Layout.of_partitions("persistent://t/n/x", 0)
    assert plain.segment_of(0xFFFF).topic == "persistent://t/n/x"
    assert list(plain.segments) == [NO_SEGMENT]


def test_an_older_topic_seen_as_scalable_keeps_its_name() -> None:
    layout = Layout.of_dag(TOPIC, dag((0, 0, 0xFFFF, True, ()), legacy="persistent://t/n/old"))
    assert layout.segment_of(17).topic == "persistent://t/n/old"
    assert layout.segment_of(17).is_legacy
