"""The layout's single moves, and arbitrary sequences of them."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import (
    FewerThanAsked,
    IntentGone,
    IntentOpen,
    NotActive,
    NotAdjacent,
    NotPrunable,
    SegmentCountInvalid,
    SubscriptionExists,
    SubscriptionNotFound,
    TooNarrow,
    UnknownSegment,
)
from broker.layouts.autoscale_policy import AutoScaleOverride
from broker.layouts.checks import wrong_in
from broker.layouts.layout import INITIAL_SEGMENTS_MAX, Layout, create
from broker.layouts.parts import (
    Child,
    HashRange,
    Intent,
    LayoutSubscription,
    Segment,
    SegmentState,
    StartPosition,
    SubscriptionKind,
)
from broker.layouts.record import from_json, to_json
from broker.names import HASH_MAX
from tests.support.layouts import NOW_MS, histories, layouts

STREAM = LayoutSubscription(SubscriptionKind.STREAM, "s-1", StartPosition.EARLIEST, NOW_MS)


def new(n: int = 1) -> Layout:
    return create(n, NOW_MS, creation_id="c-1")


def finished(layout: Layout, now_ms: int = NOW_MS + 1) -> Layout:
    assert layout.intent is not None
    return layout.replace_segments(layout.intent, now_ms).finish()


def active_ids(layout: Layout) -> list[int]:
    return [segment.id for segment in layout.active()]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 1000, INITIAL_SEGMENTS_MAX])
def test_a_new_topic_divides_the_hash_space_evenly(n: int) -> None:
    layout = new(n)
    widths = [segment.range.end - segment.range.start + 1 for segment in layout.active()]
    assert wrong_in(layout) == []
    assert active_ids(layout) == list(range(n))
    assert sum(widths) == HASH_MAX + 1
    assert max(widths) - min(widths) <= 1
    assert (layout.epoch, layout.next_segment_id) == (0, n)


@pytest.mark.parametrize("n", [-1, 0, INITIAL_SEGMENTS_MAX + 1])
def test_a_topic_begins_with_a_sensible_number_of_segments(n: int) -> None:
    with pytest.raises(SegmentCountInvalid, match=f"1 to {INITIAL_SEGMENTS_MAX}"):
        new(n)


def test_four_segments_have_the_ranges_that_pulsar_gives_them() -> None:
    descriptors = [str(segment.descriptor) for segment in new(4).active()]
    assert descriptors == ["0000-3fff-0", "4000-7fff-1", "8000-bfff-2", "c000-ffff-3"]


def test_beginning_a_split_changes_nothing_that_clients_see() -> None:
    before = new()
    opened = before.begin_split(0)
    assert opened.intent == Intent((0,), (Child(1, HashRange(0, 0x7FFF)), Child(2, HashRange(0x8000, HASH_MAX))))
    assert [str(child.descriptor) for child in opened.intent.children] == ["0000-7fff-1", "8000-ffff-2"]
    assert (opened.epoch, opened.segments) == (before.epoch, before.segments)
    assert opened.next_segment_id == 3


def test_finishing_a_split_seals_the_parent_and_opens_the_children_in_one_step() -> None:
    layout = finished(new().begin_split(0))
    assert layout.intent is None
    assert layout.epoch == 1
    assert layout.segments == {
        0: Segment(0, HashRange(0, HASH_MAX), SegmentState.SEALED, (), (1, 2), 0, NOW_MS, 1, NOW_MS + 1),
        1: Segment(1, HashRange(0, 0x7FFF), SegmentState.ACTIVE, (0,), (), 1, NOW_MS + 1),
        2: Segment(2, HashRange(0x8000, HASH_MAX), SegmentState.ACTIVE, (0,), (), 1, NOW_MS + 1),
    }
    assert wrong_in(layout) == []


@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1)])
def test_a_merge_joins_neighbours_given_in_either_order(first: int, second: int) -> None:
    layout = finished(new(4).begin_merge(first, second))
    assert wrong_in(layout) == []
    assert active_ids(layout) == [0, 4, 3]
    assert str(layout.segment(4).descriptor) == "4000-bfff-4"
    assert layout.segment(4).parents == (1, 2)
    assert layout.segment(1).children == layout.segment(2).children == (4,)


def test_neighbours_need_not_be_in_order_of_their_ids() -> None:
    # 0 is split into 2 and 3, so the range right of 3 belongs to the older segment 1.
    layout = finished(finished(new(2).begin_split(0)).begin_merge(3, 1))
    assert layout.segment(4).range == HashRange(0x4000, HASH_MAX)
    assert layout.segment(4).parents == (1, 3)
    assert wrong_in(layout) == []


def test_only_active_neighbours_merge() -> None:
    layout = finished(new(4).begin_split(0))
    with pytest.raises(NotAdjacent):
        layout.begin_merge(1, 3)
    with pytest.raises(NotAdjacent):
        layout.begin_merge(1, 1)
    with pytest.raises(NotActive):
        layout.begin_merge(0, 1)
    with pytest.raises(UnknownSegment):
        layout.begin_merge(1, 99)


def test_no_merge_leaves_fewer_segments_than_asked_unless_told_to() -> None:
    """D10: the floor is part of the record, so it holds after a restart and at another controller."""
    layout = from_json(to_json(create(4, NOW_MS, creation_id="c", segments_min=4)))
    with pytest.raises(FewerThanAsked, match="leave 3 active segments, and the topic is to have at least 4"):
        layout.begin_merge(0, 1, allow_fewer=False)
    more = finished(layout.begin_split(0))
    assert len(finished(more.begin_merge(1, 2, allow_fewer=False)).active()) == 4
    fewer = finished(layout.begin_merge(0, 1, allow_fewer=True))
    assert fewer.floor == 4
    told = layout.with_auto_scale(AutoScaleOverride(min_segments=3))
    assert len(finished(told.begin_merge(0, 1, allow_fewer=False)).active()) == 3


def test_a_topic_of_an_earlier_release_has_no_floor() -> None:
    record = orjson.loads(to_json(create(2, NOW_MS, creation_id="c", segments_min=2)))
    del record["segmentsMin"]
    assert from_json(orjson.dumps(record)).floor == 1


def test_only_an_active_segment_splits() -> None:
    layout = finished(new().begin_split(0))
    with pytest.raises(NotActive, match="Segment 0 is SEALED"):
        layout.begin_split(0)
    with pytest.raises(UnknownSegment, match="no segment 7"):
        layout.begin_split(7)


def test_a_segment_splits_down_to_a_single_hash_and_no_further() -> None:
    layout = new()
    for _ in range(16):
        layout = finished(layout.begin_split(layout.active()[0].id))
    narrowest = layout.active()[0]
    assert narrowest.range == HashRange(0, 0)
    with pytest.raises(TooNarrow, match="single hash 0000"):
        layout.begin_split(narrowest.id)
    assert wrong_in(layout) == []


def test_one_intent_at_a_time() -> None:
    opened = new(2).begin_split(0)
    with pytest.raises(IntentOpen):
        opened.begin_split(1)
    with pytest.raises(IntentOpen):
        opened.begin_merge(0, 1)


def test_once_its_segments_are_replaced_an_intent_only_rolls_forward() -> None:
    """D10: clients may have written to the children."""
    opened = new().begin_split(0)
    assert opened.intent is not None
    replaced = opened.replace_segments(opened.intent, NOW_MS)
    assert wrong_in(replaced) == []
    assert (replaced.epoch, active_ids(replaced)) == (1, [1, 2])
    assert replaced.replace_segments(opened.intent, NOW_MS + 1) == replaced
    with pytest.raises(IntentOpen):
        replaced.begin_split(1)
    assert replaced.finish() == replace(replaced, intent=None)


def test_an_intent_is_not_closed_before_its_segments_are_replaced() -> None:
    """D10: otherwise the parents would be sealed without replacement."""
    with pytest.raises(IntentGone, match="not replaced"):
        new().begin_split(0).finish()


def test_only_the_open_intent_is_carried_on() -> None:
    """D10: a controller that was away meanwhile has prepared another intent."""
    first = new().begin_split(0)
    assert first.intent is not None
    second = finished(first).begin_split(1)
    with pytest.raises(IntentGone, match="so it cannot continue here"):
        second.replace_segments(first.intent, NOW_MS)
    with pytest.raises(IntentGone, match="No split or merge"):
        new().replace_segments(first.intent, NOW_MS)


def test_a_later_layout_says_whether_an_earlier_intent_is_finished() -> None:
    """D10: a controller that was away meanwhile asks. Nothing is known of it from another topic of the same name."""
    first = new().begin_split(0)
    assert first.intent is not None
    second = finished(first).begin_split(1)
    assert not first.has_finished(first)
    assert not first.replace_segments(first.intent, NOW_MS).has_finished(first)
    assert finished(first).has_finished(first)
    assert second.has_finished(first)
    assert not second.has_finished(second)
    assert not replace(second, creation_id="another").has_finished(first)


def test_without_an_intent_there_is_nothing_to_end() -> None:
    with pytest.raises(IntentGone):
        new().finish()


def test_a_subscription_may_be_created_while_a_split_is_under_way() -> None:
    """D10: the finished layout contains it."""
    opened = new().begin_split(0).add_subscription("s", STREAM)
    assert finished(opened).subscriptions == {"s": STREAM}


def test_subscriptions_come_and_go_by_name() -> None:
    layout = new().add_subscription("s", STREAM)
    with pytest.raises(SubscriptionExists):
        layout.add_subscription("s", replace(STREAM, kind=SubscriptionKind.QUEUE))
    assert layout.remove_subscription("s") == new()
    with pytest.raises(SubscriptionNotFound):
        new().remove_subscription("s")


def test_a_subscription_is_confirmed_once_and_only_if_it_is_there() -> None:
    """D10: the mark is removed when every segment has its cursor; nothing else in the layout changes."""
    marked = new().add_subscription("s", replace(STREAM, is_creating=True))
    assert marked.living_subscriptions() == {"s"}, "splits give their children its cursors already"
    confirmed = marked.confirm_subscription("s")
    assert confirmed == new().add_subscription("s", STREAM)
    assert confirmed.confirm_subscription("s") is confirmed
    assert confirmed.confirm_subscription("other") is confirmed


def test_pruning_forgets_a_sealed_root_and_frees_its_children() -> None:
    layout = finished(new(2).begin_merge(0, 1))
    once = layout.prune(0)
    assert once.segment(2).parents == (1,)
    assert once.epoch == layout.epoch + 1
    twice = once.prune(1)
    assert list(twice.segments) == [2]
    assert twice.segment(2).parents == ()
    assert wrong_in(once) == wrong_in(twice) == []
    with pytest.raises(UnknownSegment):
        twice.prune(0)


def test_ancestors_are_pruned_first_and_active_segments_never() -> None:
    layout = finished(finished(new().begin_split(0)).begin_split(1))
    with pytest.raises(NotPrunable, match=r"parents \[0\]"):
        layout.prune(1)
    with pytest.raises(NotPrunable, match="ACTIVE"):
        layout.prune(2)
    assert wrong_in(layout.prune(0).prune(1)) == []


def test_pruning_goes_on_while_a_split_is_under_way() -> None:
    layout = finished(new().begin_split(0)).begin_split(1).prune(0)
    assert wrong_in(layout) == wrong_in(finished(layout)) == []


def change(layout: Layout, segment_id: int, **fields: object) -> Layout:
    segment = replace(layout.segment(segment_id), **fields)  # type: ignore[arg-type]
    return replace(layout, segments={**layout.segments, segment_id: segment})


def with_ids_turned_round(segments: Mapping[int, Segment]) -> dict[int, Segment]:
    def turned(ids: Iterable[int]) -> tuple[int, ...]:
        return tuple(2 - number for number in ids)

    return {
        2 - s.id: replace(s, id=2 - s.id, parents=turned(s.parents), children=turned(s.children))
        for s in segments.values()
    }


SPLIT = finished(new().begin_split(0))


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (change(SPLIT, 1, range=HashRange(0, 0x7FFE)), "do not divide"),
        (change(SPLIT, 1, range=HashRange(0, 0x8000)), "do not divide"),
        (change(SPLIT, 2, range=HashRange(0x8000, HASH_MAX + 1)), "do not divide"),
        (change(new(2), 0, range=HashRange(0x9000, 0x7FFF)), "do not divide"),
        (replace(new(), segments={}), "do not divide"),
        (change(SPLIT, 1, parents=()), "its child 1 does not list it"),
        (change(SPLIT, 0, children=(1,)), "its parent 0 does not list it"),
        (change(SPLIT, 0, children=(1, 2, 9)), "its child 9 does not list it"),
        (change(SPLIT, 0, children=()), "must have children"),
        (change(SPLIT, 0, sealed_at_ms=None), "must have a sealing time"),
        (change(SPLIT, 0, sealed_at_epoch=0), "epochs do not rise"),
        (change(SPLIT, 2, created_at_epoch=5), "epochs do not rise"),
        (change(new(), 0, children=(0,)), "must have children"),
        (replace(SPLIT, next_segment_id=2), "never allocated"),
        (replace(new(), segments={3: new().segment(0)}), "key 3 holds segment 0"),
        (replace(SPLIT, segments=with_ids_turned_round(SPLIT.segments)), "is younger"),
        (replace(SPLIT, intent=Intent((0,), ()), next_segment_id=9), "not all ACTIVE"),
        (replace(SPLIT, intent=Intent((), ())), "do not exist"),
        (replace(SPLIT, intent=Intent((0,), (), sealing=True)), "did not replace its parents"),
        (replace(SPLIT, intent=Intent((1,), (Child(2, HashRange(0, 0x7FFF)),))), "not reserved"),
        (replace(SPLIT, intent=Intent((1,), (Child(3, HashRange(0, 0x7FFF)),))), "not reserved"),
        (replace(SPLIT.begin_split(1), intent=Intent((1,), (Child(3, HashRange(0, 5)),))), "do not cover"),
    ],
)
def test_each_invariant_is_seen_broken(broken: Layout, says: str) -> None:
    assert says in "; ".join(wrong_in(broken))


@given(histories())
def test_no_sequence_of_moves_breaks_an_invariant(steps: list[Layout]) -> None:
    """D10: another controller can continue from every state that a controller can leave."""
    assert [wrong_in(layout) for layout in steps] == [[]] * len(steps)


@given(histories())
def test_epochs_and_ids_only_rise_and_no_id_is_given_out_twice(steps: list[Layout]) -> None:
    """D10: otherwise a segment would get the remains of another one."""
    given_out: set[int] = set(steps[0].segments)
    for before, after in pairwise(steps):
        assert after.epoch >= before.epoch
        assert after.next_segment_id >= before.next_segment_id
        if before.intent is None and after.intent is not None:
            ids = {child.id for child in after.intent.children}
            assert ids.isdisjoint(given_out)
            given_out |= ids
        assert after.segments.keys() <= given_out


@given(histories())
def test_the_epoch_tells_exactly_when_clients_see_another_layout(steps: list[Layout]) -> None:
    for before, after in pairwise(steps):
        assert (after.epoch != before.epoch) == (after.segments != before.segments)


@given(layouts(), st.integers(0, HASH_MAX))
def test_every_hash_always_has_one_home(layout: Layout, key_hash: int) -> None:
    homes = [s for s in layout.segments.values() if s.is_active and s.range.start <= key_hash <= s.range.end]
    assert len(homes) == 1
