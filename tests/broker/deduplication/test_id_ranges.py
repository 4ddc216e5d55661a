"""Ranges of ids behave like a set of ids."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from broker.deduplication.id_ranges import IdRanges

SPANS = st.tuples(st.integers(0, 40), st.integers(0, 6)).map(lambda drawn: (drawn[0], drawn[0] + drawn[1]))


@given(added=st.lists(SPANS, max_size=20), asked=st.lists(SPANS, max_size=20))
def test_they_are_a_set(added: list[tuple[int, int]], asked: list[tuple[int, int]]) -> None:
    """The order of the ids does not matter, and no two ranges meet or touch."""
    ranges, ids = IdRanges(), set[int]()
    for first, last in added:
        ranges.add(first, last)
        ids |= set(range(first, last + 1))
    kept = list(ranges)
    assert {number for first, last in kept for number in range(first, last + 1)} == ids
    assert all(before[1] + 1 < after[0] for before, after in pairwise(kept))
    assert (len(ranges), ranges.last) == (len(kept), max(ids, default=-1))
    assert list(IdRanges(kept)) == kept
    for first, last in asked:
        wanted = set(range(first, last + 1))
        assert ranges.has_all(first, last) is (wanted <= ids)
        assert ranges.has_any(first, last) is bool(wanted & ids)


def test_the_lowest_are_joined_or_dropped() -> None:
    ranges = IdRanges([(0, 1), (5, 5), (9, 9)])
    ranges.join_lowest()
    assert list(ranges) == [(0, 5), (9, 9)]
    ranges.drop_lowest()
    assert list(ranges) == [(9, 9)]
