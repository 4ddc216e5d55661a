"""The numbers of a ledger's hidden entries, in memory and on disk."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.hidden_entries import (
    HEAD_SIZE,
    NOTHING_HIDDEN,
    PAGE_ENTRIES_MAX,
    DamagedHidden,
    Hidden,
    HiddenEntries,
    total_in,
)

SETS = st.dictionaries(st.integers(0, 5_000), st.integers(0, 2**32 - 1), max_size=60)


def made(numbers: dict[int, int]) -> HiddenEntries:
    hidden = HiddenEntries()
    for entry, messages in numbers.items():
        hidden.add(entry, messages)
    return hidden


def counted(numbers: dict[int, int], upto: int) -> Hidden:
    below = [messages for entry, messages in numbers.items() if entry <= upto]
    return Hidden(len(below), sum(below))


@given(SETS, st.integers(-1, 5_001))
def test_what_is_hidden_is_counted_in_any_order_of_adding(numbers: dict[int, int], upto: int) -> None:
    """K35: and again after it was written and read."""
    hidden = made(numbers)
    again = HiddenEntries.decode(4, hidden.encode(4))
    for each in (hidden, again):
        assert each.upto(upto) == counted(numbers, upto)
        assert each.total == counted(numbers, 5_000)
    assert again.encode(4) == hidden.encode(4)
    assert total_in(4, hidden.encode(4)[:HEAD_SIZE]) == hidden.total


@pytest.mark.parametrize("step", [1, -1, 7])
def test_many_entries_are_counted_across_pages(step: int) -> None:
    count = 3 * PAGE_ENTRIES_MAX + 5
    # 7 has no common factor with `count`, so each number comes once.
    numbers = {entry * step % count: entry % 3 for entry in range(count)}
    hidden = made(numbers)
    hidden.add(5, 100)  # It is known already.
    for upto in range(0, count, 97):
        assert hidden.upto(upto) == counted(numbers, upto)
    hidden.add(count, 4)
    assert hidden.upto(count).less(hidden.upto(count - 1)) == Hidden(1, 4)
    assert HiddenEntries.decode(1, hidden.encode(1)).total == hidden.total


def test_nothing_is_hidden_at_first() -> None:
    hidden = HiddenEntries()
    assert hidden.total == hidden.upto(100) == NOTHING_HIDDEN
    assert HiddenEntries.decode(1, hidden.encode(1)).upto(100) == NOTHING_HIDDEN


def test_damage_is_found_wherever_it_is() -> None:
    """K35: a torn file and each flipped bit. Another ledger's file is no better."""
    data = made({1: 1, 5: 0, 70: 9}).encode(3)
    for bit in range(8 * HEAD_SIZE):
        flipped = bytearray(data[:HEAD_SIZE])
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedHidden):
            total_in(3, bytes(flipped))
    for cut in range(len(data)):
        with pytest.raises(DamagedHidden):
            HiddenEntries.decode(3, data[:cut])
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedHidden):
            HiddenEntries.decode(3, bytes(flipped))
    with pytest.raises(DamagedHidden):
        HiddenEntries.decode(4, data)
