"""A subscription that one process holds, with brokers in memory."""

from collections.abc import Iterable

import pytest

from tests.support.blocking_peer import Answer, BlockingPeer
from tests.tidewire.spark.readable import LEDGER, TOPIC, Readable, batch
from tidewire.protocol.errors import ProtocolViolation
from tidewire.protocol.layout import Segment
from tidewire.protocol.positions import EntryPosition
from tidewire.protocol.refusals import Refused
from tidewire.spark.held_subscription import SENT_AWAY_MAX, HeldSubscription
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import message_id, position

T = pb.BaseCommand.Type
TXN = (3, (1 << 62) | 7)
PARTS = [
    Segment(TOPIC, name, f"segment://public/default/x/{name}", number)
    for number, name in enumerate(("0000-7fff-0", "8000-ffff-1"))
]
FIRST, SECOND = PARTS


class World(Readable):
    """Brokers that report the positions of subscriptions, and accept acknowledgements."""

    def __init__(self) -> None:
        super().__init__()
        for part in PARTS:
            self.add(part.wire_name, [batch(b"v")] * 3)
        self.sends_away = 0
        """How many consumers are still to be closed when they ask where they are."""
        self.answers[T.GET_LAST_MESSAGE_ID] = lambda peer: self._told
        self.answers[T.ACK] = lambda peer: self._taken

    def _told(self, command: pb.BaseCommand) -> Iterable[bytes]:
        asked = command.get_last_message_id
        if self.sends_away:
            self.sends_away -= 1
            yield encode_command(commands.close_consumer(asked.consumer_id))
        here = message_id(LEDGER, 1)
        yield encode_command(
            commands.get_last_message_id_response(asked.request_id, message_id(LEDGER, 2), mark_delete=here)
        )

    def _taken(self, command: pb.BaseCommand) -> Iterable[bytes]:
        yield encode_command(commands.ack_response(command.ack.consumer_id, command.ack.request_id))

    def held(self) -> HeldSubscription:
        return HeldSubscription("job", self.options, self._connect)

    @property
    def peer(self) -> BlockingPeer:
        return self.peers[-1][2]


def test_each_part_is_held_by_a_consumer_who_is_sent_nothing() -> None:
    world = World()
    held = world.held()
    assert held.hold(PARTS)
    assert not held.hold(PARTS), "nothing was missing"
    opened = [command.subscribe for command in world.commands_of(T.SUBSCRIBE)]
    assert [one.topic for one in opened] == [part.wire_name for part in PARTS]
    assert all(one.durable and one.subscription == "job" for one in opened)
    assert all(one.sub_type == pb.CommandSubscribe.Exclusive for one in opened)
    assert all(one.initial_position == pb.CommandSubscribe.Earliest for one in opened)
    assert not world.commands_of(T.FLOW)


def test_acknowledgements_are_cumulative_and_in_the_transaction() -> None:
    """T22: the broker reports the subscription's position."""
    world = World()
    held = world.held()
    held.hold(PARTS)
    assert held.position(SECOND) == EntryPosition(LEDGER, 1)
    held.acknowledge(SECOND, EntryPosition(LEDGER, 2), TXN)
    (command,) = world.commands_of(T.ACK)
    assert command.ack.ack_type == pb.CommandAck.Cumulative
    assert (command.ack.txnid_most_bits, command.ack.txnid_least_bits) == TXN
    assert position(command.ack.message_id[0]) == (LEDGER, 2)


def test_a_consumer_that_is_sent_away_is_opened_anew_and_asks_again() -> None:
    """Its earlier answer may be from before another consumer was there."""
    world = World()
    held = world.held()
    held.hold(PARTS)
    world.sends_away = 2
    assert held.position(FIRST) == EntryPosition(LEDGER, 1)
    assert len(world.commands_of(T.GET_LAST_MESSAGE_ID)) == 3
    assert len(world.commands_of(T.SUBSCRIBE)) == len(PARTS) + 2


def test_who_is_sent_away_time_and_again_gives_up() -> None:
    world = World()
    world.sends_away = SENT_AWAY_MAX
    with pytest.raises(ProtocolViolation, match="closes every consumer of subscription job"):
        world.held().position(FIRST)


def test_what_a_broker_closes_meanwhile_is_missed_at_the_next_look() -> None:
    world = World()
    held = world.held()
    held.hold(PARTS)
    assert not held.arrived()
    world.peer.say(encode_command(commands.close_consumer(world.commands_of(T.SUBSCRIBE)[0].subscribe.consumer_id)))
    assert held.arrived()
    assert held.hold(PARTS)
    assert world.commands_of(T.SUBSCRIBE)[-1].subscribe.topic == FIRST.wire_name


def test_a_part_that_is_gone_is_not_held_any_more() -> None:
    world = World()
    held = world.held()
    held.hold(PARTS)
    assert not held.hold([SECOND])
    assert held.hold(PARTS), "should it ever come back"


def test_what_is_refused_is_told() -> None:
    world = World()

    def busy(peer: BlockingPeer) -> Answer:
        def answer(command: pb.BaseCommand) -> Iterable[bytes]:
            yield encode_command(commands.error(command.subscribe.request_id, pb.ServiceNotReady, "taken"))

        return answer

    world.answers[T.SUBSCRIBE] = busy
    with pytest.raises(Refused, match="taken"):
        world.held().hold(PARTS)


def test_of_a_part_that_is_read_what_was_aborted_may_be_passed_over() -> None:
    world = World()
    held = world.held()
    held.hold(PARTS)
    held.pass_over(FIRST)
    (command,) = world.commands_of(T.FLOW)
    assert command.flow.message_permits == 1
    assert command.flow.consumer_id == world.commands_of(T.SUBSCRIBE)[0].subscribe.consumer_id
