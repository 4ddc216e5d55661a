import base64
import pickle
from collections.abc import Iterable
from dataclasses import replace

import pytest

from tests.support.blocking_peer import Answer, BlockingPeer
from tests.tidewire.spark.readable import LEDGER, SERVICE, TOPIC, Readable, batch, segment
from tidewire.protocol.errors import ProtocolViolation, UnsupportedBroker
from tidewire.protocol.positions import EARLIEST, EntryPosition
from tidewire.protocol.refusals import Refused
from tidewire.spark import reader
from tidewire.spark.errors import DataLost, InvalidOption
from tidewire.spark.partitions import SegmentRange
from tidewire.spark.planning import plan
from tidewire.spark.positions import parse_boundary
from tidewire.spark.pushed import Pushed
from tidewire.spark.reader import TidewireReader
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.hashing import key_hash

T = pb.BaseCommand.Type
TOPIC_Y = "persistent://public/default/y"


def planned(world: Readable) -> list[SegmentRange]:
    with world.brokers() as brokers:
        return plan(world.options, brokers)


def described(ranges: list[SegmentRange]) -> list[tuple[str, str | None, str, EntryPosition, EntryPosition]]:
    return [(made.topic, made.segment, made.wire_name, made.start, made.end) for made in ranges]


def test_every_segment_with_messages_is_a_range_sealed_ones_too_in_order_of_their_ids() -> None:
    """T20: messages from before a split are read from the sealed parent, later ones from its children."""
    world = Readable()
    names = ["0000-7fff-2", "8000-ffff-3", "0000-ffff-1"]
    world.dag.segments.extend([segment(2, 0, 0x7FFF), segment(3, 0x8000, 0xFFFF), segment(1, 0, 0xFFFF, sealed=True)])
    for count, name in enumerate(names):
        world.add(f"segment://public/default/x/{name}", [batch(b"v")] * count)
    assert described(planned(world)) == [
        (TOPIC, names[2], f"segment://public/default/x/{names[2]}", EARLIEST, EntryPosition(LEDGER, 1)),
        (TOPIC, names[1], f"segment://public/default/x/{names[1]}", EARLIEST, EntryPosition(LEDGER, 0)),
    ]


def test_a_layout_that_changes_as_it_is_let_go_of_is_not_taken_for_the_next_topics() -> None:
    """T20: a split of the first topic is pushed before the broker learns that its watch is closed."""
    other = f"{TOPIC}2"
    world = Readable()
    world.options = replace(world.options, topics=(TOPIC, other))
    world.dag.segments.append(segment(0, 0, 0xFFFF))
    for name in ("x", "x2"):
        world.add(f"segment://public/default/{name}/0000-ffff-0", [batch(b"v")])
    asked: list[pb.BaseCommand] = []

    def pushing(peer: BlockingPeer) -> Answer:
        def answer(command: pb.BaseCommand) -> list[bytes]:
            asked.append(command)
            return [update for one in asked for update in world._layout(one)]

        return answer

    world.answers[T.SCALABLE_TOPIC_LOOKUP] = pushing
    assert [made.topic for made in planned(world)] == [TOPIC, other]


def test_a_range_survives_the_way_to_its_executor() -> None:
    made = SegmentRange(TOPIC, "0000-ffff-1", "segment://public/default/x/0000-ffff-1", end=EntryPosition(3, 4))
    read = pickle.loads(pickle.dumps(made))
    assert described([read]) == described([made])
    assert repr(read) == "SegmentRange(segment://public/default/x/0000-ffff-1, after -1:-1, up to 3:4)"


def test_asking_leaves_nothing_behind_and_creates_nothing() -> None:
    world = Readable()
    world.dag.segments.extend([segment(0, 0, 0x7FFF), segment(1, 0x8000, 0xFFFF)])
    world.add("segment://public/default/x/0000-7fff-0", [batch(b"v")])
    world.add("segment://public/default/x/8000-ffff-1", [batch(b"v")])
    planned(world)
    readers = [command.subscribe for command in world.commands_of(T.SUBSCRIBE)]
    assert len({reader.subscription for reader in readers}) == 2
    assert not any(reader.durable or reader.force_topic_creation for reader in readers)
    assert [command.close_consumer.consumer_id for command in world.commands_of(T.CLOSE_CONSUMER)] == [
        reader.consumer_id for reader in readers
    ]
    assert len(world.commands_of(T.SCALABLE_TOPIC_CLOSE)) == 1
    assert not world.commands_of(T.FLOW)


def test_a_legacy_segment_is_read_under_its_own_name() -> None:
    world = Readable()
    world.dag.segments.append(segment(0, 0, 0xFFFF, legacy="persistent://public/default/x"))
    world.add("persistent://public/default/x", [batch(b"v")])
    (made,) = planned(world)
    assert (made.segment, made.wire_name) == ("0000-ffff-0", "persistent://public/default/x")


def test_a_plain_topic_is_one_range_without_a_segment() -> None:
    world = Readable(TOPIC_Y)
    world.add(TOPIC_Y, [batch(b"v")])
    (made,) = planned(world)
    assert (made.topic, made.segment, made.wire_name) == (TOPIC_Y, None, TOPIC_Y)
    assert not world.commands_of(T.PARTITIONED_METADATA)[0].partition_metadata.metadata_auto_creation_enabled


def test_a_partitioned_topic_has_a_range_for_each_partition_with_messages() -> None:
    world = Readable("persistent://public/default/y")
    world.partitions = 3
    for index in range(3):
        world.add(f"persistent://public/default/y-partition-{index}", [batch(b"v")] * (index % 2))
    (made,) = planned(world)
    assert (made.segment, made.wire_name) == ("partition-1", "persistent://public/default/y-partition-1")


def test_a_broker_that_fails_to_tell_partitions_and_why_is_not_taken_for_one_that_says_there_are_none() -> None:
    """14: "unknown" is never read as "empty"."""
    world = Readable("persistent://public/default/y")
    world.add("persistent://public/default/y", [batch(b"v")])

    def fail(command: pb.BaseCommand) -> list[bytes]:
        answer = commands.partitioned_metadata_response(command.partition_metadata.request_id, 0)
        answer.partition_metadata_response.response = pb.CommandPartitionedTopicMetadataResponse.Failed
        return [encode_command(answer)]

    world.answers[pb.BaseCommand.PARTITIONED_METADATA] = lambda peer: fail
    with pytest.raises(Refused, match="refuses PARTITIONED_METADATA: the broker does not say why"):
        planned(world)


def test_an_unknown_topic_is_one_sentence() -> None:
    with pytest.raises(Refused, match=rf"^there is no topic {TOPIC} at {SERVICE}; .* makes it \[TopicNotFound\]$"):
        planned(Readable())


def test_a_broker_without_scalable_topics_is_told_from_a_missing_topic() -> None:
    world = Readable()
    world.features = pb.FeatureFlags()
    with pytest.raises(UnsupportedBroker, match="does not support scalable topics"):
        planned(world)


def sized(world: Readable, *counts: int) -> str:
    """Make a topic of one segment whose entries have this many messages. Return its wire name."""
    name = "segment://public/default/x/0000-ffff-0"
    world.dag.segments.append(segment(0, 0, 0xFFFF))
    world.add(name, [batch(*[b"v" * 100] * count) for count in counts])
    return name


def test_a_large_segment_is_divided_among_tasks_without_gap_or_overlap() -> None:
    world = Readable()
    name = sized(world, 1, 1, 1, 1, 1)
    world.options = replace(world.options, partition_bytes=2 * len(world.topics[name][0]))
    ranges = planned(world)
    assert [(made.start, made.end, made.messages_max) for made in ranges] == [
        (EARLIEST, EntryPosition(LEDGER, 1), 2),
        (EntryPosition(LEDGER, 1), EntryPosition(LEDGER, 3), 2),
        (EntryPosition(LEDGER, 3), EntryPosition(LEDGER, 4), 1),
    ]


def test_a_broker_that_does_not_measure_is_read_in_one_piece() -> None:
    world = Readable()
    world.measures = False
    sized(world, 3, 3)
    (made,) = planned(world)
    assert (made.start, made.end, made.messages_max) == (EARLIEST, EntryPosition(LEDGER, 1), None)


@pytest.mark.parametrize(
    ("starting", "ending", "read"),
    [
        ("earliest", "latest", (-1, 4)),
        ("2", "latest", (1, 4)),
        ("earliest", "3", (-1, 2)),
        ("1", "3", (0, 2)),
        ('{"topic://public/default/x": {"0000-ffff-0": "5:2"}}', "latest", (2, 4)),
        ("earliest", '{"topic://public/default/x": {"0000-ffff-0": "5:2"}}', (-1, 2)),
        ("{}", "{}", (-1, 4)),
        ("3", "3", None),
        ('{"topic://public/default/x": {"0000-ffff-0": "latest"}}', "latest", None),
    ],
)
def test_a_read_begins_behind_its_start_and_ends_with_its_end(
    starting: str, ending: str, read: tuple[int, int] | None
) -> None:
    """An entry's time here is its number."""
    world = Readable()
    sized(world, 1, 1, 1, 1, 1)
    world.options = replace(world.options, starting=parse_boundary(starting), ending=parse_boundary(ending))
    assert [(made.start.entry, made.end.entry) for made in planned(world)] == ([] if read is None else [read])


def test_an_end_that_cannot_be_read_yet_is_refused() -> None:
    world = Readable()
    sized(world, 1)
    world.options = replace(
        world.options, ending=parse_boundary('{"topic://public/default/x": {"0000-ffff-0": "5:7"}}')
    )
    with pytest.raises(InvalidOption, match=r"0000-ffff-0 can be read up to 5:0, not to 5:7$"):
        planned(world)


def test_a_position_in_a_segment_that_is_gone_is_data_loss() -> None:
    world = Readable()
    sized(world, 1)
    world.options = replace(
        world.options, starting=parse_boundary('{"topic://public/default/x": {"0000-7fff-4": "5:7"}}')
    )
    with pytest.raises(DataLost, match=r"has no segment '0000-7fff-4', .* set fail_on_data_loss to false"):
        planned(world)
    world.options = replace(world.options, fail_on_data_loss=False)
    assert len(planned(world)) == 1


def test_times_need_a_broker_that_finds_them() -> None:
    world = Readable()
    world.measures = False
    sized(world, 1)
    world.options = replace(world.options, starting=parse_boundary("1"))
    with pytest.raises(ProtocolViolation, match=r"cannot find messages .* by time; give positions"):
        planned(world)


def test_a_key_is_read_from_the_segment_that_its_hash_leads_to() -> None:
    """A key that may be base64 of bytes is read from both places."""
    world = Readable()
    world.dag.segments.extend([segment(0, 0, 0x7FFF), segment(1, 0x8000, 0xFFFF)])
    for name in ("0000-7fff-0", "8000-ffff-1"):
        world.add(f"segment://public/default/x/{name}", [batch(b"v")])
    for key in ("a", "bb", "key-7", "YQ==", "AAAA"):
        expected = {f"{key_hash(key) >> 15}"}
        if len(key) == 4:
            expected.add(f"{key_hash(base64.b64decode(key)) >> 15}")
        with world.brokers() as brokers:
            made = plan(world.options, brokers, Pushed(keys=frozenset({key})))
        assert {one.wire_name[-1] for one in made} == expected
    with world.brokers() as brokers:
        assert [one.segment for one in plan(world.options, brokers, Pushed(segments=frozenset({"8000-ffff-1"})))] == [
            "8000-ffff-1"
        ]
        assert plan(world.options, brokers, Pushed(topics=frozenset({"topic://a/b/c"}))) == []


def test_uncommitted_messages_are_asked_for_by_name_only_when_wanted() -> None:
    """T14: otherwise only committed messages are read."""
    world = Readable()
    sized(world, 1)
    planned(world)
    world.options = replace(world.options, uncommitted=True)
    planned(world)
    said = [{item.key: item.value for item in command.subscribe.metadata} for command in world.commands_of(T.SUBSCRIBE)]
    assert [wish.get("tidewire.isolation") for wish in said] == [None, "read_uncommitted"]


def test_the_segments_that_are_not_named_may_have_a_place_of_their_own() -> None:
    """So they do not read a segment that was created after the positions were chosen."""
    world = Readable()
    world.dag.segments.extend([segment(0, 0, 0x7FFF), segment(1, 0x8000, 0xFFFF)])
    for name in ("0000-7fff-0", "8000-ffff-1"):
        world.add(f"segment://public/default/x/{name}", [batch(b"v")] * 3)
    starting = parse_boundary(f'{{"{TOPIC}": {{"*": "latest", "0000-7fff-0": "{LEDGER}:0"}}}}')
    world.options = replace(world.options, starting=starting)
    assert [(made.segment, made.start) for made in planned(world)] == [("0000-7fff-0", EntryPosition(LEDGER, 0))]
    assert len(world.commands_of(T.SUBSCRIBE)) == 1, "who reads nothing asks nothing"
    world.options = replace(
        world.options,
        starting=parse_boundary("earliest"),
        ending=parse_boundary(f'{{"{TOPIC}": {{"*": "{LEDGER}:1"}}}}'),
    )
    assert [made.end for made in planned(world)] == [EntryPosition(LEDGER, 1)] * 2


def test_a_segment_that_goes_while_it_is_planned_is_planned_without() -> None:
    """D16: it was removed from the layout first; a segment that is missing for another reason is an error."""
    world = Readable()
    world.dag.segments.extend([segment(0, 0, 0xFFFF, sealed=True), segment(1, 0, 0xFFFF)])
    world.add("segment://public/default/x/0000-ffff-1", [batch(b"v")])
    with pytest.raises(Refused, match="TopicNotFound"):
        planned(world)
    subscribing = world.answers[T.SUBSCRIBE]

    def leaving(peer: BlockingPeer) -> Answer:
        answer = subscribing(peer)

        def answered(command: pb.BaseCommand) -> Iterable[bytes]:
            if command.subscribe.topic.endswith("-0"):
                del world.dag.segments[0]
            return answer(command)

        return answered

    world.answers[T.SUBSCRIBE] = leaving
    assert [made.segment for made in planned(world)] == ["0000-ffff-1"]


def test_a_batch_is_planned_while_a_segment_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """D17: its owner refuses readers until the next one has it."""
    world = Readable()
    world.dag.segments.append(segment(0, 0, 0xFFFF))
    world.add("segment://public/default/x/0000-ffff-0", [batch(b"v")])
    subscribe = world.answers[T.SUBSCRIBE]

    def refuse_once(peer: BlockingPeer) -> Answer:
        if len(world.peers) > 1:
            return subscribe(peer)
        return lambda command: [
            encode_command(commands.error(command.subscribe.request_id, pb.ServiceNotReady, "not now"))
        ]

    world.answers[T.SUBSCRIBE] = refuse_once
    monkeypatch.setattr(reader, "Brokers", lambda _options: world.brokers())
    (planned_range,) = TidewireReader(world.options).partitions()
    assert isinstance(planned_range, SegmentRange)
    assert planned_range.end == EntryPosition(LEDGER, 0)
