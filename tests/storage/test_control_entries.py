"""How many control entries are in a range of positions."""

from hypothesis import given
from hypothesis import strategies as st

from storage.control_entries import ControlEntries
from storage.position import Position

POSITIONS = st.builds(Position, st.integers(-1, 3), st.integers(-1, 5))


@given(st.sets(POSITIONS), POSITIONS, POSITIONS, st.sets(st.integers(-1, 3)))
def test_they_are_counted_within_a_range_and_forgotten_with_their_ledger(
    positions: set[Position], after: Position, upto: Position, kept: set[int]
) -> None:
    """K35: above the first position, at or below the second."""
    controls = ControlEntries()
    for position in sorted(positions):
        controls.add(position)
    assert controls.between(after, upto) == sum(after < position <= upto for position in positions)
    controls.keep(kept)
    assert controls.between(after, upto) == sum(after < at <= upto and at.ledger in kept for at in positions)
