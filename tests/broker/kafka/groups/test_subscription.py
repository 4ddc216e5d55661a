"""Which topics a member reads, by what it says."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.kafka.groups.subscription import partitions_in, topics_in
from tests.support.kafka_groups import assignment, subscription


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=9), max_size=4), st.binary(max_size=9))
def test_the_topics_are_found(topics: list[str], rest: bytes) -> None:
    assert topics_in(subscription(*topics, rest=rest)) == frozenset(topics)


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"t1",
        subscription("abc")[:8],
        subscription("abc", rest=b"")[:-1],
        struct.pack(">hi", 0, 2**31 - 1) + b"\0\1a",
        struct.pack(">hiH", 0, 1, 1) + b"\xff",
    ],
)
def test_other_bytes_say_nothing(metadata: bytes) -> None:
    """E7: nor do they cost more than their own length."""
    assert topics_in(metadata) is None


NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)


@given(st.dictionaries(NAMES, st.lists(st.integers(0, 2**31 - 1), max_size=4).map(tuple), max_size=4))
def test_the_assigned_partitions_are_found(topics: dict[str, tuple[int, ...]]) -> None:
    assert dict(partitions_in(assignment(topics))) == topics


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (b"", {}),
        (assignment({"abc": (1, 2)})[:10], {}),
        (assignment({"abc": (1, 2), "d": (3,)})[:-6], {"abc": (1, 2)}),
        (struct.pack(">hiHi", 0, 1, 0, 2**31 - 1), {}),
        (struct.pack(">hiHi", 0, 2**31 - 1, 0, 0), {"": ()}),
        (struct.pack(">hiHi", 0, 1, 0, -1), {}),
    ],
)
def test_other_assignments_say_less(given: bytes, found: dict[str, tuple[int, ...]]) -> None:
    """E7: nor do they cost more than their own length."""
    assert dict(partitions_in(given)) == found
