"""Finds the recipient of a pushed command: the producer, consumer or watch whose id the command carries. No IO.

Delivery to a listener never waits, so a slow consumer cannot delay another listener's commands. The number of pushed
commands is bounded by what the client requested: unanswered sends, flow permits, watches.
"""

from collections.abc import Callable
from enum import Enum, auto
from itertools import count
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

_Type = pb.BaseCommand.Type
_Listener = TypeVar("_Listener")


class Kind(Enum):
    """The kind of a listener. Each kind has its own sequence of ids."""

    PRODUCER = auto()
    CONSUMER = auto()
    LAYOUT = auto()
    COORDINATORS = auto()
    NAMESPACE = auto()


_ADDRESSED: Final[dict[int, tuple[Kind, Callable[[Any], int]]]] = {
    _Type.MESSAGE: (Kind.CONSUMER, attrgetter("message.consumer_id")),
    _Type.SEND_RECEIPT: (Kind.PRODUCER, attrgetter("send_receipt.producer_id")),
    _Type.SEND_ERROR: (Kind.PRODUCER, attrgetter("send_error.producer_id")),
    _Type.CLOSE_PRODUCER: (Kind.PRODUCER, attrgetter("close_producer.producer_id")),
    _Type.CLOSE_CONSUMER: (Kind.CONSUMER, attrgetter("close_consumer.consumer_id")),
    _Type.REACHED_END_OF_TOPIC: (Kind.CONSUMER, attrgetter("reached_end_of_topic.consumer_id")),
    # An ERROR without a consumer's id answers a request. The conversation handles it.
    _Type.ERROR: (Kind.CONSUMER, attrgetter("error.consumer_id")),
    _Type.SCALABLE_TOPIC_ASSIGNMENT_UPDATE: (
        Kind.CONSUMER,
        attrgetter("scalable_topic_assignment_update.consumer_id"),
    ),
    _Type.SCALABLE_TOPIC_UPDATE: (Kind.LAYOUT, attrgetter("scalable_topic_update.session_id")),
    _Type.WATCH_TC_ASSIGNMENTS_UPDATE: (Kind.COORDINATORS, attrgetter("watch_tc_assignments_update.watch_id")),
    _Type.WATCH_SCALABLE_TOPICS_UPDATE: (Kind.NAMESPACE, attrgetter("watch_scalable_topics_update.watch_id")),
}
"""The commands that a broker pushes: the kind of listener that gets each one, and the field with its id."""


class Listeners(Generic[_Listener]):
    """The listeners of one connection."""

    def __init__(self) -> None:
        """Start without listeners."""
        self._ids = {kind: count(1) for kind in Kind}
        self._listeners: dict[Kind, dict[int, _Listener]] = {kind: {} for kind in Kind}

    def __len__(self) -> int:
        """The number of attached listeners."""
        return sum(map(len, self._listeners.values()))

    def attach(self, kind: Kind, listener: _Listener) -> int:
        """Attach a listener. Return its id, which is unique for its kind on this connection."""
        identity = next(self._ids[kind])
        self._listeners[kind][identity] = listener
        return identity

    def detach(self, kind: Kind, identity: int) -> None:
        """Detach the listener with this id. Later commands for it are dropped."""
        self._listeners[kind].pop(identity, None)

    def of(self, command: pb.BaseCommand) -> _Listener | None:
        """Return the recipient of a command; None if it has none, or if the listener was detached meanwhile."""
        addressed = _ADDRESSED.get(command.type)
        if addressed is None:
            return None
        kind, identity_of = addressed
        return self._listeners[kind].get(identity_of(command))

    def detach_all(self) -> list[_Listener]:
        """Detach all listeners and return them."""
        detached = [listener for attached in self._listeners.values() for listener in attached.values()]
        for attached in self._listeners.values():
            attached.clear()
        return detached
