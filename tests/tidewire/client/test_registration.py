"""The table of a registration's phases."""

import itertools

from tidewire.client.registration import MOVES, Event, Phase


def test_every_phase_answers_every_event() -> None:
    """The table is complete, so every event is expected in every phase."""
    assert set(MOVES) == set(itertools.product(Phase, Event))


def test_a_registration_ends_for_one_reason() -> None:
    """A registration that the controller closed is not closed again, and a lost connection does not count as closed."""
    for final in (Phase.CLOSED, Phase.LOST):
        assert {MOVES[final, event] for event in Event} == {final}
    assert {MOVES[phase, Event.CLOSED] for phase in (Phase.JOINING, Phase.JOINED)} == {Phase.CLOSED}
