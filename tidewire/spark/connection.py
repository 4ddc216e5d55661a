"""One blocking connection to a broker: the adapter of `tidewire.protocol.conversation` over a socket.

Spark's Python processes do one thing at a time and have no event loop: a planner makes a few requests, a task reads one
segment. So there is no task or thread here, only a socket that the caller reads when it needs something. Unread data
stays in the broker, which gives a slow Spark stage its back-pressure.

Every wait has a deadline. A request has `timeout_seconds` for its answer, whatever else arrives meanwhile. A caller
that waits for messages gives `receive` its own deadline. A caller that waits for pushes calls `arrived` whenever the
socket is readable, and after `silence_seconds_left`: `arrived` asks a silent broker for a sign of life.
"""

import socket
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

from google.protobuf.message import Message as ProtobufMessage

from tidewire.protocol.addresses import BrokerAddress
from tidewire.protocol.conversation import PING, PING_FRAME, PONG, Conversation, Question
from tidewire.protocol.errors import ConnectFailed, ConnectionLost, OperationTimedOut
from tidewire.protocol.refusals import Refused, refusal
from tidewire.protocol.silence import KEEP_ALIVE_SECONDS, Silence, Verdict
from tidewire.protocol.sockets import SOCKET_OPTIONS
from tidewire.wire.pulsar.frames import Frame, encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

CLIENT_VERSION: Final = "tidewire-spark"

RECEIVE_BYTES_MAX: Final = 256 * 1024
"""The most bytes read from the socket at once."""

_Answer = TypeVar("_Answer", bound=ProtobufMessage)


class Socket(Protocol):
    """The part of `socket.socket` that a connection uses."""

    def recv_into(self, buffer: memoryview, /) -> int:
        """Receive some bytes; 0 when the peer has closed."""
        ...

    def sendall(self, data: bytes, /) -> None:
        """Send all of it."""
        ...

    def fileno(self) -> int:
        """The system's number for it."""
        ...

    def settimeout(self, value: float, /) -> None:
        """The time limit of the two above, which then raise TimeoutError; with 0, BlockingIOError at once."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


class BlockingConnection:
    """See the module's docstring. After a `ConnectionLost` or `ProtocolViolation` it cannot be used again."""

    def __init__(
        self,
        connected: Socket,
        address: BrokerAddress,
        *,
        timeout_seconds: float,
        proxied_to: BrokerAddress | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A connection over a connected socket, which it owns and closes; call `handshake` first.

        Args:
            connected: with nothing sent or received yet.
            address: the peer's address, for errors.
            timeout_seconds: the time limit for an answer, and for sending.
            proxied_to: the broker to which the peer, a proxy, forwards everything.
            clock: seconds, from any origin.
        """
        self.address = address
        self._socket = connected
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._conversation = Conversation(address, CLIENT_VERSION, proxied_to)
        self._silence = Silence(KEEP_ALIVE_SECONDS, clock())
        self._buffer = memoryview(bytearray(RECEIVE_BYTES_MAX))
        self.unasked: Callable[[Frame], None] | None = None
        """Gets the frames that arrive during a request and are not its answer; without it they are dropped."""

    @property
    def features(self) -> pb.FeatureFlags:
        """The features that the broker announced."""
        return self._conversation.features

    @property
    def message_bytes_max(self) -> int:
        """The largest message that the broker accepts, in bytes. A batch counts as one message."""
        return self._conversation.message_bytes_max

    @classmethod
    def open(cls, address: BrokerAddress, *, timeout_seconds: float, proxied_to: BrokerAddress | None = None) -> Self:
        """Connect, and complete the handshake.

        Raises:
            ConnectFailed: nothing answers there.
            ConnectionLost, OperationTimedOut, ProtocolViolation, Refused: the handshake failed.
        """
        try:
            connected = socket.create_connection(address, timeout_seconds)
        except OSError as error:
            raise ConnectFailed(f"no broker can be reached at {address}: {error}") from error
        try:
            for level, option, value in SOCKET_OPTIONS:
                if hasattr(socket, option):
                    connected.setsockopt(getattr(socket, level), getattr(socket, option), value)
            connection = cls(connected, address, timeout_seconds=timeout_seconds, proxied_to=proxied_to)
            connection.handshake()
        except BaseException:
            connected.close()
            raise
        return connection

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. The broker then forgets the consumers and producers that were opened on it."""
        self._socket.close()

    def fileno(self) -> int:
        """The socket's number, to wait on before `arrived`."""
        return self._socket.fileno()

    def handshake(self) -> None:
        """Send CONNECT, and wait for the answer.

        Raises:
            ConnectionLost, OperationTimedOut, ProtocolViolation, Refused: the peer did not answer with CONNECTED.
        """
        self.send_encoded(self._conversation.greeting())
        deadline = self.deadline()
        while not self._conversation.welcomed():
            try:
                self._fill(deadline, "its answer to CONNECT")
            except ConnectionLost as error:
                raise ConnectionLost(
                    f"{error}, and did not greet; check that option service_url names the broker's port for pulsar://"
                ) from error

    def deadline(self) -> float:
        """When the answer to a request sent now is overdue, by the connection's clock."""
        return self._clock() + self._timeout_seconds

    def send(self, command: pb.BaseCommand) -> None:
        """Send a command.

        Raises:
            ConnectionLost: the connection has ended.
            OperationTimedOut: the broker does not read what is sent.
        """
        self.send_encoded(encode_command(command))

    def send_encoded(self, *pieces: bytes) -> None:
        """Send an encoded frame, in pieces so that a large one need not be copied.

        Raises:
            MessageTooLarge: the frame is above the broker's limit; nothing was sent.
            TidewireError: as `send`.
        """
        self._conversation.check_frame(sum(map(len, pieces)))
        try:
            self._socket.settimeout(self._timeout_seconds)
            for piece in pieces:
                self._socket.sendall(piece)
        except TimeoutError as error:
            raise OperationTimedOut(f"{self.address} has read nothing for {self._timeout_seconds:g} s") from error
        except OSError as error:
            raise self._broken(error) from error

    def request(self, make: Callable[[int], pb.BaseCommand], expected: type[_Answer]) -> _Answer:
        """Send the command that `make` builds for a request id, and return the message that answers it.

        Other frames that arrive meanwhile go to `unasked`.

        Raises:
            Refused: the broker answered with an error.
            ProtocolViolation: the answer is not an `expected` message.
            ConnectionLost, OperationTimedOut: no answer came.
        """
        question = self._conversation.question(make, expected)
        self.send_encoded(self._conversation.ask(question))
        deadline = self.deadline()
        try:
            while not question.is_answered:
                event = self._wait(deadline, f"its answer to {question.name}")
                if isinstance(event, Frame) and self.unasked is not None:
                    self.unasked(event)
        finally:
            self._conversation.withdraw(question)
        if isinstance(question.error, Refused):
            refused = question.error
            raise refusal(refused.code, f"{self.address} refuses {question.name}: {refused.reason}")
        return question.result()

    def receive(self, deadline: float, awaited: str) -> Frame:
        """The next frame that is not about the connection itself.

        Args:
            deadline: by the connection's clock.
            awaited: what the broker has to send; the error names it if it does not come.

        Raises:
            OperationTimedOut: it did not come in time.
            ConnectionLost: the connection ended.
            ProtocolViolation: the peer broke the protocol.
        """
        while not isinstance(event := self._wait(deadline, awaited), Frame):
            pass
        return event

    def arrived(self) -> Iterator[Frame]:
        """The frames that have arrived and are not about the connection itself. Does not wait.

        Raises:
            ConnectionLost: the connection ended, or the broker has given no sign of life for too long.
            ProtocolViolation: the peer broke the protocol.
        """
        while True:
            event = self._next_event()
            if isinstance(event, Frame):
                yield event
            elif event is None and not self._fill_with_what_is_there():
                self._require_sign_of_life()
                return

    @property
    def silence_seconds_left(self) -> float:
        """After how many seconds without anything to read `arrived` has to be called again."""
        return max(0.0, self._silence.due - self._clock())

    def _require_sign_of_life(self) -> None:
        verdict = self._silence.judge(self._clock())
        if verdict is Verdict.ASK:
            self.send_encoded(PING_FRAME)
        elif verdict is Verdict.GIVE_UP:
            raise ConnectionLost(
                f"the broker at {self.address} has given no sign of life for {2 * self._silence.seconds:g} s"
            )

    def _wait(self, deadline: float, awaited: str) -> Question[Any] | Frame:
        while (event := self._next_event()) is None:
            self._fill(deadline, awaited)
        return event

    def _next_event(self) -> Question[Any] | Frame | None:
        """The next event in the received bytes that is not about the connection itself; None if there is none."""
        while (event := self._conversation.next_event()) is PING:
            self.send_encoded(PONG)
        return event

    def _fill_with_what_is_there(self) -> bool:
        try:
            self._socket.settimeout(0)
            size = self._socket.recv_into(self._buffer)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._broken(error) from error
        self._take(size)
        return True

    def _fill(self, deadline: float, awaited: str) -> None:
        remaining_seconds = deadline - self._clock()
        try:
            if remaining_seconds <= 0:
                raise TimeoutError
            self._socket.settimeout(remaining_seconds)
            size = self._socket.recv_into(self._buffer)
        except TimeoutError as error:
            raise OperationTimedOut(
                f"{self.address} did not send {awaited} within {self._timeout_seconds:g} s"
            ) from error
        except OSError as error:
            raise self._broken(error) from error
        self._take(size)

    def _take(self, size: int) -> None:
        if size == 0:
            raise ConnectionLost(f"the broker at {self.address} closed the connection")
        self._silence.heard(self._clock())
        self._conversation.feed(self._buffer[:size])

    def _broken(self, error: OSError) -> ConnectionLost:
        return ConnectionLost(f"the connection to the broker at {self.address} broke: {error}")
