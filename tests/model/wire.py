"""A client's end of a connection: commands out, answers to their requests, other commands to their recipients.

Nothing here waits. The broker's bytes are handled where it writes them, so a client is a set of callbacks. Errors that
they find are kept in `broken`, because they must end the story and not the broker.
"""

from collections.abc import Callable
from typing import Any

from tests.model.machine import Line, Machine
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import Frame, FrameDecoder, encode_command, encode_payload_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

Answer = Callable[[Any], None]
Hear = Callable[[pb.BaseCommand, Frame], None]


class ModelConnection:
    """One connection, open until either side ends it."""

    def __init__(
        self, machine: Machine, hear: Callable[[pb.BaseCommand, Frame], None], broken: list[Exception]
    ) -> None:
        self._decoder = FrameDecoder()
        self._hear = hear
        self._broken = broken
        self._answers: dict[int, Answer] = {}
        self._last_id = 0
        self.line: Line = machine.connect(self._receive, self._over)
        self.send(commands.connect("model"))

    @property
    def is_open(self) -> bool:
        return self.line.is_open

    @property
    def unanswered(self) -> int:
        return len(self._answers)

    def new_id(self) -> int:
        """Return a number for a request, a producer, a consumer or a session."""
        self._last_id += 1
        return self._last_id

    def send(self, command: pb.BaseCommand) -> None:
        """Send a command."""
        self.line.say(encode_command(command))

    def send_payload(self, command: pb.BaseCommand, payload: bytes) -> None:
        """Send a command with its payload."""
        self.line.say(encode_payload_command(command, payload))

    def ask(self, make: Callable[[int], pb.BaseCommand], answer: Answer) -> None:
        """Send the command that `make` makes of a new request id; `answer` gets the answer's content."""
        request_id = self.new_id()
        self._answers[request_id] = answer
        self.send(make(request_id))

    def hang_up(self) -> None:
        """Close the connection without a command. Nothing more is received."""
        self._answers.clear()
        self.line.hang_up()

    def _over(self) -> None:
        self._answers.clear()

    def _receive(self, data: bytes) -> None:
        self._decoder.feed(data)
        while self.is_open and (frame := self._decoder.next_frame()) is not None:
            content = content_of(frame.command)
            answer = self._answers.pop(getattr(content, "request_id", 0), None)
            try:
                if answer is None:
                    self._hear(frame.command, frame)
                else:
                    answer(content)
            except Exception as broken:
                self._broken.append(broken)


def content_of(command: pb.BaseCommand) -> Any:
    """Return the part of a command that has its content."""
    for field, value in command.ListFields():
        if field.name != "type":
            return value
    return None


def is_error(content: Any) -> bool:
    """Return whether an answer is a refusal."""
    return isinstance(content, pb.CommandError) or any(
        field.name in {"error", "error_code"} for field, _value in content.ListFields()
    )
