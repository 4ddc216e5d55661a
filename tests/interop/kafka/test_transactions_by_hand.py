"""What administrators see of transactions, and how they end what is stuck (KIP-664, KIP-699)."""

from collections.abc import Sequence
from typing import Final

import pytest

from tests.interop.kafka.conftest import Station
from tests.support.kafka_clients.contract import ConsumerOptions, Place, Producer, ProducerOptions, Refused, Writer
from tests.support.kafka_clients.every import JAVA, PURE
from tests.support.kafka_clients.reading import read_all, values
from tests.support.processes import RunningBroker

pytestmark = pytest.mark.interop

COMMITTED: Final = ConsumerOptions(read_committed=True)
FENCED: Final = frozenset({47, 90})
"""Kafka's INVALID_PRODUCER_EPOCH and PRODUCER_FENCED."""
INSPECTING: Final = pytest.mark.parametrize("client", [PURE, *JAVA], indirect=True)
"""The clients that have an inspector."""


def begun(station: Station, topic: str, value: bytes) -> Producer:
    """Return a producer, whose id is the topic's name, with a transaction of one record."""
    producer = station.producer(ProducerOptions(transactional_id=topic))
    producer.init_transactions()
    producer.begin()
    producer.send(topic, value)
    producer.flush()
    return producer


@INSPECTING
def test_open_and_ended_transactions_are_listed_and_described(station: Station, topic: str) -> None:
    """K29: an administrator finds a transaction's state and its partitions by its producer's id."""
    producer, inspector = begun(station, topic, b"open"), station.inspector()
    assert inspector.transactions()[topic] == "Ongoing"
    transaction = inspector.transaction(topic)
    assert (transaction.state, transaction.places) == ("Ongoing", frozenset({Place(topic)}))
    producer.commit()
    # Kafka answers a commit before it is complete.
    assert inspector.transactions()[topic] in {"PrepareCommit", "CompleteCommit"}
    assert values(read_all(station.consumer(COMMITTED), Place(topic))) == [b"open"]


@INSPECTING
def test_a_partition_tells_who_writes_and_where_an_open_transaction_began(station: Station, topic: str) -> None:
    """K1, K26: that is what finds a transaction that hangs."""
    plain = station.producer()
    plain.send(topic, b"before")
    plain.flush()
    inspector, place = station.inspector(), Place(topic)
    producer = begun(station, topic, b"open")
    transaction = inspector.transaction(topic)
    (writer,) = (one for one in inspector.writers(place) if one.producer_id == transaction.producer_id)
    assert (writer.epoch, writer.open_from) == (transaction.epoch, 1)
    producer.commit()
    assert values(read_all(station.consumer(COMMITTED), place)) == [b"before", b"open"]
    (writer,) = (one for one in inspector.writers(place) if one.producer_id == transaction.producer_id)
    assert writer.open_from == -1


@pytest.mark.parametrize(("client", "rises"), [("java-4.3", True), ("java-3.9", False)], indirect=["client"])
def test_each_transaction_of_version_2_has_an_epoch_of_its_own(station: Station, topic: str, rises: bool) -> None:
    """K29: so nothing that is late touches the producer's next transaction (KIP-890). Older clients keep theirs."""
    producer, inspector = begun(station, topic, b"0"), station.inspector()
    epochs = [inspector.transaction(topic).epoch]
    for n, end in enumerate((producer.commit, producer.abort, producer.commit), 1):
        end()
        producer.begin()
        producer.send(topic, b"%d" % n)
        producer.flush()
        epochs.append(inspector.transaction(topic).epoch)
    producer.commit()
    assert epochs == [epochs[0] + (n if rises else 0) for n in range(4)]
    assert values(read_all(station.consumer(COMMITTED), Place(topic))) == [b"0", b"2", b"3"]


@pytest.mark.parametrize("client", JAVA, indirect=True)
def test_an_administrator_fences_a_producer(station: Station, topic: str) -> None:
    """K29, K30: what it had open is aborted, and it can do nothing more."""
    producer = begun(station, topic, b"fenced")
    station.inspector().fence(topic)
    with pytest.raises(Refused) as refusal:
        producer.commit()
    assert refusal.value.code in FENCED
    heir = begun(station, topic, b"heir")
    heir.commit()
    assert values(read_all(station.consumer(COMMITTED), Place(topic))) == [b"heir"]


def of(producer_id: int, writers: Sequence[Writer]) -> Writer:
    """Return the one with this id."""
    (found,) = (one for one in writers if one.producer_id == producer_id)
    return found


@INSPECTING
@pytest.mark.usefixtures("tidewire")
def test_nobody_aborts_by_hand_what_the_coordinator_still_decides(
    station: Station, topic: str, tidewire: RunningBroker
) -> None:
    """K27: Kafka would abort it in this partition alone. Here the transaction stays whole."""
    producer, inspector, place = begun(station, topic, b"whole"), station.inspector(), Place(topic)
    writer = of(inspector.transaction(topic).producer_id, inspector.writers(place))
    with pytest.raises(Refused):
        inspector.abort_transaction(place, writer)
    producer.commit()
    assert values(read_all(station.consumer(COMMITTED), place)) == [b"whole"]
