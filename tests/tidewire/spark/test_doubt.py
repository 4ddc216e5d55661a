"""A task with brokers that move segments, close producers and refuse frames at every wrong moment.

A real broker cannot be made to do most of this, so the broker is scripted; test_writing.py has the real one.
"""

from collections.abc import Callable, Iterable
from types import SimpleNamespace

import pytest

from tests.support.blocking_peer import Answer, BlockingPeer
from tests.tidewire.spark.readable import TOPIC, segment
from tests.tidewire.spark.writable import TRANSACTION, T, Writable, rows
from tidewire.protocol.errors import OperationTimedOut, ProtocolViolation
from tidewire.protocol.refusals import Refused
from tidewire.spark import batching, persisting, writing
from tidewire.spark.errors import WriteFailed
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

ALL = "0000-ffff-0"
SEGMENT = f"segment://public/default/x/{ALL}"
LOW, HIGH = segment(1, 0, 0x7FFF), segment(2, 0x8000, 0xFFFF)


@pytest.fixture(autouse=True)
def small_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make frames small, so that each row has its own."""
    monkeypatch.setattr(batching, "FRAME_ROWS_MAX", 1)


@pytest.fixture(autouse=True)
def no_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(persisting, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))


def test_rows_are_stored_where_their_keys_belong() -> None:
    world = Writable(segments=2)
    attempt = world.attempt()
    attempt.write(TOPIC, rows((0, 1), (0xFFFF, 2), (0, 3)))
    attempt.finish()
    assert world.stored == {"0000-7fff-0": [1, 3], "8000-ffff-1": [2]}
    included = [list(command.add_partition_to_txn.partitions) for command in world.commands_of(T.ADD_PARTITION_TO_TXN)]
    assert included == [[f"segment://public/default/x/{name}"] for name in world.stored]
    assert all(command.producer.txn_enabled for command in world.commands_of(T.PRODUCER))


@pytest.mark.parametrize("is_lost", [False, True])
def test_an_attempt_leaves_no_producers(is_lost: bool) -> None:
    """K26: their names are of no use to anybody, so brokers need not remember them. It fails nothing that is stored."""
    world = Writable(segments=2)
    attempt = world.attempt()
    attempt.write(TOPIC, rows((0, 1), (0xFFFF, 2)))
    attempt.finish()
    if is_lost:
        world.peers[0][2].stop_reading()
    attempt.leave()
    left = [command.close_producer.producer_id for command in world.commands_of(T.CLOSE_PRODUCER)]
    assert left == ([] if is_lost else [command.producer.producer_id for command in world.commands_of(T.PRODUCER)])


def test_what_is_refused_as_sealed_goes_to_the_children_before_later_rows() -> None:
    """T20: the first of three frames was stored, the others were not."""
    world = Writable()
    world.holds = True
    attempt = world.attempt()
    attempt.write(TOPIC, rows((0, 1), (0xFFFF, 2), (0, 3)))
    world.answer_held(1)
    world.refuse_held(pb.TopicTerminatedError)
    world.replace(0, LOW, HIGH)
    world.say_layout()
    world.holds = False
    attempt.write(TOPIC, rows((0, 4), (0xFFFF, 5)))
    attempt.finish()
    assert world.stored == {ALL: [1], "0000-7fff-1": [3, 4], "8000-ffff-2": [2, 5]}


def test_a_refusal_may_come_before_the_layout() -> None:
    world = Writable()
    world.holds = True
    attempt = world.attempt()
    attempt.write(TOPIC, rows((0, 1)))
    world.refuse_held(pb.TopicTerminatedError)
    world.holds = False
    world.replace(0, LOW, HIGH)
    # It is pushed when the attempt has begun to wait for it.
    world.peers[0][2].say_when_empty = world.say_layout
    attempt.finish()
    assert world.stored == {"0000-7fff-1": [1]}


def test_a_layout_that_never_comes_is_an_error() -> None:
    world = Writable()
    world.holds = True
    attempt = world.attempt()
    attempt.write(TOPIC, rows((0, 1)))
    world.refuse_held(pb.TopicTerminatedError)
    with pytest.raises(OperationTimedOut, match=f"did not send the layout of {TOPIC} without a sealed segment"):
        attempt.finish()


def test_a_replaced_segment_is_heard_to_its_end_and_left() -> None:
    """T20: its children get nothing before all its sends are answered."""
    world = Writable()
    world.holds = True
    attempt = world.attempt()
    attempt.write(TOPIC, rows((0, 1), (0, 2)))
    world.replace(0, LOW, HIGH)
    world.say_layout()
    world.peers[0][2].say_when_empty = world.answer_held
    attempt.write(TOPIC, rows((0, 3)))
    world.holds = False
    world.answer_held()
    attempt.finish()
    assert world.stored == {ALL: [1, 2], "0000-7fff-1": [3]}
    assert [command.close_producer.producer_id for command in world.commands_of(T.CLOSE_PRODUCER)] == [1]


def test_two_parents_are_settled_before_rows_go_to_their_child() -> None:
    """T20: both parents of a merge are settled first."""
    world = Writable(segments=2)
    world.holds = True
    attempt = world.attempt()
    attempt.write(TOPIC, rows((0, 1), (0xFFFF, 2), (0, 3)))
    world.replace(0, segment(2, 0, 0xFFFF))
    world.replace(1)
    world.say_layout()
    world.refuse_held(pb.TopicTerminatedError)
    world.close_producers()
    world.holds = False
    attempt.write(TOPIC, rows((0, 4), (0xFFFF, 5)))
    attempt.finish()
    assert [value for value in world.stored["0000-ffff-2"] if value in (1, 3, 4)] == [1, 3, 4]
    assert [value for value in world.stored["0000-ffff-2"] if value in (2, 5)] == [2, 5]
    assert len(world.stored) == 1


def refusing(world: Writable, *codes: pb.ServerError, then: Callable[[], None] | None = None) -> None:
    """Refuse the next producers with these codes; then call `then`."""
    left = list(codes)

    def make(peer: BlockingPeer) -> Answer:
        usual = world.producing(peer)

        def answer(command: pb.BaseCommand) -> list[bytes]:
            if not left:
                return list(usual(command))
            refusal = encode_command(commands.error(command.producer.request_id, left.pop(0), "no"))
            if not left and then is not None:
                then()
            return [refusal]

        return answer

    world.answers[T.PRODUCER] = make


def test_a_segment_that_is_not_ready_is_asked_again() -> None:
    world = Writable()
    refusing(world, pb.ServiceNotReady, pb.ServiceNotReady)
    attempt = world.attempt()
    attempt.write(TOPIC, rows((0, 1)))
    attempt.finish()
    assert world.stored == {ALL: [1]}


def test_a_segment_that_is_never_ready_is_an_error() -> None:
    world = Writable()
    refusing(world, *[pb.ServiceNotReady] * 1000)
    with pytest.raises(Refused, match=r"refuses PRODUCER: no \[ServiceNotReady\]"):
        world.attempt().write(TOPIC, rows((0, 1)))


@pytest.mark.parametrize("code", [pb.TopicTerminatedError, pb.TopicNotFound])
def test_a_segment_that_was_sealed_before_its_first_row_is_left_to_its_children(code: pb.ServerError) -> None:
    world = Writable()

    def split() -> None:
        world.replace(0, LOW, HIGH)
        world.say_layout()

    refusing(world, code, then=split)
    attempt = world.attempt()
    attempt.write(TOPIC, rows((0, 1), (0xFFFF, 2)))
    attempt.finish()
    assert world.stored == {"0000-7fff-1": [1], "8000-ffff-2": [2]}


def test_a_frame_that_is_refused_fails_the_task() -> None:
    world = Writable()
    world.holds = True
    attempt = world.attempt()
    attempt.write(TOPIC, rows((0, 1)))
    world.refuse_held(pb.NotAllowedError)
    with pytest.raises(Refused, match=f"^{SEGMENT} refuses a task's rows: no .NotAllowedError.$"):
        attempt.finish()


def test_an_answer_out_of_turn_fails_the_task() -> None:
    world = Writable()
    world.holds = True
    attempt = world.attempt()
    attempt.write(TOPIC, rows((0, 1), (0, 2)))
    world.peers[0][2].say(encode_command(commands.send_receipt(1, 1, 1, 0)))
    with pytest.raises(ProtocolViolation, match=f"the broker of {SEGMENT} confirms frame 1 out of order"):
        attempt.finish()


def test_an_answer_for_a_frame_that_was_taken_back_fails_the_task() -> None:
    """The frame would be stored twice."""
    world = Writable()
    world.holds = True
    attempt = world.attempt()
    attempt.write(TOPIC, rows((0, 1)))
    world.refuse_held(pb.TopicTerminatedError)
    world.replace(0, LOW, HIGH)
    world.say_layout()
    attempt.write(TOPIC, rows((0, 2)))
    world.peers[0][2].say(encode_command(commands.send_receipt(1, 0, 1, 0)))
    with pytest.raises(ProtocolViolation, match="out of order"):
        attempt.finish()


def test_a_broker_that_answers_nothing_fails_the_task() -> None:
    world = Writable()
    world.holds = True
    attempt = world.attempt()
    attempt.write(TOPIC, rows((0, 1)))
    with pytest.raises(OperationTimedOut, match=f"did not send its answer to a frame of {SEGMENT} within 30 s"):
        attempt.finish()


def test_topics_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "TOPICS_MAX", 0)
    with pytest.raises(WriteFailed, match="a task writes to more than 0 topics; repartition by topic"):
        Writable().attempt().write(TOPIC, rows((0, 1)))


def test_a_coordinator_that_is_busy_is_asked_again() -> None:
    """Nothing is in doubt then, so the task need not run again."""
    world = Writable()
    usual = world.answers[T.ADD_PARTITION_TO_TXN]
    left = [pb.TooManyRequests, pb.MetadataError]

    def busy(peer: BlockingPeer) -> Answer:
        def answer(command: pb.BaseCommand) -> Iterable[bytes]:
            if not left:
                return usual(peer)(command)
            request_id = command.add_partition_to_txn.request_id
            refused = commands.add_partition_to_txn_response(request_id, TRANSACTION, error=left.pop(0), message="no")
            return [encode_command(refused)]

        return answer

    world.answers[T.ADD_PARTITION_TO_TXN] = busy
    attempt = world.attempt()
    attempt.write(TOPIC, rows((0, 1)))
    attempt.finish()
    assert world.stored == {ALL: [1]}


def after_two_splits() -> Writable:
    """Make a topic whose first segments were removed."""
    world = Writable()
    del world.dag.segments[:]
    world.dag.epoch = 5
    world.dag.segments.extend([segment(3, 0, 0x7FFF), segment(4, 0x8000, 0xFFFF)])
    return world


def test_a_broker_that_knows_an_older_layout_is_waited_for() -> None:
    """T20: with the old layout, rows would go to sealed segments that the newest layout does not have."""
    world = after_two_splits()
    attempt = world.attempt()
    attempt.write(TOPIC, rows((0, 1)))
    newest = pb.ScalableTopicDAG()
    newest.CopyFrom(world.dag)
    del world.dag.segments[:]
    world.dag.epoch = 3
    world.dag.segments.append(segment(2, 0, 0xFFFF))

    def say_newest() -> None:
        world.dag.CopyFrom(newest)
        world.say_layout()

    # The layout is asked for when a segment's producer was closed.
    world.close_producers()
    world.peers[0][2].say_when_empty = say_newest
    attempt.write(TOPIC, rows((0, 2), (0xFFFF, 3)))
    attempt.finish()
    assert world.stored == {"0000-7fff-3": [1, 2], "8000-ffff-4": [3]}


def test_a_topic_that_was_created_again_is_told_from_an_older_layout() -> None:
    """E19: a transaction with rows in both topics would lose those in the deleted one."""
    world = after_two_splits()
    attempt = world.attempt()
    attempt.write(TOPIC, rows((0, 1)))
    del world.dag.segments[:]
    world.dag.epoch = 0
    made = segment(0, 0, 0xFFFF)
    made.created_at_ms = 1000
    world.dag.segments.append(made)
    world.close_producers()
    with pytest.raises(WriteFailed, match="was deleted and created again while a task wrote to it"):
        attempt.write(TOPIC, rows((0, 2)))
