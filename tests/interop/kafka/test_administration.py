"""What Kafka's administrators can look at and change: settings, first records, groups' offsets and members."""

from typing import Final

import pytest

from tests.interop.kafka.conftest import Station
from tests.support.kafka_clients.contract import Committed, ConsumerOptions, Place, Refused
from tests.support.kafka_clients.every import CONFLUENT, JAVA, PURE
from tests.support.kafka_clients.reading import read_all, until, values

pytestmark = pytest.mark.interop

OFFSET_OUT_OF_RANGE: Final = 1
UNKNOWN_MEMBER_ID: Final = 25
INVALID_CONFIG: Final = 40
GROUP_SUBSCRIBED_TO_TOPIC: Final = 86
DAY_MS: Final = 24 * 60 * 60 * 1000

SETTINGS: Final = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "1",
    "retention.bytes": "-1",
    "retention.ms": str(7 * DAY_MS),
}
"""What a topic has that was created without settings."""

MOVING: Final = pytest.mark.parametrize("client", [CONFLUENT, PURE, *JAVA], indirect=True)
"""The clients whose administrators look up offsets, and move groups."""
INSPECTING: Final = pytest.mark.parametrize("client", [PURE, *JAVA], indirect=True)
"""The clients that have an inspector."""


def write(station: Station, topic: str, count: int) -> None:
    """Write numbers to one partition, in one batch."""
    producer = station.producer()
    for n in range(count):
        producer.send(topic, b"%d" % n)
    producer.flush()


def test_a_topics_settings_are_told_and_changed(station: Station, topic: str) -> None:
    """K37: a topic keeps data for 7 days by default, or for as long as somebody says. Nonsense changes nothing."""
    admin = station.admin()
    told = admin.settings(topic)
    assert {name: told[name] for name in SETTINGS} == SETTINGS
    admin.change(topic, "retention.ms", str(DAY_MS))
    assert admin.settings(topic)["retention.ms"] == str(DAY_MS)
    with pytest.raises(Refused) as refusal:
        admin.change(topic, "retention.ms", "a day")
    assert refusal.value.code == INVALID_CONFIG
    assert admin.settings(topic)["retention.ms"] == str(DAY_MS)


def test_records_are_deleted_up_to_the_middle_of_a_batch(station: Station, topic: str) -> None:
    """K38: the partition begins there at once, for those that ask where, and for those that read from before it."""
    write(station, topic, 10)
    admin, place = station.admin(), Place(topic)
    assert admin.delete_records(place, 4) == 4
    consumer = station.consumer()
    assert (consumer.begin(place), consumer.end(place)) == (4, 10)
    got = read_all(consumer, place)
    assert [(one.offset, one.value) for one in got] == [(n, b"%d" % n) for n in range(4, 10)]
    with pytest.raises(Refused) as refusal:
        admin.delete_records(place, 11)
    assert refusal.value.code == OFFSET_OUT_OF_RANGE
    # Nothing comes back.
    assert admin.delete_records(place, 2) == 4
    assert admin.delete_records(place, -1) == 10
    write(station, topic, 1)
    assert [(one.offset, one.value) for one in read_all(station.consumer(), place)] == [(10, b"0")]


@MOVING
def test_administrators_look_up_offsets(station: Station, topic: str) -> None:
    """K39: the ends, and the record with the latest timestamp, which need not be the last one."""
    admin, place = station.admin(), Place(topic)
    assert admin.offset_of(place, "max-timestamp") == -1
    producer = station.producer()
    for time in (1_000, 9_000, 3_000):
        producer.send(topic, b"%d" % time, timestamp_ms=time)
    producer.flush()
    assert admin.offset_of(place, "earliest") == 0
    assert admin.offset_of(place, "latest") == 3
    assert admin.offset_of(place, "max-timestamp") == 1


@MOVING
def test_administrators_move_a_group_that_nobody_is_in(station: Station, topic: str) -> None:
    """K36: to an earlier or a later offset, with a text. Members are in the way."""
    write(station, topic, 10)
    admin, place = station.admin(), Place(topic)
    for offset in (Committed(7, "moved"), Committed(3)):
        admin.move_group(topic, {place: offset})
        assert admin.committed(topic) == {place: offset}
    consumer = station.consumer(ConsumerOptions(group_id=topic))
    consumer.subscribe(topic)
    assert values(until(lambda got: len(got) >= 7, consumer)) == [b"%d" % n for n in range(3, 10)]
    with pytest.raises(Refused) as refusal:
        admin.move_group(topic, {place: Committed(0)})
    assert refusal.value.code == UNKNOWN_MEMBER_ID
    assert admin.committed(topic) == {place: Committed(3)}


@INSPECTING
def test_a_groups_offset_is_forgotten_when_nobody_reads_the_topic(station: Station, topic: str) -> None:
    """K36: one partition's offset goes, not the group (KIP-496)."""
    write(station, topic, 1)
    other = f"{topic}-other"
    station.admin().create(other)
    place, stays = Place(topic), Place(other)
    consumer = station.consumer(ConsumerOptions(group_id=topic))
    consumer.subscribe(topic)
    until(lambda _: bool(consumer.assignment()), consumer)
    consumer.commit({place: Committed(1), stays: Committed(5)})
    inspector = station.inspector()
    with pytest.raises(Refused) as refusal:
        inspector.delete_offset(topic, place)
    assert refusal.value.code == GROUP_SUBSCRIBED_TO_TOPIC
    consumer.close()
    inspector.delete_offset(topic, place)
    assert station.admin().committed(topic) == {stays: Committed(5)}


@INSPECTING
def test_an_administrator_takes_a_static_member_out_of_its_group(station: Station, topic: str) -> None:
    """K36: it had gone, and its place was kept for it (KIP-345)."""
    consumer = station.consumer(ConsumerOptions(group_id=topic, instance_id="gone"))
    consumer.subscribe(topic)
    until(lambda _: bool(consumer.assignment()), consumer)
    consumer.close()
    admin = station.admin()
    assert admin.describe(topic).instance_ids == ("gone",)
    station.inspector().remove_member(topic, "gone")
    assert admin.describe(topic) == ("Empty", ())


@INSPECTING
def test_partitions_have_sizes(station: Station, topic: str) -> None:
    """E18: log directories tell what a partition holds, at least about."""
    producer = station.producer()
    for _ in range(100):
        producer.send(topic, bytes(1_000))
    producer.flush()
    assert 100_000 <= station.inspector().sizes()[Place(topic)] <= 200_000
