"""What producers are promised: acknowledgements mean stored, and a retry is stored once."""

import pytest

from tests.interop.kafka.conftest import Station
from tests.support.kafka_clients.contract import Acks, Place, ProducerOptions
from tests.support.kafka_clients.reading import read, read_all, values
from tests.support.processes import RunningBroker

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("acks", ["all", "1"])
def test_an_acknowledged_record_has_its_offset(station: Station, topic: str, acks: Acks) -> None:
    """K19: the answer comes when the record is stored."""
    producer = station.producer(ProducerOptions(acks=acks))
    sent = [producer.send(topic, b"%d" % n) for n in range(100)]
    producer.flush()
    assert [one.result() for one in sent] == [(0, n) for n in range(100)]
    assert values(read_all(station.consumer(), Place(topic))) == [b"%d" % n for n in range(100)]


def test_records_without_acknowledgements_arrive_in_order(station: Station, topic: str) -> None:
    """K25: acks=0 gets no answer, and the connection goes on."""
    producer = station.producer(ProducerOptions(acks="0"))
    for n in range(100):
        producer.send(topic, b"%d" % n)
    producer.flush()
    consumer = station.consumer()
    consumer.assign({Place(topic): 0})
    assert values(read(consumer, 100)) == [b"%d" % n for n in range(100)]


def test_an_idempotent_producer_spreads_over_partitions(station: Station, name: str) -> None:
    """K23: each partition has its own sequence."""
    station.admin().create(name, 4)
    producer = station.producer(ProducerOptions(idempotent=True, linger_ms=0))
    sent = [producer.send(name, b"%d" % n, partition=n % 4) for n in range(400)]
    producer.flush()
    assert [one.result() for one in sent] == [(n % 4, n // 4) for n in range(400)]
    got = read_all(station.consumer(), *(Place(name, n) for n in range(4)))
    assert sorted((one.place.partition, one.offset, one.value) for one in got) == sorted(
        (n % 4, n // 4, b"%d" % n) for n in range(400)
    )


def test_an_idempotent_producers_records_survive_kills_once_each(
    doomed: Station, mortal: RunningBroker, name: str
) -> None:
    """K24, K26: the broker dies with batches in flight, twice. All are there, once, in order."""
    producer = doomed.producer(ProducerOptions(idempotent=True, linger_ms=0))
    first = producer.send(name, b"0")
    producer.flush()
    assert first.result() == (0, 0)
    sent = [first]
    for _ in range(2):
        sent += [producer.send(name, b"%d" % n) for n in range(len(sent), len(sent) + 200)]
        mortal.kill()
        sent += [producer.send(name, b"%d" % n) for n in range(len(sent), len(sent) + 50)]
        mortal.restart()
    producer.flush()
    assert [one.result().offset for one in sent] == list(range(501))
    assert values(read_all(doomed.consumer(), Place(name))) == [b"%d" % n for n in range(501)]


def test_what_was_acknowledged_survives_a_kill_and_is_read_on(
    doomed: Station, mortal: RunningBroker, name: str
) -> None:
    """K19, K24: a consumer that reads goes on after the restart, where it was."""
    producer = doomed.producer()
    for n in range(100):
        producer.send(name, b"%d" % n)
    producer.flush()
    consumer = doomed.consumer()
    consumer.assign({Place(name): 0})
    assert values(read(consumer, 100)) == [b"%d" % n for n in range(100)]
    mortal.restart()
    for n in range(100, 150):
        producer.send(name, b"%d" % n)
    producer.flush()
    assert values(read(consumer, 50)) == [b"%d" % n for n in range(100, 150)]
