"""How Kafka's clients create, find, extend and delete topics."""

from typing import Final

import pytest

from tests.interop.kafka.conftest import Station
from tests.support.kafka_clients.contract import ConsumerOptions, Place, Refused
from tests.support.kafka_clients.reading import read, read_all, until, values

pytestmark = pytest.mark.interop

TOPIC_ALREADY_EXISTS: Final = 36
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
INVALID_PARTITIONS: Final = 37


def test_a_created_topic_is_listed_and_can_be_used_at_once(station: Station, name: str) -> None:
    """K43: each partition takes records right after the answer. The same name is refused a second time."""
    admin = station.admin()
    admin.create(name, 3)
    producer = station.producer()
    sent = [producer.send(name, b"%d" % n, partition=n) for n in range(3)]
    producer.flush()
    assert [one.result() for one in sent] == [(0, 0), (1, 0), (2, 0)]
    assert admin.topics()[name] == 3
    with pytest.raises(Refused) as refusal:
        admin.create(name, 3)
    assert refusal.value.code == TOPIC_ALREADY_EXISTS
    got = read_all(station.consumer(), *(Place(name, n) for n in range(3)))
    assert sorted((one.place.partition, one.value) for one in got) == [(0, b"0"), (1, b"1"), (2, b"2")]


def test_the_first_record_creates_its_topic(station: Station, name: str) -> None:
    """K37: nobody has to create a topic before it is used."""
    producer = station.producer()
    sent = producer.send(name, b"first")
    producer.flush()
    assert sent.result() == (0, 0)
    assert station.admin().topics()[name] == 1
    assert values(read_all(station.consumer(), Place(name))) == [b"first"]


def test_records_of_one_key_stay_in_one_partition_and_in_order(station: Station, name: str) -> None:
    """K43: clients spread keys over partitions, and each key's records keep their order."""
    station.admin().create(name, 4)
    producer = station.producer()
    for n in range(400):
        producer.send(name, b"%d" % n, key=b"key %d" % (n % 20))
    producer.flush()
    got = read_all(station.consumer(), *(Place(name, n) for n in range(4)))
    assert len(got) == 400
    assert len({one.place for one in got}) > 1
    for key in {one.key for one in got}:
        of_key = [one for one in got if one.key == key]
        assert len({one.place for one in of_key}) == 1
        assert [one.offset for one in of_key] == sorted(one.offset for one in of_key)
        numbers = [int(one.value or b"") for one in of_key]
        assert numbers == sorted(numbers)


def test_clients_see_that_a_topic_grew(station: Station, topic: str) -> None:
    """K41: a consumer that reads already takes up the new partitions. Existing records stay where they are."""
    admin, producer = station.admin(), station.producer()
    producer.send(topic, b"before")
    producer.flush()
    consumer = station.consumer(ConsumerOptions(group_id=topic))
    consumer.subscribe(topic)
    assert values(read(consumer, 1)) == [b"before"]
    consumer.commit()
    admin.grow(topic, 3)
    assert admin.topics()[topic] == 3
    until(lambda _: len(consumer.assignment()) == 3, consumer)
    # A producer that was there before may still know one partition.
    later = station.producer()
    for n in range(3):
        later.send(topic, b"in %d" % n, partition=n)
    later.flush()
    got = read(consumer, 3)
    assert sorted((one.place.partition, one.offset, one.value) for one in got) == [
        (0, 1, b"in 0"),
        (1, 0, b"in 1"),
        (2, 0, b"in 2"),
    ]
    with pytest.raises(Refused) as refusal:
        admin.grow(topic, 2)
    assert refusal.value.code == INVALID_PARTITIONS


def test_a_topic_that_was_deleted_and_created_again_is_empty(station: Station, topic: str) -> None:
    """K37: offsets begin at 0 again, and nothing of the old topic is read."""
    admin, producer = station.admin(), station.producer()
    for n in range(10):
        producer.send(topic, b"old %d" % n)
    producer.flush()
    producer.close()
    admin.delete(topic)
    assert topic not in admin.topics()
    with pytest.raises(Refused) as refusal:
        admin.delete(topic)
    assert refusal.value.code == UNKNOWN_TOPIC_OR_PARTITION
    admin.create(topic, 2)
    again = station.producer()
    sent = again.send(topic, b"new", partition=0)
    again.flush()
    assert sent.result() == (0, 0)
    consumer = station.consumer()
    assert [consumer.end(Place(topic, n)) for n in range(2)] == [1, 0]
    assert values(read_all(consumer, Place(topic, 0), Place(topic, 1))) == [b"new"]
