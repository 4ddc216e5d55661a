"""Frames: how commands and payloads stand in a stream of bytes.

    frame   = [u32 size of all that follows][u32 size of the command][BaseCommand][payload]?
    payload = whatever stands between the command's end and the frame's; messages.py says what is in it

The decoder is fed whatever the network delivers and is asked for frames until it has none left. It keeps one buffer and
an offset into it: a small frame costs its own bytes, a large frame that arrives in many pieces is copied once into the
buffer and once out of it, and after `next_frame` has returned None the buffer holds nothing but the unfinished frame.
"""

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from tidewire.wire.pulsar.errors import FrameTooLarge, MalformedCommand, TruncatedFrame
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.parsing import parse_command

MAX_MESSAGE_SIZE: Final = 5_242_880
"""The most bytes of a message's payload that a broker takes; CONNECTED tells it to the client."""

MAX_FRAME_SIZE: Final = MAX_MESSAGE_SIZE + 10 * 1024
"""The most bytes after a frame's first four: a message of the largest size with its command and metadata."""

_SIZES: Final = struct.Struct(">II")
_SIZE: Final = struct.Struct(">I")
_TYPE_TAG: Final = pb.BaseCommand.TYPE_FIELD_NUMBER << 3
_TYPE_BYTES: Final = 2
"""The tag of a command's type, and its number: all of them are below 128."""

_WITH_PAYLOAD: Final = frozenset((pb.BaseCommand.Type.SEND, pb.BaseCommand.Type.MESSAGE))


class Frame(NamedTuple):
    """One command, with its payload if it has one."""

    command: pb.BaseCommand
    """Checked by `parse_command`: the member its type names is complete."""
    payload: bytes | None
    """Everything after the command, unread; never None for SEND and MESSAGE."""


class CommandSizes(NamedTuple):
    """The most bytes of a command, by its type; a frame's payload does not count."""

    usual: int
    by_type: Mapping[int, int]
    """Those that may be larger, by number."""

    def of(self, kind: int) -> int:
        """The bound of one type."""
        return self.by_type.get(kind, self.usual)


class FrameDecoder:
    """Divides a stream of bytes into frames.

    Usage: `feed` what arrived, then call `next_frame` until it returns None. Then at most one unfinished frame is
    held, so memory is bounded by `max_frame_size` and what is fed at once. An error repeats at each further call: there
    is no next frame in such a stream.
    """

    __slots__ = ("_buffer", "_command_size_usual", "_command_sizes", "_max_frame_size", "_start", "taken_bytes")

    def __init__(self, max_frame_size: int = MAX_FRAME_SIZE, command_sizes: CommandSizes | None = None) -> None:
        """Begin; without `command_sizes` a command may fill its frame."""
        self._max_frame_size = max_frame_size
        self._command_sizes = CommandSizes(max_frame_size, {}) if command_sizes is None else command_sizes
        self._command_size_usual = self._command_sizes.usual
        self._buffer = bytearray()
        self.taken_bytes = 0
        """Of all frames handed out so far."""
        # Where the first frame not yet taken begins; 0 <= _start <= len(_buffer).
        self._start = 0

    @property
    def buffered_bytes(self) -> int:
        """Bytes that were fed and are not yet part of a frame handed out."""
        return len(self._buffer) - self._start

    @property
    def expected_bytes(self) -> int:
        """The size of the frame that is not complete yet, with its first four bytes; 0 while that is not known."""
        if self.buffered_bytes < _SIZE.size:
            return 0
        return _SIZE.size + int(_SIZE.unpack_from(self._buffer, self._start)[0])

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Add what arrived. Copies it, so the caller may use its buffer again."""
        self._buffer += data

    def clear(self) -> None:
        """Drop what was fed and not handed out: there will be no more of this stream."""
        self._buffer = bytearray()
        self._start = 0

    def next_frame(self) -> Frame | None:
        """The next frame, or None when more bytes are needed for it.

        Raises:
            FrameTooLarge: the frame announces more than `max_frame_size` bytes, known from its first four, or its
                command more than its type may have, known from the next six.
            TruncatedFrame: the command would end after its frame.
            MalformedCommand: the command cannot be used, or a SEND or MESSAGE comes without payload.
        """
        buffer = self._buffer
        start = self._start
        available = len(buffer) - start
        if available < _SIZES.size:
            if available >= _SIZE.size:
                self._check_size(*_SIZE.unpack_from(buffer, start))
            self._compact()
            return None
        size, command_size = _SIZES.unpack_from(buffer, start)
        if size > self._max_frame_size or command_size > size - _SIZE.size:
            self._check_size(size)
            raise TruncatedFrame(f"a frame of {size} bytes announces a command of {command_size}")
        if command_size > self._command_size_usual:
            self._check_command_size(command_size, available)
        end = start + _SIZE.size + size
        if len(buffer) < end:
            self._compact()
            return None
        command_start = start + _SIZES.size
        command_end = command_start + command_size
        command = parse_command(buffer[command_start:command_end])
        if command_size > self._command_size_usual:
            # Of a type that is given twice the last one counts, and the first one was looked at.
            self._refuse_above(self._command_sizes.of(command.type), command_size)
        payload = None
        if command_end < end:
            # A view makes this one copy where slicing a bytearray would make two.
            payload = bytes(memoryview(buffer)[command_end:end])
        elif command.type in _WITH_PAYLOAD:
            raise MalformedCommand(f"a command of type {pb.BaseCommand.Type.Name(command.type)} has no payload")
        self._start = end
        self.taken_bytes += _SIZE.size + size
        return Frame(command, payload)

    def _check_size(self, size: int) -> None:
        if size > self._max_frame_size:
            raise FrameTooLarge(f"a frame of {size} bytes; {self._max_frame_size} are allowed")
        if size < _SIZE.size:
            raise TruncatedFrame(f"a frame of {size} bytes is too short for the size of its command")

    def _check_command_size(self, size: int, available: int) -> None:
        """Look at the type of a large command before the rest of it has come. Every client puts the type first."""
        if available >= _SIZES.size + _TYPE_BYTES:
            start = self._start + _SIZES.size
            tag, kind = self._buffer[start : start + _TYPE_BYTES]
            self._refuse_above(self._command_sizes.of(kind) if tag == _TYPE_TAG else self._command_size_usual, size)

    @staticmethod
    def _refuse_above(bound: int, size: int) -> None:
        if size > bound:
            raise FrameTooLarge(f"a command of {size} bytes; {bound} are allowed for its type")

    def _compact(self) -> None:
        # Dropping what was read at the front of a bytearray moves nothing, except when it then gives memory back.
        del self._buffer[: self._start]
        self._start = 0


def encode_command(command: pb.BaseCommand) -> bytes:
    """The frame of a command without payload."""
    return frame_of(command.SerializeToString())


def frame_of(encoded: bytes) -> bytes:
    """The frame of a command that is encoded already."""
    size = len(encoded)
    return _SIZES.pack(size + _SIZE.size, size) + encoded


def encode_payload_command(command: pb.BaseCommand, payload: bytes | memoryview) -> bytes:
    """The frame of a command and its payload, which is sent as it is."""
    return b"".join((encode_frame_head(command, len(payload)), payload))


def encode_frame_head(command: pb.BaseCommand, payload_size: int) -> bytes:
    """What stands before a payload in its frame: for who sends the payload from where it is, and does not copy it."""
    encoded = command.SerializeToString()
    size = len(encoded)
    return _SIZES.pack(size + _SIZE.size + payload_size, size) + encoded
