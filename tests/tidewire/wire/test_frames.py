from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tidewire.wire.protobufs import commands
from tidewire.wire.pulsar.commands import message, ping, send, send_receipt
from tidewire.wire.pulsar.errors import FrameError, FrameTooLarge, MalformedCommand, OtherProtocol, TruncatedFrame
from tidewire.wire.pulsar.frames import (
    MAX_FRAME_SIZE,
    MAX_MESSAGE_SIZE,
    CommandSizes,
    Frame,
    FrameDecoder,
    encode_command,
    encode_payload_command,
)
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

PING = bytes.fromhex("00000009 00000005 0812 920100")
# producer 1, sequence id 2, one message; the payload is "abc".
SEND = bytes.fromhex("00000011 0000000a 0806 3206 0801 1002 1801") + b"abc"


def decode(*pieces: bytes, max_frame_size: int = MAX_FRAME_SIZE) -> list[Frame]:
    decoder = FrameDecoder(max_frame_size)
    frames = []
    for piece in pieces:
        decoder.feed(piece)
        while (frame := decoder.next_frame()) is not None:
            frames.append(frame)
    return frames


def test_a_command_is_two_sizes_and_its_bytes() -> None:
    assert encode_command(ping()) == PING
    (frame,) = decode(PING)
    assert frame.command.type == pb.BaseCommand.Type.PING
    assert frame.payload is None


def test_a_payload_stands_between_the_end_of_the_command_and_that_of_the_frame() -> None:
    assert encode_payload_command(send(1, 2), b"abc") == SEND
    (frame,) = decode(SEND)
    assert (frame.command.send.producer_id, frame.command.send.sequence_id) == (1, 2)
    assert frame.payload == b"abc"
    assert type(frame.payload) is bytes


def test_a_payload_may_be_a_view() -> None:
    assert encode_payload_command(send(1, 2), memoryview(b"xabcx")[1:4]) == SEND


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_the_decoder_takes_any_kind_of_bytes(kind: type) -> None:
    decoder = FrameDecoder()
    decoder.feed(kind(SEND + PING))
    frames = [decoder.next_frame(), decoder.next_frame()]
    assert [frame.payload if frame else "" for frame in frames] == [b"abc", None]
    assert decoder.next_frame() is None


def test_the_caller_may_use_its_buffer_again() -> None:
    buffer = bytearray(SEND)
    decoder = FrameDecoder()
    decoder.feed(memoryview(buffer)[:10])
    buffer[:10] = bytes(10)
    decoder.feed(SEND[10:])
    frame = decoder.next_frame()
    assert frame is not None
    assert frame.payload == b"abc"


@given(st.lists(st.tuples(commands(), st.binary(min_size=1, max_size=300)), max_size=4), st.data())
def test_what_is_encoded_is_decoded_whatever_the_pieces(
    sent: list[tuple[pb.BaseCommand, bytes]], data: st.DataObject
) -> None:
    with_payload = (pb.BaseCommand.Type.SEND, pb.BaseCommand.Type.MESSAGE)
    expected = [Frame(command, payload if command.type in with_payload else None) for command, payload in sent]
    stream = b"".join(
        encode_command(command) if payload is None else encode_payload_command(command, payload)
        for command, payload in expected
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    pieces = [stream[start:stop] for start, stop in pairwise([0, *cuts, len(stream)])]
    assert decode(*pieces) == expected
    assert decode(*(stream[place : place + 1] for place in range(len(stream)))) == expected


@given(st.binary(max_size=200), st.sampled_from([1, 7, 1000]))
def test_no_bytes_raise_anything_but_an_error_of_the_stream(data: bytes, piece_size: int) -> None:
    feed_all_and_count(data, piece_size)


@given(
    st.lists(commands(), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=4),
    st.sampled_from([1, 7, 1000]),
)
def test_no_damage_to_a_sound_stream_raises_anything_but_an_error_of_the_stream(
    sent: list[pb.BaseCommand], damage: list[tuple[int, int]], piece_size: int
) -> None:
    stream = bytearray(b"".join(encode_payload_command(command, b"payload") for command in sent))
    for place, value in damage:
        stream[place % len(stream)] = value
    feed_all_and_count(bytes(stream), piece_size)


def feed_all_and_count(data: bytes, piece_size: int) -> None:
    decoder = FrameDecoder(max_frame_size=500)
    count = 0
    try:
        for place in range(0, len(data), piece_size):
            decoder.feed(data[place : place + piece_size])
            while decoder.next_frame() is not None:
                count += 1
                assert count <= len(data) // 8, "each frame takes its eight bytes of sizes"
            assert decoder.buffered_bytes < 4 + 500, "an unfinished frame is below the limit"
    except FrameError:
        with pytest.raises(FrameError):
            decoder.next_frame()


def test_a_frame_of_the_largest_size_passes() -> None:
    limit = len(SEND) - 4
    assert len(decode(SEND, max_frame_size=limit)) == 1


@pytest.mark.parametrize("seen", [4, 5, 8, len(SEND)])
def test_a_frame_above_the_limit_is_refused_as_soon_as_its_size_is_there(seen: int) -> None:
    limit = len(SEND) - 4
    decoder = FrameDecoder(max_frame_size=limit - 1)
    decoder.feed(SEND[:3])
    assert decoder.next_frame() is None
    decoder.feed(SEND[3:seen])
    with pytest.raises(FrameTooLarge, match=rf"{limit} bytes; at most {limit - 1} are allowed"):
        decoder.next_frame()


@pytest.mark.parametrize(
    ("first", "protocol"),
    [(b"\x16\x03\x01\x02\x00", "TLS"), (b"HTTP/1.1 400", "HTTP"), (b"\0\0\0\x20\0\x12\0\x03", "Kafka")],
)
def test_a_peer_of_another_protocol_is_told_so(first: bytes, protocol: str) -> None:
    with pytest.raises(OtherProtocol, match=f"the first bytes are {protocol}, and not Pulsar's"):
        decode(first)
    with pytest.raises((FrameTooLarge, TruncatedFrame)):
        decode(SEND + first)


def test_the_default_limit_leaves_room_for_the_largest_message() -> None:
    payload = bytes(MAX_MESSAGE_SIZE)
    (frame,) = decode(encode_payload_command(send(1, 2), payload))
    assert frame.payload == payload
    with pytest.raises(FrameTooLarge):
        decode((MAX_FRAME_SIZE + 1).to_bytes(4, "big"))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param("00000003", id="no room for the command's size"),
        pytest.param("00000000 00000000", id="an empty frame"),
        pytest.param("00000009 00000006", id="a command one byte too long"),
        pytest.param("00000009 ffffffff", id="a command of 4 GiB"),
    ],
)
def test_lengths_that_contradict_each_other_are_refused_before_the_frame_is_complete(data: str) -> None:
    with pytest.raises(TruncatedFrame):
        decode(bytes.fromhex(data))


@pytest.mark.parametrize("command", [send(1, 1), message(1, 1, 1)])
def test_a_command_that_announces_a_payload_has_one(command: pb.BaseCommand) -> None:
    with pytest.raises(MalformedCommand, match="has no payload"):
        decode(encode_command(command))


def test_frames_before_a_bad_one_are_still_handed_out() -> None:
    decoder = FrameDecoder()
    decoder.feed(PING + SEND + bytes(8))
    assert decoder.next_frame() is not None
    assert decoder.next_frame() is not None
    for _ in range(2):
        with pytest.raises(TruncatedFrame):
            decoder.next_frame()


def test_memory_of_a_large_frame_is_given_back_once_it_is_read() -> None:
    decoder = FrameDecoder()
    for rest in (b"", PING[:3]):
        decoder.feed(encode_payload_command(send(1, 2), bytes(MAX_MESSAGE_SIZE)) + rest)
        assert decoder.next_frame() is not None
        assert decoder.next_frame() is None
        assert decoder.buffered_bytes == len(rest)
        assert decoder._buffer.__sizeof__() < 1000


@pytest.mark.timeout(10)
def test_a_large_frame_in_small_pieces_is_not_copied_again_for_each() -> None:
    """Copying it for each piece would copy 25 GB here."""
    stream = encode_payload_command(send(1, 2), bytes(MAX_MESSAGE_SIZE))
    assert len(decode(PING, *(stream[place : place + 512] for place in range(0, len(stream), 512)), PING)) == 3


@pytest.mark.timeout(20)
def test_many_small_frames_at_once_do_not_move_each_other() -> None:
    """Moving the rest for each of them would move 1 TB here."""
    count = 400_000
    decoder = FrameDecoder()
    decoder.feed(PING * count)
    for _ in range(count):
        assert decoder.next_frame() is not None
    assert decoder.next_frame() is None


def test_a_receipt_is_the_bytes_the_protocol_says() -> None:
    """Fields in order: producer id, sequence id, {ledger id, entry id}."""
    expected = bytes.fromhex("00000013 0000000f 0807 3a0b 0803 10ac02 1a04 0805 1006")
    assert encode_command(send_receipt(3, 300, 5, 6)) == expected


USUAL, LARGER = 40, 60
SIZES = CommandSizes(USUAL, {pb.BaseCommand.SUBSCRIBE: LARGER})


def sized(kind: int, size: int) -> bytes:
    """Make a frame whose command has this size, most of it in an unknown field."""
    head = bytes((0x08, kind)) + bytes.fromhex("fa3e")
    rest = size - len(head) - 1
    return (size + 4).to_bytes(4, "big") + size.to_bytes(4, "big") + head + bytes([rest]) + bytes(rest)


@pytest.mark.parametrize(
    ("kind", "bound"), [(pb.BaseCommand.PING, USUAL), (pb.BaseCommand.SUBSCRIBE, LARGER)], ids=["usual", "larger"]
)
def test_a_command_is_as_large_as_its_type_may_be(kind: int, bound: int) -> None:
    """E8: one byte more is refused at its first bytes, before all of it has arrived."""
    decoder = FrameDecoder(command_sizes=SIZES)
    decoder.feed(sized(kind, bound)[:-1])
    assert decoder.next_frame() is None
    decoder = FrameDecoder(command_sizes=SIZES)
    decoder.feed(sized(kind, bound + 1)[:9])
    assert decoder.next_frame() is None, "its type has not come"
    decoder.feed(sized(kind, bound + 1)[9:10])
    with pytest.raises(FrameTooLarge, match=rf"{bound + 1} bytes; at most {bound} are allowed for its type"):
        decoder.next_frame()


def test_every_type_is_one_byte_behind_its_tag() -> None:
    assert max(pb.BaseCommand.Type.values()) < 0x80


def test_a_command_that_does_not_begin_with_its_type_has_the_usual_size() -> None:
    """E8: no client writes it like this."""
    decoder = FrameDecoder(command_sizes=SIZES)
    decoder.feed((USUAL + 5).to_bytes(4, "big") + (USUAL + 1).to_bytes(4, "big") + bytes.fromhex("fa3e01"))
    with pytest.raises(FrameTooLarge):
        decoder.next_frame()


def test_a_type_that_is_given_twice_gains_no_room() -> None:
    """E8: the last one counts."""
    stream = bytearray(sized(pb.BaseCommand.SUBSCRIBE, LARGER))
    stream[12] -= 2
    stream[-2:] = bytes((0x08, pb.BaseCommand.PING))
    decoder = FrameDecoder(command_sizes=SIZES)
    decoder.feed(stream)
    with pytest.raises(FrameTooLarge, match=f"{USUAL} are allowed"):
        decoder.next_frame()


def test_a_payload_does_not_count_as_command() -> None:
    """E8: a message may be large, but its command may not."""
    decoder = FrameDecoder(command_sizes=SIZES)
    decoder.feed(encode_payload_command(send(1, 2), bytes(10 * LARGER)))
    assert decoder.next_frame() is not None


def test_what_was_taken_is_counted() -> None:
    decoder = FrameDecoder()
    decoder.feed(PING + SEND + SEND[:-1])
    while decoder.next_frame() is not None:
        pass
    assert decoder.taken_bytes == len(PING + SEND)
