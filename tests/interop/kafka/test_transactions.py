"""What transactions promise to Kafka's clients: all or nothing, one owner of an id, an end in any case."""

import threading
from contextlib import suppress
from typing import Final

import pytest

from tests.interop.kafka.conftest import Station
from tests.support.kafka_clients.contract import CALL_SECONDS_MAX, ConsumerOptions, Place, ProducerOptions, Refused
from tests.support.kafka_clients.every import AIOKAFKA, JAVA, PURE
from tests.support.kafka_clients.reading import read, read_all, values
from tests.support.processes import RunningBroker

pytestmark = pytest.mark.interop

COMMITTED: Final = ConsumerOptions(read_committed=True)
FENCED: Final = frozenset({47, 90, -144})
"""Kafka's INVALID_PRODUCER_EPOCH and PRODUCER_FENCED, and librdkafka's own code for both."""


def test_a_commit_shows_all_and_an_abort_nothing_over_partitions_and_topics(station: Station, name: str) -> None:
    """K3, K13: a reader of committed records gets whole transactions. The other one gets aborted records too."""
    other, admin = f"{name}-other", station.admin()
    admin.create(name, 3)
    admin.create(other)
    places = (*(Place(name, n) for n in range(3)), Place(other))
    producer = station.producer(ProducerOptions(transactional_id=name))
    producer.init_transactions()
    for number, end in enumerate((producer.commit, producer.abort, producer.commit)):
        producer.begin()
        for place in places:
            producer.send(place.topic, b"%d" % number, partition=place.partition)
        producer.flush()
        end()
    committed = read_all(station.consumer(COMMITTED), *places)
    for place in places:
        assert [one.value for one in committed if one.place == place] == [b"0", b"2"]
    everything = read_all(station.consumer(), *places)
    assert sorted(values(everything), key=repr) == [b"0"] * 4 + [b"1"] * 4 + [b"2"] * 4


def test_an_open_transaction_hides_what_comes_after_it_until_its_end(station: Station, topic: str) -> None:
    """K1, K2, K3: committed readers stop before its first record. Others pass it."""
    producer = station.producer(ProducerOptions(transactional_id=topic))
    producer.init_transactions()
    plain = station.producer()
    plain.send(topic, b"before")
    plain.flush()
    producer.begin()
    producer.send(topic, b"inside")
    producer.flush()
    plain.send(topic, b"after")
    plain.flush()
    assert values(read_all(station.consumer(), Place(topic))) == [b"before", b"inside", b"after"]
    consumer = station.consumer(COMMITTED)
    assert values(read_all(consumer, Place(topic)))[:1] == [b"before"]
    assert consumer.position(Place(topic)) == 1
    producer.commit()
    assert values(read(consumer, 2)) == [b"inside", b"after"]


def test_a_parked_reader_of_committed_records_wakes_at_the_commit(station: Station, topic: str) -> None:
    """K3, K40: it waits for the end of the transaction, and needs no new record to get up."""
    producer = station.producer(ProducerOptions(transactional_id=topic))
    producer.init_transactions()
    producer.begin()
    producer.send(topic, b"inside")
    producer.flush()
    consumer = station.consumer(COMMITTED)
    consumer.assign({Place(topic): 0})
    assert consumer.poll(0.5) == []
    committing = threading.Thread(target=producer.commit)
    committing.start()
    assert values(read(consumer, 1)) == [b"inside"]
    committing.join()


def test_a_reader_comes_to_the_end_behind_aborted_records(station: Station, topic: str) -> None:
    """K21: nothing is left to read, and its position says so."""
    producer = station.producer(ProducerOptions(transactional_id=topic))
    producer.init_transactions()
    producer.begin()
    for n in range(20):
        producer.send(topic, b"%d" % n)
    producer.flush()
    producer.abort()
    consumer = station.consumer(COMMITTED)
    assert read_all(consumer, Place(topic)) == []
    # 20 records and a marker.
    assert consumer.position(Place(topic)) == consumer.end(Place(topic)) == 21


def test_a_second_producer_with_the_id_fences_the_first(station: Station, topic: str) -> None:
    """K29, K30: what the first had open is aborted, and it can neither commit nor write."""
    zombie = station.producer(ProducerOptions(transactional_id=topic))
    zombie.init_transactions()
    zombie.begin()
    zombie.send(topic, b"zombie")
    zombie.flush()
    heir = station.producer(ProducerOptions(transactional_id=topic))
    heir.init_transactions()
    heir.begin()
    heir.send(topic, b"heir")
    heir.flush()
    with pytest.raises(Refused) as refusal:
        zombie.commit()
    assert refusal.value.code in FENCED
    heir.commit()
    assert values(read_all(station.consumer(COMMITTED), Place(topic))) == [b"heir"]


@pytest.mark.parametrize("client", [AIOKAFKA, PURE, *JAVA], indirect=True)
def test_a_fenced_producer_that_has_learned_of_it_is_refused_again(station: Station, name: str) -> None:
    """K29, K30: it may not write to one more partition. That tells the client, and its next calls fail too.

    librdkafka keeps the refusal to itself until it is asked for the end.
    """
    station.admin().create(name, 2)
    options = ProducerOptions(transactional_id=name)
    zombie = station.producer(options)
    zombie.init_transactions()
    zombie.begin()
    zombie.send(name, b"zombie", partition=0)
    zombie.flush()
    station.producer(options).init_transactions()
    refused = zombie.send(name, b"late", partition=1)
    with suppress(Refused):
        zombie.flush()
    assert isinstance(refused.exception(CALL_SECONDS_MAX), Refused)
    with pytest.raises(Refused):
        zombie.send(name, b"later", partition=1).result(CALL_SECONDS_MAX)
    with pytest.raises(Refused):
        zombie.commit()
    assert read_all(station.consumer(COMMITTED), Place(name, 0), Place(name, 1)) == []


def test_a_transaction_that_nobody_ends_is_aborted_in_time(station: Station, topic: str) -> None:
    """K1, K29: readers of committed records go on after its time-out, and its late commit is refused."""
    producer = station.producer(ProducerOptions(transactional_id=topic, transaction_timeout_ms=5_000))
    producer.init_transactions()
    producer.begin()
    producer.send(topic, b"forgotten")
    producer.flush()
    plain = station.producer()
    plain.send(topic, b"after")
    plain.flush()
    consumer = station.consumer(COMMITTED)
    consumer.assign({Place(topic): 0})
    assert values(read(consumer, 1)) == [b"after"]
    with pytest.raises(Refused):
        producer.commit()


def test_a_transaction_may_not_stay_open_for_longer_than_15_minutes(station: Station, topic: str) -> None:
    """K1: the broker says how long readers wait at most."""
    producer = station.producer(ProducerOptions(transactional_id=topic, transaction_timeout_ms=15 * 60_000 + 1))
    # Some clients tell no code.
    with pytest.raises(Refused, match=r"(?i)transaction_?\s?timeout"):
        producer.init_transactions()


def test_a_transaction_goes_on_after_the_broker_was_killed(doomed: Station, mortal: RunningBroker, name: str) -> None:
    """K27: its records and its openness survive, and it commits whole."""
    doomed.admin().create(name, 2)
    producer = doomed.producer(ProducerOptions(transactional_id=name))
    producer.init_transactions()
    producer.begin()
    for n in range(10):
        producer.send(name, b"%d" % n, partition=n % 2)
    producer.flush()
    mortal.restart()
    for n in range(10, 20):
        producer.send(name, b"%d" % n, partition=n % 2)
    producer.flush()
    producer.commit()
    got = read_all(doomed.consumer(COMMITTED), Place(name, 0), Place(name, 1))
    assert sorted(int(one.value or b"") for one in got) == list(range(20))


def test_a_killed_brokers_open_transaction_is_aborted_by_the_next_producer(
    doomed: Station, mortal: RunningBroker, name: str
) -> None:
    """K27, K28: the heir's initialisation ends what was open before the kill."""
    options = ProducerOptions(transactional_id=name)
    dead = doomed.producer(options)
    dead.init_transactions()
    dead.begin()
    dead.send(name, b"dead")
    dead.flush()
    mortal.restart()
    heir = doomed.producer(options)
    heir.init_transactions()
    heir.begin()
    heir.send(name, b"heir")
    heir.flush()
    heir.commit()
    assert values(read_all(doomed.consumer(COMMITTED), Place(name))) == [b"heir"]
