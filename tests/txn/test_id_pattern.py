"""Patterns of transactional ids: they mean what they mean elsewhere, and take a bounded time."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from txn.id_pattern import PATTERN_LENGTH_MAX, IdPattern
from txn.kafka_errors import InvalidPattern

PARTS = st.sampled_from(["a", "b", "ab", ".", ".*", ".+", r"\.", r"\*", r"\\", "-", "\n", "é"])


@example("a.*a", "a")
@example("ab.*b", "ab")
@given(st.lists(PARTS, max_size=6).map("".join), st.text("ab.*\\-\né", max_size=8))
def test_a_pattern_matches_what_it_matches_elsewhere(pattern: str, text: str) -> None:
    """KIP-1152: the whole id, as in Kafka."""
    assert IdPattern(pattern).matches(text) == (re.fullmatch(pattern, text, re.DOTALL) is not None)


@pytest.mark.parametrize("pattern", ["(a+)+", "a*", "[ab]", "a|b", "^a", "a$", "a{2}", "a?", r"\d", "\\", "(", "a.**"])
def test_what_is_not_served_is_refused_by_name(pattern: str) -> None:
    """E20: and not matched as something else."""
    with pytest.raises(InvalidPattern, match="is not served"):
        IdPattern(pattern)


def test_a_pattern_has_a_longest() -> None:
    """E8: it is matched with every transactional id."""
    IdPattern("a" * PATTERN_LENGTH_MAX)
    with pytest.raises(InvalidPattern):
        IdPattern("a" * (PATTERN_LENGTH_MAX + 1))


def test_many_gaps_take_no_longer_than_one() -> None:
    """E7: with an engine that tries everything, this test would not end."""
    assert not IdPattern(".*a" * 300 + "b").matches("a" * 1_000)
