"""The table of transitions."""

import itertools

from txn.states import MOVES, TARGET, Answer, EndAction, TxnState


def test_every_state_answers_every_request() -> None:
    """T2: the table is complete, so every request has a defined answer in every state."""
    assert set(MOVES) == set(itertools.product(TxnState, EndAction))


def test_only_open_transactions_change() -> None:
    """T2: OPEN moves to either final state; final states never change."""
    changing = {state for (state, _), answer in MOVES.items() if answer is Answer.CHANGE}
    assert changing == {TxnState.OPEN}
    assert all(state.is_final for state in TARGET.values())
    assert not TxnState.OPEN.is_final


def test_repeating_succeeds_and_contradicting_is_refused() -> None:
    """T7: a repeated outcome succeeds, the opposite one is refused."""
    for (state, action), answer in MOVES.items():
        if state.is_final:
            assert answer is (Answer.REPEATED if TARGET[action] is state else Answer.REFUSED)
