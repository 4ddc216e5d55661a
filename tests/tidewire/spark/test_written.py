"""The phases of a segment that a task writes to."""

from collections.abc import Callable

import pytest

from tests.support.blocking_peer import BlockingPeer
from tidewire.protocol.addresses import BrokerAddress
from tidewire.protocol.layout import Segment
from tidewire.spark.batching import Producing, SentFrame
from tidewire.spark.connection import BlockingConnection
from tidewire.spark.written import MOVES, OpenProducer, Phase, WrittenSegment


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


def open_producer(segment: WrittenSegment) -> None:
    connection = BlockingConnection(BlockingPeer({}), BrokerAddress("127.0.0.1", 6650), timeout_seconds=30)
    segment.opened(OpenProducer(connection, Producing(1, "p", b"", (1, 2)), 0))


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


def test_a_segment_is_not_closed_while_frames_are_unanswered() -> None:
    """It is unknown whether they are stored, so another producer must not send them."""
    segment = opened()
    segment.unanswered.append(SentFrame(0, [], 1))
    with pytest.raises(AssertionError):
        segment.closed()
