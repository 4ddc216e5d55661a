"""Which segments a stream reads, over drawn histories of splits and merges."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewire.protocol.layout import Segment
from tidewire.protocol.positions import EARLIEST, EntryPosition
from tidewire.spark.offsets import BEGINNING, Place, admitted, beginning, decode, encode, parse_place, waiting
from tidewire.spark.positions import parse_boundary, parse_position


def layout(parents: Mapping[int, tuple[int, ...]]) -> dict[int, Segment]:
    return {number: Segment("x", str(number), str(number), number, of) for number, of in parents.items()}


SPLIT_AND_MERGE = layout({0: (), 1: (), 2: (0,), 3: (0,), 4: (3, 1)})


def test_offsets_are_small_json_and_come_back() -> None:
    offsets = {"topic://a/b/c": {"0000-7fff-0": Place(EntryPosition(5, 41), 1042), "8000-ffff-1": BEGINNING}}
    kept = encode(offsets)
    assert json.dumps(kept) == '{"topic://a/b/c": {"0000-7fff-0": "5:41@1042", "8000-ffff-1": "-1:-1@0"}}'
    assert decode(json.loads(json.dumps(kept))) == offsets


def test_offsets_can_be_given_as_a_starting_position() -> None:
    offsets = {"topic://a/b/c": {"0000-7fff-0": Place(EntryPosition(5, 41), 1042), "8000-ffff-1": BEGINNING}}
    boundary = parse_boundary(json.dumps(encode(offsets)))
    assert boundary.of("topic://a/b/c", "0000-7fff-0", EARLIEST) == EntryPosition(5, 41)
    assert boundary.of("topic://a/b/c", "8000-ffff-1", EntryPosition(1, 1)) == EARLIEST


def test_offsets_carry_which_segment_they_are_in() -> None:
    """E19: in another data folder, its name may belong to another segment."""
    place = Place(EntryPosition(5, 41), 1042, "8b1fc2a07d3e4956")
    assert str(place) == "5:41@1042#8b1fc2a07d3e4956"
    assert parse_place(str(place)) == place
    assert parse_position(str(place)) == EntryPosition(5, 41)
    assert place.is_elsewhere("90ab34cd12ef5678")
    assert not place.is_elsewhere("8b1fc2a07d3e4956")
    assert not place.is_elsewhere("")
    assert not BEGINNING.is_elsewhere("8b1fc2a07d3e4956")


@pytest.mark.parametrize("text", ["", "5:41", "5@3", "5:41@", "5:41@x", "a:b@c", "5:41@3#", "5:41@3#xyz"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a position in a segment"):
        parse_place(text)


def test_children_come_in_when_all_their_parents_have_left() -> None:
    """T20: the children of a split come together, those of a merge with the last of its parents."""
    assert waiting({0, 1}, SPLIT_AND_MERGE) == {2, 3, 4}
    assert admitted({0, 1}, {1}, SPLIT_AND_MERGE) == set()
    assert admitted({0, 1}, {0}, SPLIT_AND_MERGE) == {2, 3}
    assert admitted({1, 2, 3}, {3}, SPLIT_AND_MERGE) == set()
    assert admitted({1, 2}, {1}, SPLIT_AND_MERGE) == {4}
    assert admitted({2, 3}, {3}, SPLIT_AND_MERGE) == {4}
    assert waiting({2, 4}, SPLIT_AND_MERGE) == set()


def test_a_parent_that_was_removed_is_no_parent() -> None:
    pruned = layout({2: (0,), 3: (0,), 4: (3, 1)})
    assert waiting({2, 3}, pruned) == {4}
    assert beginning(pruned, (), lambda number: False) == ({2, 3}, set())


def test_a_stream_begins_with_the_roots_that_have_something() -> None:
    assert beginning(SPLIT_AND_MERGE, (), lambda number: False) == ({0, 1}, set())
    assert beginning(SPLIT_AND_MERGE, (), lambda number: number == 0) == ({1, 2, 3}, {0})
    assert beginning(SPLIT_AND_MERGE, (), lambda number: number in (0, 1, 3)) == ({2, 4}, {0, 1, 3})


def test_what_came_before_a_segment_that_is_given_counts_as_read_and_the_rest_does_not() -> None:
    assert beginning(SPLIT_AND_MERGE, {2}, lambda number: False) == ({1, 2, 3}, {0})
    assert beginning(SPLIT_AND_MERGE, {4}, lambda number: False) == ({2, 4}, {0, 1, 3})


@st.composite
def histories(draw: st.DrawFn) -> dict[int, Segment]:
    """Draw splits and merges of a topic, starting from some segments."""
    active = list(range(draw(st.integers(1, 3))))
    parents: dict[int, tuple[int, ...]] = dict.fromkeys(active, ())
    for _ in range(draw(st.integers(0, 8))):
        new = len(parents)
        if len(active) > 1 and draw(st.booleans()):
            at = draw(st.integers(0, len(active) - 2))
            parents[new] = (active[at], active[at + 1])
            active[at : at + 2] = [new]
        else:
            at = draw(st.integers(0, len(active) - 1))
            parents[new] = parents[new + 1] = (active[at],)
            active[at : at + 1] = [new, new + 1]
    return layout(parents)


@given(histories(), st.data())
def test_every_segment_is_read_once_and_behind_all_it_came_from(parts: dict[int, Segment], data: st.DataObject) -> None:
    """T20: segments may finish in any order, and a layout may be seen at any time."""
    active = set(parts) - {parent for part in parts.values() for parent in part.parent_ids}
    seen = dict(list(parts.items())[: data.draw(st.integers(1, len(parts)))])
    roots = {number for number, part in parts.items() if not part.parent_ids}
    seen |= {number: parts[number] for number in roots}
    there, done = beginning(seen, (), lambda number: False)
    assert (there, done) == (roots, set())
    began = set(there)
    finished: set[int] = set()
    while there - active:
        # Segments whose children a layout shows are sealed; others are so when the layout grows.
        seen = parts
        leaving = data.draw(st.sets(st.sampled_from(sorted(there - active)), min_size=1))
        coming = admitted(there, leaving, seen)
        assert not coming & began
        finished |= leaving
        there = (there - leaving) | coming
        began |= coming
        for number in coming:
            assert set(parts[number].parent_ids) <= finished
        # Nothing of what was decided is kept but what is there, so it has to follow from that.
        assert waiting(there, seen) == set(parts) - began
    assert began == set(parts)
    assert there == active
