"""Frames: how commands and payloads are laid out in a stream of bytes.

    frame   = [u32 size of all that follows][u32 size of the command][BaseCommand][payload]?
    payload = the bytes between the end of the command and the end of the frame (see messages.py)

The caller feeds the decoder what the network delivers, and asks for frames until there are none. The decoder keeps one
buffer and an offset into it. A small frame costs its own bytes. A large frame that arrives in many pieces is copied
once into the buffer and once out of it. After `next_frame` has returned None, the buffer holds only the unfinished
frame.
"""

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from tidewire.wire.protocols import SpokenProtocol, protocol_of
from tidewire.wire.pulsar.errors import FrameTooLarge, MalformedCommand, OtherProtocol, TruncatedFrame
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.parsing import parse_command

MAX_MESSAGE_SIZE: Final = 5_242_880
"""The largest payload of a message that a broker accepts, in bytes. CONNECTED tells it to the client."""

MAX_FRAME_SIZE: Final = MAX_MESSAGE_SIZE + 10 * 1024
"""The most bytes after a frame's first four: the largest message with its command and metadata."""

_SIZES: Final = struct.Struct(">II")
_SIZE: Final = struct.Struct(">I")
_TYPE_TAG: Final = pb.BaseCommand.TYPE_FIELD_NUMBER << 3
_TYPE_BYTES: Final = 2
"""The tag of a command's type and the type's number. All numbers are below 128."""

_WITH_PAYLOAD: Final = frozenset((pb.BaseCommand.Type.SEND, pb.BaseCommand.Type.MESSAGE))


class Frame(NamedTuple):
    """One command, with its payload if it has one."""

    command: pb.BaseCommand
    """Checked by `parse_command`: the member that its type names is complete."""
    payload: bytes | None
    """The bytes behind the command, not parsed. Never None for SEND and MESSAGE."""


class CommandSizes(NamedTuple):
    """The largest size of a command, in bytes, by its type. A frame's payload does not count."""

    usual: int
    by_type: Mapping[int, int]
    """The types with a larger bound, by number."""

    def of(self, kind: int) -> int:
        """The bound of one type."""
        return self.by_type.get(kind, self.usual)


class FrameDecoder:
    """Divides a stream of bytes into frames.

    Usage: `feed` what arrived, then call `next_frame` until it returns None. The decoder then holds at most one
    unfinished frame, so `max_frame_size` and the size of one feed bound its memory. After an error, every further call
    raises the same error, because such a stream has no next frame.
    """

    __slots__ = ("_buffer", "_command_size_usual", "_command_sizes", "_max_frame_size", "_start", "taken_bytes")

    def __init__(self, max_frame_size: int = MAX_FRAME_SIZE, command_sizes: CommandSizes | None = None) -> None:
        """Begin. Without `command_sizes`, a command may fill its frame."""
        self._max_frame_size = max_frame_size
        self._command_sizes = CommandSizes(max_frame_size, {}) if command_sizes is None else command_sizes
        self._command_size_usual = self._command_sizes.usual
        self._buffer = bytearray()
        self.taken_bytes = 0
        """Bytes of all frames handed out so far."""
        # Where the first frame begins that was not handed out; 0 <= _start <= len(_buffer).
        self._start = 0

    @property
    def buffered_bytes(self) -> int:
        """Bytes that were fed and do not belong to a frame handed out."""
        return len(self._buffer) - self._start

    @property
    def expected_bytes(self) -> int:
        """The size of the unfinished frame, with its first four bytes; 0 while it is not known."""
        if self.buffered_bytes < _SIZE.size:
            return 0
        return _SIZE.size + int(_SIZE.unpack_from(self._buffer, self._start)[0])

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Add what arrived. Copies it, so the caller may use its buffer again."""
        self._buffer += data

    def clear(self) -> None:
        """Drop what was fed and not handed out. The stream has ended."""
        self._buffer = bytearray()
        self._start = 0

    def next_frame(self) -> Frame | None:
        """The next frame, or None if more bytes are needed for it.

        Raises:
            OtherProtocol: the stream begins with the first bytes of another protocol.
            FrameTooLarge: the frame announces more than `max_frame_size` bytes, or its command more than its type may
                have. The first four bytes tell the one, the next six the other.
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
            self._refuse_strangers()
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
            # If a type is given twice, the last one counts, but the check above saw the first one.
            self._refuse_above(self._command_sizes.of(command.type), command_size)
        payload = None
        if command_end < end:
            # With a view this is one copy. Slicing a bytearray would make two.
            payload = bytes(memoryview(buffer)[command_end:end])
        elif command.type in _WITH_PAYLOAD:
            raise MalformedCommand(f"a command of type {pb.BaseCommand.Type.Name(command.type)} has no payload")
        self._start = end
        self.taken_bytes += _SIZE.size + size
        return Frame(command, payload)

    def _check_size(self, size: int) -> None:
        if size > self._max_frame_size:
            self._refuse_strangers()
            raise FrameTooLarge(f"the frame has {size} bytes; at most {self._max_frame_size} are allowed")
        if size < _SIZE.size:
            raise TruncatedFrame(f"a frame of {size} bytes is too short for the size of its command")

    def _refuse_strangers(self) -> None:
        """Name the protocol of a peer whose first bytes are no frame, if they are well known."""
        spoken = None if self.taken_bytes else protocol_of(self._buffer)
        if spoken is not None and spoken is not SpokenProtocol.PULSAR:
            raise OtherProtocol(spoken)

    def _check_command_size(self, size: int, available: int) -> None:
        """Check the type of a large command before the rest of it arrives. Every client puts the type first."""
        if available >= _SIZES.size + _TYPE_BYTES:
            start = self._start + _SIZES.size
            tag, kind = self._buffer[start : start + _TYPE_BYTES]
            self._refuse_above(self._command_sizes.of(kind) if tag == _TYPE_TAG else self._command_size_usual, size)

    @staticmethod
    def _refuse_above(bound: int, size: int) -> None:
        if size > bound:
            raise FrameTooLarge(f"the command has {size} bytes; at most {bound} are allowed for its type")

    def _compact(self) -> None:
        # Dropping the front of a bytearray moves no bytes, except when it then gives memory back.
        del self._buffer[: self._start]
        self._start = 0


def encode_command(command: pb.BaseCommand) -> bytes:
    """The frame of a command without payload."""
    return frame_of(command.SerializeToString())


def frame_of(encoded: bytes) -> bytes:
    """The frame of an encoded command."""
    size = len(encoded)
    return _SIZES.pack(size + _SIZE.size, size) + encoded


def encode_payload_command(command: pb.BaseCommand, payload: bytes | memoryview) -> bytes:
    """The frame of a command and its payload, which is sent unchanged."""
    return b"".join((encode_frame_head(command, len(payload)), payload))


def encode_frame_head(command: pb.BaseCommand, payload_size: int) -> bytes:
    """The bytes in front of the payload, for a sender that sends the payload from where it is, without a copy."""
    encoded = command.SerializeToString()
    size = len(encoded)
    return _SIZES.pack(size + _SIZE.size + payload_size, size) + encoded
