"""Converted entries in memory, compared with a plain model."""

from hypothesis import given
from hypothesis import strategies as st

from broker.converted import OVERHEAD_BYTES, ConvertedEntries
from storage.position import Position

BOUND = 4 * OVERHEAD_BYTES

sizes = st.sampled_from([0, 1, OVERHEAD_BYTES, 2 * OVERHEAD_BYTES, 3 * OVERHEAD_BYTES, 3 * OVERHEAD_BYTES + 1])
steps = st.lists(st.tuples(st.integers(0, 5), st.none() | sizes), max_size=40)


def form_of(entry: int, size: int) -> bytes:
    return bytes([entry]) * size


@given(steps)
def test_the_recently_read_are_kept_up_to_the_bound(some: list[tuple[int, int | None]]) -> None:
    """E8, E9, K42: a get is a read, and so is a put of what was not there."""
    kept = ConvertedEntries(BOUND)
    model: list[tuple[int, bytes]] = []  # the least recently read first
    for entry, size in some:
        found = [each for each in model if each[0] == entry]
        if size is None:
            assert kept.get(Position(7, entry)) == (found[0][1] if found else None)
            model = [each for each in model if each[0] != entry] + found
        else:
            kept.put(Position(7, entry), form_of(entry, size))
            if not found and size + OVERHEAD_BYTES <= BOUND:
                model.append((entry, form_of(entry, size)))
        while sum(len(form) + OVERHEAD_BYTES for _, form in model) > BOUND:
            model.pop(0)
        assert len(kept) == len(model)
        assert kept.held_bytes == sum(len(form) + OVERHEAD_BYTES for _, form in model) <= BOUND
    for entry, form in model:
        assert kept.get(Position(7, entry)) == form


def test_one_large_entry_evicts_nothing() -> None:
    """E9, K42: what is above the whole bound is not kept."""
    kept = ConvertedEntries(BOUND)
    kept.put(Position(7, 1), b"small")
    kept.put(Position(7, 2), bytes(BOUND))
    assert kept.get(Position(7, 1)) == b"small"
    assert kept.get(Position(7, 2)) is None


def test_positions_of_other_ledgers_are_others() -> None:
    """K42: the ledger is part of the key."""
    kept = ConvertedEntries(BOUND)
    kept.put(Position(7, 1), b"x")
    assert kept.get(Position(8, 1)) is None


def test_the_bound_of_nothing_keeps_nothing() -> None:
    """E9: it turns the memory off."""
    kept = ConvertedEntries(0)
    kept.put(Position(7, 1), b"")
    assert (len(kept), kept.held_bytes) == (0, 0)
