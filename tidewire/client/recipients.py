"""Who gets what a broker sends: the answer to a request, or the listener of a producer, consumer or session. No IO.

Handing over never waits, so no slow consumer can hold up another's receipt. What is handed over is bounded by what was
asked for: outstanding requests, unanswered sends, flow permits.
"""

from enum import Enum
from itertools import count
from typing import Final, Protocol, TypeAlias

import anyio
from google.protobuf.message import Message as ProtobufMessage

from tidewire.protocol.errors import ProtocolViolation, TidewireError
from tidewire.protocol.refusals import refusal
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.parsing import MEMBERS

_Type: TypeAlias = pb.BaseCommand.Type

_RESPONSES: Final = frozenset(
    (
        _Type.SUCCESS,
        _Type.PRODUCER_SUCCESS,
        _Type.PARTITIONED_METADATA_RESPONSE,
        _Type.LOOKUP_RESPONSE,
        _Type.GET_LAST_MESSAGE_ID_RESPONSE,
        _Type.GET_SCHEMA_RESPONSE,
        _Type.ACK_RESPONSE,
        _Type.NEW_TXN_RESPONSE,
        _Type.ADD_PARTITION_TO_TXN_RESPONSE,
        _Type.ADD_SUBSCRIPTION_TO_TXN_RESPONSE,
        _Type.END_TXN_RESPONSE,
        _Type.TC_CLIENT_CONNECT_RESPONSE,
        _Type.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE,
    )
)
"""Commands that answer the request whose id they carry. Many may carry an error instead."""


class Kind(Enum):
    """What a listener listens for. Ids count separately for each."""

    PRODUCER = "producer_id"
    CONSUMER = "consumer_id"
    LAYOUT = "session_id"
    COORDINATORS = "watch_id"


_EVENTS: Final[dict[int, Kind]] = {
    _Type.SEND_RECEIPT: Kind.PRODUCER,
    _Type.SEND_ERROR: Kind.PRODUCER,
    _Type.CLOSE_PRODUCER: Kind.PRODUCER,
    _Type.MESSAGE: Kind.CONSUMER,
    _Type.CLOSE_CONSUMER: Kind.CONSUMER,
    _Type.REACHED_END_OF_TOPIC: Kind.CONSUMER,
    _Type.SCALABLE_TOPIC_ASSIGNMENT_UPDATE: Kind.CONSUMER,
    _Type.SCALABLE_TOPIC_UPDATE: Kind.LAYOUT,
    _Type.WATCH_TC_ASSIGNMENTS_UPDATE: Kind.COORDINATORS,
}
"""Commands that the broker sends unasked, and whose listeners they are for."""


class Listener(Protocol):
    """Gets what the broker sends unasked. Both methods are called from the reading task: they return at once."""

    def received(self, command: pb.BaseCommand, payload: bytes | None) -> None:
        """A command for this listener; of all of them, MESSAGE alone has a payload.

        Raises:
            ProtocolViolation: it makes no sense; the connection is closed.
        """
        ...

    def connection_lost(self, error: TidewireError) -> None:
        """Nothing more will come, and the listener is detached. Called once, unless it was detached before."""
        ...


class Question:
    """A request on its way: exactly one of `response` and `error` is set before `answered`."""

    __slots__ = ("answered", "error", "response")

    def __init__(self) -> None:
        self.answered = anyio.Event()
        self.response: ProtobufMessage | None = None
        self.error: TidewireError | None = None


class Recipients:
    """Those of one connection. Request ids and the ids of each kind of listener are unique on it."""

    def __init__(self) -> None:
        self._request_ids = count(1)
        self._questions: dict[int, Question] = {}
        self._ids = {kind: count(1) for kind in Kind}
        self._listeners: dict[tuple[Kind, int], Listener] = {}

    @property
    def questions(self) -> int:
        """Requests that wait for their answer."""
        return len(self._questions)

    @property
    def listeners(self) -> int:
        """Listeners attached."""
        return len(self._listeners)

    def new_request_id(self) -> int:
        """An id for a request that is about to be sent."""
        return next(self._request_ids)

    def expect(self, request_id: int, question: Question) -> None:
        """The answer with this id is for `question`."""
        self._questions[request_id] = question

    def forget(self, request_id: int) -> None:
        """Nobody waits for the answer any more; it is dropped."""
        self._questions.pop(request_id, None)

    def attach(self, kind: Kind, listener: Listener) -> int:
        """Give the listener an id, under which the broker may send to it."""
        identity = next(self._ids[kind])
        self._listeners[kind, identity] = listener
        return identity

    def detach(self, kind: Kind, identity: int) -> None:
        """What still comes for this id is dropped."""
        self._listeners.pop((kind, identity), None)

    def hand_over(self, command: pb.BaseCommand, payload: bytes | None) -> None:
        """A command has arrived; one that is for nobody is dropped.

        Raises:
            ProtocolViolation: it makes no sense, to its listener or to anybody.
        """
        if payload is not None and command.type != _Type.MESSAGE:
            raise ProtocolViolation(f"{_Type.Name(command.type)} came with a payload of {len(payload)} bytes")
        kind = _EVENTS.get(command.type)
        if kind is not None:
            identity = getattr(getattr(command, MEMBERS[command.type]), kind.value)
            listener = self._listeners.get((kind, identity))
            # One that is not known was closed while this was on its way.
            if listener is not None:
                listener.received(command, payload)
        elif command.type in _RESPONSES:
            response = getattr(command, MEMBERS[command.type])
            error = None
            if "error" in response.DESCRIPTOR.fields_by_name and response.HasField("error"):
                error = refusal(response.error, response.message)
            self._answer(response.request_id, response, error)
        elif command.type == _Type.ERROR and command.error.HasField("consumer_id"):
            consumer = self._listeners.get((Kind.CONSUMER, command.error.consumer_id))
            if consumer is not None:
                consumer.received(command, payload)
        elif command.type == _Type.ERROR:
            self._answer(command.error.request_id, None, refusal(command.error.error, command.error.message))

    def lose(self, error: TidewireError) -> None:
        """The connection has ended: fail every question, tell every listener and detach it."""
        questions, self._questions = self._questions, {}
        for question in questions.values():
            question.error = error
            question.answered.set()
        listeners, self._listeners = self._listeners, {}
        for listener in listeners.values():
            listener.connection_lost(error)

    def _answer(self, request_id: int, response: ProtobufMessage | None, error: TidewireError | None) -> None:
        question = self._questions.pop(request_id, None)
        if question is not None:
            question.response, question.error = (response, None) if error is None else (None, error)
            question.answered.set()
