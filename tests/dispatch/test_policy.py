"""Policies are functions: tables of consumers and entries, and properties over all of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.policy import Candidate, Policy, exclusive, shared


def ready(permits: int, priority: int = 0) -> Candidate:
    return Candidate(permits, True, priority)


def test_exclusive_sends_in_order_while_there_are_permits() -> None:
    assert exclusive([ready(2)], [1, 1, 1]).shares == [(0, [0, 1])]
    assert exclusive([ready(2)], [1, 1, 1]).left == [2]
    assert exclusive([], [1]).left == [0]
    assert exclusive([Candidate(9, False, 0)], [1]).left == [0]


def test_a_batch_may_take_permits_below_zero_once() -> None:
    """One permit is enough for a batch of any size, and then nothing more is sent."""
    assert exclusive([ready(1)], [100, 1]).shares == [(0, [0])]
    assert shared([ready(1), ready(0)], [100, 1], 0).left == [1]


def test_shared_takes_turns() -> None:
    first = shared([ready(9), ready(9), ready(9)], [1] * 4, 0)
    assert first.shares == [(0, [0, 3]), (1, [1]), (2, [2])]
    assert first.turn == 1
    assert shared([ready(9), ready(9), ready(9)], [1], first.turn).shares == [(1, [0])]
    assert shared([ready(9)], [1], 7).shares == [(0, [0])], "a turn beyond the last consumer begins again"


def test_shared_passes_over_who_cannot_take() -> None:
    """A slow consumer, or one without permits, costs the others nothing."""
    consumers = [ready(0), Candidate(9, False, 0), ready(2), ready(-3)]
    assert shared(consumers, [1, 1, 1], 0) == ([(2, [0, 1])], [2], 3)


def test_lower_levels_wait_until_the_higher_is_full() -> None:
    consumers = [ready(5, priority=1), ready(2, priority=0)]
    assert dict(shared(consumers, [1, 1, 1], 0).shares) == {1: [0, 1], 0: [2]}


@pytest.mark.parametrize("policy", [exclusive, shared])
@given(data=st.data())
def test_every_entry_goes_to_one_consumer_or_is_left(policy: Policy, data: st.DataObject) -> None:
    """Nothing is lost, doubled or out of order; nobody gets an entry without a permit; nobody who can take idles."""
    candidate = st.builds(Candidate, st.integers(-5, 12), st.booleans(), st.integers(0, 2))
    consumers = data.draw(st.lists(candidate, max_size=1 if policy is exclusive else 5))
    messages = data.draw(st.lists(st.integers(1, 5), max_size=30))
    turn = data.draw(st.integers(0, 6))
    assignment = policy(consumers, messages, turn)

    given_out = [entry for _index, share in assignment.shares for entry in share]
    assert sorted([*given_out, *assignment.left]) == list(range(len(messages)))
    assert len({index for index, _share in assignment.shares}) == len(assignment.shares)
    permits = {index: consumer.permits for index, consumer in enumerate(consumers)}
    for index, share in assignment.shares:
        assert consumers[index].writable
        assert share == sorted(share)
        for entry in share:
            assert permits[index] > 0
            permits[index] -= messages[entry]
    if assignment.left:
        assert not any(consumer.writable and permits[index] > 0 for index, consumer in enumerate(consumers))
        assert assignment.left == sorted(assignment.left)
        assert max(given_out, default=-1) < assignment.left[0], "what is left comes after what is sent"
