"""The table of a session's phases."""

import itertools

from tidewire.client.topic_session import DELIVERS, MOVES, OVER, USABLE, Event, Phase


def test_every_phase_answers_every_event() -> None:
    """The table is whole, so nothing happens to a session that nobody thought of."""
    assert set(MOVES) == set(itertools.product(Phase, Event))


def test_a_session_that_is_over_stays_over() -> None:
    assert all(MOVES[phase, event] in OVER for phase in OVER for event in Event)


def test_a_session_ends_for_one_reason() -> None:
    """What the broker closed is not closed again, and a lost connection is not read as a close."""
    for final in (Phase.CLOSED, Phase.LOST):
        assert {MOVES[final, event] for event in Event} == {final}


def test_nothing_is_delivered_once_a_move_has_begun() -> None:
    """Nor does the segment count as received to its end: what comes next begins somewhere else."""
    reached = {MOVES[phase, Event.MOVE_BEGUN] for phase in Phase}
    for _ in Phase:
        reached |= {MOVES[phase, event] for phase in reached for event in Event}
    assert not reached & (DELIVERS | {Phase.ENDED})


def test_only_what_is_usable_or_on_its_way_there_delivers() -> None:
    assert USABLE < DELIVERS
    assert not DELIVERS & OVER
