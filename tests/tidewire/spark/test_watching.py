"""What a stream's planner learns from pushes, with brokers in memory."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from tests.support.blocking_peer import Answer, BlockingPeer
from tests.tidewire.spark.readable import LEDGER, TOPIC, Readable, batch, segment
from tidewire.protocol.errors import ConnectionLost, ProtocolViolation
from tidewire.protocol.layout import Segment
from tidewire.protocol.positions import EARLIEST, EntryPosition
from tidewire.protocol.refusals import Refused
from tidewire.spark.held_subscription import SENT_AWAY_MAX
from tidewire.spark.options import Pattern
from tidewire.spark.watching import Watch
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

T = pb.BaseCommand.Type
NAME = "0000-ffff-0"
WIRE = f"segment://public/default/x/{NAME}"


def watched(*entries: bytes) -> tuple[Readable, Watch, Segment]:
    world = Readable()
    world.dag.segments.append(segment(0, 0, 0xFFFF))
    world.add(WIRE, list(entries))
    watch = Watch(world.options, world._connect)
    parts = watch.parts(TOPIC)
    assert parts is not None
    return world, watch, parts[NAME]


def replace_by_halves(world: Readable) -> None:
    """Split the first segment."""
    del world.dag.segments[:]
    world.dag.segments.extend([segment(0, 0, 0xFFFF, sealed=True), segment(1, 0, 0x7FFF), segment(2, 0x8000, 0xFFFF)])


def reset_after_a_split() -> tuple[Readable, Watch]:
    """Reset the watch, which had seen the halves in a layout of epoch 2."""
    world, watch, _ = watched()
    world.dag.epoch = 2
    replace_by_halves(world)
    world.say_layout()
    watch.arrived()
    watch.reset()
    return world, watch


def active(watch: Watch) -> list[int]:
    """Return the segments that take messages."""
    parts = watch.parts(TOPIC)
    assert parts is not None
    return [part.segment_id for part in parts.values() if part.is_active]


def spoken(world: Readable) -> int:
    """Return how many commands brokers got."""
    return sum(len(peer.received) for _, _, peer in world.peers)


def test_nothing_is_asked_while_nothing_happens() -> None:
    world, watch, part = watched(batch(b"a"))
    end = EntryPosition(LEDGER, 0)
    assert watch.behind(part, EARLIEST).end == end
    assert watch.behind(part, end).messages == 0
    watch.arrived()
    before = spoken(world)
    for _ in range(100):
        assert not watch.arrived()
        assert watch.behind(part, end).messages == 0
        assert watch.parts(TOPIC) == {NAME: part}
    assert spoken(world) == before


def test_what_becomes_readable_is_told_by_one_message() -> None:
    world, watch, part = watched()
    assert watch.behind(part, EARLIEST).messages == 0
    watch.arrived()
    world.append(WIRE, batch(b"a", b"b"), batch(b"c"))
    assert watch.arrived()
    assert (watch.behind(part, EARLIEST).messages, watch.behind(part, EARLIEST).end) == (3, EntryPosition(LEDGER, 1))
    assert [command.flow.message_permits for command in world.commands_of(T.FLOW)] == [1]


def test_a_segment_that_is_not_read_for_a_while_is_asked_about_again() -> None:
    """E23: nothing announces what follows unread messages, and other segments would be read further."""
    world, watch, part = watched(batch(b"a"))
    assert watch.behind(part, EARLIEST).messages == 1
    world.append(WIRE, batch(b"b"))
    assert watch.behind(part, EARLIEST).messages == 2
    assert watch.behind(part, EARLIEST, until_ms=0).messages == 1
    world.final.add(WIRE)
    assert watch.behind(part, EARLIEST).is_final
    before = spoken(world)
    assert watch.behind(part, EARLIEST).messages == 2
    assert spoken(world) == before


def test_what_a_segment_began_with_is_asked_once() -> None:
    """E23: a waiting segment is checked whenever a micro-batch is planned."""
    world, watch, part = watched()
    assert watch.opening(part).messages == 0
    world.append(WIRE, batch(b"a"))
    watch.arrived()
    assert watch.opening(part).messages == 1
    before = spoken(world)
    world.append(WIRE, batch(b"b"))
    assert watch.opening(part).messages == 1
    assert spoken(world) == before


def test_what_comes_while_a_reader_is_moved_is_not_missed() -> None:
    world, watch, part = watched(batch(b"a"))
    end = EntryPosition(LEDGER, 0)
    asked = world.answers[T.CLOSE_CONSUMER]

    def closing(peer: BlockingPeer) -> Answer:
        def answer(command: pb.BaseCommand) -> Iterable[bytes]:
            # After the answer that nothing is there, before the reader that would be told.
            if len(world.topics[WIRE]) == 1:
                world.append(WIRE, batch(b"b"))
            return asked(peer)(command)

        return answer

    world.answers[T.CLOSE_CONSUMER] = closing
    watch = Watch(world.options, world._connect)
    watch.parts(TOPIC)
    assert watch.behind(part, EARLIEST).end == end
    assert watch.behind(part, end).messages == 0
    assert watch.arrived()
    assert watch.behind(part, end).messages == 1


def test_a_layout_is_pushed() -> None:
    world, watch, _ = watched()
    watch.arrived()
    replace_by_halves(world)
    world.say_layout()
    assert watch.arrived()
    assert active(watch) == [1, 2]


def test_an_older_layout_of_another_broker_is_not_taken_for_news() -> None:
    """E23: segments that it lacks would count as removed, with their messages."""
    world, watch = reset_after_a_split()
    older = pb.ScalableTopicDAG(epoch=1, segments=[segment(0, 0, 0xFFFF)])

    def older_first(command: pb.BaseCommand) -> list[bytes]:
        update = commands.scalable_topic_update(command.scalable_topic_lookup.session_id, older)
        return [encode_command(update), *world._layout(command)]

    world.answers[T.SCALABLE_TOPIC_LOOKUP] = lambda peer: older_first
    assert active(watch) == [1, 2]


def test_the_layout_of_a_topic_that_was_created_again_is_news() -> None:
    """E19: the creation ids of its segments tell its positions from those in the deleted topic."""
    world, watch = reset_after_a_split()
    del world.dag.segments[:]
    made = segment(0, 0, 0xFFFF)
    made.created_at_ms = 1000
    world.dag.epoch = 0
    world.dag.segments.append(made)
    assert active(watch) == [0]


def test_a_final_end_is_not_waited_behind() -> None:
    world, watch, part = watched(batch(b"a"))
    world.final.add(WIRE)
    assert watch.behind(part, EntryPosition(LEDGER, 0)).is_final
    assert not world.commands_of(T.FLOW)


def test_a_consumer_that_the_broker_closes_is_opened_anew() -> None:
    world, watch, part = watched()
    watch.behind(part, EARLIEST)
    watch.arrived()
    _, _, peer = world.peers[-1]
    reader = world.commands_of(T.SUBSCRIBE)[-1].subscribe.consumer_id
    peer.say(encode_command(commands.close_consumer(reader)))
    assert watch.arrived()
    world.append(WIRE, batch(b"a"))
    assert watch.behind(part, EARLIEST).messages == 1


@pytest.mark.parametrize("times", [1, SENT_AWAY_MAX])
def test_a_consumer_that_the_broker_closes_while_it_is_asked_is_opened_anew(times: int) -> None:
    """The segment moves, and nobody answers the question any more."""
    world, watch, part = watched(batch(b"a"))
    asked = world.answers[T.GET_LAST_MESSAGE_ID]
    closed: list[int] = []

    def closing(peer: BlockingPeer) -> Answer:
        def answer(command: pb.BaseCommand) -> Iterable[bytes]:
            request = command.get_last_message_id
            if len(closed) == times:
                return asked(peer)(command)
            closed.append(request.consumer_id)
            refusal = commands.error(request.request_id, pb.SubscriptionNotFound, "no such consumer")
            return [encode_command(commands.close_consumer(request.consumer_id)), encode_command(refusal)]

        return answer

    world.answers[T.GET_LAST_MESSAGE_ID] = closing
    watch = Watch(world.options, world._connect)
    watch.parts(TOPIC)
    if times < SENT_AWAY_MAX:
        assert watch.behind(part, EARLIEST).messages == 1
    else:
        with pytest.raises(Refused, match="no such consumer"):
            watch.behind(part, EARLIEST)
    assert len(set(closed)) == times


def test_a_lost_connection_is_told_and_made_again() -> None:
    world, watch, part = watched()
    watch.behind(part, EARLIEST)
    watch.arrived()
    world.peers[-1][2].hang_up()
    with pytest.raises(ConnectionLost):
        watch.arrived()
    watch.reset()
    world.append(WIRE, batch(b"a"))
    assert watch.arrived()
    assert watch.parts(TOPIC) == {NAME: part}
    assert watch.behind(part, EARLIEST).messages == 1


def test_a_topic_that_is_not_there_is_asked_for_once() -> None:
    world = Readable()
    watch = Watch(world.options, world._connect)
    assert watch.parts(TOPIC) is None
    before = spoken(world)
    assert watch.parts(TOPIC) is None
    assert spoken(world) == before


def test_topics_of_a_pattern_come_and_go() -> None:
    world = Readable()
    world.options = replace(world.options, topics=(), pattern=Pattern("public/default", "x.*"))

    def listing(peer: BlockingPeer) -> Answer:
        names = ["topic://public/default/x", "topic://public/default/y"]
        return lambda command: [
            encode_command(commands.watch_scalable_topics_snapshot(command.watch_scalable_topics.watch_id, names))
        ]

    world.answers[T.WATCH_SCALABLE_TOPICS] = listing
    watch = Watch(world.options, world._connect)
    assert watch.topics() == ["topic://public/default/x"]
    watch.arrived()
    watch_id = world.commands_of(T.WATCH_SCALABLE_TOPICS)[0].watch_scalable_topics.watch_id
    added = ["topic://public/default/x2", "topic://public/default/z"]
    world.peers[-1][2].say(encode_command(commands.watch_scalable_topics_diff(watch_id, added, [watch.topics()[0]])))
    assert watch.arrived()
    assert watch.topics() == ["topic://public/default/x2"]


def test_a_broker_that_does_not_measure_has_no_streams() -> None:
    world, watch, part = watched()
    world.measures = False
    with pytest.raises(ProtocolViolation, match=r"cannot measure the backlog, which streams need$"):
        watch.behind(part, EARLIEST)
