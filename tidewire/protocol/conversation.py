"""One connection to a broker, without IO. Received bytes go in, events come out. Bytes to send are return values.

An adapter owns the socket. It makes these calls in this order:

1. It sends `greeting()`, then feeds received bytes until `welcomed()` returns True.
2. It feeds received bytes, and takes events until `next_event` returns None. There are three kinds of events:
   - `PING`: the adapter sends `PONG`.
   - a `Question`: it has been answered, so the task that waits for it can continue.
   - a `Frame`: the broker sent a command that answers no request. `listeners.py` finds its recipient.
3. `ask` returns the bytes of a question. `withdraw` forgets a question whose answer is no longer needed.
4. At the first error, or at the end of the stream, the adapter calls `end`.

**Which answer belongs to which question.** Each request has an id that is unique on its connection. Its answer repeats
the id. Only the first answer counts. Second, late and unrequested answers are dropped. An answer of an unexpected type
fails its question with an error that says so.
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
"""The response to a PING."""

PING_FRAME: Final = encode_command(commands.ping())
"""A request for a sign of life."""

_Type: TypeAlias = pb.BaseCommand.Type
_Answer = TypeVar("_Answer", bound=ProtobufMessage)
_BESIDE_MESSAGE_BYTES_MAX: Final = MAX_FRAME_SIZE - MAX_MESSAGE_SIZE
"""The part of a frame that is not the message: the command and the message's metadata."""
_MESSAGE: Final = _Type.MESSAGE
_PING: Final = _Type.PING
_ERROR: Final = _Type.ERROR


class _AnswerFields(NamedTuple):
    """Which fields of an answer say whether it is an error."""

    member: str
    error: str | None
    """The field with the error's code; None if this type has no such field."""
    text: str
    """The field with the broker's error message."""
    failed: int | None
    """The value of `response` that means failure, with or without an error code. None if there is no `response`."""


def _answer_fields(number: int) -> _AnswerFields | None:
    content: ProtobufMessage = getattr(pb.BaseCommand(), MEMBERS[number])
    fields = content.DESCRIPTOR.fields_by_name
    if "request_id" not in fields:
        return None
    error = next((name for name in ("error", "error_code") if name in fields), None)
    failed = type(content).Failed if "response" in fields else None  # type: ignore[attr-defined]  # two types have it
    return _AnswerFields(MEMBERS[number], error, "error_message" if error == "error_code" else "message", failed)


_ANSWERS: Final[dict[int, _AnswerFields]] = {
    number: fields
    for name, number in _Type.items()
    if name.endswith(("SUCCESS", "RESPONSE", "ERROR")) and (fields := _answer_fields(number)) is not None
}
"""The commands that answer a request; each carries the request's id. Only an ERROR may concern something else."""


class Ping(Enum):
    """The broker checks whether this client is still connected."""

    PING = "ping"


PING: Final = Ping.PING


class Question(Generic[_Answer]):
    """A request, made by `Conversation.question`. It gets at most one answer or error."""

    __slots__ = ("_answer", "_expected", "error", "frame", "name", "request_id")

    def __init__(self, request_id: int, command: pb.BaseCommand, expected: type[_Answer]) -> None:
        self.request_id = request_id
        self.name = _Type.Name(command.type)
        """The type of the request, for error messages."""
        self.frame = encode_command(command)
        self.error: TidewireError | None = None
        """Why there is no answer: the broker refused, it sent another type of answer, or the connection ended."""
        self._expected = expected
        self._answer: _Answer | None = None

    @property
    def is_answered(self) -> bool:
        """Whether the question has an answer or an error."""
        return self._answer is not None or self.error is not None

    def result(self) -> _Answer:
        """Return the answer.

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
        """Take the answer, a command of type `name` from the broker at `address`."""
        if isinstance(answer, self._expected):
            self._answer = answer
        else:
            self.error = ProtocolViolation(f"{address} answered {self.name} with {name}")


Event: TypeAlias = Ping | Question[Any] | Frame


class Conversation:
    """See the module's docstring."""

    def __init__(self, address: BrokerAddress, client_version: str, proxied_to: BrokerAddress | None = None) -> None:
        """Set up; nothing was sent or received yet.

        Args:
            address: the peer's address, for error messages.
            client_version: the client's name and version, which the broker gets.
            proxied_to: the broker behind the proxy, if the peer is a proxy.
        """
        self.address = address
        self.features = pb.FeatureFlags()
        """The features that the broker announced."""
        self.message_bytes_max = MAX_MESSAGE_SIZE
        """The largest message that the broker accepts. A batch or a chunk counts as one message."""
        self.ended: TidewireError | None = None
        """Why the connection ended; None while it is open."""
        self._client_version = client_version
        self._proxied_to = proxied_to
        self._decoder = FrameDecoder()
        self._request_ids = count(1)
        self._questions: dict[int, Question[Any]] = {}

    @property
    def questions(self) -> int:
        """The number of questions without an answer."""
        return len(self._questions)

    # ------------------------------------------------------------------------------------------------- the handshake

    def greeting(self) -> bytes:
        """Return the first bytes to send."""
        features = commands.client_features()
        features.supports_scalable_topics = True
        features.supports_tc_metadata_discovery = True
        proxied_to = None if self._proxied_to is None else self._proxied_to.authority
        return encode_command(commands.connect(self._client_version, proxy_to_broker_url=proxied_to, features=features))

    def welcomed(self) -> bool:
        """Return whether the broker has answered the greeting. False means that more bytes are needed.

        Raises:
            Refused: the broker refused this client.
            ProtocolViolation: the peer's answer is not a broker's.
        """
        try:
            frame = self._decoder.next_frame()
        except FrameError as error:
            raise ProtocolViolation(f"{self.address} does not speak Pulsar's protocol: {error}") from error
        if frame is None:
            return False
        answer = frame.command
        if answer.type == _ERROR:
            raise refusal(answer.error.error, f"{self.address} refused the connection: {answer.error.message}")
        if answer.type != _Type.CONNECTED:
            raise ProtocolViolation(f"{self.address} answered CONNECT with {_Type.Name(answer.type)}")
        self.features = answer.connected.feature_flags
        if answer.connected.max_message_size > 0:
            self.message_bytes_max = min(answer.connected.max_message_size, MAX_MESSAGE_SIZE)
        return True

    # ------------------------------------------------------------------------------------------------------- receiving

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Add received bytes. They are copied, so the caller may reuse its buffer."""
        self._decoder.feed(data)

    def next_event(self) -> Event | None:
        """Return the next event, or None if more bytes are needed.

        Raises:
            ProtocolViolation: the broker broke the protocol. Nothing that follows can be trusted.
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
                raise violation(self.address, f"it sent {_Type.Name(kind)} with a payload of {len(payload)} bytes")
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

    # ------------------------------------------------------------------------------------------------------- requests

    def question(self, make: Callable[[int], pb.BaseCommand], expected: type[_Answer]) -> Question[_Answer]:
        """Make a question: `make` gets a request id and returns the command. `expected` is the answer's type."""
        request_id = next(self._request_ids)
        return Question(request_id, make(request_id), expected)

    def ask(self, question: Question[Any]) -> bytes:
        """Expect an answer from now on. The caller sends the returned bytes."""
        self._questions[question.request_id] = question
        return question.frame

    def check_frame(self, size_bytes: int) -> None:
        """Check that the broker accepts a message's frame of this size. It would close the connection at a larger one.

        Raises:
            MessageTooLarge: the frame is too large.
        """
        if size_bytes > self.message_bytes_max + _BESIDE_MESSAGE_BYTES_MAX:
            raise MessageTooLarge(
                f"the message and its metadata take {size_bytes} bytes, but the broker at {self.address} accepts "
                f"messages of at most {self.message_bytes_max}; send less, or raise the broker's setting "
                f"message_bytes_max"
            )

    def withdraw(self, question: Question[Any]) -> None:
        """Stop expecting the answer. If it still arrives, it is dropped."""
        self._questions.pop(question.request_id, None)

    # ------------------------------------------------------------------------------------------------------- the end

    def end(self, error: TidewireError) -> list[Question[Any]]:
        """Note that the connection has ended, fail all unanswered questions, and return them."""
        self.ended = error
        questions, self._questions = self._questions, {}
        for question in questions.values():
            question.error = error
        return list(questions.values())

    def check_open(self) -> None:
        """Check that the connection has not ended.

        Raises:
            TidewireError: it has ended; the error says why.
        """
        if self.ended is not None:
            raise fresh(self.ended)


def violation(address: BrokerAddress, what: object) -> ProtocolViolation:
    """Make the error for a broker that broke the protocol after the handshake."""
    return ProtocolViolation(f"{address} broke the protocol: {what}")


def _refusal_in(content: Any, fields: _AnswerFields) -> Refused | None:  # noqa: ANN401 - an answer of any type
    """Return the error in an answer, with the broker's message; None if it has none."""
    if fields.error is not None and content.HasField(fields.error):
        return refusal(getattr(content, fields.error), getattr(content, fields.text))
    if fields.failed is not None and content.response == fields.failed:
        return refusal(pb.ServerError.UnknownError, getattr(content, fields.text) or "the broker does not say why")
    return None
