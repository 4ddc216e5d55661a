"""The table of a producer session's phases."""

import itertools

from tidewire.client.producer_session import MOVES, Event, Phase

OVER = {Phase.SEALED, Phase.RETIRED, Phase.CLOSED, Phase.LOST}


def test_every_phase_answers_every_event() -> None:
    """The table is complete, so every event is expected in every phase."""
    assert set(MOVES) == set(itertools.product(Phase, Event))


def test_a_session_that_is_over_stays_over() -> None:
    assert all(MOVES[phase, event] in OVER for phase in OVER for event in Event)


def test_a_refusal_as_sealed_stays_true_whatever_comes_behind_it() -> None:
    """T20: unanswered sends are not stored then, so a lost connection does not make them doubtful."""
    reached = {Phase.SEALED}
    for _ in Phase:
        reached |= {MOVES[phase, event] for phase in reached for event in Event}
    assert reached == {Phase.SEALED, Phase.RETIRED}


def test_a_session_ends_for_one_reason() -> None:
    """A session that the broker closed is not closed again, and a send in doubt does not count as answered."""
    for final in (Phase.CLOSED, Phase.LOST, Phase.RETIRED):
        assert {MOVES[final, event] for event in Event} == {final}
