"""The bytes of a link."""

import contextlib
import struct
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.metadata.batches import BODY_BYTES_MAX, HEADER_BYTES, Point
from storage.metadata.cluster.answers import MESSAGE_BYTES_MAX, Conflicted, Refusal, Refused
from storage.metadata.cluster.fields import LinkError
from storage.metadata.cluster.frames import (
    FRAME_BYTES_MAX,
    PROTOCOL,
    SESSIONS_MAX,
    SKIPPED_FROM,
    SMALL_BYTES_MAX,
    Frame,
    Frames,
    OtherProtocol,
    encode_frame,
)
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
from storage.metadata.cluster.ops_codec import OPS_MAX, PART_BYTES_MAX, parts
from storage.metadata.outcomes import Made, Run
from storage.metadata.proposed import EndSessions
from storage.metadata.records import KEY_BYTES_MAX, RECORD_BYTES_MAX
from storage.metadata.store import Check, Put

HEADER = struct.Struct(">IBQ")
PLACE = Place(3, Point(17, 0xC0FFEE), 40)
RAW = (ImagePart, PushedBatch, Write)
"""Messages that end in raw bytes."""
SAMPLES: list[Message] = [
    Hello("cluster", "broker-1", 2**63, 4, 30, PLACE),
    Welcome(30, 10_000, Start.LOG),
    Refuse(LinkRefusal.OFF_CHAIN),
    ImagePart(PLACE, True, b"records"),
    PushedBatch(512, b"batch"),
    Write(5, 4, False, True, b"operations"),
    Open(6, 4, 10_000),
    End(7, 4, EndSessions((30, 31))),
    End(7, 4, EndSessions((30,), Check("/brokers/é", 12))),
    Answer(7, Made(41, (Run(3, 2), Run(9, 1)))),
    Answer(7, Conflicted("/é", 3, 4)),
    Answer(7, Refused(Refusal.FULL, "the disk is full")),
    Barrier(8),
    At(8, 18),
    Alive(9),
    Token(10),
]
U16 = st.integers(0, 2**16 - 1)
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
DATA = st.binary(max_size=50)
PLACES = st.builds(Place, U64, st.builds(Point, U64, U32), U64)
ENDINGS = st.builds(
    EndSessions, st.lists(U64, max_size=5).map(tuple), st.none() | st.builds(Check, key=TEXT, expected=U64)
)
OUTCOMES = st.one_of(
    st.builds(Made, U64, st.lists(st.builds(Run, U64, U32), max_size=3).map(tuple)),
    st.builds(Conflicted, TEXT, U64, U64),
    st.builds(Refused, st.sampled_from(Refusal), TEXT),
)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(Hello, TEXT, TEXT, U64, U64, U64, PLACES),
    st.builds(Welcome, U64, U64, st.sampled_from(Start)),
    st.builds(Refuse, st.sampled_from(LinkRefusal)),
    st.builds(ImagePart, PLACES, st.booleans(), DATA),
    st.builds(PushedBatch, U64, DATA),
    st.builds(Write, U64, U64, st.booleans(), st.booleans(), DATA),
    st.builds(Open, U64, U64, U64),
    st.builds(End, U64, U64, ENDINGS),
    st.builds(Answer, U64, OUTCOMES),
    st.builds(Barrier, U64),
    st.builds(At, U64, U64),
    st.builds(Alive, U64),
    st.builds(Token, U64),
)


def _all(frames: Frames) -> list[Frame]:
    found = []
    while (frame := frames.next_frame()) is not None:
        found.append(frame)
    return found


def _read(data: bytes) -> list[Frame]:
    frames = Frames()
    frames.feed(data)
    return _all(frames)


def _with_body(encoded: bytes, body: bytes) -> bytes:
    """The same frame with another body, and the length that fits it."""
    _length, kind, epoch = HEADER.unpack_from(encoded)
    return HEADER.pack(HEADER.size - 4 + len(body), kind, epoch) + body


def test_the_samples_have_every_message() -> None:
    assert {type(message) for message in SAMPLES} == set(get_args(Message))


@given(st.lists(st.builds(Frame, U64, MESSAGES), max_size=8), st.data())
def test_frames_survive_any_cuts_of_their_stream(sent: list[Frame], data: st.DataObject) -> None:
    stream = b"".join(map(encode_frame, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    frames = Frames()
    received = []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        frames.feed(stream[begin:end])
        received += _all(frames)
    assert received == sent
    assert frames.buffered_bytes == 0


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_a_frame_waits_for_its_last_byte(message: Message) -> None:
    sent = Frame(7, message)
    encoded = encode_frame(sent)
    for cut in range(len(encoded)):
        frames = Frames()
        frames.feed(encoded[:cut])
        assert frames.next_frame() is None
        frames.feed(encoded[cut:])
        assert frames.next_frame() == sent
        assert frames.next_frame() is None


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_a_body_cut_at_any_byte_ends_the_link(message: Message) -> None:
    """E8: except within raw bytes, which have their own checks."""
    encoded = encode_frame(Frame(7, message))
    body = encoded[HEADER.size :]
    raw = len(message[-1]) if isinstance(message, RAW) else 0
    for size in range(len(body)):
        cut = _with_body(encoded, body[:size])
        if size < len(body) - raw:
            with pytest.raises(LinkError):
                _read(cut)
        else:
            (frame,) = _read(cut)
            assert frame.message[:-1] == message[:-1]


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_fields_that_a_later_release_adds_are_skipped(message: Message) -> None:
    """C22: at the end of every body that does not end in raw bytes."""
    if not isinstance(message, RAW):
        encoded = encode_frame(Frame(7, message))
        longer = _with_body(encoded, encoded[HEADER.size :] + b"added")
        assert _read(longer + encoded) == [Frame(7, message)] * 2


@pytest.mark.parametrize("kind", [0, *range(14, SKIPPED_FROM)])
def test_an_unknown_frame_ends_the_link(kind: int) -> None:
    with pytest.raises(LinkError, match=f"unknown type {kind}"):
        _read(HEADER.pack(9, kind, 1))


@pytest.mark.parametrize("kind", [SKIPPED_FROM, 200, 255])
@pytest.mark.parametrize("size", [0, 1, FRAME_BYTES_MAX - 9])
def test_a_frame_of_a_later_release_is_skipped(kind: int, size: int) -> None:
    """C22: the frames behind it are read."""
    sent = Frame(7, Token(1))
    frames = Frames()
    frames.feed(HEADER.pack(9 + size, kind, 1) + bytes(size) + encode_frame(sent))
    assert _all(frames) == [sent]
    assert frames.buffered_bytes == 0


@pytest.mark.parametrize("kind", [*range(1, 14), SKIPPED_FROM, 255])
def test_a_frame_that_is_too_long_is_refused_by_its_header(kind: int) -> None:
    """E8: before any of its body is there."""
    most = FRAME_BYTES_MAX if kind in (4, 5, 6, 8, 9, SKIPPED_FROM, 255) else SMALL_BYTES_MAX
    frames = Frames()
    frames.feed(HEADER.pack(most + 1, kind, 1))
    for _ in range(2):
        with pytest.raises(LinkError, match=f"at most {most} are allowed"):
            frames.next_frame()
    assert _read(HEADER.pack(most, kind, 1)) == []


@pytest.mark.parametrize("length", range(9))
def test_a_frame_is_not_shorter_than_its_header(length: int) -> None:
    with pytest.raises(LinkError, match="too short"):
        _read(HEADER.pack(length, 13, 1))


def test_another_protocol_on_the_port_ends_the_link() -> None:
    """E8: what a browser sends is refused by its first bytes."""
    with pytest.raises(LinkError):
        _read(b"GET / HTTP/1.1\r\n")


def test_another_version_of_the_protocol_is_told_apart() -> None:
    """C22: it is refused with a reason, whatever the rest of its HELLO looks like."""
    encoded = encode_frame(Frame(7, SAMPLES[0]))
    with pytest.raises(OtherProtocol, match=f"version {PROTOCOL + 1}"):
        _read(_with_body(encoded, struct.pack(">H", PROTOCOL + 1)))


@pytest.mark.parametrize(
    ("message", "offset", "value", "says"),
    [
        (Welcome(1, 2, Start.LOG), 16, 3, "3 is no Start"),
        (Refuse(LinkRefusal.OFF_CHAIN), 0, 0, "0 is no LinkRefusal"),
        (Answer(1, Made(2)), 8, 0, "0 is no Refusal"),
        (Answer(1, Refused(Refusal.FULL, "")), 8, 99, "99 is no Refusal"),
        (Answer(1, Made(2, (Run(1, 1),))), 20, 13, "a field claims 13 bytes"),
        (Answer(1, Made(2, (Run(1, 1),))), 20, 11, "not a whole number of runs"),
        (Write(1, 1, False, False, b""), 16, 2, "a flag has the value 2"),
        (Write(1, 1, False, False, b""), 17, 255, "a flag has the value 255"),
        (ImagePart(PLACE, False, b""), 28, 2, "a flag has the value 2"),
        (End(1, 1, EndSessions(())), 18, 2, "a flag has the value 2"),
        (Answer(1, Conflicted("é", 1, 1)), 27, 0xFF, "not UTF-8"),
    ],
)
def test_values_without_a_meaning_end_the_link(message: Message, offset: int, value: int, says: str) -> None:
    """E8: nothing is guessed."""
    encoded = encode_frame(Frame(7, message))
    body = bytearray(encoded[HEADER.size :])
    body[offset] = value
    with pytest.raises(LinkError, match=says):
        _read(_with_body(encoded, bytes(body)))


def test_an_end_names_no_more_sessions_than_one_step_ends() -> None:
    """E7, E8: and as many pass."""
    most = Frame(7, End(1, 1, EndSessions(tuple(range(SESSIONS_MAX)))))
    encoded = encode_frame(most)
    assert _read(encoded) == [most]
    more = encoded[HEADER.size :].replace(struct.pack(">H", SESSIONS_MAX), struct.pack(">H", SESSIONS_MAX + 1), 1)
    with pytest.raises(LinkError, match=f"names {SESSIONS_MAX + 1} sessions"):
        _read(_with_body(encoded, more + bytes(8)))


def test_the_largest_of_everything_fits_a_frame() -> None:
    """E8: the limits agree with each other."""
    largest_op = Put("/" + "k" * (KEY_BYTES_MAX - 1), bytes(RECORD_BYTES_MAX - KEY_BYTES_MAX))
    (part,) = parts([largest_op])
    assert PART_BYTES_MAX <= FRAME_BYTES_MAX // 2
    key = "k" * KEY_BYTES_MAX
    for message in (
        PushedBatch(2**63, bytes(HEADER_BYTES + BODY_BYTES_MAX)),
        Write(1, 1, False, True, part),
        ImagePart(PLACE, False, bytes(RECORD_BYTES_MAX)),
        Answer(1, Made(1, (Run(1, 1),) * OPS_MAX)),
        Answer(1, Conflicted(key, 1, 1)),
        Answer(1, Refused(Refusal.INVALID, "m" * MESSAGE_BYTES_MAX)),
        End(1, 1, EndSessions(tuple(range(SESSIONS_MAX)), Check(key, 1))),
        Hello("c" * 255, "b" * 255, 1, 1, 1, PLACE),
    ):
        assert _read(encode_frame(Frame(1, message))) == [Frame(1, message)]


@given(st.lists(st.binary(max_size=40) | st.builds(Frame, U64, MESSAGES).map(encode_frame), max_size=6))
def test_any_bytes_are_frames_or_end_the_link(pieces: list[bytes]) -> None:
    """E11: nothing else comes out, and an error stays."""
    frames = Frames()
    frames.feed(b"".join(pieces))
    said = None
    try:
        _all(frames)
    except LinkError as error:
        said = str(error)
    if said is not None:
        with pytest.raises(LinkError) as again:
            frames.next_frame()
        assert str(again.value) == said


@given(MESSAGES, st.data())
def test_a_changed_byte_gives_another_message_or_ends_the_link(message: Message, data: st.DataObject) -> None:
    encoded = bytearray(encode_frame(Frame(7, message)))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(LinkError):
        assert _read(bytes(encoded)) != [Frame(7, message)]
