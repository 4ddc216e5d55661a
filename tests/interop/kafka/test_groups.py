"""Kafka's classic consumer groups, as the clients' own assignors use them."""

import subprocess
import sys
from collections.abc import Sequence
from typing import Final, get_args

import pytest

from tests.interop.kafka.conftest import Station
from tests.support.kafka_clients.contract import Committed, Consumer, ConsumerOptions, Place, Refused, Strategy
from tests.support.kafka_clients.every import AIOKAFKA, CONFLUENT, JAVA, PURE, another_than, opened
from tests.support.kafka_clients.reading import read, until, values
from tests.support.processes import RunningBroker

pytestmark = pytest.mark.interop

UNSUPPORTED_VERSION: Final = 35
NON_EMPTY_GROUP: Final = 68
SESSION_TIMEOUT_MS: Final = 6_000
"""The shortest session that a broker allows."""

ASSIGNORS: Final[Sequence[tuple[str, Strategy]]] = (
    (CONFLUENT, "range"),
    (CONFLUENT, "roundrobin"),
    (CONFLUENT, "cooperative-sticky"),
    (AIOKAFKA, "range"),
    (AIOKAFKA, "roundrobin"),
    (AIOKAFKA, "sticky"),
    (PURE, "range"),
    (PURE, "roundrobin"),
    (PURE, "sticky"),
    (PURE, "cooperative-sticky"),
    *((java, strategy) for java in JAVA for strategy in get_args(Strategy)),
)
"""librdkafka has no `sticky`, and aiokafka nothing cooperative."""


def fill(station: Station, topic: str, partitions: int, numbers: Sequence[int]) -> None:
    """Write these numbers, to all partitions in turn."""
    producer = station.producer()
    for n in numbers:
        producer.send(topic, b"%d" % n, partition=n % partitions)
    producer.flush()


def member(station: Station, topic: str, **options: object) -> Consumer:
    """Join the group that has the topic's name."""
    consumer = station.consumer(ConsumerOptions(group_id=topic, **options))  # type: ignore[arg-type]
    consumer.subscribe(topic)
    return consumer


def shares(*members: Consumer) -> list[int]:
    """Return how many partitions each has."""
    return [len(one.assignment()) for one in members]


def read_numbers(numbers: Sequence[int], *members: Consumer) -> None:
    """Let the members read and commit until they have these numbers, and none that was committed before.

    A group may share its partitions anew at any time. kafka-python does so as the leader when its metadata comes late:
    it then takes the topic for changed. A member reads again what nobody committed, so a number may come twice.
    """
    got = until(lambda got: {int(one or b"") for one in values(got)} >= set(numbers), *members)
    assert {int(one or b"") for one in values(got)} == set(numbers)


@pytest.mark.parametrize(("client", "strategy"), ASSIGNORS, indirect=["client"])
def test_two_members_share_the_partitions_and_one_takes_over_when_the_other_leaves(
    station: Station, name: str, strategy: Strategy
) -> None:
    """K36: each partition has one reader at any time, and the group goes on behind what it committed."""
    station.admin().create(name, 4)
    first = member(station, name, strategy=strategy)
    fill(station, name, 4, range(100))
    read_numbers(range(100), first)
    first.commit()
    second = member(station, name, strategy=strategy)
    until(lambda _: shares(first, second) == [2, 2] and not first.assignment() & second.assignment(), first, second)
    fill(station, name, 4, range(100, 140))
    read_numbers(range(100, 140), first, second)
    for one in (first, second):
        one.commit()
    second.close()
    until(lambda _: shares(first) == [4], first)
    fill(station, name, 4, range(140, 160))
    read_numbers(range(140, 160), first)


def test_a_group_resumes_where_it_committed(station: Station, topic: str) -> None:
    """K36: a new member begins at the group's offset. An offset may go back, and a seek moves this member alone."""
    fill(station, topic, 1, range(100))
    place = Place(topic)
    consumer = member(station, topic)
    assert len(until(lambda got: len(got) >= 100, consumer)) == 100
    consumer.commit({place: Committed(40, "")})
    consumer.seek(place, 90)
    assert [one.offset for one in read(consumer, 10)] == list(range(90, 100))
    consumer.close()
    again = member(station, topic)
    assert [one.offset for one in until(lambda got: len(got) >= 60, again)] == list(range(40, 100))


def test_offsets_and_their_metadata_are_told_to_administrators(station: Station, topic: str) -> None:
    """K36: the text stays with its offset, until the next commit."""
    fill(station, topic, 1, range(10))
    admin, place = station.admin(), Place(topic)
    consumer = member(station, topic)
    until(lambda got: len(got) >= 10, consumer)
    for committed in (Committed(7, "seven, or sieben: ÿ"), Committed(3, "")):
        consumer.commit({place: committed})
        assert admin.committed(topic) == {place: committed}


def test_a_group_survives_a_kill_of_the_broker(doomed: Station, mortal: RunningBroker, name: str) -> None:
    """K36: offsets are durable, and the member goes on, or comes back, by itself."""
    doomed.admin().create(name, 2)
    fill(doomed, name, 2, range(100))
    consumer = member(doomed, name)
    read_numbers(range(100), consumer)
    consumer.commit()
    mortal.restart()
    fill(doomed, name, 2, range(100, 150))
    read_numbers(range(100, 150), consumer)
    consumer.commit()
    assert doomed.admin().committed(name) == {Place(name, n): Committed(75, "") for n in range(2)}


KILLED = """
import sys
from tests.support.kafka_clients.contract import ConsumerOptions
from tests.support.kafka_clients.every import opened
from tests.support.kafka_clients.reading import until
client, address, group, session = sys.argv[1:]
with opened(client) as client:
    consumer = client.consumer(address, ConsumerOptions(group_id=group, session_timeout_ms=int(session)))
    consumer.subscribe(group)
    until(lambda _: bool(consumer.assignment()), consumer)
    print("joined", flush=True)
    until(lambda _: False, consumer)
"""
"""A member that stays until it is killed."""


def test_a_killed_members_partitions_go_to_the_others(station: Station, name: str) -> None:
    """K36: a member that cannot leave is missed when its session ends."""
    station.admin().create(name, 2)
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, station.client.name, station.address, name, str(SESSION_TIMEOUT_MS)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as killed:
        try:
            assert killed.stdout is not None
            assert killed.stdout.readline() == "joined\n"
            survivor = member(station, name, session_timeout_ms=SESSION_TIMEOUT_MS)
            until(lambda _: shares(survivor) == [1], survivor)
        finally:
            killed.kill()
    until(lambda _: shares(survivor) == [2], survivor)


@pytest.mark.parametrize("client", [CONFLUENT, PURE, *JAVA], indirect=True)
def test_a_static_member_restarts_without_a_rebalance(station: Station, name: str) -> None:
    """K36: it has its partitions back, though it went away in between. The other one keeps its own."""
    station.admin().create(name, 2)
    stays = member(station, name, instance_id="stays")
    restarts = member(station, name, instance_id="restarts")
    until(lambda _: shares(stays, restarts) == [1, 1], stays, restarts)
    before = (stays.assignment(), restarts.assignment())
    restarts.close()
    again = member(station, name, instance_id="restarts")
    until(lambda _: shares(stays, again) == [1, 1], again)
    assert (stays.assignment(), again.assignment()) == before
    assert sorted(station.admin().describe(name).instance_ids, key=str) == ["restarts", "stays"]


def test_groups_are_listed_and_described(station: Station, topic: str) -> None:
    """K36: an administrator sees who is in a group, and that it became empty."""
    admin = station.admin()
    consumer = member(station, topic)
    until(lambda _: shares(consumer) == [1], consumer)
    assert topic in admin.groups()
    described = admin.describe(topic)
    assert (described.state, len(described.instance_ids)) == ("Stable", 1)
    consumer.commit({Place(topic): Committed(0, "")})
    consumer.close()
    described = admin.describe(topic)
    assert (described.state, len(described.instance_ids)) == ("Empty", 0)


@pytest.mark.parametrize("client", [CONFLUENT, PURE, *JAVA], indirect=True)
def test_a_group_is_deleted_when_nobody_is_in_it(station: Station, topic: str) -> None:
    """K36: with it go its offsets. aiokafka cannot ask for that."""
    admin = station.admin()
    consumer = member(station, topic)
    until(lambda _: shares(consumer) == [1], consumer)
    consumer.commit({Place(topic): Committed(0, "")})
    with pytest.raises(Refused) as refusal:
        admin.delete_group(topic)
    assert refusal.value.code == NON_EMPTY_GROUP
    consumer.close()
    admin.delete_group(topic)
    assert topic not in admin.groups()


def test_members_of_different_clients_share_one_group(station: Station, name: str) -> None:
    """K36: their assignors of one name understand each other."""
    station.admin().create(name, 4)
    with opened(another_than(station.client.name)) as other:
        mine = member(station, name)
        theirs = member(Station(other, station.address), name)
        until(lambda _: shares(mine, theirs) == [2, 2] and not mine.assignment() & theirs.assignment(), mine, theirs)
        fill(station, name, 4, range(40))
        read_numbers(range(40), mine, theirs)


@pytest.mark.parametrize("client", JAVA, indirect=True)
@pytest.mark.usefixtures("tidewire")
def test_a_group_of_the_newer_protocol_is_refused_by_name(station: Station, topic: str) -> None:
    """E20: the broker does not offer it (KIP-848), so the client says what is missing. librdkafka waits in silence."""
    consumer = station.consumer(ConsumerOptions(group_id=topic, protocol="consumer"))
    consumer.subscribe(topic)
    with pytest.raises(Refused) as refusal:
        until(lambda _: bool(consumer.assignment()), consumer)
    assert refusal.value.code == UNSUPPORTED_VERSION
