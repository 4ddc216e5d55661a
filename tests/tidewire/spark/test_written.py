"""The phases of a segment that a task writes to."""

from collections.abc import Callable

import pytest

from tests.support.blocking_peer import BlockingPeer
from tidewire.protocol.addresses import BrokerAddress
from tidewire.protocol.layout import Segment
from tidewire.spark.batching import Producing, SentFrame
from tidewire.spark.connection import BlockingConnection
from tidewire.spark.errors import WriteFailed
from tidewire.spark.written import MOVES, Phase, WrittenSegment


def untouched() -> WrittenSegment:
    return WrittenSegment(Segment("topic", "segment", "segment"))


def closed() -> WrittenSegment:
    segment = untouched()
    segment.included()
    return segment


def opened() -> WrittenSegment:
    segment = closed()
    open_producer(segment)
    return segment


def sealed() -> WrittenSegment:
    segment = opened()
    segment.sealed()
    return segment


def open_producer(segment: WrittenSegment, remembered_upto: int = -1) -> None:
    connection = BlockingConnection(BlockingPeer({}), BrokerAddress("127.0.0.1", 6650), timeout_seconds=30)
    segment.opened(connection, Producing(1, "p", b"", (1, 2)), remembered_upto)


MAKE: dict[Phase, Callable[[], WrittenSegment]] = {
    Phase.UNTOUCHED: untouched,
    Phase.CLOSED: closed,
    Phase.OPEN: opened,
    Phase.SEALED: sealed,
}
HAPPENINGS: dict[Phase, Callable[[WrittenSegment], None]] = {
    Phase.CLOSED: WrittenSegment.included,
    Phase.OPEN: open_producer,
    Phase.SEALED: WrittenSegment.sealed,
}


def test_every_phase_has_its_moves() -> None:
    assert set(MOVES) == set(MAKE) == set(Phase)


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("to", HAPPENINGS)
def test_only_what_the_table_has_can_happen(phase: Phase, to: Phase) -> None:
    segment = MAKE[phase]()
    assert segment.phase is phase
    if to in MOVES[phase]:
        HAPPENINGS[to](segment)
        assert segment.phase is to
    else:
        with pytest.raises(AssertionError):
            HAPPENINGS[to](segment)
        assert segment.phase is phase


def test_a_producer_is_there_while_it_is_open() -> None:
    assert [MAKE[phase]().producer is None for phase in Phase] == [True, True, False, False]


def test_a_closed_producer_leaves_a_segment_that_can_be_opened_again() -> None:
    segment = opened()
    segment.closed()
    assert (segment.phase, segment.producer) == (Phase.CLOSED, None)
    open_producer(segment)
    assert segment.phase is Phase.OPEN


def test_a_sealed_segment_stays_sealed_when_its_producer_is_closed() -> None:
    segment = sealed()
    segment.closed()
    assert (segment.phase, segment.producer) == (Phase.SEALED, None)


def in_doubt(answered_upto: int) -> WrittenSegment:
    """Return a segment whose broker closed the producer before it answered a frame."""
    segment = opened()
    assert segment.producer is not None
    segment.producer.answered_upto = answered_upto
    segment.producer.next_sequence_id = 9
    segment.unanswered.append(SentFrame(8, [], 1))
    segment.closed()
    assert segment.doubted is not None
    return segment


@pytest.mark.parametrize("remembered_upto", [7, 8])
def test_a_producer_that_its_broker_remembers_goes_on_under_its_name(remembered_upto: int) -> None:
    """Whether frame 8 is stored or not, its next copy counts once."""
    segment = in_doubt(7)
    for epoch in (1, 2):
        open_producer(segment, remembered_upto)
        assert segment.producer is not None
        assert (segment.producer.next_sequence_id, segment.producer.answered_upto) == (9, 7)
        assert segment.producer.epoch == epoch
        assert segment.doubted is None
        segment.closed()


@pytest.mark.parametrize(("answered_upto", "remembered_upto"), [(7, 6), (7, -1), (-1, -1), (-1, 8)])
def test_frames_of_a_producer_that_its_broker_forgot_are_in_doubt(answered_upto: int, remembered_upto: int) -> None:
    """T14: another copy of a stored frame would count twice."""
    segment = in_doubt(answered_upto)
    with pytest.raises(WriteFailed, match="closed the producer before it answered a task"):
        open_producer(segment, remembered_upto)
    assert segment.phase is Phase.CLOSED


def test_a_seal_ends_the_doubt() -> None:
    segment = in_doubt(7)
    segment.sealed()
    assert segment.doubted is None
    assert segment.unanswered
