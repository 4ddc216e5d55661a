"""Scalable topics, written by Tidewire's client in transactions and read by Kafka's, while segments split and merge."""

import subprocess
import sys
from collections.abc import Iterator
from time import monotonic
from typing import Final

import pytest

from tests.interop.kafka.conftest import Station
from tests.support.admin import Admin
from tests.support.kafka_clients.contract import (
    Committed,
    Consumer,
    ConsumerOptions,
    Got,
    Place,
    ProducerOptions,
    Refused,
)
from tests.support.kafka_clients.every import CONFLUENT, NAMES, PURE
from tests.support.kafka_clients.reading import POLL_SECONDS, READ_SECONDS_MAX, read_all, until, values
from tests.support.processes import RunningBroker
from tests.support.scalable_writer import ScalableWriter, scalable_writer

pytestmark = pytest.mark.interop

POLICY_VIOLATION: Final = 44
REFUSED_SECONDS_MAX: Final = 60.0
"""Clients retry for longer before they give up, and then say that the time is over."""


@pytest.fixture
def admin(tidewire: RunningBroker) -> Admin:
    """Return what splits and merges at the shared broker."""
    return Admin(tidewire.http_url)


@pytest.fixture
def scalable(admin: Admin, name: str) -> str:
    """Create a scalable topic with one segment, and return its full name. Kafka's clients know it by `name`."""
    return admin.create(f"topic://public/default/{name}")


@pytest.fixture
def writer(tidewire: RunningBroker, scalable: str) -> Iterator[ScalableWriter]:
    """Open a producer of the topic."""
    with scalable_writer(tidewire.service_url, scalable) as made:
        yield made


def member(station: Station, topic: str, **options: object) -> Consumer:
    """Join the group that has the topic's name."""
    consumer = station.consumer(ConsumerOptions(group_id=topic, **options))  # type: ignore[arg-type]
    consumer.subscribe(topic)
    return consumer


def numbers(got: list[Got]) -> list[int]:
    """Return the numbers that were read, in order of size."""
    return sorted(int(value or b"") for value in values(got))


def read_once_or_more(consumer: Consumer, expected: list[int]) -> list[Got]:
    """Read these numbers, and no others. A rebalance lets a consumer that commits nothing read some again."""
    got = until(lambda got: {*numbers(got)} >= {*expected}, consumer)
    assert sorted({*numbers(got)}) == expected
    return got


def is_waiting(consumer: Consumer, writer: ScalableWriter) -> None:
    """Return when a consumer that begins at the end reads what is written now, and has read all of it.

    The topic has one segment, and nobody else writes to it.
    """
    deadline = monotonic() + READ_SECONDS_MAX
    sent = 0
    got: list[Got] = []
    while not got or got[-1].offset < sent - 1:
        assert monotonic() < deadline
        if not got:
            writer.send(b"0")
            sent += 1
        got += consumer.poll(POLL_SECONDS)


@pytest.mark.parametrize("read_committed", [True, False], ids=["committed", "uncommitted"])
def test_splits_and_merges_in_the_middle_of_transactions(
    station: Station, name: str, scalable: str, writer: ScalableWriter, admin: Admin, *, read_committed: bool
) -> None:
    """K21, K35, K41: a group reads each committed message, and no other, at either isolation level.

    Afterwards every partition is read to its end, and has each message once. Each ends with aborted messages.
    """
    consumer = member(station, name, read_committed=read_committed)
    committed: list[int] = []
    kept, dropped = writer.begin(), writer.begin()

    def write(upto: int) -> None:
        """Write to all segments: plainly, and in both transactions."""
        for n in range(len(committed) // 2 * 3, upto, 3):
            writer.send(b"%d" % n, key=f"key {n}")
            writer.send(b"%d" % (n + 1), key=f"key {n}", txn=kept)
            writer.send(b"%d" % (n + 2), key=f"key {n}", txn=dropped)
            committed.extend((n, n + 1))

    write(15)
    admin.split_now(scalable, 0)
    write(75)
    admin.merge_now(scalable, 1, 2)
    write(120)
    admin.split_now(scalable, 3)
    write(180)
    writer.commit(kept)
    writer.abort(dropped)
    read_once_or_more(consumer, committed)
    places = [Place(name, n) for n in range(6)]
    every = read_all(station.consumer(ConsumerOptions(read_committed=read_committed)), *places)
    assert numbers(every) == committed
    assert {one.place for one in every} == set(places)
    for place in places:
        offsets = [one.offset for one in every if one.place == place]
        assert offsets == sorted(set(offsets))


def test_a_segment_of_aborted_messages_alone_is_read_to_its_end(
    station: Station, name: str, scalable: str, writer: ScalableWriter
) -> None:
    """K21: nothing comes, and yet the consumer is at the end. While the transaction is open, the end is before it."""
    txn = writer.begin()
    for n in range(10):
        writer.send(b"%d" % n, txn=txn)
    consumer = station.consumer(ConsumerOptions(read_committed=True))
    assert read_all(consumer, Place(name)) == []
    assert consumer.end(Place(name)) == 0
    writer.abort(txn)
    assert consumer.end(Place(name)) == 10
    assert read_all(consumer, Place(name)) == []
    writer.send(b"10")
    (last,) = until(bool, consumer)
    assert (last.offset, last.value) == (10, b"10")


def test_a_group_that_begins_at_the_end_misses_nothing_at_a_split(
    station: Station, name: str, scalable: str, writer: ScalableWriter, admin: Admin
) -> None:
    """K41: although it committed nothing, and learns of the children after they were written to."""
    consumer = member(station, name, reset="latest")
    is_waiting(consumer, writer)
    admin.split_now(scalable, 0)
    for n in range(1, 21):
        writer.send(b"%d" % n, key=f"key {n}")
    got = read_once_or_more(consumer, [*range(1, 21)])
    assert {one.place.partition for one in got} == {1, 2}


def test_a_group_takes_up_children_long_before_its_clients_look_for_partitions(
    station: Station, name: str, scalable: str, writer: ScalableWriter, admin: Admin
) -> None:
    """K41: the heartbeat of its leader says that there is something to assign. The next split is found the same way.

    Leaders of Java's client and aiokafka do not look again when they assign. They looked at the end of the segment.
    """
    consumer = member(station, name, metadata_age_max_ms=300_000)
    writer.send(b"0")
    read_once_or_more(consumer, [0])
    for first, segment in ((1, 0), (21, 2)):
        admin.split_now(scalable, segment)
        for n in range(first, first + 20):
            writer.send(b"%d" % n, key=f"key {n}")
        until(lambda got, first=first: {*numbers(got)} >= {*range(first, first + 20)}, consumer)  # type: ignore[misc]


def test_a_group_that_committed_on_the_parent_begins_with_the_children(
    station: Station, name: str, scalable: str, writer: ScalableWriter, admin: Admin
) -> None:
    """K41: although nobody of it was there when the segment was split, and its members begin at the end."""
    writer.send(b"0")
    first = member(station, name)
    until(bool, first)
    first.commit()
    first.close()
    admin.split_now(scalable, 0)
    for n in range(1, 21):
        writer.send(b"%d" % n, key=f"key {n}")
    read_once_or_more(member(station, name, reset="latest"), [*range(1, 21)])


def test_a_producer_is_refused_at_once(station: Station, name: str, scalable: str) -> None:
    """K35, E20: with a code that is not retried."""
    producer = station.producer()
    sent = producer.send(name, b"no", partition=0)
    producer.flush()
    with pytest.raises(Refused) as refused:
        sent.result(REFUSED_SECONDS_MAX)
    assert refused.value.code == POLICY_VIOLATION
    assert read_all(station.consumer(), Place(name)) == []


@pytest.mark.parametrize("client", [known for known in NAMES if known != PURE], indirect=True)
def test_a_transaction_of_kafka_is_refused(station: Station, name: str, scalable: str) -> None:
    """K35: nothing of it is stored. The next producer of the same id goes on with other topics.

    The first one may not go on: librdkafka asks for the abort of a transaction that never began. The commit of
    kafka-python 3.0.12 never returns when its only partition is refused.
    """
    station.admin().create(f"{name}-regular")
    refused = station.producer(ProducerOptions(transactional_id=name))
    refused.init_transactions()
    refused.begin()
    sent = refused.send(name, b"no", partition=0)
    with pytest.raises(Refused):
        refused.commit()
    assert sent.exception(REFUSED_SECONDS_MAX) is not None
    producer = station.producer(ProducerOptions(transactional_id=name))
    producer.init_transactions()
    producer.begin()
    producer.send(f"{name}-regular", b"yes")
    producer.commit()
    assert values(read_all(station.consumer(), Place(f"{name}-regular"))) == [b"yes"]
    assert read_all(station.consumer(), Place(name)) == []


def test_administrators_see_it_and_change_nothing(
    station: Station, name: str, scalable: str, admin: Admin, writer: ScalableWriter
) -> None:
    """K35, K43: it is in the list with a partition for each segment; deleting and extending it are refused."""
    admin.split_now(scalable, 0)
    writer.send(b"0")
    kafka = station.admin()
    assert kafka.topics()[name] == 3
    with pytest.raises(Refused):
        kafka.delete(name)
    with pytest.raises(Refused):
        kafka.create(name)
    with pytest.raises(Refused):
        kafka.grow(name, 9)
    assert values(read_all(station.consumer(), *(Place(name, n) for n in range(3)))) == [b"0"]


@pytest.mark.parametrize("client", [CONFLUENT], indirect=True)
def test_groups_are_shown_beside_subscriptions(
    station: Station, name: str, scalable: str, writer: ScalableWriter, tidewire: RunningBroker
) -> None:
    """K36: with their members and what is left to read; of a regular topic, too."""
    regular = f"{name}-regular"
    station.admin().create(regular)
    producer = station.producer()
    for _ in range(10):
        writer.send(b"0")
        producer.send(regular, b"0")
    producer.flush()
    consumer = station.consumer(ConsumerOptions(group_id=name))
    consumer.subscribe(name, regular)
    until(lambda got: len(got) >= 20, consumer)
    consumer.commit({Place(name): Committed(4, ""), Place(regular): Committed(7, "")})
    assert shown(tidewire, scalable) == [[name, "kafka group, stable", "1", "6"]]
    assert shown(tidewire, f"persistent://public/default/{regular}") == [[name, "kafka group, stable", "1", "3"]]


def shown(broker: RunningBroker, topic: str) -> list[list[str]]:
    """Return the subscriptions that `tidewire topics show` prints."""
    command = [sys.executable, "-m", "tidewire.cli", "topics", "show", topic, "--http", broker.http_url]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    table = ended.stdout.partition("subscription")[2]
    rows = [line.strip("│").split("│") for line in table.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in row] for row in rows]
