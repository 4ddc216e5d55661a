"""The table of moves."""

import itertools

from txn.states import MOVES, TARGET, Answer, EndAction, TxnState


def test_every_state_answers_every_request() -> None:
    """T2: the table is whole, so no request finds a state that nobody thought of."""
    assert set(MOVES) == set(itertools.product(TxnState, EndAction))


def test_only_open_transactions_change() -> None:
    """T2: OPEN moves to either end; the ends never change."""
    changing = {state for (state, _), answer in MOVES.items() if answer is Answer.CHANGE}
    assert changing == {TxnState.OPEN}
    assert all(state.is_final for state in TARGET.values())
    assert not TxnState.OPEN.is_final


def test_repeating_succeeds_and_contradicting_is_refused() -> None:
    """T7: the same outcome again is a success, the opposite is refused."""
    for (state, action), answer in MOVES.items():
        if state.is_final:
            assert answer is (Answer.REPEATED if TARGET[action] is state else Answer.REFUSED)
