"""The table of a session's phases."""

import itertools
from typing import cast

import pytest

from tidewire.client.connection import Connection, Listener
from tidewire.client.topic_session import DELIVERS, MOVES, OVER, USABLE, Event, Moves, Phase, TopicSession
from tidewire.protocol.listeners import Kind


def test_every_phase_answers_every_event() -> None:
    """The table is complete, so every event is expected in every phase."""
    assert set(MOVES) == set(itertools.product(Phase, Event))


def test_a_session_that_is_over_stays_over() -> None:
    assert all(MOVES[phase, event] in OVER for phase in OVER for event in Event)


def test_a_session_ends_for_one_reason() -> None:
    """A session that the broker closed is not closed again, and a lost connection does not count as closed."""
    for final in (Phase.CLOSED, Phase.LOST):
        assert {MOVES[final, event] for event in Event} == {final}


def test_nothing_is_delivered_once_a_move_has_begun() -> None:
    """The segment does not count as received to its end, because delivery restarts at another position."""
    reached = {MOVES[phase, Event.MOVE_BEGUN] for phase in Phase}
    for _ in Phase:
        reached |= {MOVES[phase, event] for phase in reached for event in Event}
    assert not reached & (DELIVERS | {Phase.ENDED})


def phase_of(one: TopicSession) -> Phase:
    """Read the phase again, for the type checker."""
    return one.phase


def session(phase: Phase) -> TopicSession:
    made = TopicSession(cast("Connection", Unconnected()), cast("Listener", None))
    made.phase = phase
    return made


class Unconnected:
    """The part of a connection that a session uses while nothing is sent."""

    def attach(self, kind: Kind, listener: object) -> int:
        return 1


@pytest.mark.parametrize("phase", [Phase.OPEN, Phase.ENDED])
def test_a_session_that_stood_when_a_move_was_begun_is_left_to_the_broker(phase: Phase) -> None:
    """E21: its messages are dropped until the broker has closed it."""
    moves, stood = Moves(), session(phase)
    moves.begin(stood)
    assert phase_of(stood) is Phase.MOVING
    moves.begin(stood)
    assert not moves.end(stood, is_done=True)
    assert moves.end(stood, is_done=False)
    assert phase_of(stood) is Phase.MOVED


@pytest.mark.parametrize("before", [None, Phase.SUBSCRIBING, Phase.OPEN])
def test_a_session_that_was_opened_during_a_move_is_followed_by_another(before: Phase | None) -> None:
    """E21: it is unknown whether the broker opened it before or after it moved the subscription."""
    moves = Moves()
    moves.begin(None if before is None else session(before))
    opened = session(Phase.SUBSCRIBING)
    moves.opening(opened)
    assert phase_of(opened) is Phase.MOVING
    assert moves.end(opened, is_done=True)
    assert phase_of(opened) is Phase.MOVED
    # Nothing is under way any more.
    later = session(Phase.SUBSCRIBING)
    moves.opening(later)
    assert phase_of(later) is Phase.SUBSCRIBING


def test_a_session_that_subscribes_when_a_move_is_begun_is_followed_by_another() -> None:
    """E21: the broker may open it after the move, and then never closes it."""
    moves, subscribing = Moves(), session(Phase.SUBSCRIBING)
    moves.begin(subscribing)
    assert moves.end(subscribing, is_done=True)
    assert phase_of(subscribing) is Phase.MOVED


def test_only_what_is_usable_or_on_its_way_there_delivers() -> None:
    assert USABLE < DELIVERS
    assert not DELIVERS & OVER
