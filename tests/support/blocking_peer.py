"""A broker in memory for code with a blocking socket. It replaces the socket, and answers while it is written to.

    peer = BlockingPeer({pb.BaseCommand.CONNECT: lambda command: [encode_command(commands.connected("scripted"))]})
    connection = Connection(peer, Address("scripted", 6650), timeout_seconds=30, clock=peer.clock)

Each command goes to the function for its type, which returns the frames to send back. A type without a function gets no
answer. `say` adds further frames. Nothing waits for real. When nothing is left to receive, `clock` jumps by the
timeout, and TimeoutError is raised, as a socket does (BlockingIOError for a non-blocking read).

Faults:
- `hang_up()`: after the queued frames, the stream ends; `reset()`: after them, the connection is reset
- `stop_reading()`: sends to it time out
- `piece_bytes_max`: the frames arrive in pieces of at most this many bytes
- `seconds_per_piece`: each piece takes this long, by the clock
"""

from collections.abc import Callable, Iterable, Mapping

from tidewire.wire.pulsar.frames import Frame, FrameDecoder
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

Answer = Callable[[pb.BaseCommand], Iterable[bytes]]


class BlockingPeer:
    """See the module's docstring."""

    def __init__(
        self, answers: Mapping[int, Answer], *, piece_bytes_max: int = 1 << 20, seconds_per_piece: float = 0.0
    ) -> None:
        self.now = 0.0
        """What `clock` says."""
        self.received: list[pb.BaseCommand] = []
        """Every command it was sent."""
        self.take_payload: Callable[[Frame], None] = lambda frame: None
        """Is given each frame that has a payload."""
        self.say_when_empty: Callable[[], None] | None = None
        """Called once, when somebody waits and there is nothing left to receive."""
        self.is_closed = False
        self._answers = answers
        self._piece_bytes_max = piece_bytes_max
        self._seconds_per_piece = seconds_per_piece
        self._decoder = FrameDecoder()
        self._output = bytearray()
        self._timeout_seconds = 0.0
        self._ending: Exception | None = None
        self._has_ended = False
        self._reads = True

    def clock(self) -> float:
        return self.now

    def fileno(self) -> int:
        raise AssertionError("there is nothing that the system could wait for")

    def say(self, *frames: bytes) -> None:
        self._output += b"".join(frames)

    def hang_up(self) -> None:
        self._has_ended = True

    def reset(self) -> None:
        self._has_ended = True
        self._ending = ConnectionResetError(104, "Connection reset by peer")

    def stop_reading(self) -> None:
        self._reads = False

    def received_of(self, kind: int) -> list[pb.BaseCommand]:
        """Return the received commands of one type."""
        return [command for command in self.received if command.type == kind]

    # What a socket does

    def sendall(self, data: bytes, /) -> None:
        assert not self.is_closed
        if not self._reads:
            self.now += self._timeout_seconds
            raise TimeoutError("timed out")
        if self._ending is not None:
            raise self._ending
        self._decoder.feed(data)
        while (frame := self._decoder.next_frame()) is not None:
            self.received.append(frame.command)
            if frame.payload is not None:
                self.take_payload(frame)
            answer = self._answers.get(frame.command.type)
            if answer is not None:
                self.say(*answer(frame.command))

    def recv_into(self, buffer: memoryview, /) -> int:
        assert not self.is_closed
        if not self._output and self._timeout_seconds and self.say_when_empty is not None:
            say, self.say_when_empty = self.say_when_empty, None
            say()
        size = min(len(self._output), len(buffer), self._piece_bytes_max)
        if size == 0:
            if self._timeout_seconds == 0 and not self._has_ended:
                raise BlockingIOError(11, "Resource temporarily unavailable")
            if self._ending is not None:
                raise self._ending
            if self._has_ended:
                return 0
            self.now += self._timeout_seconds
            raise TimeoutError("timed out")
        self.now += self._seconds_per_piece
        buffer[:size] = self._output[:size]
        del self._output[:size]
        return size

    def settimeout(self, value: float, /) -> None:
        self._timeout_seconds = value

    def close(self) -> None:
        self.is_closed = True
