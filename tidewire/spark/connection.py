"""One blocking connection to a broker, over the same wire codec that broker and client use.

Spark's Python processes do one thing at a time and have no event loop: a planner asks a few questions, a task reads one
segment. So there is no task and no thread here either, only a socket that is read when something is wanted from it.
What nobody reads stays in the broker, which is all the back-pressure that a slow Spark stage needs.

Every wait has a deadline. A request has `timeout_seconds` for its answer, whatever else arrives meanwhile; whoever
waits for messages gives `receive` a deadline of its own.
"""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from types import TracebackType
from typing import Final, Protocol, Self, TypeVar

from google.protobuf.message import Message as ProtobufMessage

from tidewire.protocol.addresses import BrokerAddress
from tidewire.protocol.errors import ConnectFailed, ConnectionLost, OperationTimedOut, ProtocolViolation
from tidewire.protocol.refusals import refusal
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.errors import FrameError
from tidewire.wire.pulsar.frames import Frame, FrameDecoder, encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.parsing import MEMBERS

CLIENT_VERSION: Final = "tidewire-spark"

RECEIVE_BYTES_MAX: Final = 256 * 1024
"""The most bytes taken from the socket at once."""

KEEP_ALIVE_IDLE_SECONDS: Final = 20
KEEP_ALIVE_INTERVAL_SECONDS: Final = 5

_Type = pb.BaseCommand.Type
_Answer = TypeVar("_Answer", bound=ProtobufMessage)


class Socket(Protocol):
    """What a connection uses of a `socket.socket`."""

    def recv_into(self, buffer: memoryview, /) -> int:
        """Receive some bytes; 0 when the peer has closed."""
        ...

    def sendall(self, data: bytes, /) -> None:
        """Send all of it."""
        ...

    def fileno(self) -> int:
        """By which the system knows it."""
        ...

    def settimeout(self, value: float, /) -> None:
        """How long the two above may take before they raise TimeoutError; with 0 they raise BlockingIOError at once."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class BlockingConnection:
    """See the module's docstring. After it raised `ConnectionLost` or `ProtocolViolation` it is of no further use."""

    def __init__(
        self,
        connected: Socket,
        address: BrokerAddress,
        *,
        timeout_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A connection over a connected socket, which it will close; `handshake` comes first.

        Args:
            connected: nothing sent or received yet.
            address: who is at the other end, for errors.
            timeout_seconds: how long a request may stay unanswered, and sending may take.
            clock: seconds, from any origin.
        """
        self.address = address
        self.features = pb.FeatureFlags()
        """What the broker announced."""
        self._socket = connected
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._decoder = FrameDecoder()
        self._buffer = memoryview(bytearray(RECEIVE_BYTES_MAX))
        self._request_ids = count(1)
        self.unasked: Callable[[Frame], None] | None = None
        """Is given what arrives while an answer is waited for and is no answer to it; dropped when there is nobody."""

    @classmethod
    def open(cls, address: BrokerAddress, *, timeout_seconds: float, proxied_to: BrokerAddress | None = None) -> Self:
        """Connect, and shake hands.

        Raises:
            ConnectFailed: nobody answers there.
            ConnectionLost, OperationTimedOut, ProtocolViolation, Refused: somebody does, but not as a broker would.
        """
        try:
            connected = socket.create_connection(address, timeout_seconds)
        except OSError as error:
            raise ConnectFailed(f"no broker can be reached at {address}: {error}") from error
        try:
            _tune(connected)
            connection = cls(connected, address, timeout_seconds=timeout_seconds)
            connection.handshake(proxied_to)
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
        """End the connection; the broker forgets what was opened on it."""
        self._socket.close()

    def fileno(self) -> int:
        """Of its socket, to wait until `arrived` has something to take."""
        return self._socket.fileno()

    def handshake(self, proxied_to: BrokerAddress | None = None) -> None:
        """Say who we are and hear who answers.

        Args:
            proxied_to: the broker that the peer, a proxy, shall pass everything on to.

        Raises:
            ConnectionLost, OperationTimedOut, ProtocolViolation, Refused: the peer does not welcome us.
        """
        features = commands.client_features()
        features.supports_scalable_topics = True
        target = None if proxied_to is None else proxied_to.authority
        self.send(commands.connect(CLIENT_VERSION, proxy_to_broker_url=target, features=features))
        answer = self.receive(self.deadline(), "its answer to CONNECT").command
        if answer.type == _Type.ERROR:
            raise refusal(answer.error.error, f"{self.address} refuses the connection: {answer.error.message}")
        if answer.type != _Type.CONNECTED:
            raise ProtocolViolation(f"{self.address} answered CONNECT with {_Type.Name(answer.type)}")
        self.features = answer.connected.feature_flags

    def deadline(self) -> float:
        """When a request sent now is overdue, by the connection's clock."""
        return self._clock() + self._timeout_seconds

    def send(self, command: pb.BaseCommand) -> None:
        """Send a command.

        Raises:
            ConnectionLost: the connection has ended.
            OperationTimedOut: the broker does not read what it is sent.
        """
        self.send_encoded(encode_command(command))

    def send_encoded(self, *pieces: bytes) -> None:
        """Send a frame that is encoded already, in pieces so that a large one need not be copied.

        Raises:
            As `send`.
        """
        try:
            self._socket.settimeout(self._timeout_seconds)
            for piece in pieces:
                self._socket.sendall(piece)
        except TimeoutError as error:
            raise OperationTimedOut(
                f"{self.address} has read nothing of what it was sent for {self._timeout_seconds:g} s"
            ) from error
        except OSError as error:
            raise self._broken(error) from error

    def request(self, make: Callable[[int], pb.BaseCommand], expected: type[_Answer]) -> _Answer:
        """Send the command that `make` makes with a request id, and return the message that answers it.

        Whatever else arrives before goes to `unasked`.

        Raises:
            Refused: the broker answered with an error.
            ProtocolViolation: it was answered, but not by the `expected` message.
            ConnectionLost, OperationTimedOut: there was no answer.
        """
        request_id = next(self._request_ids)
        command = make(request_id)
        name = _Type.Name(command.type)
        self.send(command)
        deadline = self.deadline()
        while True:
            frame = self.receive(deadline, f"its answer to {name}")
            answer = frame.command
            content: ProtobufMessage = getattr(answer, MEMBERS[answer.type])
            if getattr(content, "request_id", None) != request_id:
                if self.unasked is not None:
                    self.unasked(frame)
                continue
            if isinstance(content, pb.CommandError) or _has_error(content):
                raise refusal(content.error, f"{self.address} refuses {name}: {content.message}")  # type: ignore[attr-defined]
            if not isinstance(content, expected):
                raise ProtocolViolation(f"{self.address} answered {name} with {_Type.Name(answer.type)}")
            return content

    def receive(self, deadline: float, awaited: str) -> Frame:
        """The next frame that is not about the connection itself.

        Args:
            deadline: by the connection's clock.
            awaited: what the broker owes us; stands in the error when it does not come.

        Raises:
            OperationTimedOut: it did not come in time.
            ConnectionLost: the connection ended.
            ProtocolViolation: what came is no frame.
        """
        while (frame := self._next_frame()) is None:
            self._fill(deadline, awaited)
        return frame

    def arrived(self) -> Iterator[Frame]:
        """The frames that have arrived by now and are not about the connection itself. Does not wait.

        Raises:
            ConnectionLost: the connection ended.
            ProtocolViolation: what came is no frame.
        """
        while True:
            if (frame := self._next_frame()) is not None:
                yield frame
            elif not self._fill_with_what_is_there():
                return

    def _next_frame(self) -> Frame | None:
        """The next frame among the bytes taken that is not about the connection itself, if it is there."""
        while True:
            try:
                frame = self._decoder.next_frame()
            except FrameError as error:
                raise ProtocolViolation(f"{self.address} does not speak Pulsar's protocol: {error}") from error
            if frame is None or frame.command.type != _Type.PING:
                return frame
            self.send(commands.pong())

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
        self._decoder.feed(self._buffer[:size])

    def _broken(self, error: OSError) -> ConnectionLost:
        return ConnectionLost(f"the connection to the broker at {self.address} broke: {error}")


def _has_error(content: ProtobufMessage) -> bool:
    return "error" in content.DESCRIPTOR.fields_by_name and content.HasField("error")


def _tune(connected: socket.socket) -> None:
    """Hold no small packet back, and let the kernel find out when the broker's machine is gone."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # These two exist on Linux; elsewhere the kernel's own, longer times hold.
    with suppress(AttributeError):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEP_ALIVE_IDLE_SECONDS)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEP_ALIVE_INTERVAL_SECONDS)
