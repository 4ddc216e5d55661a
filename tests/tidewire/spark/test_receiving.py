from typing import Any

import pytest

from tests.support.blocking_peer import Answer, BlockingPeer
from tests.tidewire.spark.readable import LEDGER, TOPIC, Readable, batch
from tidewire.protocol.backoff import DELAY_SECONDS_MAX
from tidewire.protocol.errors import ConnectFailed, ConnectionLost, OperationTimedOut
from tidewire.protocol.positions import EARLIEST, EntryPosition
from tidewire.protocol.refusals import Refused
from tidewire.spark.brokers import Brokers
from tidewire.spark.errors import DataLost, UnreadableMessage
from tidewire.spark.measuring import Gauge
from tidewire.spark.partitions import SegmentRange
from tidewire.spark.receiving import WINDOW_MESSAGES, entries
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import encode_command, encode_payload_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

T = pb.BaseCommand.Type
NAME = "segment://public/default/x/0000-ffff-0"


def world_of(*payloads: bytes) -> Readable:
    world = Readable()
    world.add(NAME, payloads)
    return world


def up_to(entry: int, *, after: EntryPosition = EARLIEST) -> SegmentRange:
    return SegmentRange(TOPIC, "0000-ffff-0", NAME, end=EntryPosition(LEDGER, entry), start=after)


def read(world: Readable, partition: SegmentRange) -> list[int]:
    """Return the received entry ids, in order."""
    came = []
    for entry in entries(partition, world.brokers):
        assert entry.position.ledger == LEDGER
        came.append(entry.position.entry)
    return came


def starts(world: Readable) -> list[int]:
    """Return the entry after which each reader asked to begin."""
    return [
        command.subscribe.start_message_id.entry_id if command.subscribe.start_message_id.ledger_id == LEDGER else -1
        for command in world.commands_of(T.SUBSCRIBE)
    ]


def test_a_range_is_read_to_its_end_and_not_beyond() -> None:
    world = world_of(*[batch(b"v")] * 5)
    assert read(world, up_to(2)) == [0, 1, 2]
    ((_, _, peer),) = world.peers
    assert peer.is_closed
    (reader,) = world.commands_of(T.SUBSCRIBE)
    assert not reader.subscribe.durable


def test_a_range_may_begin_behind_an_entry_and_may_be_empty() -> None:
    world = world_of(*[batch(b"v")] * 5)
    assert read(world, up_to(3, after=EntryPosition(LEDGER, 1))) == [2, 3]
    assert read(world, up_to(1, after=EntryPosition(LEDGER, 1))) == []


def test_an_end_whose_entry_the_broker_skips_is_passed_by_a_later_one() -> None:
    world = world_of(*[batch(b"v")] * 5)
    assert read(world, SegmentRange(TOPIC, None, NAME, end=EntryPosition(LEDGER - 1, 7))) == []


def test_permits_are_renewed_by_what_was_used_when_half_the_window_is() -> None:
    world = world_of(*[batch(*[b"v"] * 3000)] * 20)
    assert len(read(world, up_to(19))) == 20
    permits = [command.flow.message_permits for command in world.commands_of(T.FLOW)]
    assert permits[0] == WINDOW_MESSAGES == 20_000
    assert set(permits[1:]) == {12_000}
    # So many were used, and none twice.
    assert sum(permits[1:]) == 60_000


def test_permits_are_given_as_messages_are_taken_and_not_before() -> None:
    """A task in a slow Spark stage must not receive the whole segment."""
    world = world_of(*[batch(*[b"v"] * 1000)] * 100)
    sent: list[int] = []

    def send(peer: BlockingPeer, index: int) -> bool:
        sent.append(index)
        return True

    world.sending = send
    reading = entries(up_to(99), world.brokers)
    next(reading)
    assert len(sent) == WINDOW_MESSAGES // 1000
    for _ in range(10):
        next(reading)
    assert len(sent) == WINDOW_MESSAGES // 1000 + 10
    reading.close()
    assert world.peers[0][2].is_closed


def test_reading_goes_on_behind_the_last_entry_when_the_connection_breaks() -> None:
    world = world_of(*[batch(b"v")] * 9)

    def send(peer: BlockingPeer, index: int) -> bool:
        if index in {3, 7} and len(world.peers) == index // 3:
            peer.reset() if index == 3 else peer.hang_up()
            return False
        return True

    world.sending = send
    assert read(world, up_to(8)) == list(range(9))
    assert starts(world) == [-1, 2, 6]
    assert all(peer.is_closed for _, _, peer in world.peers)


def test_reading_goes_on_when_the_segment_moves_to_another_broker() -> None:
    world = world_of(*[batch(b"v")] * 4)

    def send(peer: BlockingPeer, index: int) -> bool:
        if index == 2 and len(world.peers) == 1:
            peer.say(encode_command(commands.close_consumer(1)))
            return False
        return True

    world.sending = send
    assert read(world, up_to(3)) == [0, 1, 2, 3]
    assert starts(world) == [-1, 1]
    assert len(world.commands_of(T.LOOKUP)) == 2


def test_an_entry_that_comes_twice_is_read_once() -> None:
    """T20: brokers may redeliver to a reader."""
    world = world_of(*[batch(b"v")] * 3)

    def send(peer: BlockingPeer, index: int) -> bool:
        if index == 2:
            for again in (0, 1):
                peer.say(encode_payload_command(commands.message(1, LEDGER, again), batch(b"v")))
        return True

    world.sending = send
    assert read(world, up_to(2)) == [0, 1, 2]


def test_damage_ends_the_reading_with_the_brokers_words() -> None:
    """E10: the task fails with the ledger's name and does not retry; earlier entries were read."""
    world = world_of(*[batch(b"v")] * 4)

    def send(peer: BlockingPeer, index: int) -> bool:
        if index == 2:
            peer.say(encode_command(commands.consumer_error(1, pb.PersistenceError, "7.ledger is damaged at byte 9")))
            return False
        return True

    world.sending = send
    reading = entries(up_to(3), world.brokers, patience_seconds=60)
    assert [entry.position.entry for entry in (next(reading), next(reading))] == [0, 1]
    with pytest.raises(DataLost, match=rf"{NAME} cannot be read behind 5:1: 7.ledger is damaged at byte 9"):
        next(reading)
    assert len(world.peers) == 1


def test_damage_met_by_planning_is_lost_data() -> None:
    """E10: neither a segment's end nor its size is known."""
    world = world_of(batch(b"v"))
    world.answers[T.GET_LAST_MESSAGE_ID] = lambda _peer: (
        lambda command: [
            encode_command(
                commands.error(
                    command.get_last_message_id.request_id, pb.PersistenceError, "7.ledger is damaged at byte 9"
                )
            )
        ]
    )
    with world.brokers() as brokers:
        owner = brokers.owner_of(NAME)
        with (
            pytest.raises(DataLost, match=r"7.ledger is damaged at byte 9"),
            Gauge.opened(owner, NAME, 1, uncommitted=False) as gauge,
        ):
            gauge.end()


def test_a_connection_that_breaks_before_anything_came_is_the_end() -> None:
    world = world_of(batch(b"v"), batch(b"v"))

    def send(peer: BlockingPeer, index: int) -> bool:
        if index == 1:
            peer.hang_up()
            return False
        return True

    world.sending = send
    with pytest.raises(ConnectionLost, match=rf"service:6650 closed the connection; {NAME} was being read behind 5:0$"):
        read(world, up_to(1))
    assert len(world.peers) == 2


class Waiting:
    """A clock that only pauses move, and a broker that is unreachable until some time."""

    def __init__(self, world: Readable, *, reached_at: float) -> None:
        self.now = 0.0
        self._world = world
        self._reached_at = reached_at

    def brokers(self) -> Brokers:
        if self.now < self._reached_at:
            raise ConnectFailed("no connection to service:6650")
        return self._world.brokers()

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def read(self, partition: SegmentRange) -> list[int]:
        came = entries(partition, self.brokers, patience_seconds=30, clock=lambda: self.now, pause=self.pause)
        return [entry.position.entry for entry in came]


def test_a_broker_that_restarts_is_waited_for() -> None:
    """D8: a task continues at its position, as the planner does."""
    world = world_of(batch(b"v"), batch(b"v"))
    waiting = Waiting(world, reached_at=20)

    def send(peer: BlockingPeer, index: int) -> bool:
        if index == 1 and len(world.peers) < 3:
            waiting.now = 0
            peer.hang_up()
            return False
        return True

    world.sending = send
    assert waiting.read(up_to(1)) == [0, 1]
    assert starts(world) == [-1, 0, 0]
    assert 20 <= waiting.now < 20 + DELAY_SECONDS_MAX


def test_a_broker_that_does_not_come_back_is_given_up_on() -> None:
    waiting = Waiting(world_of(batch(b"v")), reached_at=1000)
    with pytest.raises(ConnectFailed, match=r"^no connection to service:6650$"):
        waiting.read(up_to(0))
    assert 30 <= waiting.now < 30 + DELAY_SECONDS_MAX


def test_a_broker_that_is_not_ready_is_waited_for_and_one_that_refuses_is_not() -> None:
    for code, is_waited_for in ((pb.ServiceNotReady, True), (pb.TopicNotFound, False)):
        world = world_of(batch(b"v"))
        waiting = Waiting(world, reached_at=0)
        subscribe = world.answers[T.SUBSCRIBE]

        def refuse(
            peer: BlockingPeer, waiting: Waiting = waiting, code: pb.ServerError = code, subscribe: Any = subscribe
        ) -> Answer:
            if waiting.now >= 5:
                answer: Answer = subscribe(peer)
                return answer
            return lambda command: [encode_command(commands.error(command.subscribe.request_id, code, "not now"))]

        world.answers[T.SUBSCRIBE] = refuse
        if is_waited_for:
            assert waiting.read(up_to(0)) == [0]
            assert 5 <= waiting.now < 5 + DELAY_SECONDS_MAX
        else:
            with pytest.raises(Refused, match="not now"):
                waiting.read(up_to(0))
            assert waiting.now == 0


def test_a_broker_that_sends_nothing_is_given_up_on() -> None:
    world = world_of(batch(b"v"))
    with pytest.raises(
        OperationTimedOut, match=rf"did not send the next message of {NAME}, which reaches up to 5:3, within"
    ):
        read(world, up_to(3))
    assert world.peers[0][2].now == 30


def test_a_range_is_read_on_at_the_next_owner_when_its_broker_was_stopped() -> None:
    """C21: in the middle of it. The stopped broker's kernel keeps the connection, so only the time tells."""
    world = world_of(*[batch(b"v")] * 3)
    waiting = Waiting(world, reached_at=0)

    def send(peer: BlockingPeer, index: int) -> bool:
        if index == 1 and len(world.peers) == 1:
            waiting.now += 30
            return False
        return True

    world.sending = send
    assert waiting.read(up_to(2)) == [0, 1, 2]
    assert starts(world) == [-1, 0]


def test_brokers_that_stay_silent_are_given_up_on() -> None:
    world = world_of(*[batch(b"v")] * 3)
    waiting = Waiting(world, reached_at=0)

    def send(peer: BlockingPeer, index: int) -> bool:
        if index == 1:
            waiting.now += 30
            return False
        return True

    world.sending = send
    with pytest.raises(OperationTimedOut):
        waiting.read(up_to(2))
    assert len(world.peers) == 2


def test_what_is_not_a_message_does_not_keep_a_silent_broker_waited_for() -> None:
    world = world_of(batch(b"v"))

    def send(peer: BlockingPeer, index: int) -> bool:
        peer.say(*[encode_command(commands.reached_end_of_topic(1))] * 3)
        return False

    world.sending = send
    with pytest.raises(OperationTimedOut):
        read(world, up_to(0))


def test_an_entry_that_comes_again_is_passed_over() -> None:
    world = world_of(*[batch(b"v")] * 3)

    def send(peer: BlockingPeer, index: int) -> bool:
        if index == 2:
            peer.say(encode_payload_command(commands.message(1, LEDGER, 0), batch(b"v")))
        return True

    world.sending = send
    assert read(world, up_to(2)) == [0, 1, 2]


@pytest.mark.parametrize(("place", "complaint"), [(-1, "the payload's crc32c is"), (0, "its metadata would end")])
def test_a_damaged_message_is_named_by_its_place(place: int, complaint: str) -> None:
    payload = bytearray(batch(b"value"))
    payload[place] ^= 1
    with pytest.raises(UnreadableMessage, match=rf"^{NAME} 5:1: .*({complaint})"):
        read(world_of(batch(b"v"), bytes(payload)), up_to(1))


def test_a_segment_that_is_gone_is_one_sentence() -> None:
    with pytest.raises(Refused, match=rf"refuses SUBSCRIBE: no {NAME} \[TopicNotFound\]"):
        read(Readable(), up_to(1))
