"""Frames: the bytes of a link between a broker and the metadata controller.

    frame = [u32 length of the rest][u8 type][u64 epoch][body]

The epoch names the controller's reign that the sender speaks to, or for. What the frames say is in `messages`.

A later release may add fields at the end of a body, and frames of type 128 and above. Both are skipped (C22). Whatever
else is unknown or malformed ends the link, because the frames behind it cannot be trusted. IMAGE, BATCH and WRITE end
in raw bytes, so nothing can be added to them.

Pure: bytes in, values out, and back.
"""

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple, TypeVar

from storage.metadata.batches import Point
from storage.metadata.cluster.answers import Conflicted, Outcome, Refusal, Refused
from storage.metadata.cluster.fields import Fields, LinkError, blob, text, u8, u16, u32, u64
from storage.metadata.cluster.messages import (
    Alive,
    Answer,
    At,
    Barrier,
    End,
    Hello,
    ImagePart,
    LinkRefusal,
    Message,
    Open,
    Place,
    PushedBatch,
    Refuse,
    Start,
    Token,
    Welcome,
    Write,
)
from storage.metadata.outcomes import Made, Run
from storage.metadata.proposed import EndSessions
from storage.metadata.steps import KEYS_AT_ONCE
from storage.metadata.store import Check

PROTOCOL: Final = 1
"""The version of the protocol, in HELLO. The two sides of a link have the same."""

FRAME_BYTES_MAX: Final = 2 * 1024 * 1024
"""The most bytes after a frame's length. A batch or an operation may have one MiB, and a frame never holds two."""

SMALL_BYTES_MAX: Final = 4096
"""The same for frames without a batch, a part or a key in them. So a stranger's HELLO takes no memory."""

SESSIONS_MAX: Final = KEYS_AT_ONCE
"""The most sessions that one END names."""

SKIPPED_FROM: Final = 128
"""Frames of this type and above are skipped if they are not known."""

_HEADER: Final = struct.Struct(">IBQ")
_LENGTH: Final = struct.Struct(">I")
_HEADER_IN_LENGTH: Final = _HEADER.size - _LENGTH.size
_RUN: Final = struct.Struct(">QI")

E = TypeVar("E", bound=IntEnum)


class OtherProtocol(LinkError):
    """HELLO names another version of the protocol. The link must be refused, then closed."""


class Frame(NamedTuple):
    """One message, and the reign that it belongs to."""

    epoch: int
    message: Message


class _Type(IntEnum):
    HELLO = 1
    WELCOME = 2
    REFUSED = 3
    IMAGE = 4
    BATCH = 5
    WRITE = 6
    OPEN = 7
    END = 8
    ANSWER = 9
    BARRIER = 10
    AT = 11
    ALIVE = 12
    TOKEN = 13


_LARGE: Final = frozenset((_Type.IMAGE, _Type.BATCH, _Type.WRITE, _Type.END, _Type.ANSWER))


class Frames:
    """Divides a stream of bytes into frames.

    `feed` what arrived, then call `next_frame` until it returns None. The decoder then holds at most one unfinished
    frame. After an error, every further call raises the same error, because such a stream has no next frame.
    """

    __slots__ = ("_buffer", "_start")

    def __init__(self) -> None:
        self._buffer = bytearray()
        # Where the first frame begins that was not handed out; 0 <= _start <= len(_buffer).
        self._start = 0

    @property
    def buffered_bytes(self) -> int:
        """Bytes that were fed and do not belong to a frame handed out or skipped."""
        return len(self._buffer) - self._start

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Add what arrived. Copies it, so the caller may use its buffer again."""
        self._buffer += data

    def next_frame(self) -> Frame | None:
        """The next frame, or None if more bytes are needed for it.

        Raises:
            LinkError: the frame is too long, of an unknown type below 128, or malformed.
            OtherProtocol: a HELLO of another protocol version.
        """
        while True:
            start = self._start
            if len(self._buffer) - start < _HEADER.size:
                break
            length, kind, epoch = _HEADER.unpack_from(self._buffer, start)
            decode = _DECODERS.get(kind)
            _require_length(length, kind, is_known=decode is not None)
            end = start + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            if decode is None:
                self._start = end
                continue
            message = decode(Fields(bytes(memoryview(self._buffer)[start + _HEADER.size : end])))
            self._start = end
            return Frame(epoch, message)
        del self._buffer[: self._start]
        self._start = 0
        return None


def encode_frame(frame: Frame) -> bytes:
    """The frame's bytes."""
    kind, body = _body(frame.message)
    length = _HEADER_IN_LENGTH + len(body)
    assert length <= _bytes_max(kind), f"a {kind.name} of {length} bytes"
    return _HEADER.pack(length, kind, frame.epoch) + body


def _bytes_max(kind: int) -> int:
    return FRAME_BYTES_MAX if kind in _LARGE or kind >= SKIPPED_FROM else SMALL_BYTES_MAX


def _require_length(length: int, kind: int, *, is_known: bool) -> None:
    if not is_known and kind < SKIPPED_FROM:
        raise LinkError(f"a frame has the unknown type {kind}")
    if length > _bytes_max(kind):
        raise LinkError(f"a frame of type {kind} has {length} bytes; at most {_bytes_max(kind)} are allowed")
    if length < _HEADER_IN_LENGTH:
        raise LinkError(f"a frame of {length} bytes is too short for its type and epoch")


def _body(message: Message) -> tuple[_Type, bytes]:
    match message:
        case Hello(cluster, broker, nonce, attempt, session, place):
            known = (u16(PROTOCOL), u64(nonce), u64(attempt), u64(session), _place(place), text(cluster), text(broker))
            return _Type.HELLO, b"".join(known)
        case Welcome(session, timeout_ms, start):
            return _Type.WELCOME, u64(session) + u64(timeout_ms) + u8(start)
        case Refuse(reason):
            return _Type.REFUSED, u8(reason)
        case ImagePart(place, is_last, records):
            return _Type.IMAGE, b"".join((_place(place), u8(is_last), records))
        case PushedBatch(offset, data):
            return _Type.BATCH, u64(offset) + data
        case Write(number, answered_below, along, is_last, ops):
            return _Type.WRITE, b"".join((u64(number), u64(answered_below), u8(along), u8(is_last), ops))
        case Open(number, answered_below, timeout_ms):
            return _Type.OPEN, u64(number) + u64(answered_below) + u64(timeout_ms)
        case End(number, answered_below, ending):
            return _Type.END, u64(number) + u64(answered_below) + _ending(ending)
        case Answer(number, outcome):
            return _Type.ANSWER, u64(number) + _outcome(outcome)
        case Barrier(asked):
            return _Type.BARRIER, u64(asked)
        case At(asked, sequence):
            return _Type.AT, u64(asked) + u64(sequence)
        case Alive(token):
            return _Type.ALIVE, u64(token)
        case Token(token):
            return _Type.TOKEN, u64(token)


def _place(place: Place) -> bytes:
    return b"".join((u64(place.epoch), u64(place.point.sequence), u32(place.point.crc), u64(place.revision)))


def _ending(ending: EndSessions) -> bytes:
    assert len(ending.sessions) <= SESSIONS_MAX, "the caller divides them"
    parts = [u16(len(ending.sessions)), *map(u64, ending.sessions), u8(ending.condition is not None)]
    if ending.condition is not None:
        parts += (u64(ending.condition.expected), text(ending.condition.key))
    return b"".join(parts)


_MADE: Final = 1
_CONFLICTED: Final = 2


def _outcome(outcome: Outcome) -> bytes:
    match outcome:
        case Made(revision, numbers):
            runs = b"".join(_RUN.pack(*run) for run in numbers)
            return u8(_MADE) + u64(revision) + blob(runs)
        case Conflicted(key, expected, actual):
            return b"".join((u8(_CONFLICTED), u64(expected), u64(actual), text(key)))
        case Refused(reason, message):
            return u8(reason) + text(message)


def _decode_hello(body: Fields) -> Hello:
    protocol = body.u16()
    if protocol != PROTOCOL:
        raise OtherProtocol(f"a broker speaks version {protocol} of the link's protocol, this one version {PROTOCOL}")
    nonce, attempt, session, place = body.u64(), body.u64(), body.u64(), _decode_place(body)
    return Hello(body.text(), body.text(), nonce, attempt, session, place)


def _decode_welcome(body: Fields) -> Welcome:
    session, timeout_ms, start = body.u64(), body.u64(), body.u8()
    return Welcome(session, timeout_ms, _known(Start, start))


def _decode_end(body: Fields) -> End:
    number, answered_below, count = body.u64(), body.u64(), body.u16()
    if count > SESSIONS_MAX:
        raise LinkError(f"an END names {count} sessions; at most {SESSIONS_MAX} are allowed")
    sessions = tuple(body.u64() for _ in range(count))
    condition = None
    if body.flag():
        expected = body.u64()
        condition = Check(body.text(), expected)
    return End(number, answered_below, EndSessions(sessions, condition))


def _decode_place(body: Fields) -> Place:
    epoch, sequence, crc, revision = body.u64(), body.u64(), body.u32(), body.u64()
    return Place(epoch, Point(sequence, crc), revision)


def _decode_outcome(body: Fields) -> Outcome:
    kind = body.u8()
    if kind == _MADE:
        revision, runs = body.u64(), body.blob()
        if len(runs) % _RUN.size:
            raise LinkError(f"{len(runs)} bytes are not a whole number of runs")
        return Made(revision, tuple(map(Run._make, _RUN.iter_unpack(runs))))
    if kind == _CONFLICTED:
        expected, actual = body.u64(), body.u64()
        return Conflicted(body.text(), expected, actual)
    return Refused(_known(Refusal, kind), body.text())


def _known(values: type[E], number: int) -> E:
    try:
        return values(number)
    except ValueError as unknown:
        raise LinkError(f"{number} is no {values.__name__} that this release knows") from unknown


_DECODERS: Final[dict[int, Callable[[Fields], Message]]] = {
    _Type.HELLO: _decode_hello,
    _Type.WELCOME: _decode_welcome,
    _Type.REFUSED: lambda body: Refuse(_known(LinkRefusal, body.u8())),
    _Type.IMAGE: lambda body: ImagePart(_decode_place(body), body.flag(), body.rest()),
    _Type.BATCH: lambda body: PushedBatch(body.u64(), body.rest()),
    _Type.WRITE: lambda body: Write(body.u64(), body.u64(), body.flag(), body.flag(), body.rest()),
    _Type.OPEN: lambda body: Open(body.u64(), body.u64(), body.u64()),
    _Type.END: _decode_end,
    _Type.ANSWER: lambda body: Answer(body.u64(), _decode_outcome(body)),
    _Type.BARRIER: lambda body: Barrier(body.u64()),
    _Type.AT: lambda body: At(body.u64(), body.u64()),
    _Type.ALIVE: lambda body: Alive(body.u64()),
    _Type.TOKEN: lambda body: Token(body.u64()),
}
