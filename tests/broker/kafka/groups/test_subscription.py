"""Which topics a member reads, by what it says."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.kafka.groups.subscription import topics_in
from tests.support.kafka_groups import subscription


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
