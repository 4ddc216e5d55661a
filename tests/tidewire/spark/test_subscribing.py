"""A query's subscription, with brokers in memory."""

from collections.abc import Iterable

import pytest

from tests.support.blocking_peer import Answer, BlockingPeer
from tests.tidewire.spark.readable import LEDGER, TOPIC, Readable, batch
from tidewire.protocol.layout import Segment
from tidewire.protocol.positions import EntryPosition
from tidewire.protocol.refusals import Refused
from tidewire.spark.offsets import BEGINNING, Place
from tidewire.spark.subscribing import QuerySubscription
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import position

T = pb.BaseCommand.Type
NAMES = ("0000-ffff-0", "0000-7fff-1", "8000-ffff-2", "0000-3fff-3", "4000-7fff-4")
PARENTS = ((), (0,), (0,), (1,), (1,))
PARTS = {
    name: Segment(TOPIC, name, f"segment://public/default/x/{name}", number, parents)
    for number, (name, parents) in enumerate(zip(NAMES, PARENTS, strict=True))
}


def subscribed() -> tuple[Readable, QuerySubscription]:
    world = Readable()
    for part in PARTS.values():
        world.add(part.wire_name, [batch(b"v")] * 3)

    def acknowledging(peer: BlockingPeer) -> Answer:
        def answer(command: pb.BaseCommand) -> Iterable[bytes]:
            return [encode_command(commands.ack_response(command.ack.consumer_id, command.ack.request_id))]

        return answer

    world.answers[T.ACK] = acknowledging
    return world, QuerySubscription("query", world.options, world._connect)


def acknowledged(world: Readable) -> dict[str, tuple[int, int]]:
    """Return each segment's cursor."""
    names = {command.subscribe.consumer_id: command.subscribe.topic for command in world.commands_of(T.SUBSCRIBE)}
    return {
        names[command.ack.consumer_id].rpartition("/")[2]: position(command.ack.message_id[0])
        for command in world.commands_of(T.ACK)
    }


def test_what_is_read_is_acknowledged_and_what_is_to_come_is_not() -> None:
    """T20: a finished segment is acknowledged to its end, including aborted messages there."""
    world, subscription = subscribed()
    subscription.move(TOPIC, PARTS, {NAMES[1]: Place(EntryPosition(LEDGER, 0), 1), NAMES[2]: BEGINNING})
    assert acknowledged(world) == {NAMES[0]: (LEDGER, 2), NAMES[1]: (LEDGER, 0)}
    assert len(world.commands_of(T.FLOW)) == 1
    opened = [command.subscribe for command in world.commands_of(T.SUBSCRIBE)]
    assert {one.topic.rpartition("/")[2] for one in opened} == set(NAMES[:3])
    assert all(one.durable and one.subscription == "query" for one in opened)
    assert all(command.ack.ack_type == pb.CommandAck.Cumulative for command in world.commands_of(T.ACK))
    places = {NAMES[2]: Place(EntryPosition(LEDGER, 1), 2), NAMES[3]: BEGINNING, NAMES[4]: BEGINNING}
    subscription.move(TOPIC, PARTS, places)
    assert acknowledged(world) == {NAMES[0]: (LEDGER, 2), NAMES[1]: (LEDGER, 2), NAMES[2]: (LEDGER, 1)}


def test_a_segment_of_a_topic_that_was_made_again_is_done_again() -> None:
    """T20: otherwise the lag of a new segment with an old one's name would stay visible forever."""
    world, subscription = subscribed()
    later = {NAMES[1]: BEGINNING, NAMES[2]: BEGINNING}
    subscription.move(TOPIC, PARTS, later)
    assert acknowledged(world) == {NAMES[0]: (LEDGER, 2)}
    closed = next(one.subscribe for one in world.commands_of(T.SUBSCRIBE) if one.subscribe.topic.endswith(NAMES[0]))
    world.peers[-1][2].say(encode_command(commands.close_consumer(closed.consumer_id)))
    subscription.move(TOPIC, PARTS, {NAMES[0]: BEGINNING})
    world.append(PARTS[NAMES[0]].wire_name, batch(b"v"))
    subscription.move(TOPIC, PARTS, later)
    assert acknowledged(world) == {NAMES[0]: (LEDGER, 3)}


def test_a_segments_end_is_passed_over_by_each_consumer_once() -> None:
    """D16: a restarted broker may have forgotten the skip over aborted messages, and the segment would stay forever."""
    world, subscription = subscribed()
    later = {NAMES[1]: BEGINNING, NAMES[2]: BEGINNING}
    for flows in (1, 2):
        for _ in range(2):
            subscription.move(TOPIC, PARTS, later)
            assert len(world.commands_of(T.FLOW)) == flows
        subscription.reset()


def test_the_same_places_say_nothing_new() -> None:
    world, subscription = subscribed()
    places = {NAMES[0]: Place(EntryPosition(LEDGER, 0), 1)}
    for _ in range(3):
        subscription.move(TOPIC, PARTS, places)
    assert len(world.commands_of(T.ACK)) == len(world.commands_of(T.SUBSCRIBE)) == 1
    subscription.reset()
    subscription.move(TOPIC, PARTS, {NAMES[0]: Place(EntryPosition(LEDGER, 1), 2)})
    assert acknowledged(world) == {NAMES[0]: (LEDGER, 1)}


def test_a_consumer_that_the_broker_closes_is_opened_anew() -> None:
    world, subscription = subscribed()
    subscription.move(TOPIC, PARTS, {NAMES[0]: Place(EntryPosition(LEDGER, 0), 1)})
    _, _, peer = world.peers[-1]
    peer.say(encode_command(commands.close_consumer(world.commands_of(T.SUBSCRIBE)[-1].subscribe.consumer_id)))
    subscription.move(TOPIC, PARTS, {NAMES[0]: Place(EntryPosition(LEDGER, 1), 2)})
    assert acknowledged(world) == {NAMES[0]: (LEDGER, 1)}
    assert len(world.commands_of(T.SUBSCRIBE)) == 2


def test_a_segment_that_goes_once_it_is_read_is_not_missed() -> None:
    """D16: the known layout may be older than the removal. An unread segment is missed."""
    world, subscription = subscribed()
    del world.topics[PARTS[NAMES[0]].wire_name]
    subscription.move(TOPIC, PARTS, {NAMES[1]: Place(EntryPosition(LEDGER, 0), 1), NAMES[2]: BEGINNING})
    assert acknowledged(world) == {NAMES[1]: (LEDGER, 0)}
    del world.topics[PARTS[NAMES[2]].wire_name]
    subscription.reset()
    # All of it, that is to say nothing, was read.
    places = {NAMES[1]: Place(EntryPosition(LEDGER, 1), 2), NAMES[2]: BEGINNING}
    subscription.move(TOPIC, PARTS, places)
    assert acknowledged(world) == {NAMES[1]: (LEDGER, 1)}
    with pytest.raises(Refused, match="TopicNotFound"):
        QuerySubscription("new", world.options, world._connect).move(TOPIC, PARTS, places)


def test_of_a_segment_that_a_subscription_had_passed_before_nobody_knows_whether_it_was_read() -> None:
    """T20: a query that lost its checkpoint reads it again, and it may be removed meanwhile."""
    world, subscription = subscribed()
    segment = PARTS[NAMES[0]].wire_name
    world.acknowledged[segment] = 2
    for entry in (-1, 0, 1, 2):
        place = BEGINNING if entry < 0 else Place(EntryPosition(LEDGER, entry), entry + 1)
        subscription.move(TOPIC, PARTS, {NAMES[0]: place})
        assert subscription.held_until_read(TOPIC, NAMES[0], place.position) is (entry == 2)
    assert not acknowledged(world)
    # Whoever holds it again asks where it is by now.
    subscription.reset()
    world.acknowledged[segment] = 1
    subscription.move(TOPIC, PARTS, {NAMES[0]: Place(EntryPosition(LEDGER, 2), 3)})
    assert acknowledged(world) == {NAMES[0]: (LEDGER, 2)}


def test_of_a_segment_that_was_there_before_the_query_nobody_knows_whether_it_was_read() -> None:
    """T20: the subscription may have been at its end. A later segment begins with the subscription at its start."""
    _world, subscription = subscribed()
    assert not subscription.held_until_read(TOPIC, NAMES[3], BEGINNING.position)
    subscription.move(TOPIC, {name: PARTS[name] for name in NAMES[:3]}, {NAMES[1]: BEGINNING})
    assert not subscription.held_until_read(TOPIC, NAMES[2], BEGINNING.position)
    assert subscription.held_until_read(TOPIC, NAMES[3], BEGINNING.position)
    # What is known later does not change what there was.
    subscription.move(TOPIC, PARTS, {NAMES[1]: BEGINNING})
    assert subscription.held_until_read(TOPIC, NAMES[3], BEGINNING.position)
    assert not subscription.held_until_read("topic://public/default/y", NAMES[3], BEGINNING.position)
    _world, subscription = subscribed()
    subscription.move(TOPIC, PARTS, {NAMES[1]: BEGINNING})
    assert not subscription.held_until_read(TOPIC, NAMES[4], BEGINNING.position)


def test_what_came_of_a_segment_that_is_gone_was_not_read() -> None:
    """T20: the segment was split and removed while the stream was at its end, and its children are next."""
    world, subscription = subscribed()
    left = {name: PARTS[name] for name in NAMES[1:3]}
    subscription.move(TOPIC, left, {NAMES[0]: Place(EntryPosition(LEDGER, 2), 3)})
    assert not acknowledged(world)
    subscription.move(TOPIC, left, {NAMES[1]: Place(EntryPosition(LEDGER, 1), 2), NAMES[2]: BEGINNING})
    assert acknowledged(world) == {NAMES[1]: (LEDGER, 1)}
