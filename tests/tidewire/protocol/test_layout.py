import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewire.protocol.errors import ProtocolViolation
from tidewire.protocol.layout import Layout, Segment, Succession, ancestors, due
from tidewire.protocol.topic_names import NO_SEGMENT
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
    assert segment.hashes is not None
    first, last = segment.hashes
    assert first <= key_hash <= last
    assert segment.wire_name == f"segment://public/default/x/{first:04x}-{last:04x}-{segment.segment_id}"


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
    assert ancestors([3], layout.segments) == {0, 1, 2, 77}
    assert ancestors([1], layout.segments) == {0}
    assert ancestors([0, 99], layout.segments) == set()


def test_partitions_are_counted_off_and_a_plain_topic_takes_all() -> None:
    partitions = Layout.of_partitions("persistent://t/n/x", 3)
    assert [partitions.segment_of(key_hash).segment_id for key_hash in range(4)] == [0, 1, 2, 0]
    assert partitions.segments[2].wire_name == "persistent://t/n/x-partition-2"
    plain = Layout.of_partitions("persistent://t/n/x", 0)
    assert plain.segment_of(0xFFFF).wire_name == "persistent://t/n/x"
    assert list(plain.segments) == [NO_SEGMENT]
    # Only what a client finds through a scalable topic is to be managed by that.
    assert not any(one.is_legacy for layout in (partitions, plain) for one in layout.active)


def test_an_older_topic_seen_as_scalable_keeps_its_name() -> None:
    layout = Layout.of_dag(TOPIC, dag((0, 0, 0xFFFF, True, ()), legacy="persistent://t/n/old"))
    assert layout.segment_of(17).wire_name == "persistent://t/n/old"
    assert layout.segment_of(17).is_legacy


def test_a_topic_may_resolve_to_another_scalable_one_and_to_nothing_else() -> None:
    update = pb.CommandScalableTopicUpdate(session_id=1, dag=dag((0, 0, 0xFFFF, True, ())))
    assert Layout.of_update(TOPIC, update).segments[0].topic == TOPIC
    update.resolved_topic_name = "topic://public/default/other"
    assert Layout.of_update(TOPIC, update).segments[0].wire_name == "segment://public/default/other/0000-ffff-0"
    update.resolved_topic_name = "persistent://public/default/x"
    assert Layout.of_update(TOPIC, update).segments[0].topic == TOPIC


# ---------------------------------------------------------------------------------------------------- whose turn it is


def related(parents: dict[int, tuple[int, ...]]) -> dict[int, Segment]:
    return {own: Segment(TOPIC, str(own), str(own), own, above) for own, above in parents.items()}


def test_due_are_segments_whose_parents_are_read_or_gone() -> None:
    segments = related({0: (), 1: (0,), 2: (0,), 3: (1, 2), 4: (77,)})
    assert due({0, 1, 2, 3, 4}, segments) == [0, 4]
    assert due({1, 2, 3, 4}, segments) == [1, 2, 4]
    assert due({2, 3, 4}, segments) == [2, 4]
    assert due({3}, segments) == [3]
    # Also when only something further up is unread.
    assert due({0, 3}, segments) == [0]


@st.composite
def histories(draw: st.DrawFn) -> list[Layout]:
    """Draw the layouts of one topic, through splits, merges and prunes."""
    now_ms = draw(st.integers(0, 3))
    segments = {0: Segment(TOPIC, None, "", 0, (), (0, 0xFFFF), created_ms=now_ms)}
    layouts = [Layout(0, segments)]
    next_id = 1
    for epoch in range(1, draw(st.integers(1, 12))):
        segments = dict(layouts[-1].segments)
        now_ms += draw(st.integers(1, 3))
        active = layouts[-1].active
        roots = [one for one in segments.values() if not one.is_active and not one.parent_ids]
        what = draw(st.sampled_from(["split", "merge", "prune"]))
        if what == "prune" and roots:
            gone = draw(st.sampled_from(roots)).segment_id
            del segments[gone]
            for one in segments.values():
                kept = tuple(parent for parent in one.parent_ids if parent != gone)
                segments[one.segment_id] = one._replace(parent_ids=kept)
        else:
            place = draw(st.integers(0, len(active) - 1))
            parents = active[place : place + 2] if what == "merge" else active[place : place + 1]
            (first, _), (_, last) = parents[0].hashes or (0, 0), parents[-1].hashes or (0, 0)
            middle = (first + last) // 2
            ranges = [(first, last)] if what == "merge" else [(first, middle), (middle + 1, last)]
            for parent in parents:
                segments[parent.segment_id] = parent._replace(is_active=False)
            above = tuple(parent.segment_id for parent in parents)
            for hashes in ranges:
                segments[next_id] = Segment(TOPIC, None, "", next_id, above, hashes, created_ms=now_ms)
                next_id += 1
        layouts.append(Layout(epoch, segments))
        layouts[-1].check()
    return layouts


@given(histories(), st.data())
def test_every_segment_is_read_once_and_after_all_its_ancestors(layouts: list[Layout], data: st.DataObject) -> None:
    segments = layouts[-1].segments
    begun: list[int] = []
    running: set[int] = set()
    finished: set[int] = set()
    while True:
        for segment_id in due(segments.keys() - finished, segments):
            if segment_id not in running:
                assert ancestors([segment_id], segments) <= finished
                begun.append(segment_id)
                running.add(segment_id)
        endable = sorted(one for one in running if not segments[one].is_active)
        if not endable:
            break
        ended = data.draw(st.sampled_from(endable))
        running.discard(ended)
        finished.add(ended)
    assert sorted(begun) == sorted(segments)


@given(histories(), st.sets(st.integers(0, 20)))
def test_due_is_what_has_no_unread_ancestor(layouts: list[Layout], unread: set[int]) -> None:
    segments = layouts[-1].segments
    unread &= segments.keys()
    assert due(unread, segments) == [one for one in sorted(unread) if ancestors([one], segments).isdisjoint(unread)]


# --------------------------------------------------------------------------------------------- which layout is newer


@given(histories(), st.data())
def test_layouts_of_one_topic_follow_each_other_by_their_epochs(layouts: list[Layout], data: st.DataObject) -> None:
    known, pushed = data.draw(st.sampled_from(layouts)), data.draw(st.sampled_from(layouts))
    expected = Succession.NEWER if pushed.epoch >= known.epoch else Succession.STALE
    assert pushed.succession(known) is expected


@given(histories(), histories())
def test_a_topic_that_was_deleted_and_created_again_is_another_one(before: list[Layout], again: list[Layout]) -> None:
    """With any epochs, all segments of the second topic are younger."""
    known = before[-1]
    pushed = again[-1]
    later = {own: one._replace(created_ms=one.created_ms + 1000) for own, one in pushed.segments.items()}
    both = known.segments.keys() & later.keys()
    # With more splits than the first one had, and its first segments gone, it could as well be a later layout of that.
    if both or pushed.epoch < known.epoch or min(later) < max(known.segments):
        assert Layout(pushed.epoch, later).succession(known) is Succession.OTHER_TOPIC


def test_the_first_layout_follows_none() -> None:
    assert Layout.of_dag(TOPIC, dag((0, 0, 0xFFFF, True, ()))).succession(Layout(0, {})) is Succession.NEWER
