"""The decision to split or merge: a table of situations, and the rules for all situations."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.layouts.autoscale_policy import AutoScalePolicy
from broker.layouts.layout import Layout, create
from broker.scalable.autoscale import (
    REPORTS_MAX,
    Decision,
    Merge,
    SegmentLoad,
    Situation,
    Split,
    decide,
    next_look_ms,
    with_report,
)
from tests.support.layouts import layouts

CREATED = 1_000_000
MINUTE = 60_000
NOW = CREATED + 60 * MINUTE


def load(
    *,
    msg_rate_in: float = 0,
    bytes_rate_in: float = 0,
    msg_rate_out: float = 0,
    bytes_rate_out: float = 0,
    since_ms: int = CREATED,
) -> SegmentLoad:
    return SegmentLoad(msg_rate_in, bytes_rate_in, msg_rate_out, bytes_rate_out, since_ms)


def situation(
    layout: Layout | int,
    loads: Mapping[int, SegmentLoad] | None = None,
    consumers: Mapping[str, int] | None = None,
    **policy: float,
) -> Situation:
    if isinstance(layout, int):
        layout = create(layout, CREATED, creation_id="c")
    reports = {segment_id: (load,) for segment_id, load in (loads or {}).items()}
    return Situation(layout, reports, consumers or {}, replace(AutoScalePolicy(), **policy), CREATED)  # type: ignore[arg-type]


def split(layout: Layout, segment_id: int, now_ms: int = CREATED) -> Layout:
    layout = layout.begin_split(segment_id)
    assert layout.intent is not None
    return layout.replace_segments(layout.intent, now_ms).finish()


def merge(layout: Layout, first: int, second: int, now_ms: int = CREATED) -> Layout:
    layout = layout.begin_merge(first, second)
    assert layout.intent is not None
    return layout.replace_segments(layout.intent, now_ms).finish()


FOUR = create(4, CREATED, creation_id="c")
NARROW = create(2, CREATED, creation_id="c")
for _ in range(15):
    NARROW = split(NARROW, min(segment.id for segment in NARROW.active() if segment.range.start == 0))
COLD = {0: load(), 1: load(), 2: load(), 3: load()}
MERGED = merge(FOUR, 0, 1)
HOT = load(msg_rate_in=10_001)
IN = "messages in is above its threshold"
HALF = {0: load(msg_rate_in=9), 1: load(msg_rate_in=9)}
RECENT = NOW - 299_999


@pytest.mark.parametrize(
    ("given_situation", "expected"),
    [
        # Nothing to do.
        (situation(1), None),
        (situation(4), None),
        (situation(1, {0: load(msg_rate_in=10_000)}), None),
        # By load: each rate, the furthest above, bounds.
        (situation(1, {0: load(msg_rate_in=10_001)}), Split(0, IN)),
        (situation(1, {0: load(bytes_rate_in=50_000_001)}), Split(0, "bytes in is above its threshold")),
        (situation(1, {0: load(msg_rate_out=50_001)}), Split(0, "messages out is above its threshold")),
        (situation(1, {0: load(bytes_rate_out=250_000_001)}), Split(0, "bytes out is above its threshold")),
        (
            situation(2, {0: load(msg_rate_in=11_000), 1: load(msg_rate_out=60_000)}),
            Split(1, "messages out is above its threshold"),
        ),
        (
            situation(2, {0: HOT, 1: HOT}),
            Split(0, IN),
        ),
        (situation(2, {0: HOT}, max_segments=2), None),
        (situation(1, {0: HOT}, enabled=False), None),
        (situation(1, {0: load(msg_rate_in=6)}, split_msg_rate_in=5), Split(0, IN)),
        (situation(FOUR.begin_split(0), {1: HOT}), None),
        # A segment of a single hash stays as it is, however hot.
        (situation(NARROW, {NARROW.active()[0].id: HOT}, min_segments=17), None),
        # The cool-down of splits, and that merges do not have to do with it.
        (situation(split(FOUR, 0, NOW - 59_999), {1: HOT}, min_segments=5), None),
        (
            situation(split(FOUR, 0, NOW - 60_000), {1: HOT}),
            Split(1, IN),
        ),
        (
            situation(merge(FOUR, 0, 1, NOW), {2: HOT}),
            Split(2, IN),
        ),
        # By consumers: the busiest, else the widest segment; the most of any subscription counts.
        (situation(2, consumers={"s": 3}), Split(0, "more consumers than segments")),
        (situation(2, {1: load(msg_rate_in=1)}, {"s": 3}), Split(1, "more consumers than segments")),
        (situation(MERGED, consumers={"s": 4}), Split(4, "more consumers than segments")),
        (situation(2, consumers={"s": 2, "t": 2}), None),
        (situation(2, consumers={"s": 3}, max_segments=2), None),
        (situation(split(FOUR, 0, NOW), consumers={"s": 9}), None),
        # Merges: both cold for the window, the coldest pair, bounds.
        (situation(4, COLD), Merge(0, 1)),
        (situation(4, {**COLD, 0: load(msg_rate_in=1)}), Merge(1, 2)),
        (situation(4, {2: load()}), Merge(0, 1)),
        (situation(4, {**COLD, 0: load(since_ms=RECENT), 1: load(since_ms=RECENT)}), Merge(2, 3)),
        (situation(2, {0: load(since_ms=RECENT), 1: load()}), None),
        (situation(2, {0: load(since_ms=RECENT - 1), 1: load()}), Merge(0, 1)),
        (situation(2, {0: load(msg_rate_in=1_000), 1: load()}), None),
        (situation(2, {0: load(bytes_rate_in=5_000_000), 1: load()}), None),
        (situation(2, {0: load(msg_rate_out=5_000), 1: load()}), None),
        (situation(2, {0: load(bytes_rate_out=25_000_000), 1: load()}), None),
        (situation(4, COLD, min_segments=4), None),
        (situation(4, COLD, {"s": 4}), None),
        (situation(4, COLD, {"s": 3}), Merge(0, 1)),
        (situation(MERGED, {2: load(), 3: load(), 4: load()}, max_dag_depth=1), Merge(2, 3)),
        (situation(MERGED, {2: load(), 3: load(), 4: load()}, max_dag_depth=0), None),
        (situation(merge(FOUR, 0, 1, NOW - 299_999), {2: load(), 3: load()}), None),
        (situation(merge(FOUR, 0, 1, NOW - 300_000), {2: load(), 3: load()}), Merge(4, 2)),
        # Two that are cold each, but would be hot together.
        (situation(2, HALF, split_msg_rate_in=10, merge_msg_rate_in=9.5), None),
        # A report that is older than the segment is about another one.
        (situation(split(FOUR, 0, RECENT), {4: load(), 5: load()}), Merge(1, 2)),
        # A split comes first.
        (situation(4, {**COLD, 3: HOT}), Split(3, IN)),
    ],
)
def test_the_decision(given_situation: Situation, expected: Decision) -> None:
    assert decide(given_situation, NOW) == expected


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        # In minutes before now: below the threshold for the whole window, however it moves.
        ({9: 2_000, 6: 10, 4: 900, 1: 10}, Merge(0, 1)),
        ({9: 2_000, 5: 10, 4: 900, 1: 10}, Merge(0, 1)),
        ({9: 2_000, 4: 10, 1: 900}, None),
        ({9: 10, 2: 1_000, 1: 10}, None),
    ],
)
def test_what_is_cold_was_so_for_the_whole_window(rates: Mapping[int, float], expected: Decision) -> None:
    two = situation(2, {1: load()})
    reports = [load(msg_rate_in=rate, since_ms=NOW - minutes * MINUTE) for minutes, rate in rates.items()]
    assert decide(replace(two, loads={**two.loads, 0: reports}), NOW) == expected


def test_old_reports_are_joined_to_the_higher_of_their_rates() -> None:
    """So no report is forgotten that would prevent a merge."""
    reports: tuple[SegmentLoad, ...] = ()
    for number in range(REPORTS_MAX):
        reports = with_report(reports, load(msg_rate_in=number, bytes_rate_out=-number, since_ms=number))
    joined = with_report(reports, load(since_ms=REPORTS_MAX))
    assert joined == (load(msg_rate_in=1, since_ms=0), *reports[2:], load(since_ms=REPORTS_MAX))


def test_a_topic_that_was_never_used_is_left_as_it_was_made() -> None:
    """A merge would gain nothing, and a start would merge thousands of such topics at once."""
    assert decide(situation(4), NOW) is None
    assert next_look_ms(situation(4), NOW) is None


_RATES = st.floats(0, 20_000) | st.sampled_from([0.0, 999.0, 1_000.0, 10_000.0, 10_001.0])


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    layout = draw(layouts())
    base = max((segment.sealed_at_ms or segment.created_at_ms) for segment in layout.segments.values())
    ids = st.sampled_from(sorted(layout.segments))
    one = st.builds(SegmentLoad, _RATES, _RATES, _RATES, _RATES, st.integers(base - MINUTE, base + 10 * MINUTE))
    policy = draw(
        st.builds(
            AutoScalePolicy,
            max_segments=st.integers(1, 20),
            min_segments=st.just(1),
            max_dag_depth=st.integers(0, 4),
            split_cooldown_seconds=st.integers(0, 100),
            merge_cooldown_seconds=st.integers(0, 400),
            merge_window_seconds=st.integers(0, 400),
        )
    )
    consumers = draw(st.dictionaries(st.sampled_from("ab"), st.integers(0, 10)))
    reports = st.lists(one, min_size=1, max_size=3).map(lambda found: sorted(found, key=lambda load: load.since_ms))
    return Situation(layout, draw(st.dictionaries(ids, reports)), consumers, policy, base)


_LATER = st.integers(0, 1_500_000)


def _now(given_situation: Situation, later_ms: int) -> int:
    return given_situation.watching_since_ms + later_ms


@given(situations(), _LATER)
def test_what_is_decided_can_be_done_and_keeps_the_bounds(given_situation: Situation, later_ms: int) -> None:
    layout, policy = given_situation.layout, given_situation.policy
    decision = decide(given_situation, _now(given_situation, later_ms))
    match decision:
        case Split():
            assert len(split(layout, decision.segment_id).active()) <= policy.max_segments
        case Merge():
            merged = merge(layout, decision.first_id, decision.second_id)
            assert len(merged.active()) >= policy.min_segments
            assert max(segment.merges for segment in merged.active()) <= max(
                policy.max_dag_depth, *(segment.merges for segment in layout.active())
            )


@given(situations(), _LATER, _LATER)
def test_nothing_changes_before_the_next_look(given_situation: Situation, later_ms: int, ahead_ms: int) -> None:
    """So nobody needs to look at regular intervals."""
    now_ms = _now(given_situation, later_ms)
    then_ms = now_ms + ahead_ms
    look_ms = next_look_ms(given_situation, now_ms)
    if look_ms is None or then_ms < look_ms:
        assert decide(given_situation, then_ms) == decide(given_situation, now_ms)
    if look_ms is not None:
        assert look_ms > now_ms


@given(situations(), _LATER)
def test_what_was_merged_is_not_split_again(given_situation: Situation, later_ms: int) -> None:
    """This holds with the same load and consumers, at any later look, as long as there is a pair to merge."""
    now_ms = _now(given_situation, later_ms)
    for _ in range(40):
        decision = decide(given_situation, now_ms)
        if not isinstance(decision, Merge):
            break
        layout = merge(given_situation.layout, decision.first_id, decision.second_id, now_ms)
        nothing = (load(),)
        one, other = (given_situation.loads.get(i, nothing)[-1] for i in (decision.first_id, decision.second_id))
        together = load(
            msg_rate_in=one.msg_rate_in + other.msg_rate_in,
            bytes_rate_in=one.bytes_rate_in + other.bytes_rate_in,
            msg_rate_out=one.msg_rate_out + other.msg_rate_out,
            bytes_rate_out=one.bytes_rate_out + other.bytes_rate_out,
            since_ms=now_ms,
        )
        loads = {**given_situation.loads, max(layout.segments): (together,)}
        given_situation = replace(given_situation, layout=layout, loads=loads)
        after = decide(given_situation, now_ms + 3_600_000)
        # Another segment may be split, which was hot before, but had to wait for its time or for room.
        assert not (isinstance(after, Split) and after.segment_id == max(layout.segments))
        now_ms += 3_600_000
