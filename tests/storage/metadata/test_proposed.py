"""A writer's request as data."""

import pytest

from storage.metadata.delta import Delta
from storage.metadata.image import Image
from storage.metadata.proposed import Commit, EndSessions, OpenSession, Proposed, decide
from storage.metadata.steps import finished
from storage.metadata.store import Check, Committed, Conflict, Put


def _decide(delta: Delta, proposed: Proposed) -> Committed:
    return finished(decide(proposed, delta))


def test_each_request_is_decided_like_its_call() -> None:
    delta = Delta(Image())
    assert _decide(delta, Commit((Put("/a", b"1"),), 100)) == Committed(1, ("/a",))
    assert _decide(delta, OpenSession(5000)) == Committed(2, ())
    assert _decide(delta, EndSessions((2,))) == Committed(3, ())
    assert _decide(delta, EndSessions((2,))) == Committed(3, ())
    same = Delta(Image())
    same.commit([Put("/a", b"1")])
    same.open_session(5000)
    same.end_sessions([2])
    assert delta.change_sets == same.change_sets


def test_sessions_end_only_if_the_condition_holds() -> None:
    """M1: a dead broker's session outlives the proof, if the broker has registered again meanwhile."""
    delta = Delta(Image())
    _decide(delta, OpenSession(5000))
    _decide(delta, Commit((Put("/brokers/a", b""),), 100))
    decided = list(delta.change_sets)
    with pytest.raises(Conflict):
        _decide(delta, EndSessions((1,), Check("/brokers/a", 1)))
    assert delta.change_sets == decided
    assert _decide(delta, EndSessions((1,), Check("/brokers/a", 2))) == Committed(3, ())


def test_what_a_request_adds_to_the_log_is_known_before() -> None:
    assert [proposed.size for proposed in (Commit((), 7), OpenSession(5), EndSessions((1,)))] == [7, 0, 0]
