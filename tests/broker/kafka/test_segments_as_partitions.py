"""Which partitions a layout makes, and where a group begins on them. Both are pure."""

import hypothesis.strategies as st
from hypothesis import given

from broker.kafka.scalable_topics import log_of, partition_count, read_from_start
from broker.layouts.layout import Layout, create
from tests.support.rooms import TOPIC


def split(layout: Layout, segment_id: int) -> Layout:
    """Split a segment, and finish."""
    begun = layout.begin_split(segment_id)
    assert begun.intent is not None
    return begun.replace_segments(begun.intent, 0).finish()


def merge(layout: Layout, first: int, second: int) -> Layout:
    """Merge two segments, and finish."""
    begun = layout.begin_merge(first, second)
    assert begun.intent is not None
    return begun.replace_segments(begun.intent, 0).finish()


TREE = merge(split(split(create(1, 0, creation_id="c"), 0), 1), 2, 4)
"""0 -> 1, 2; 1 -> 3, 4; 2 and 4 -> 5."""


def test_children_count_when_they_are_in_effect() -> None:
    """K41: the number never goes back, whatever becomes of a split that is under way."""
    layout = split(create(2, 0, creation_id="c"), 0)
    assert partition_count(layout) == 4
    begun = layout.begin_split(1)
    assert partition_count(begun) == 4
    assert begun.intent is not None
    assert partition_count(begun.replace_segments(begun.intent, 0)) == 6


def test_a_pruned_segment_keeps_its_number() -> None:
    """K41: whether its data is removed already, or not."""
    pruned = TREE.prune(0)
    for layout in (pruned, pruned.forget(0)):
        assert partition_count(layout) == 6
        assert log_of(TOPIC, layout, 0) is None
        assert log_of(TOPIC, layout, 5) == TOPIC.segment_name(layout.segments[5].descriptor)


def test_a_group_reads_descendants_of_what_it_committed_on() -> None:
    """K41: 0 alone has no ancestor."""
    every = range(6)
    assert read_from_start(TREE, every, set(), None) == []
    assert read_from_start(TREE, every, {0}, None) == [1, 2, 3, 4, 5]
    assert read_from_start(TREE, [3, 4, 5, 9], {1}, None) == [3, 4, 5]
    assert read_from_start(TREE, [0, 1, 3, 4, 5], {2}, None) == [5]


def test_whoever_read_a_pruned_segment_misses_nothing() -> None:
    """K41: nobody knows its children any more. So each later segment counts."""
    pruned = TREE.prune(0).forget(0).prune(1).forget(1)
    assert read_from_start(pruned, [2, 3, 4, 5], {1}, None) == [2, 3, 4, 5]
    assert read_from_start(pruned, [2, 3, 4, 5], {0}, None) == [2, 3, 4, 5]
    assert read_from_start(pruned, [2, 3, 4, 5], set(), None) == []


def test_a_group_reads_what_it_did_not_see_when_it_began() -> None:
    """K41: a first segment never counts, because it is as old as the topic."""
    assert read_from_start(TREE, range(6), set(), 3) == [3, 4, 5]
    assert read_from_start(TREE, range(6), set(), 0) == [1, 2, 3, 4, 5]
    assert read_from_start(TREE, range(6), set(), 6) == []


@given(st.lists(st.integers(0, 20), max_size=12), st.sets(st.integers(0, 30), max_size=5))
def test_after_any_splits_each_child_of_a_read_segment_is_read(splits: list[int], committed: set[int]) -> None:
    """K41: also with ancestors pruned in between."""
    layout = create(3, 0, creation_id="c")
    for choice in splits:
        active = layout.active()
        chosen = active[choice % len(active)]
        layout = split(layout, chosen.id)
    children = {segment.id: segment.parents for segment in layout.segments.values()}
    found = set(read_from_start(layout, range(partition_count(layout)), committed, None))
    assert {0, 1, 2}.isdisjoint(found)
    for child, parents in children.items():
        if parents and not {*parents}.isdisjoint(committed | found):
            assert child in found
    before = found - committed
    for root in (0, 1, 2):
        if not layout.segments[root].is_active:
            layout = layout.prune(root).forget(root)
    assert before & layout.segments.keys() <= set(read_from_start(layout, layout.segments, committed, None))
