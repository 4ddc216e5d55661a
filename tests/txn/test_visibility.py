"""What open transactions hold back, compared with a model that checks all of them each time."""

import hypothesis.strategies as st
from hypothesis import given

from storage.entry import TxnId
from storage.position import Position
from txn.stable_offset import Place
from txn.visibility import HeldPlaces

ENTRIES = 7
"""In each ledger. So a place's index follows from its position."""


def place(position: Position) -> Place:
    """Return the place of an entry with one message, behind others like it."""
    return Place(position.ledger * ENTRIES + position.entry, position)


positions = st.builds(Position, st.integers(0, 3), st.integers(0, ENTRIES - 1))
steps = st.lists(st.tuples(st.sampled_from(["hold", "release"]), st.integers(0, 4), positions), max_size=40)


@given(steps, positions)
def test_the_readable_position_is_below_the_lowest_held(script: list[tuple[str, int, Position]], end: Position) -> None:
    """T14: min(position over open transactions) - 1, capped at what is confirmed; all of it with none open."""
    held = HeldPlaces()
    model: dict[TxnId, Position] = {}
    for step, number, position in script:
        txn = TxnId(0, number)
        if step == "hold":
            held.hold(txn, place(position))
            model[txn] = position
        else:
            held.release(txn)
            model.pop(txn, None)
        assert held.lowest() == min(map(place, model.values()), default=None)
        assert len(held) == len(model)
    expected = min([end, *(position.before() for position in model.values())])
    assert held.readable(end) == expected
    # The entry at `end` is durable.
    assert held.readable_end(place(end).offset + 1) == min(
        [place(end).offset + 1, *(place(p).offset for p in model.values())]
    )


def test_finishing_a_later_transaction_moves_nothing() -> None:
    """T15: only the end of the earliest open transaction moves the readable position, to the next one's."""
    held = HeldPlaces()
    held.hold(TxnId(0, 1), place(Position(1, 3)))
    held.hold(TxnId(0, 2), place(Position(1, 5)))
    end = Position(1, 9)
    held.release(TxnId(0, 2))
    assert held.readable(end) == Position(1, 2)
    held.hold(TxnId(0, 3), place(Position(1, 7)))
    held.release(TxnId(0, 1))
    assert held.readable(end) == Position(1, 6)


def test_a_first_entry_of_a_ledger_is_held_across_the_boundary() -> None:
    """T14: "minus one" of a ledger's first entry leaves the whole ledger before it readable."""
    held = HeldPlaces()
    held.hold(TxnId(0, 1), place(Position(7, 0)))
    readable = held.readable(Position(7, 4))
    assert Position(6, 1_000_000) <= readable < Position(7, 0)


def test_short_transactions_behind_a_long_one_leave_nothing() -> None:
    """T14: memory depends on what is open, however long the earliest one stays open."""
    held = HeldPlaces()
    held.hold(TxnId(0, 0), place(Position(1, 0)))
    for number in range(1, 10_000):
        held.hold(TxnId(0, number), place(Position(1, number)))
        held.release(TxnId(0, number))
    assert held.size < 1_000
    held.hold(TxnId(0, 10_000), place(Position(1, 10_000)))
    held.release(TxnId(0, 0))
    assert held.lowest() == place(Position(1, 10_000))
