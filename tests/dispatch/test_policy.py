"""Policies are functions: tables of consumers and entries, and properties over all of them."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.policy import Assignment, Candidate, Piece, Policy, exclusive, shared


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
    """A slow consumer, or one without permits, does not slow the others down."""
    consumers = [ready(0), Candidate(9, False, 0), ready(2), ready(-3)]
    assert shared(consumers, [1, 1, 1], 0) == Assignment([(2, [0, 1])], [2], 3, [])


def test_lower_levels_wait_until_the_higher_is_full() -> None:
    consumers = [ready(5, priority=1), ready(2, priority=0)]
    assert dict(shared(consumers, [1, 1, 1], 0).shares) == {1: [0, 1], 0: [2]}


def test_pieces_go_to_one_consumer() -> None:
    """The first piece takes a turn and the others follow it; other entries take turns as usual."""
    x, y = Piece("x", None), Piece("y", None)
    assignment = shared([ready(9), ready(9)], [1] * 6, 0, {0: x, 1: y, 2: y, 4: x, 5: y})
    assert dict(assignment.shares) == {0: [0, 3, 4], 1: [1, 2, 5]}
    assert assignment.turn == 1


def test_pieces_follow_what_was_sent_before() -> None:
    """This includes a consumer of a lower level, and does not use a turn."""
    consumers = [ready(9), ready(9, priority=1)]
    assert shared(consumers, [1, 1], 0, {0: Piece("x", 1)}) == Assignment([(1, [0]), (0, [1])], [], 1, [])


def test_pieces_are_kept_for_a_consumer_without_room() -> None:
    """Later pieces are kept, too, even if others have room; other entries are sent."""
    pieces = {0: Piece("x", 0), 2: Piece("x", 0), 3: Piece("y", 1)}
    for full in (ready(0), ready(-2), Candidate(9, False, 0)):
        assignment = shared([full, ready(9)], [1] * 4, 0, pieces)
        assert assignment == Assignment([(1, [1, 3])], [], 2, [(0, 0), (2, 0)])
    begun_here = {0: Piece("x", None), 1: Piece("x", None), 2: Piece("x", None)}
    assert shared([ready(2), ready(9)], [1] * 4, 0, begun_here) == Assignment([(0, [0, 1]), (1, [3])], [], 2, [(2, 0)])


def test_pieces_are_left_when_nobody_has_room() -> None:
    """They are checked first next time, so nothing about them needs to be remembered."""
    pieces = {1: Piece("x", 0), 2: Piece("x", 0)}
    assert shared([ready(1), ready(1)], [1] * 4, 1, pieces) == Assignment([(1, [0]), (0, [1])], [2, 3], 2, [])


class Candidates(list[Candidate]):
    """Counts how often somebody goes through all of them."""

    passes = 0

    def __iter__(self) -> Iterator[Candidate]:
        self.passes += 1
        return super().__iter__()


def test_consumers_of_many_levels_are_not_looked_at_for_each_level() -> None:
    """E7: a client chooses the level of each of its 10,000 consumers."""
    consumers = Candidates([ready(0, priority=level) for level in range(100)] + [ready(9, priority=100)])
    assert shared(consumers, [1], 0).shares == [(100, [0])]
    assert consumers.passes <= 3


class Permits(int):
    """Counts how often somebody asks whether there are any."""

    questions = 0

    def __gt__(self, other: int) -> bool:
        Permits.questions += 1
        return super().__gt__(other)


def test_consumers_are_not_looked_at_for_each_piece_that_is_kept() -> None:
    """E7: there may be 10,000 of them, and 512 pieces."""
    consumers = [ready(Permits(0)) for _ in range(100)] + [ready(9)]
    Permits.questions = 0
    assert len(shared(consumers, [1] * 100, 0, {entry: Piece("x", 0) for entry in range(100)}).kept) == 100
    assert Permits.questions <= 3 * 100


@given(data=st.data())
def test_no_message_is_ever_with_two_consumers(data: st.DataObject) -> None:
    """With any permits, every entry is sent, kept or left, in order within each message."""
    candidate = st.builds(Candidate, st.integers(-2, 6), st.booleans(), st.integers(0, 1))
    consumers = data.draw(st.lists(candidate, min_size=1, max_size=4))
    begun = {name: data.draw(st.none() | st.integers(0, len(consumers) - 1)) for name in "abc"}
    names = data.draw(st.lists(st.sampled_from(["a", "b", "c", None]), max_size=20))
    pieces = {number: Piece(name, begun[name]) for number, name in enumerate(names) if name is not None}
    assignment = shared(consumers, [1] * len(names), data.draw(st.integers(0, 4)), pieces)

    sent = {entry: index for index, share in assignment.shares for entry in share}
    kept = dict(assignment.kept)
    assert sorted([*sent, *kept, *assignment.left]) == list(range(len(names)))
    assert max([*sent, *kept], default=-1) < min(assignment.left, default=len(names))
    for name in "abc":
        entries = [entry for entry, its in enumerate(names) if its == name]
        holders: set[int | None] = {(sent | kept)[entry] for entry in entries if entry not in assignment.left}
        assert len(holders | {begun[name]} - {None}) <= 1
        where = ["sent" if entry in sent else "kept" if entry in kept else "left" for entry in entries]
        assert where == sorted(where, key=["sent", "kept", "left"].index)
    for index, consumer in enumerate(consumers):
        assert list(sent.values()).count(index) <= consumer.room
    if kept or assignment.left:
        assert all(list(sent.values()).count(index) == consumers[index].room for index in kept.values())
    if assignment.left:
        assert len(sent) == sum(consumer.room for consumer in consumers)


@pytest.mark.parametrize("policy", [exclusive, shared])
@given(data=st.data())
def test_every_entry_goes_to_one_consumer_or_is_left(policy: Policy, data: st.DataObject) -> None:
    """Nothing is lost, doubled or out of order; no entry is sent without a permit; no ready consumer idles."""
    candidate = st.builds(Candidate, st.integers(-5, 12), st.booleans(), st.integers(0, 2))
    consumers = data.draw(st.lists(candidate, max_size=1 if policy is exclusive else 5))
    messages = data.draw(st.lists(st.integers(1, 5), max_size=30))
    turn = data.draw(st.integers(0, 6))
    assignment = policy(consumers, messages, turn, {})

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
