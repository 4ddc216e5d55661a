"""The table of a registration's phases."""

import itertools

from tidewire.client.registration import MOVES, Event, Phase


def test_every_phase_answers_every_event() -> None:
    """The table is whole, so nothing happens to a registration that nobody thought of."""
    assert set(MOVES) == set(itertools.product(Phase, Event))


def test_a_registration_ends_for_one_reason() -> None:
    """What the controller closed is not closed again, and a lost connection is not read as a close."""
    for final in (Phase.CLOSED, Phase.LOST):
        assert {MOVES[final, event] for event in Event} == {final}
    assert {MOVES[phase, Event.CLOSED] for phase in (Phase.JOINING, Phase.JOINED)} == {Phase.CLOSED}
