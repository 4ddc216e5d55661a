"""One connection to a broker, without IO: what arrived goes in, events come out; what to send is returned as bytes.

An adapter owns the socket. It calls in this order:

1. It sends `greeting()`, then feeds what arrives until `welcomed()` says that the broker has answered.
2. It feeds what arrives, and takes events until `next_event` returns None. An event is one of three:
   - `PING`: it sends `PONG`.
   - a `Question`: its answer has come, and whoever waits for it can go on.
   - a `Frame`: the broker sent a command that answers nothing. `listeners.py` knows who it is for.
3. `ask` returns the bytes of a question. `withdraw` forgets one that nobody waits for any more.
4. At the first error, or when the stream has ended, it calls `end`.

**Which answer belongs to which question.** A request carries an id that is never used again on its connection, and its
answer repeats the id. The answer is taken once: a second one, one that comes late, and one that nobody asked for are
dropped. An answer of another type than expected fails its question, and says so.
"""

from collections.abc import Callable
from enum import Enum
from itertools import count
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from google.protobuf.message import Message as ProtobufMessage

from tidewire.protocol.addresses import BrokerAddress
from tidewire.protocol.errors import MessageTooLarge, ProtocolViolation, TidewireError, fresh
from tidewire.protocol.refusals import Refused, refusal
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.errors import FrameError
from tidewire.wire.pulsar.frames import MAX_FRAME_SIZE, MAX_MESSAGE_SIZE, Frame, FrameDecoder, encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.parsing import MEMBERS

PONG: Final = encode_command(commands.pong())
"""What to send at a PING."""

_Type: TypeAlias = pb.BaseCommand.Type
_Answer = TypeVar("_Answer", bound=ProtobufMessage)
_BESIDE_MESSAGE_BYTES_MAX: Final = MAX_FRAME_SIZE - MAX_MESSAGE_SIZE
"""What a frame may have besides the message: its command, and the message's metadata."""
_MESSAGE: Final = _Type.MESSAGE
_PING: Final = _Type.PING
_ERROR: Final = _Type.ERROR


class _AnswerFields(NamedTuple):
    """How a type of answer says what it says."""

    member: str
    error: str | None
    """The field with the error's code; None if the type has none."""
    text: str
    """The field with the broker's words on the error."""
    failed: int | None
    """The value of `response` that means failure, with an error or without one."""


def _answer_fields(number: int) -> _AnswerFields | None:
    content: ProtobufMessage = getattr(pb.BaseCommand(), MEMBERS[number])
    fields = content.DESCRIPTOR.fields_by_name
    if "request_id" not in fields:
        return None
    error = next((name for name in ("error", "error_code") if name in fields), None)
    failed = type(content).Failed if "response" in fields else None  # type: ignore[attr-defined]  # of two types
    return _AnswerFields(MEMBERS[number], error, "error_message" if error == "error_code" else "message", failed)


_ANSWERS: Final[dict[int, _AnswerFields]] = {
    number: fields
    for name, number in _Type.items()
    if name.endswith(("SUCCESS", "RESPONSE", "ERROR")) and (fields := _answer_fields(number)) is not None
}
"""The commands that answer the request whose id they carry. Only an ERROR may be about something else."""


class Ping(Enum):
    """The broker asks whether we are there."""

    PING = "ping"


PING: Final = Ping.PING


class Question(Generic[_Answer]):
    """A request, made by `Conversation.question`. At most one answer or error comes to it."""

    __slots__ = ("_answer", "_expected", "error", "frame", "name", "request_id")

    def __init__(self, request_id: int, command: pb.BaseCommand, expected: type[_Answer]) -> None:
        self.request_id = request_id
        self.name = _Type.Name(command.type)
        """The type of the request, for errors."""
        self.frame = encode_command(command)
        self.error: TidewireError | None = None
        """Why there is no answer: the broker refuses, answers something else, or the connection has ended."""
        self._expected = expected
        self._answer: _Answer | None = None

    @property
    def is_answered(self) -> bool:
        """Whether there is an answer or an error."""
        return self._answer is not None or self.error is not None

    def result(self) -> _Answer:
        """The answer.

        Raises:
            Refused: the broker answered with an error.
            ProtocolViolation: the broker answered with a command of another type.
            TidewireError: the connection ended first.
        """
        if self.error is not None:
            raise fresh(self.error)
        assert self._answer is not None, "there is no answer yet"
        return self._answer

    def take(self, answer: ProtobufMessage, address: BrokerAddress, name: str) -> None:
        """The broker at `address` answered by a command of type `name`."""
        if isinstance(answer, self._expected):
            self._answer = answer
        else:
            self.error = ProtocolViolation(f"{address} answered {self.name} with {name}")


Event: TypeAlias = Ping | Question[Any] | Frame


class Conversation:
    """See the module's docstring."""

    def __init__(self, address: BrokerAddress, client_version: str, proxied_to: BrokerAddress | None = None) -> None:
        """Nothing was sent or received yet.

        Args:
            address: who is at the other end, for errors.
            client_version: what the broker is told of this client.
            proxied_to: the broker that the peer, a proxy, shall pass everything on to.
        """
        self.address = address
        self.features = pb.FeatureFlags()
        """What the broker announced."""
        self.message_bytes_max = MAX_MESSAGE_SIZE
        """The largest message that the broker takes; a batch, or a chunk, is one."""
        self.ended: TidewireError | None = None
        """Why nothing more can be asked."""
        self._client_version = client_version
        self._proxied_to = proxied_to
        self._decoder = FrameDecoder()
        self._request_ids = count(1)
        self._questions: dict[int, Question[Any]] = {}

    @property
    def questions(self) -> int:
        """How many questions wait for their answer."""
        return len(self._questions)

    # ------------------------------------------------------------------------------------------------- the handshake

    def greeting(self) -> bytes:
        """What is sent first."""
        features = commands.client_features()
        features.supports_scalable_topics = True
        features.supports_tc_metadata_discovery = True
        proxied_to = None if self._proxied_to is None else self._proxied_to.authority
        return encode_command(commands.connect(self._client_version, proxy_to_broker_url=proxied_to, features=features))

    def welcomed(self) -> bool:
        """Whether the broker has answered the greeting; False when more has to be fed first.

        Raises:
            Refused: the broker does not want this client.
            ProtocolViolation: the peer answers as no broker would.
        """
        try:
            frame = self._decoder.next_frame()
        except FrameError as error:
            raise ProtocolViolation(f"{self.address} does not speak Pulsar's protocol: {error}") from error
        if frame is None:
            return False
        answer = frame.command
        if answer.type == _ERROR:
            raise refusal(answer.error.error, f"{self.address} refuses the connection: {answer.error.message}")
        if answer.type != _Type.CONNECTED:
            raise ProtocolViolation(f"{self.address} answered CONNECT with {_Type.Name(answer.type)}")
        self.features = answer.connected.feature_flags
        if answer.connected.max_message_size > 0:
            self.message_bytes_max = min(answer.connected.max_message_size, MAX_MESSAGE_SIZE)
        return True

    # --------------------------------------------------------------------------------------------- what the broker says

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Add what arrived. Copies it, so the caller may use its buffer again."""
        self._decoder.feed(data)

    def next_event(self) -> Event | None:
        """The next event, or None when more has to be fed first.

        Raises:
            ProtocolViolation: the broker says what the protocol does not allow. Nothing after it can be trusted.
        """
        while True:
            try:
                frame = self._decoder.next_frame()
            except FrameError as error:
                raise violation(self.address, error) from error
            if frame is None:
                return None
            command, payload = frame
            kind = command.type
            if kind == _MESSAGE:
                return frame
            if payload is not None:
                raise violation(self.address, f"{_Type.Name(kind)} came with a payload of {len(payload)} bytes")
            fields = _ANSWERS.get(kind)
            if kind == _PING:
                return PING
            if fields is None or (kind == _ERROR and command.error.HasField("consumer_id")):
                return frame
            content = getattr(command, fields.member)
            question = self._questions.pop(content.request_id, None)
            if question is not None:
                question.error = _refusal_in(content, fields)
                if question.error is None:
                    question.take(content, self.address, _Type.Name(kind))
                return question

    # ----------------------------------------------------------------------------------------------------- asking it

    def question(self, make: Callable[[int], pb.BaseCommand], expected: type[_Answer]) -> Question[_Answer]:
        """A question: the command that `make` makes with a request id. An `expected` message is to answer it."""
        request_id = next(self._request_ids)
        return Question(request_id, make(request_id), expected)

    def ask(self, question: Question[Any]) -> bytes:
        """Wait for the answer from now on; what is returned has to be sent."""
        self._questions[question.request_id] = question
        return question.frame

    def check_frame(self, size_bytes: int) -> None:
        """See that the broker takes a frame with a message. It ends a connection that sends it a larger one.

        Raises:
            MessageTooLarge: it does not.
        """
        if size_bytes > self.message_bytes_max + _BESIDE_MESSAGE_BYTES_MAX:
            raise MessageTooLarge(
                f"{self.address} takes messages of up to {self.message_bytes_max} bytes, by its setting "
                f"message_bytes_max; this one takes {size_bytes}"
            )

    def withdraw(self, question: Question[Any]) -> None:
        """Nobody waits for its answer any more: it is dropped when it comes."""
        self._questions.pop(question.request_id, None)

    # ------------------------------------------------------------------------------------------------------- the end

    def end(self, error: TidewireError) -> list[Question[Any]]:
        """The connection has ended: fail every question that waits; these questions."""
        self.ended = error
        questions, self._questions = self._questions, {}
        for question in questions.values():
            question.error = error
        return list(questions.values())

    def check_open(self) -> None:
        """See that something can still be asked.

        Raises:
            TidewireError: the connection has ended, and why.
        """
        if self.ended is not None:
            raise fresh(self.ended)


def violation(address: BrokerAddress, what: object) -> ProtocolViolation:
    """The error for a peer that was welcomed as a broker and says what the protocol does not allow."""
    return ProtocolViolation(f"{address} broke the protocol: {what}")


def _refusal_in(content: Any, fields: _AnswerFields) -> Refused | None:  # noqa: ANN401 - an answer of any type
    """The error that an answer carries, in the broker's words."""
    if fields.error is not None and content.HasField(fields.error):
        return refusal(getattr(content, fields.error), getattr(content, fields.text))
    if fields.failed is not None and content.response == fields.failed:
        return refusal(pb.ServerError.UnknownError, getattr(content, fields.text) or "the broker does not say why")
    return None
