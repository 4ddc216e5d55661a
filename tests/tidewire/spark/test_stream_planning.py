"""How a stream's micro-batches are planned, with brokers in memory."""

import json
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.support.admin import Admin
from tests.support.blocking_peer import Answer, BlockingPeer
from tests.support.processes import RunningBroker, running_broker
from tests.tidewire.spark.readable import LEDGER, TOPIC, Readable, batch, segment
from tests.tidewire.spark.test_end_to_end import send_all, write
from tidewire.protocol.positions import EntryPosition
from tidewire.spark import stream_planner
from tidewire.spark.errors import DataLost
from tidewire.spark.limits import Limit
from tidewire.spark.offsets import BEGINNING, Offsets, Place
from tidewire.spark.options import ReadOptions
from tidewire.spark.stream_planner import StreamPlanner
from tidewire.spark.streaming import trouble_of
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import position

T = pb.BaseCommand.Type
NAME = "0000-ffff-0"
WIRE = f"segment://public/default/x/{NAME}"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_planner, "RETRY_SECONDS", 0.0)


def world_of(*entries: bytes) -> Readable:
    world = Readable()
    world.dag.segments.append(segment(0, 0, 0xFFFF))
    world.add(WIRE, entries)
    return world


def read_to(entry: int) -> Offsets:
    """Return the offsets after reading up to this entry; each entry has one message."""
    return {TOPIC: {NAME: Place(EntryPosition(LEDGER, entry), entry + 1)}}


def refused_acknowledgements(world: Readable) -> list[pb.ServerError]:
    """Accept acknowledgements, but refuse as many as are in the list, with these errors."""
    codes: list[pb.ServerError] = []

    def acknowledging(peer: BlockingPeer) -> Answer:
        def answer(command: pb.BaseCommand) -> Iterable[bytes]:
            asked = command.ack
            code = codes.pop() if codes else None
            return [encode_command(commands.ack_response(asked.consumer_id, asked.request_id, error=code))]

        return answer

    world.answers[T.ACK] = acknowledging
    return codes


@pytest.mark.parametrize("stops", [False, True])
def test_a_connection_that_breaks_is_not_the_end_of_what_there_is(stops: bool) -> None:
    """D8: for Spark, "nothing new" ends a query that stops at the present, so the planner retries."""
    world = world_of(batch(b"a"), batch(b"b"), batch(b"c"))
    planner = StreamPlanner(world.options, world._connect)
    if stops:
        planner.stop_at_present()
    end = planner.next(planner.first(), Limit(messages=1))
    world.append(WIRE, batch(b"d"))
    world.peers[-1][2].hang_up()
    if not stops:
        assert planner.next(end, Limit(messages=1)) == end
    assert planner.next(end, Limit(messages=1)) == read_to(1)
    assert planner.next(read_to(1), Limit()) == read_to(2 if stops else 3)


def test_the_report_says_that_no_broker_answers_until_one_does() -> None:
    """Spark says no more than that it waits for data."""
    world = world_of(batch(b"a"))
    planner = StreamPlanner(world.options, world._connect)
    end = planner.next(planner.first(), Limit())
    before = planner.report()
    assert before is not None
    assert trouble_of({"latestOffset": json.dumps(before)}) is None
    world.peers[-1][2].hang_up()
    assert planner.next(end, Limit()) == end
    away = planner.report()
    assert away is not None
    assert "closed the connection" in (trouble_of({"latestOffset": json.dumps(away)}) or "")
    assert away["offsets"] == before["offsets"]
    assert planner.next(end, Limit()) == end
    assert "trouble" not in (planner.report() or {})


@pytest.mark.parametrize("refused_by", [None, pb.ServiceNotReady, pb.ConsumerBusy])
def test_the_subscription_follows_also_when_nothing_new_comes(refused_by: pb.ServerError | None) -> None:
    """It could not be moved after the last micro-batch; otherwise others would see a lag forever.

    The connection was lost, the segment moves, or the planner of the query's last run still holds it.
    """
    world = world_of(batch(b"a"))
    world.options = replace(world.options, subscription="query")
    codes = refused_acknowledgements(world)
    planner = StreamPlanner(world.options, world._connect)
    end = planner.next(planner.first(), Limit())
    assert end == read_to(0)
    if refused_by is None:
        (holding,) = [
            peer for _, _, peer in world.peers if any(one.subscribe.durable for one in peer.received_of(T.SUBSCRIBE))
        ]
        holding.hang_up()
    else:
        codes += [refused_by] * 2
    for _ in range(4):
        assert planner.next(end, Limit()) == end
    acknowledged = [position(command.ack.message_id[0]) for command in world.commands_of(T.ACK)]
    assert acknowledged[-1] == (LEDGER, 0)
    assert not codes
    assert len(acknowledged) == (1 if refused_by is None else 3)


@pytest.mark.parametrize("subscription", ["query", None])
def test_a_segment_that_goes_when_its_subscription_is_at_its_end_was_read(subscription: str | None) -> None:
    """T20: an idle query is at its end when it is split, and its brokers remove what all have read."""
    world = world_of(batch(b"a"))
    world.options = replace(world.options, subscription=subscription)
    refused_acknowledgements(world)
    planner = StreamPlanner(world.options, world._connect)
    end = planner.next(planner.first(), Limit())
    assert planner.next(end, Limit()) == end
    del world.dag.segments[:]
    world.dag.segments.extend([segment(1, 0, 0x7FFF), segment(2, 0x8000, 0xFFFF)])
    for name in ("0000-7fff-1", "8000-ffff-2"):
        world.add(f"segment://public/default/x/{name}", [])
    world.say_layout()
    if subscription is None:
        with pytest.raises(DataLost, match="the query may not have read all of it"):
            planner.next(end, Limit())
    else:
        assert planner.next(end, Limit()) == {TOPIC: {"0000-7fff-1": BEGINNING, "8000-ffff-2": BEGINNING}}


def test_an_empty_segment_that_came_and_went_within_a_micro_batch_was_read() -> None:
    """T20: it came from a segment that the query held, and was split and removed before the query could hold it."""
    names = ["0000-7fff-1", "8000-ffff-2", "8000-bfff-3", "c000-ffff-4"]
    world = world_of(batch(b"a"))
    world.options = replace(world.options, subscription="query")
    refused_acknowledgements(world)
    for name in names:
        world.add(f"segment://public/default/x/{name}", [])
    planner = StreamPlanner(world.options, world._connect)
    end = planner.next(planner.first(), Limit())
    assert planner.next(end, Limit()) == end
    del world.dag.segments[:]
    world.dag.segments.extend([segment(1, 0, 0x7FFF), segment(2, 0x8000, 0xFFFF)])
    world.say_layout()
    start = planner.next(end, Limit())
    assert start == {TOPIC: {names[0]: BEGINNING, names[1]: BEGINNING}}
    del world.dag.segments[1]
    world.dag.segments.extend([segment(3, 0x8000, 0xBFFF), segment(4, 0xC000, 0xFFFF)])
    world.say_layout()
    expected = {TOPIC: dict.fromkeys([names[0], *names[2:]], BEGINNING)}
    assert planner.next(start, Limit()) == expected


def test_a_batch_that_was_planned_of_another_topic_is_not_read() -> None:
    """E19: after a restart, Spark requests it again before it asks for anything else."""
    world = world_of(batch(b"a"), batch(b"b"))
    world.creation[WIRE] = "aa"
    planner = StreamPlanner(world.options, world._connect)
    start = planner.first()
    end = planner.next(start, Limit())
    assert len(planner.ranges(start, end)) == 1
    world.creation[WIRE] = "bb"
    with pytest.raises(DataLost, match="is not the segment that the checkpoint names"):
        StreamPlanner(world.options, world._connect).ranges(start, end)
    world.options = replace(world.options, fail_on_data_loss=False, subscription="query")
    refused_acknowledgements(world)
    planner = StreamPlanner(world.options, world._connect)
    assert planner.ranges(start, end) == []
    assert planner.next(end, Limit()) == {TOPIC: {NAME: Place(EntryPosition(LEDGER, 1), 2, "bb")}}
    # The subscription of the new topic stays where it is until that is read.
    assert not world.commands_of(T.ACK)


@pytest.mark.parametrize("kind", ["topic", "persistent"])
def test_a_checkpoint_of_another_data_folder_is_refused(kind: str, tmp_path: Path) -> None:
    """E19: a deleted topic's checkpoint is refused, too; ledgers may have equal numbers and sizes."""
    topic = f"{kind}://public/default/x"

    def filled(broker: RunningBroker) -> ReadOptions:
        if kind == "topic":
            Admin(broker.http_url).create(topic, 2)
        write(broker, partial(send_all, topic, [b"%d" % number for number in range(9)]))
        return ReadOptions.parse({"service_url": broker.service_url, "topic": topic, "starting_position": "earliest"})

    def read_on(options: ReadOptions, start: Offsets | None) -> Offsets:
        planner = StreamPlanner(options)
        with closing(planner):
            return planner.next(start or planner.first(), Limit())

    with running_broker(tmp_path / "one") as broker:
        options = filled(broker)
        end = read_on(options, None)
        assert read_on(options, end) == end
        if kind == "topic":
            Admin(broker.http_url).delete(topic)
            with pytest.raises(DataLost, match="is not the segment that the checkpoint names"):
                read_on(filled(broker), end)
        else:
            broker.stop()
            broker.start()
            options = ReadOptions.parse({"service_url": broker.service_url, "topic": topic})
            assert read_on(options, end) == end
    with (
        running_broker(tmp_path / "two") as broker,
        pytest.raises(DataLost, match="the broker has another data folder"),
    ):
        read_on(filled(broker), end)


@pytest.mark.parametrize("refused_by", [None, pb.ConsumerBusy])
def test_a_new_query_that_cannot_hold_its_subscription_lets_go_of_it_and_tries_again(
    refused_by: pb.ServerError | None,
) -> None:
    """The connection breaks, or a second query holds another segment, and each waits for the other."""
    world = Readable()
    world.options = replace(world.options, subscription="query")
    world.dag.segments.extend([segment(0, 0, 0x7FFF), segment(1, 0x8000, 0xFFFF)])
    for name in ("0000-7fff-0", "8000-ffff-1"):
        world.add(f"segment://public/default/x/{name}", [])
    subscribing = world.answers[T.SUBSCRIBE]
    refused: list[BlockingPeer] = []

    def refusing(peer: BlockingPeer) -> Answer:
        def answer(command: pb.BaseCommand) -> Iterable[bytes]:
            asked = command.subscribe
            if refused or not asked.durable or not asked.topic.endswith("1"):
                return subscribing(peer)(command)
            refused.append(peer)
            if refused_by is None:
                peer.hang_up()
                return []
            return [encode_command(commands.error(asked.request_id, refused_by, "somebody has it"))]

        return answer

    world.answers[T.SUBSCRIBE] = refusing
    refused_acknowledgements(world)
    planner = StreamPlanner(world.options, world._connect)
    assert planner.first()[TOPIC].keys() == {"0000-7fff-0", "8000-ffff-1"}
    assert refused[0].is_closed
    held = [command.subscribe.topic for command in world.commands_of(T.SUBSCRIBE) if command.subscribe.durable]
    assert held[-2:] == list(world.topics)
