"""One TCP connection to a broker: the anyio adapter of `tidewire.protocol.conversation`.

Three tasks serve it. The reader feeds what arrives to the conversation, wakes the tasks whose answers have come, and
passes every other command to its listener at once. The writer takes all that is in the buffer and sends it in one
piece. So many small commands cost one system call, and no cancelled caller can cut a frame in two. The third asks a
silent broker for a sign of life (`tidewire.protocol.silence`).

The only timers are that task's, and the deadlines of a connect and of a request. When a connection ends, everything
that waits on it fails with `ConnectionLost`. Whoever needs another connection asks for one (network.py).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import anyio
import anyio.abc
from anyio.lowlevel import checkpoint
from google.protobuf.message import Message as ProtobufMessage

from tidewire.client.errors import Closed
from tidewire.client.waking import Changes, Signal
from tidewire.protocol.addresses import BrokerAddress
from tidewire.protocol.conversation import PING, PING_FRAME, PONG, Conversation, Question, violation
from tidewire.protocol.errors import ConnectFailed, ConnectionLost, OperationTimedOut, ProtocolViolation, TidewireError
from tidewire.protocol.listeners import Kind, Listeners
from tidewire.protocol.silence import Silence, Verdict
from tidewire.wire.pulsar.errors import WireError
from tidewire.wire.pulsar.frames import MAX_FRAME_SIZE
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

CLIENT_VERSION: Final = "tidewire-python"

RECEIVE_BYTES_MAX: Final = 128 * 1024
"""The most bytes read from the socket at once."""

WRITE_BUFFER_BYTES_MAX: Final = 1024 * 1024
"""Writers wait while more than this is unsent."""

WRITE_BUFFER_BYTES_LIMIT: Final = WRITE_BUFFER_BYTES_MAX + MAX_FRAME_SIZE + 1024 * 1024
"""A peer that lets more than this pile up is not reading, and its connection is closed. Above WRITE_BUFFER_BYTES_MAX
the client adds only answers to the peer's own commands (PONG) and small commands that may not wait (FLOW, CLOSE)."""

_Answer = TypeVar("_Answer", bound=ProtobufMessage)


class Listener(Protocol):
    """Gets the commands that answer no request. The reading task calls both methods, so they return at once."""

    def received(self, command: pb.BaseCommand, payload: bytes | None) -> None:
        """A command for this listener; only MESSAGE has a payload.

        Raises:
            ProtocolViolation: the command makes no sense; the connection is closed.
        """
        ...

    def connection_lost(self, error: TidewireError) -> None:
        """Nothing more will come, and the listener is detached. Called once, unless it was detached earlier."""
        ...


@dataclass(frozen=True, slots=True)
class ConnectionStatistics:
    """A connection at one moment."""

    address: str
    is_open: bool
    requests_waiting: int
    listeners: int
    write_buffer_bytes: int


class Connection:
    """A connection from its handshake to its end. `run` serves it; everything else may be called by any task."""

    def __init__(
        self,
        stream: anyio.abc.ByteStream,
        address: BrokerAddress,
        *,
        proxied_to: BrokerAddress | None = None,
        connect_timeout_seconds: float,
        operation_timeout_seconds: float,
        keep_alive_seconds: float,
    ) -> None:
        """A connection over `stream`, which it owns and closes.

        Args:
            stream: connected, with nothing sent yet.
            address: the peer's address.
            proxied_to: the broker to which the peer, a proxy, forwards everything.
            connect_timeout_seconds: the time limit for the handshake.
            operation_timeout_seconds: the time limit for the answer to a request.
            keep_alive_seconds: how long the broker may be silent before it is asked for a sign of life, and then how
                long that may take.
        """
        self.address = address
        self._stream = stream
        self._connect_timeout_seconds = connect_timeout_seconds
        self._operation_timeout_seconds = operation_timeout_seconds
        self._keep_alive_seconds = keep_alive_seconds
        self.proxied_to: Final = proxied_to
        """See the arguments."""
        self._conversation = Conversation(address, CLIENT_VERSION, proxied_to)
        self._answered: dict[Question[Any], anyio.Event] = {}
        """By question, the event that wakes the task waiting for its answer."""
        self._listeners: Listeners[Listener] = Listeners()
        self._output: list[bytes] = []
        self._output_bytes = 0
        self._has_output = Signal()
        self._output_shrunk = Changes()
        self._scope = anyio.CancelScope()
        self._silence: Silence
        """Set once the broker has answered the handshake."""

    @property
    def features(self) -> pb.FeatureFlags:
        """The features that the broker announced."""
        return self._conversation.features

    @property
    def message_bytes_max(self) -> int:
        """The largest message that the broker accepts; a batch or a chunk counts as one message."""
        return self._conversation.message_bytes_max

    def check_frame(self, size_bytes: int) -> None:
        """Check that the broker accepts a frame of this size with a message.

        Raises:
            MessageTooLarge: it does not.
        """
        self._conversation.check_frame(size_bytes)

    @property
    def is_open(self) -> bool:
        """Whether it is usable, as far as this side knows."""
        return self._conversation.ended is None

    def statistics(self) -> ConnectionStatistics:
        """The connection's current state."""
        return ConnectionStatistics(
            str(self.address), self.is_open, self._conversation.questions, len(self._listeners), self._output_bytes
        )

    # ------------------------------------------------------------------------------------------------- serving it

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Shake hands, report started, and serve until the connection ends; then return.

        Raises:
            ConnectFailed: the handshake did not complete.
            Refused: the broker refused the handshake.
            ProtocolViolation: the peer's answer is not one to a handshake.
        """
        error: TidewireError = Closed(f"the connection to {self.address} was closed")
        try:
            with self._scope:
                await self._shake_hands()
                # From now on it serves the whole client, and ends with it (background.py).
                self._scope.shield = True
                self._silence = Silence(self._keep_alive_seconds, anyio.current_time())
                task_status.started()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._write)
                    tasks.start_soon(self._require_signs_of_life)
                    await self._read()
        except TidewireError as failure:
            error = failure
            raise
        finally:
            self._lose(error)
            await anyio.aclose_forcefully(self._stream)

    async def _shake_hands(self) -> None:
        try:
            with anyio.fail_after(self._connect_timeout_seconds):
                await self._stream.send(self._conversation.greeting())
                while not self._conversation.welcomed():
                    self._conversation.feed(await self._stream.receive(RECEIVE_BYTES_MAX))
        except TimeoutError as error:
            raise ConnectFailed(f"{self.address} did not answer within {self._connect_timeout_seconds} s") from error
        except (anyio.EndOfStream, anyio.BrokenResourceError, OSError) as error:
            raise ConnectFailed(f"{self.address} closed the connection during the handshake") from error

    async def _read(self) -> None:
        try:
            while True:
                # Frames may have arrived together with the handshake's answer.
                while (event := self._conversation.next_event()) is not None:
                    if event is PING:
                        self.write(PONG)
                    elif isinstance(event, Question):
                        self._answered.pop(event).set()
                    elif (listener := self._listeners.of(event.command)) is not None:
                        try:
                            listener.received(*event)
                        except (WireError, ProtocolViolation) as error:
                            raise violation(self.address, error) from error
                self._conversation.feed(await self._stream.receive(RECEIVE_BYTES_MAX))
                self._silence.heard(anyio.current_time())
        except anyio.EndOfStream:
            self._lose(ConnectionLost(f"{self.address} closed the connection"))
        except (anyio.BrokenResourceError, OSError) as error:
            self._lose(_with_cause(ConnectionLost(f"the connection to {self.address} broke"), error))
        except ProtocolViolation as error:
            self._lose(error)

    async def _write(self) -> None:
        try:
            while True:
                await self._has_output.wait()
                while self._output:
                    data = b"".join(self._output)
                    self._output.clear()
                    await self._stream.send(data)
                    self._output_bytes -= len(data)
                    self._output_shrunk.notify()
        except (anyio.BrokenResourceError, OSError) as error:
            self._lose(_with_cause(ConnectionLost(f"the connection to {self.address} broke"), error))

    async def _require_signs_of_life(self) -> None:
        silence = self._silence
        while True:
            await anyio.sleep_until(silence.due)
            # If the program held up this task, it held up the reader, too.
            await checkpoint()
            verdict = silence.judge(anyio.current_time())
            if verdict is Verdict.ASK:
                self.write(PING_FRAME)
            elif verdict is Verdict.GIVE_UP:
                seconds = 2 * silence.seconds
                self._lose(ConnectionLost(f"{self.address} has given no sign of life for {seconds:g} s"))
                return

    def _lose(self, error: TidewireError) -> None:
        if not self.is_open:
            return
        questions = self._conversation.end(error)
        self._scope.cancel()
        self._output.clear()
        self._output_bytes = 0
        self._output_shrunk.notify()
        for question in questions:
            self._answered.pop(question).set()
        for listener in self._listeners.detach_all():
            listener.connection_lost(error)

    async def aclose(self) -> None:
        """Send what is in the buffer, then end the connection. A cancelled call ends it at once."""
        try:
            while self.is_open and self._output_bytes:
                await self._output_shrunk.wait()
        finally:
            self._lose(Closed(f"the connection to {self.address} was closed"))

    # -------------------------------------------------------------------------------------------------- using it

    def attach(self, kind: Kind, listener: Listener) -> int:
        """Give the listener an id, unique on this connection, to which the broker can send.

        Raises:
            ConnectionLost: the connection has ended.
        """
        self._conversation.check_open()
        return self._listeners.attach(kind, listener)

    def detach(self, kind: Kind, identity: int) -> None:
        """Drop whatever still arrives for this id."""
        self._listeners.detach(kind, identity)

    def write(self, frame: bytes) -> None:
        """Put a frame into the buffer. Frames are sent in order unless the connection ends first. Never waits.

        Call `writable` first, unless the frame is small and there are few such frames.
        """
        if self._conversation.ended is not None:
            return
        self._output.append(frame)
        self._output_bytes += len(frame)
        self._has_output.set()
        if self._output_bytes > WRITE_BUFFER_BYTES_LIMIT:
            self._lose(ConnectionLost(f"{self.address} has stopped reading"))

    @property
    def is_writable(self) -> bool:
        """Whether `writable` would return at once."""
        return self._conversation.ended is None and self._output_bytes <= WRITE_BUFFER_BYTES_MAX

    async def writable(self) -> None:
        """Return when no more than WRITE_BUFFER_BYTES_MAX is unsent.

        Raises:
            ConnectionLost: the connection has ended.
        """
        while self.is_open and self._output_bytes > WRITE_BUFFER_BYTES_MAX:
            await self._output_shrunk.wait()
        self._conversation.check_open()

    async def request(self, make: Callable[[int], pb.BaseCommand], expected: type[_Answer]) -> _Answer:
        """Send the command that `make` builds for a request id, and return the message that answers it.

        If the call is cancelled, the command may or may not have been sent. Its answer is dropped.

        Raises:
            ProtocolViolation: the answer is not an `expected` message.
            ConnectionLost: the connection ended first.
            OperationTimedOut: no answer came in time.
            Refused: the broker answered with an error.
        """
        question = self._conversation.question(make, expected)
        answered = anyio.Event()
        try:
            with anyio.fail_after(self._operation_timeout_seconds):
                await self.writable()
                self._answered[question] = answered
                self.write(self._conversation.ask(question))
                await answered.wait()
        except TimeoutError as error:
            raise OperationTimedOut(
                f"{self.address} did not answer {question.name} within {self._operation_timeout_seconds} s"
            ) from error
        finally:
            self._conversation.withdraw(question)
            self._answered.pop(question, None)
        return question.result()


Dial: TypeAlias = Callable[[BrokerAddress], Awaitable[anyio.abc.ByteStream]]
"""Opens a stream to an address; raises OSError when nothing answers there."""


def _with_cause(error: TidewireError, cause: BaseException) -> TidewireError:
    error.__cause__ = cause
    return error
