"""A task whose broker closes producers, with and without unanswered frames.

The broker is scripted, so that frames come in the bad orders; test_writing.py has the real one.
"""

from collections.abc import Iterable

import pytest

from tests.support.blocking_peer import Answer, BlockingPeer
from tests.tidewire.spark.readable import TOPIC, segment
from tests.tidewire.spark.writable import T, Writable, rows
from tidewire.protocol.addresses import BrokerAddress
from tidewire.spark import batching
from tidewire.spark.errors import WriteFailed
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

ALL = "0000-ffff-0"
SEGMENT = f"segment://public/default/x/{ALL}"
LOW, HIGH = segment(1, 0, 0x7FFF), segment(2, 0x8000, 0xFFFF)


@pytest.fixture(autouse=True)
def small_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each row its own frame."""
    monkeypatch.setattr(batching, "FRAME_ROWS_MAX", 1)


def test_a_close_may_come_before_the_layout() -> None:
    """T20: the broker sealed the segment and closed the producer while frames were on their way to it."""
    world = Writable()
    usual = world.producing

    def refusing_the_unknown(peer: BlockingPeer) -> Answer:
        open_producer = usual(peer)

        def answer(command: pb.BaseCommand) -> Iterable[bytes]:
            asked = command.producer
            if asked.topic == SEGMENT and asked.epoch and (SEGMENT, asked.producer_name) not in world.remembered:
                refused = commands.error(asked.request_id, pb.TopicTerminatedError, "sealed")
                return [encode_command(refused)]
            return open_producer(command)

        return answer

    world.answers[T.PRODUCER] = refusing_the_unknown
    world.holds = True
    attempt = world.attempt()
    attempt.write(TOPIC, rows((0, 1), (0xFFFF, 2), (0, 3)))
    world.close_producers()
    # The push of this layout was not heard yet. It is there for whoever asks.
    world.replace(0, LOW, HIGH)
    world.holds = False
    attempt.write(TOPIC, rows((0, 4)))
    attempt.finish()
    assert world.stored == {"0000-7fff-1": [1, 3, 4], "8000-ffff-2": [2]}


def test_a_sealed_segment_that_knows_the_producer_refuses_what_it_has_not() -> None:
    """T20: the first of three frames was answered, and the others came too late."""
    world = Writable()
    world.holds = True
    attempt = world.attempt()
    attempt.write(TOPIC, rows((0, 1), (0xFFFF, 2), (0, 3)))
    world.answer_held(1)
    world.close_producers()
    world.replace(0, LOW, HIGH)

    def refuse() -> None:
        world.refuse_held(pb.TopicTerminatedError)
        world.holds = False

    world.peers[0][2].say_when_empty = refuse
    attempt.finish()
    assert world.stored == {ALL: [1], "0000-7fff-1": [3], "8000-ffff-2": [2]}


def test_frames_that_met_a_move_are_sent_again_to_the_next_broker() -> None:
    """T14: the first was answered, the second stored, the third lost."""
    world = Writable()
    world.holds = True
    attempt = world.attempt()
    attempt.write(TOPIC, rows((0, 1), (0, 2), (0, 3)))
    world.answer_held(1)
    world.store_held(1)
    world.close_producers()
    world.owners[SEGMENT] = BrokerAddress("other", 6650)
    world.holds = False
    attempt.write(TOPIC, rows((0, 4)))
    attempt.finish()
    assert world.stored == {ALL: [1, 2, 3, 4]}
    opened = [command.producer for command in world.commands_of(T.PRODUCER)]
    assert [(one.producer_name, one.epoch) for one in opened] == [("", 0), ("p1", 1)]
    assert not any(one.user_provided_producer_name for one in opened)


@pytest.mark.parametrize("is_replaced_first", [False, True])
def test_frames_of_a_producer_that_the_next_broker_does_not_know_are_in_doubt(is_replaced_first: bool) -> None:
    """The segment moved away from its broker. Unanswered frames may be stored, although others replace it now."""
    world = Writable()
    world.holds = True
    attempt = world.attempt()
    attempt.write(TOPIC, rows((0, 1)))
    world.replace(0, LOW, HIGH)
    if is_replaced_first:
        world.say_layout()
    world.close_producers()
    if not is_replaced_first:
        world.say_layout()
    world.holds = False
    with pytest.raises(WriteFailed, match=f"^the broker of {SEGMENT} closed the producer before it answered a task$"):
        attempt.finish()
    assert not world.stored


def test_a_producer_that_is_closed_when_all_is_answered_is_opened_again() -> None:
    world = Writable()
    attempt = world.attempt()
    attempt.write(TOPIC, rows((0, 1)))
    attempt.finish()
    world.close_producers()
    world.owners[SEGMENT] = BrokerAddress("other", 6650)
    attempt.write(TOPIC, rows((0, 2)))
    attempt.finish()
    assert world.stored == {ALL: [1, 2]}
    assert len(world.commands_of(T.PRODUCER)) == 2
    assert len(world.commands_of(T.ADD_PARTITION_TO_TXN)) == 1
