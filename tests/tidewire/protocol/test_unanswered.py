import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewire.protocol.unanswered import FATES, End, Fate, fate, remembers

ids = st.integers(-1, 20)


def test_every_end_has_a_fate_for_every_send() -> None:
    assert len(FATES) == 3 * len(End)


@pytest.mark.parametrize("in_transaction", [False, True])
@pytest.mark.parametrize("is_remembered", [False, True])
def test_what_a_sealed_segment_did_not_answer_goes_to_children(*, in_transaction: bool, is_remembered: bool) -> None:
    """T20: it is certain that the send is not stored."""
    assert fate(End.SEALED, in_transaction=in_transaction, is_remembered=is_remembered) is Fate.TO_CHILDREN


@pytest.mark.parametrize("end", [End.CLOSED, End.LOST])
def test_outside_of_transactions_nothing_is_lost(end: End) -> None:
    assert fate(end, in_transaction=False) is Fate.AGAIN


def test_in_a_transaction_nothing_that_may_be_stored_is_sent_twice_to_a_broker_that_has_forgotten() -> None:
    """E13: a second copy would count, unless the broker recognises it."""
    assert fate(End.CLOSED, in_transaction=True) is Fate.UNKNOWN
    assert fate(End.CLOSED, in_transaction=True, is_remembered=True) is Fate.AGAIN
    assert fate(End.LOST, in_transaction=True, is_remembered=True) is Fate.UNKNOWN


@given(ids, ids)
def test_a_broker_that_lacks_the_last_answered_send_remembers_nothing(answered: int, remembered: int) -> None:
    assert remembers(answered, remembered) == (answered >= 0 and remembered >= answered)
    # A producer that was never answered cannot tell what is remembered of it from what is of another of its name.
    assert not remembers(-1, remembered)
