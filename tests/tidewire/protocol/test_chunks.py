from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewire.protocol.chunks import INCOMPLETE_MAX, INCOMPLETE_SECONDS_MAX, Chunks, Whole
from tidewire.protocol.positions import Position
from tidewire.wire.pulsar.building import CHUNKED_MESSAGE_SIZE_MAX, build_chunks, message_metadata
from tidewire.wire.pulsar.errors import MalformedMessage, MessageTooLarge
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.messages import parse_payload, split_body


def sent(
    producer: str, sequence_id: int, value: bytes, *, codec: pb.CompressionType = pb.CompressionType.NONE
) -> list[bytes]:
    metadata = message_metadata(producer, sequence_id, 1)
    return build_chunks(metadata, value, codec, chunk_size_max=10)


class Segment:
    """Takes payloads at entries counted from 0, and returns the complete messages."""

    def __init__(self) -> None:
        self.now = 0.0
        self.chunks = Chunks(lambda: self.now)
        self.entries = 0

    def take(self, payload: bytes) -> Whole | None:
        metadata, body = parse_payload(payload)
        entry = (7, self.entries)
        self.entries += 1
        if metadata.num_chunks_from_msg > 1:
            return self.chunks.add(metadata, body, entry)
        self.chunks.passed(metadata, entry)
        return Whole(bytes(body), ())

    def take_all(self, payloads: list[bytes]) -> list[Whole]:
        return [whole for payload in payloads if (whole := self.take(payload)) is not None]


@given(
    st.lists(
        st.tuples(
            st.binary(min_size=1, max_size=60),
            st.sampled_from([pb.CompressionType.NONE, pb.CompressionType.LZ4]),
            st.booleans(),
        ),
        max_size=6,
    ),
    st.randoms(use_true_random=False),
)
def test_whatever_lies_between_them_chunks_come_together_once(
    drawn: list[tuple[bytes, pb.CompressionType, bool]], random: Random
) -> None:
    """Each producer's chunks are in order; after a lost connection some messages are resent completely."""
    queues = []
    for number, (value, codec, is_cut_off) in enumerate(drawn):
        payloads = sent(f"p{number}", 0, value, codec=codec)
        cut = payloads[: random.randrange(len(payloads))] if is_cut_off else []
        queues.append([*cut, *payloads])
    segment, got = Segment(), []
    while queues:
        queue = random.choice(queues)
        payload = queue.pop(0)
        metadata, _ = parse_payload(payload)
        whole = segment.take(payload)
        if whole is not None:
            (message,) = split_body(metadata, whole.body)
            got.append((metadata.producer_name, message.value))
        queues = [queue for queue in queues if queue]
    assert sorted(got) == [(f"p{number}", value) for number, (value, _, _) in enumerate(drawn)]
    assert segment.chunks.covered(Position(7, 1000)) == Position(7, 1000)


def test_the_places_of_a_message_are_those_of_all_that_was_sent_for_it() -> None:
    segment = Segment()
    payloads = sent("p", 0, b"x" * 25)
    assert len(payloads) == 3
    assert segment.take_all(payloads[:2]) == []
    (whole,) = segment.take_all(payloads)
    assert whole == Whole(b"x" * 25, ((7, 0), (7, 1), (7, 2), (7, 3)))


def test_what_lies_behind_a_beginning_is_not_covered_until_the_message_is_whole() -> None:
    segment = Segment()
    one, two = sent("one", 0, b"1" * 15), sent("two", 0, b"2" * 15)
    segment.take(one[0])
    assert segment.chunks.covered(Position(6, 9)) == Position(6, 9)
    assert segment.chunks.covered(Position(7, 0)) is None
    assert segment.chunks.resume_after(Position(7, 0)) == Position(7, -1)
    segment.take(one[1])
    segment.take(two[0])
    segment.take_all(sent("three", 0, b"3"))
    # The third is whole, and stands behind the second's beginning, which is right behind the first.
    assert segment.chunks.covered(Position(7, 3)) == Position(7, 1)
    assert segment.chunks.resume_after(Position(7, 3)) == Position(7, 1)
    assert segment.chunks.covered(Position(7, 0)) == Position(7, 0)
    segment.take(two[1])
    assert segment.chunks.covered(Position(7, 3)) == Position(7, 3)


def test_what_will_not_be_finished_holds_nothing_up() -> None:
    """Its producer has sent something later, or has been silent for long, or too many others are begun."""
    segment = Segment()
    segment.take(sent("p", 0, b"x" * 15)[0])
    segment.take_all(sent("q", 1, b"y"))
    assert segment.chunks.covered(Position(7, 1)) is None
    segment.take_all(sent("p", 1, b"y"))
    assert segment.chunks.covered(Position(7, 1)) == Position(7, 1)

    first = segment.entries
    payloads = sent("p", 2, b"x" * 15)
    segment.take(payloads[0])
    segment.now += INCOMPLETE_SECONDS_MAX
    assert segment.chunks.covered(Position(7, 99)) == Position(7, first - 1)
    segment.now += 1
    assert segment.chunks.covered(Position(7, 99)) == Position(7, 99)
    # And its end, when it comes after all, is left out.
    assert segment.take(payloads[1]) is None

    for number in range(INCOMPLETE_MAX + 1):
        segment.take(sent(f"{number}", 0, b"x" * 15)[0])
    last = segment.entries - 1
    assert segment.chunks.covered(Position(7, last)) == Position(7, last - INCOMPLETE_MAX)


def test_an_end_without_its_beginning_is_left_out() -> None:
    segment = Segment()
    payloads = sent("p", 0, b"x" * 25)
    assert segment.take_all(payloads[1:]) == []
    assert segment.chunks.covered(Position(7, 1)) == Position(7, 1)
    segment.take(payloads[0])
    assert segment.take(payloads[2]) is None


def test_a_session_that_ended_leaves_nothing() -> None:
    segment = Segment()
    payloads = sent("p", 0, b"x" * 15)
    segment.take(payloads[0])
    segment.chunks.forget()
    assert segment.chunks.covered(Position(7, 0)) == Position(7, 0)
    assert segment.take(payloads[1]) is None
    assert not Chunks(lambda: 0.0).is_past(Position(-1, -1))


def test_chunks_that_contradict_each_other_are_refused() -> None:
    segment = Segment()
    metadata, body = parse_payload(sent("p", 0, b"x" * 15)[0])
    metadata.total_chunk_msg_size = CHUNKED_MESSAGE_SIZE_MAX + 1
    with pytest.raises(MessageTooLarge):
        segment.chunks.add(metadata, body, (7, 0))
    metadata.total_chunk_msg_size = 9
    with pytest.raises(MalformedMessage):
        segment.chunks.add(metadata, body, (7, 1))
    # What was refused is not begun.
    assert segment.chunks.covered(Position(7, 1)) == Position(7, 1)
