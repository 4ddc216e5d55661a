"""Reading, transforming and writing in one transaction: a group's offsets move with the records, or not at all."""

from typing import Final

import pytest

from tests.interop.kafka.conftest import Station
from tests.support.kafka_clients.contract import (
    Committed,
    Consumer,
    ConsumerOptions,
    Place,
    Producer,
    ProducerOptions,
    Refused,
)
from tests.support.kafka_clients.every import CONFLUENT, JAVA, PURE
from tests.support.kafka_clients.reading import read_all, until, values
from tests.support.processes import RunningBroker

pytestmark = pytest.mark.interop

COMMITTED: Final = ConsumerOptions(read_committed=True)


def reader(station: Station, topic: str) -> Consumer:
    """Write ten numbers, and read them as a member of the group that has the topic's name."""
    plain = station.producer()
    for n in range(10):
        plain.send(topic, b"%d" % n)
    plain.flush()
    return member(station, topic, 10)


def member(station: Station, topic: str, count: int) -> Consumer:
    """Join the group, and read so many records."""
    consumer = station.consumer(ConsumerOptions(group_id=topic, read_committed=True))
    consumer.subscribe(topic)
    until(lambda got: len(got) >= count, consumer)
    return consumer


def writer(station: Station, name: str) -> Producer:
    """Return a producer that can begin a transaction."""
    producer = station.producer(ProducerOptions(transactional_id=name))
    producer.init_transactions()
    return producer


def test_offsets_move_with_the_records_or_not_at_all(station: Station, topic: str) -> None:
    """K34: an abort leaves the group where it was. A commit moves it, with the records that came of it."""
    output = f"{topic}-output"
    station.admin().create(output)
    consumer, producer, admin = reader(station, topic), writer(station, topic), station.admin()
    place = Place(topic)
    for offset, end, moved in (
        (4, producer.abort, {}),
        (6, producer.commit, {place: Committed(6)}),
        (9, producer.abort, {place: Committed(6)}),
    ):
        before = admin.committed(topic)
        producer.begin()
        producer.send(output, b"up to %d" % offset)
        producer.send_offsets({place: Committed(offset)}, consumer.membership())
        producer.flush()
        assert admin.committed(topic) == before
        end()
        assert admin.committed(topic) == moved
    assert values(read_all(station.consumer(COMMITTED), Place(output))) == [b"up to 6"]
    consumer.close()
    again = member(station, topic, 4)
    assert again.position(place) == 10


def test_a_transaction_of_offsets_alone_is_one(station: Station, topic: str) -> None:
    """K34: a transformation may have nothing to write."""
    consumer, producer = reader(station, topic), writer(station, topic)
    producer.begin()
    producer.send_offsets({Place(topic): Committed(10, "all read")}, consumer.membership())
    producer.commit()
    assert station.admin().committed(topic) == {Place(topic): Committed(10, "all read")}


@pytest.mark.parametrize("client", [CONFLUENT, PURE, *JAVA], indirect=True)
def test_a_member_that_was_replaced_commits_no_offsets(station: Station, topic: str) -> None:
    """K34: what it shows of its group is out of date. aiokafka shows nothing, so nobody can tell."""
    consumer, producer = reader(station, topic), writer(station, topic)
    stale = consumer.membership()
    consumer.close()
    heir = member(station, topic, 10)
    producer.begin()
    producer.send(topic, b"a zombie's")
    with pytest.raises(Refused):
        producer.send_offsets({Place(topic): Committed(3)}, stale)
    producer.abort()
    assert station.admin().committed(topic) == {}
    producer.begin()
    producer.send_offsets({Place(topic): Committed(10)}, heir.membership())
    producer.commit()
    assert station.admin().committed(topic) == {Place(topic): Committed(10)}


def test_offsets_of_an_open_transaction_survive_a_kill(doomed: Station, mortal: RunningBroker, name: str) -> None:
    """K27, K34: the broker dies before the commit, which then moves the group all the same."""
    doomed.admin().create(name)
    consumer, producer = reader(doomed, name), writer(doomed, name)
    producer.begin()
    producer.send(name, b"result")
    producer.send_offsets({Place(name): Committed(10)}, consumer.membership())
    producer.flush()
    mortal.restart()
    assert doomed.admin().committed(name) == {}
    producer.commit()
    assert doomed.admin().committed(name) == {Place(name): Committed(10)}
