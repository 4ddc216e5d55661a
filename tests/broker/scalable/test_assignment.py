"""Assignments: children wait for their ancestors, shares are even, and few segments move."""

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.layouts.layout import Layout, create
from broker.scalable.assignment import assign, assign_unordered, eligible
from tests.support.layouts import NOW_MS, layouts


def split(layout: Layout, segment_id: int) -> Layout:
    opened = layout.begin_split(segment_id)
    assert opened.intent is not None
    return opened.replace_segments(opened.intent, NOW_MS).finish()


def merge(layout: Layout, first: int, second: int) -> Layout:
    opened = layout.begin_merge(first, second)
    assert opened.intent is not None
    return opened.replace_segments(opened.intent, NOW_MS).finish()


ONE = create(1, NOW_MS, creation_id="c")
#     0 -> 1, 2
SPLIT = split(ONE, 0)
#     0 -> 1, 2   1 -> 3, 4
TWICE = split(SPLIT, 1)
#     0, 1 -> 2
MERGED = merge(create(2, NOW_MS, creation_id="c"), 0, 1)
#     0 -> 1, 2 -> 3
JOINED = merge(SPLIT, 1, 2)


@pytest.mark.parametrize(
    ("layout", "drained", "expected"),
    [
        (ONE, set(), {0}),
        # An active segment is never done with, whatever its cursor says.
        (ONE, {0}, {0}),
        (SPLIT, set(), {0}),
        (SPLIT, {0}, {1, 2}),
        (SPLIT.prune(0), set(), {1, 2}),
        (SPLIT.begin_split(1), {0}, {1, 2}),
        (TWICE, {0}, {1, 2}),
        (TWICE, {0, 1}, {2, 3, 4}),
        # Segment 1 is empty, hence drained from the start; its children hold keys that 0 still has messages of.
        (TWICE, {1}, {0}),
        (TWICE.prune(0), {1}, {2, 3, 4}),
        (MERGED, set(), {0, 1}),
        (MERGED, {0}, {1}),
        (MERGED, {0, 1}, {2}),
        (MERGED.prune(0), set(), {1}),
        (MERGED.prune(1), {0}, {2}),
        (JOINED, {1, 2}, {0}),
        (JOINED, {0, 2}, {1}),
        # What is not known any more, or not yet, decides nothing.
        (SPLIT, {0, 77}, {1, 2}),
    ],
)
def test_a_segment_waits_for_its_ancestors(layout: Layout, drained: set[int], expected: set[int]) -> None:
    assert eligible(layout, drained) == expected


def ancestors(layout: Layout, segment_id: int) -> set[int]:
    parents = set(layout.segment(segment_id).parents)
    return parents.union(*(ancestors(layout, parent) for parent in parents))


@given(layouts(), st.sets(st.integers(0, 40)))
def test_no_segment_comes_before_its_ancestors_and_none_is_forgotten(layout: Layout, drained: set[int]) -> None:
    """D10: a key's messages keep their order across splits and merges, and none is lost."""
    chosen = eligible(layout, drained)
    for segment_id in layout.segments:
        done = segment_id in drained and not layout.segment(segment_id).is_active
        before = ancestors(layout, segment_id)
        assert (segment_id in chosen) == (not done and before <= drained)
    assert chosen, "something is always left to read, or to wait for"


@given(layouts())
def test_draining_what_is_eligible_reaches_every_segment(layout: Layout) -> None:
    """D10: no consumer waits for a parent that no consumer gets."""
    drained: set[int] = set()
    seen: set[int] = set()
    while True:
        chosen = eligible(layout, drained)
        seen |= chosen
        sealed = {segment_id for segment_id in chosen if not layout.segment(segment_id).is_active}
        if not sealed:
            break
        drained |= sealed
    assert seen == set(layout.segments)


@pytest.mark.parametrize(
    ("segments", "consumers", "previous", "expected"),
    [
        ([0, 1], [], {"a": {0, 1}}, {}),
        ([], ["a"], {"a": {0}}, {"a": set()}),
        ([0, 1, 2, 3], ["b", "a"], {}, {"a": {0, 1}, "b": {2, 3}}),
        ([0, 1, 2], ["a", "b"], {}, {"a": {0, 1}, "b": {2}}),
        # A newcomer gets its share, and nothing else moves.
        ([0, 1, 2, 3], ["a", "b"], {"a": {0, 1, 2, 3}}, {"a": {0, 1}, "b": {2, 3}}),
        ([0, 1, 2], ["a", "b"], {"b": {0, 1, 2}}, {"a": {2}, "b": {0, 1}}),
        # More consumers than segments: some have none, and who has one keeps it.
        ([0, 1], ["a", "b", "c"], {"c": {0}, "b": {1}}, {"a": set(), "b": {1}, "c": {0}}),
        # One leaves: its segments alone move.
        ([0, 1, 2, 3], ["a", "c"], {"a": {0}, "b": {1, 2}, "c": {3}}, {"a": {0, 1}, "c": {2, 3}}),
        # A split: 0 is drained, its children go to whoever has room.
        ([1, 2, 3], ["a", "b"], {"a": {0}, "b": {1}}, {"a": {3}, "b": {1, 2}}),
        # Two that both had a segment, as no controller would leave it: the first by name keeps it.
        ([0, 1], ["a", "b"], {"a": {0}, "b": {0}}, {"a": {0}, "b": {1}}),
        ([0], ["a", "a"], {}, {"a": {0}}),
    ],
)
def test_shares(
    segments: list[int], consumers: list[str], previous: dict[str, set[int]], expected: dict[str, set[int]]
) -> None:
    assert assign(segments, consumers, previous) == expected


@pytest.mark.parametrize(
    ("consumers", "away", "previous", "expected"),
    [
        # Who is away keeps what he had, however uneven, and gets no more.
        ("ab", "a", {"a": {0, 1, 2, 3}}, {"a": {0, 1, 2, 3}, "b": set()}),
        ("abc", "a", {"a": {1, 2}, "b": {0}, "c": {3}}, {"a": {1, 2}, "b": {0}, "c": {3}}),
        ("abc", "a", {"a": {9}, "b": {0, 1, 2, 3}}, {"a": set(), "b": {0, 1}, "c": {2, 3}}),
        # Nobody is here to take what is left.
        ("a", "a", {"a": {0}}, {"a": {0}}),
        # Only who is here can be told that a segment is not his.
        ("ab", "b", {"a": {0}, "b": {0}}, {"a": {1, 2, 3}, "b": {0}}),
        # Of who has left nothing is kept.
        ("b", "a", {"a": {0}}, {"b": {0, 1, 2, 3}}),
    ],
)
def test_shares_while_somebody_is_away(
    consumers: str, away: str, previous: dict[str, set[int]], expected: dict[str, set[int]]
) -> None:
    """D11: a lost connection alone moves nothing."""
    assert assign(range(4), consumers, previous, away) == expected


def test_sealed_segments_stay_with_their_readers_where_order_is_nobodys_concern() -> None:
    """A moved segment is read again from the beginning, so only segments that take messages are balanced."""
    layout = create(2, 0, creation_id="c")
    assert assign_unordered(layout, "ab", {}) == {"a": {0}, "b": {1}}
    layout = split(split(layout, 0), 1)
    previous = {"a": {0, 1, 2, 3, 4, 5}}
    divided = assign_unordered(layout, "ab", previous)
    assert divided == {"a": {0, 1, 2, 3}, "b": {4, 5}}
    # Those that nobody has go to who is here and has the fewest.
    assert assign_unordered(layout, "bc", {"b": {0, 4}, "c": {5}}) == {"b": {0, 2, 4}, "c": {1, 3, 5}}
    assert assign_unordered(layout, "bc", {"b": {4}, "c": {5}}, "b") == {"b": {4}, "c": {0, 1, 2, 3, 5}}
    assert assign_unordered(layout, "b", {"b": {4}}, "b") == {"b": {4}}
    assert assign_unordered(layout, "", {}) == {}


names = st.sampled_from("abcdef")
previous_assignments = st.dictionaries(st.integers(0, 15), names).map(
    lambda owners: {name: {s for s, owner in owners.items() if owner == name} for name in set(owners.values())}
)


@given(st.sets(st.integers(0, 15)), st.sets(names, min_size=1), previous_assignments)
def test_each_segment_goes_to_exactly_one_consumer_and_shares_are_even(
    segments: set[int], consumers: set[str], previous: dict[str, set[int]]
) -> None:
    result = assign(segments, consumers, previous)
    assert result.keys() == consumers
    assert Counter(s for had in result.values() for s in had) == Counter(segments)
    sizes = [len(had) for had in result.values()]
    assert max(sizes) - min(sizes) <= 1


@given(st.permutations(range(10)), st.permutations("abcd"), previous_assignments)
def test_the_order_of_the_arguments_decides_nothing(
    segments: list[int], consumers: list[str], previous: dict[str, set[int]]
) -> None:
    assert assign(segments, consumers, previous) == assign(sorted(segments), sorted(consumers), previous)


@given(st.sets(st.integers(0, 15)), st.sets(names, min_size=1), previous_assignments)
def test_an_assignment_is_kept_while_nothing_changes(
    segments: set[int], consumers: set[str], previous: dict[str, set[int]]
) -> None:
    first = assign(segments, consumers, previous)
    assert assign(segments, consumers, first) == first


def kept(result: dict[str, frozenset[int]], previous: dict[str, set[int]]) -> int:
    return sum(len(had & previous.get(consumer, set())) for consumer, had in result.items())


@given(st.sets(st.integers(0, 4)), st.sets(st.sampled_from("abc"), min_size=1), previous_assignments)
def test_nothing_moves_that_could_have_stayed(
    segments: set[int], consumers: set[str], previous: dict[str, set[int]]
) -> None:
    """The result is compared with every even division."""
    best = 0
    for owners in product(sorted(consumers), repeat=len(segments)):
        division = {c: frozenset(s for s, o in zip(segments, owners, strict=True) if o == c) for c in consumers}
        sizes = [len(had) for had in division.values()]
        if max(sizes) - min(sizes) <= 1:
            best = max(best, kept(division, previous))
    assert kept(assign(segments, consumers, previous), previous) == best
