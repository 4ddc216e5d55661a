"""Who gets what a broker sends unasked: the producer, consumer or watch whose id a command carries. No IO.

Handing over never waits, so no slow consumer can hold up another's receipt. What is handed over is bounded by what was
asked for: unanswered sends, flow permits, watches.
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
    """What a listener listens for. Ids count separately for each."""

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
    # An ERROR without a consumer's id answers a request, and never comes here.
    _Type.ERROR: (Kind.CONSUMER, attrgetter("error.consumer_id")),
    _Type.SCALABLE_TOPIC_ASSIGNMENT_UPDATE: (
        Kind.CONSUMER,
        attrgetter("scalable_topic_assignment_update.consumer_id"),
    ),
    _Type.SCALABLE_TOPIC_UPDATE: (Kind.LAYOUT, attrgetter("scalable_topic_update.session_id")),
    _Type.WATCH_TC_ASSIGNMENTS_UPDATE: (Kind.COORDINATORS, attrgetter("watch_tc_assignments_update.watch_id")),
    _Type.WATCH_SCALABLE_TOPICS_UPDATE: (Kind.NAMESPACE, attrgetter("watch_scalable_topics_update.watch_id")),
}
"""The commands that a broker sends unasked: what kind of listener each is for, and where its id stands."""


class Listeners(Generic[_Listener]):
    """The listeners of one connection."""

    def __init__(self) -> None:
        """Nobody listens yet."""
        self._ids = {kind: count(1) for kind in Kind}
        self._listeners: dict[Kind, dict[int, _Listener]] = {kind: {} for kind in Kind}

    def __len__(self) -> int:
        """How many are attached."""
        return sum(map(len, self._listeners.values()))

    def attach(self, kind: Kind, listener: _Listener) -> int:
        """Give the listener an id, unique on this connection, under which the broker may send to it."""
        identity = next(self._ids[kind])
        self._listeners[kind][identity] = listener
        return identity

    def detach(self, kind: Kind, identity: int) -> None:
        """What still comes for this id is dropped."""
        self._listeners[kind].pop(identity, None)

    def of(self, command: pb.BaseCommand) -> _Listener | None:
        """Who a command is for; None if it is for nobody, or for one that was detached while it was on its way."""
        addressed = _ADDRESSED.get(command.type)
        if addressed is None:
            return None
        kind, identity_of = addressed
        return self._listeners[kind].get(identity_of(command))

    def detach_all(self) -> list[_Listener]:
        """The listeners that were attached; none is any more."""
        detached = [listener for attached in self._listeners.values() for listener in attached.values()]
        for attached in self._listeners.values():
            attached.clear()
        return detached
