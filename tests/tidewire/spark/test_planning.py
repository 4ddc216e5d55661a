import pickle

import pytest

from tests.tidewire.spark.readable import LEDGER, TOPIC, Readable, batch, segment
from tidewire.spark.errors import ProtocolViolation, Refused
from tidewire.spark.partitions import EARLIEST, Position, SegmentRange
from tidewire.spark.planning import plan
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

T = pb.BaseCommand.Type


def planned(world: Readable) -> list[SegmentRange]:
    with world.brokers() as brokers:
        return plan(world.options, brokers)


def described(ranges: list[SegmentRange]) -> list[tuple[str, str | None, str, Position, Position]]:
    return [(made.topic, made.segment, made.wire_name, made.start, made.end) for made in ranges]


def test_every_segment_with_messages_is_a_range_sealed_ones_too_in_order_of_their_ids() -> None:
    """T20: what was written before a split is read from the sealed parent, and what came after from its children."""
    world = Readable()
    names = ["0000-7fff-2", "8000-ffff-3", "0000-ffff-1"]
    world.dag.segments.extend([segment(2, 0, 0x7FFF), segment(3, 0x8000, 0xFFFF), segment(1, 0, 0xFFFF, sealed=True)])
    for count, name in enumerate(names):
        world.add(f"segment://public/default/x/{name}", [batch(b"v")] * count)
    assert described(planned(world)) == [
        (TOPIC, names[2], f"segment://public/default/x/{names[2]}", EARLIEST, Position(LEDGER, 1)),
        (TOPIC, names[1], f"segment://public/default/x/{names[1]}", EARLIEST, Position(LEDGER, 0)),
    ]


def test_a_range_survives_the_way_to_its_executor() -> None:
    made = SegmentRange(TOPIC, "0000-ffff-1", "segment://public/default/x/0000-ffff-1", end=Position(3, 4))
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
    world = Readable("persistent://public/default/y")
    world.add("persistent://public/default/y", [batch(b"v")])
    (made,) = planned(world)
    assert (made.topic, made.segment, made.wire_name) == (world.options.topic, None, world.options.topic)
    assert not world.commands_of(T.PARTITIONED_METADATA)[0].partition_metadata.metadata_auto_creation_enabled


def test_a_partitioned_topic_has_a_range_for_each_partition_with_messages() -> None:
    world = Readable("persistent://public/default/y")
    world.partitions = 3
    for index in range(3):
        world.add(f"persistent://public/default/y-partition-{index}", [batch(b"v")] * (index % 2))
    (made,) = planned(world)
    assert (made.segment, made.wire_name) == ("partition-1", "persistent://public/default/y-partition-1")


def test_an_unknown_topic_is_one_sentence() -> None:
    with pytest.raises(Refused, match=rf"^service:6650 has no layout of {TOPIC}: no such topic \[TopicNotFound\]$"):
        planned(Readable())


def test_a_broker_without_scalable_topics_is_told_from_a_missing_topic() -> None:
    world = Readable()
    world.features = pb.FeatureFlags()
    with pytest.raises(ProtocolViolation, match="knows no scalable topics"):
        planned(world)
