"""Sessions that move by a table of phases."""

from typing import cast

import pytest

from tidewire.client.connection import Connection, Listener
from tidewire.client.phased_session import moves
from tidewire.client.topic_session import Event, Phase, TopicSession
from tidewire.protocol.errors import ConnectionLost
from tidewire.protocol.listeners import Kind


class Listening:
    """The part of a connection that a session uses."""

    def __init__(self) -> None:
        self.attached: list[tuple[Kind, int]] = []

    def attach(self, kind: Kind, listener: object) -> int:
        self.attached.append((kind, 7))
        return 7

    def detach(self, kind: Kind, identity: int) -> None:
        self.attached.remove((kind, identity))


def session(connection: Listening) -> TopicSession:
    return TopicSession(cast("Connection", connection), cast("Listener", None))


def test_the_error_that_ended_a_session_is_kept() -> None:
    one, first = session(Listening()), ConnectionLost("first")
    one.happened(Event.OPENED)
    assert one.error is None
    one.happened(Event.LOST, first)
    one.happened(Event.LOST, ConnectionLost("second"))
    assert one.error is first


def test_what_happens_behind_the_end_brings_no_error() -> None:
    """A session that the broker closed does not count as lost."""
    one = session(Listening())
    one.happened(Event.CLOSED)
    one.happened(Event.LOST, ConnectionLost("late"))
    assert (one.phase, one.error) == (Phase.CLOSED, None)


def test_a_session_is_attached_until_it_is_detached() -> None:
    connection = Listening()
    one = session(connection)
    assert connection.attached == [(Kind.CONSUMER, one.consumer_id)]
    one.detach()
    assert connection.attached == []


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        moves((Event.OPENED, Event.LOST), {Phase.OPEN: (Phase.OPEN,)})
