"""What brokers of a cluster answer while partitions and coordinators change hands, word by word on the wire."""

from collections.abc import Awaitable, Callable
from typing import Final

import pytest
import trio

from tests.support.kafka_clients.contract import Place
from tests.support.kafka_cluster import GROUP, TRANSACTION, KafkaCluster, Named, connected, coordinator_of
from tests.support.kafka_connection import READ_COMMITTED, KafkaClient, committed_in, fetch_request, values_of
from tests.support.kafka_producer import TransactionalProducer
from tidewire.wire.kafka.api_keys import ApiKey
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.messages.fetch import FetchResponse
from tidewire.wire.kafka.records import Record, build

pytestmark = pytest.mark.interop

SECONDS_MAX: Final = 240.0
LONG_MS: Final = 10 * 60 * 1000
"""Nobody waits so long."""

blocking = trio.to_thread.run_sync


def play(story: Callable[[], Awaitable[None]]) -> None:
    """Play a story, which may not stand still."""

    async def limited() -> None:
        with trio.fail_after(SECONDS_MAX):
            await story()

    trio.run(limited)


def of(value: bytes) -> bytes:
    """Make a batch."""
    return build([Record(None, value, 1_000)])


def test_all_brokers_name_the_same_nodes_leaders_and_coordinators(cluster: KafkaCluster, name: str) -> None:
    """K44, C21: each broker has its own number and address, and any of them says who does what."""
    nodes = {cluster.node(broker) for broker in cluster.brokers}
    assert len(nodes) == len(cluster.brokers)

    async def create() -> None:
        async with connected(cluster.any) as client:
            await client.create(name, 6)

    play(create)
    for partition in range(6):
        (said,) = {cluster.named(broker, Place(name, partition)) for broker in cluster.brokers}
        assert (said.node in nodes, said.epoch) == (True, 0)
    for kind in (GROUP, TRANSACTION):
        keys = [f"{name}-{number}" for number in range(60)]
        found = [{coordinator_of(one.kafka, key, kind) for one in cluster.brokers.values()} for key in keys]
        assert all(len(said) == 1 for said in found)
        assert {node for ((node, _address),) in found} == nodes, "all coordinate some"


def test_a_parked_fetch_and_stale_epochs_learn_of_the_next_leader(cluster: KafkaCluster, name: str) -> None:
    """K40, K44: the leader that leaves wakes its fetch. Every broker names the next one, with a higher epoch."""
    place = Place(name)

    async def story() -> None:
        async with connected(cluster.any) as client:
            await client.create(name)
        first = await blocking(cluster.leader, place)
        second = cluster.others(first)[0]
        async with connected(cluster.brokers[first]) as client, connected(cluster.brokers[second]) as next_client:
            await client.produce(name, of(b"a"))
            assert await blocking(cluster.named, second, place) == Named(await blocking(cluster.node, first), 0)
            await client.send(fetch_request(name, 1, wait_ms=LONG_MS, epoch=0), 12)
            await blocking(cluster.move, place, second)
            _number, woken = await client.receive(FetchResponse, ApiKey.FETCH, 12)
            assert woken.responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            expected = Named(await blocking(cluster.node, second), 1)
            assert {await blocking(cluster.named, broker, place) for broker in cluster.brokers} == {expected}
            assert (await next_client.fetch(name, 0, epoch=0)).error_code == ErrorCode.FENCED_LEADER_EPOCH
            assert (await next_client.fetch(name, 0, epoch=2)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
            assert values_of(await next_client.fetch(name, 0, epoch=1)) == [(0, b"a")]
            assert (await client.fetch(name, 0)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert (await client.produce(name, of(b"b"))).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    play(story)


async def _transaction(
    client: KafkaClient, transactional_id: str, version: int, *places: Place, at: dict[Place, KafkaClient]
) -> TransactionalProducer:
    """Write one record to each place in a transaction, whose coordinator `client` asks."""
    producer = TransactionalProducer(client, transactional_id, version)
    assert await producer.begin_session() == ErrorCode.NONE
    assert await producer.add(*places) == {ErrorCode.NONE}
    for place in places:
        producer.client = at[place]
        sent = await producer.send(place.topic, transactional_id.encode(), partition=place.partition)
        assert sent.error_code == ErrorCode.NONE, sent
    producer.client = client
    return producer


@pytest.mark.parametrize("version", [1, 2])
def test_an_end_that_meets_a_leader_which_stands_still_is_decided(
    cluster: KafkaCluster, name: str, version: int
) -> None:
    """K32: the answer is CONCURRENT_TRANSACTIONS, and the decision stands. Other transactions proceed."""
    stays, leaves = Place(name, 0), Place(name, 1)

    async def story() -> None:
        controller = await blocking(lambda: cluster.metadata_controller)
        # The metadata goes on, and so does whoever is asked.
        asked = controller or next(iter(cluster.brokers))
        frozen = cluster.others(asked)[0]
        async with connected(cluster.brokers[asked]) as client:
            await client.create(name, 2)
            for place, owner in ((stays, asked), (leaves, frozen)):
                async with connected(cluster.brokers[await blocking(cluster.leader, place)]) as leader:
                    await leader.produce(name, of(b"first"), partition=place.partition)
                await blocking(cluster.move, place, owner)
            async with connected(cluster.brokers[frozen]) as leader:
                at = {stays: client, leaves: leader}
                producer = await _transaction(client, f"{name}-both", version, stays, leaves, at=at)
            other = await _transaction(client, f"{name}-one", version, stays, at={stays: client})
            cluster.freeze(frozen)
            assert await producer.end(is_commit=True) == ErrorCode.CONCURRENT_TRANSACTIONS
            assert await other.end(is_commit=True) == ErrorCode.NONE
            assert await producer.end(is_commit=False) == ErrorCode.INVALID_TXN_STATE
            await blocking(cluster.kill, frozen)
            while (code := await producer.end(is_commit=True)) == ErrorCode.CONCURRENT_TRANSACTIONS:
                pass  # Each answer waits for the end of the transaction.
            assert code == ErrorCode.NONE
            heir = await blocking(cluster.leader, leaves)
            async with connected(cluster.brokers[heir]) as leader:
                found = await leader.fetch(name, 0, partition=1, isolation=READ_COMMITTED)
            assert committed_in(found) == [b"first", f"{name}-both".encode()]
            found = await client.fetch(name, 0, isolation=READ_COMMITTED)
            assert committed_in(found) == [b"first", f"{name}-both".encode(), f"{name}-one".encode()]

    play(story)
