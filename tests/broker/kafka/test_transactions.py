"""Transactions of Kafka's clients, from the wire to the log and back."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from broker.names import TopicName
from storage.metadata.memory import MemoryStore
from storage.metadata.store import starting_with
from tests.support.disk import SimulatedFiles
from tests.support.kafka_connection import READ_COMMITTED, KafkaClient, committed_in, kafka_client
from tests.support.kafka_producer import TransactionalProducer
from tests.support.rooms import Rooms, moving_clock, rooms
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.messages.fetch import AbortedTransaction
from tidewire.wire.kafka.messages.list_offsets import LATEST
from txn.kafka_participants import KEY_PREFIX

PARTITIONS = 3


@asynccontextmanager
async def served(
    store: MemoryStore | None = None, files: SimulatedFiles | None = None
) -> AsyncIterator[tuple[Rooms, KafkaClient]]:
    async with (
        rooms(store or MemoryStore(), files or SimulatedFiles(seed=1), clock=moving_clock()) as broker,
        kafka_client(broker) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(broker.kafka_sweeps.run)
        yield broker, client
        nursery.cancel_scope.cancel()


async def committed(client: KafkaClient, topic: str = "t", partition: int = 0) -> list[bytes | None]:
    """What a consumer of committed records shows."""
    return committed_in(await client.fetch(topic, 0, partition=partition, isolation=READ_COMMITTED))


async def test_a_commit_shows_everything_at_once_and_an_abort_nothing() -> None:
    """K3, K19, K31, K32: on all partitions, when EndTxn is answered; the next transaction begins at once."""
    async with served() as (broker, client):
        await client.create("t", PARTITIONS)
        producer = TransactionalProducer(client, "tid")
        assert await producer.begin_session() == 0
        places = [("t", partition) for partition in range(PARTITIONS)]
        for is_commit, value in ((True, b"a"), (False, b"b"), (True, b"c")):
            assert await producer.add(*places) == {0}
            for topic, partition in places:
                assert (await producer.send(topic, value, partition=partition)).error_code == 0
            before = await committed(client)
            assert value not in before
            assert await producer.end(is_commit=is_commit) == 0
            for _topic, partition in places:
                shown = await committed(client, partition=partition)
                assert (value in shown) == is_commit
        data = await client.fetch("t", 0, isolation=READ_COMMITTED)
        assert data.aborted_transactions == (AbortedTransaction(producer.producer_id, 2),)
        assert (data.last_stable_offset, data.high_watermark) == (6, 6)
        assert not await broker.metadata.scan(*starting_with(KEY_PREFIX)), "nobody is registered any more"


async def test_a_partition_that_was_not_added_takes_nothing() -> None:
    async with served() as (_broker, client):
        await client.create("t", 2)
        producer = TransactionalProducer(client, "tid")
        await producer.begin_session()
        await producer.add(("t", 0))
        assert (await producer.send("t", b"x", partition=1)).error_code == ErrorCode.INVALID_TXN_STATE
        assert await producer.add(("t", 0), ("t", 7)) == {
            ErrorCode.OPERATION_NOT_ATTEMPTED,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert await producer.end(is_commit=True) == 0
        assert await committed(client) == []


async def test_a_new_producer_fences_the_old_one_and_aborts_its_transaction() -> None:
    """K28, K29: a zombie writes nothing and ends nothing."""
    async with served() as (_broker, client):
        await client.create("t")
        old, new = TransactionalProducer(client, "tid"), TransactionalProducer(client, "tid")
        await old.begin_session()
        await old.add(("t", 0))
        await old.send("t", b"old")
        assert await new.begin_session() == 0
        assert (new.producer_id, new.epoch > old.epoch) == (old.producer_id, True)
        assert (await old.send("t", b"late")).error_code in {
            ErrorCode.INVALID_PRODUCER_EPOCH,
            ErrorCode.PRODUCER_FENCED,
        }
        assert await old.end(is_commit=True) == ErrorCode.PRODUCER_FENCED
        await new.add(("t", 0))
        await new.send("t", b"new")
        assert await new.end(is_commit=True) == 0
        assert await committed(client) == [b"new"]


async def test_a_transaction_ends_at_its_deadline(autojump_clock: MockClock) -> None:
    """K1: readers go on, and its producer is told."""
    async with served() as (broker, client):
        await client.create("t")
        producer = TransactionalProducer(client, "tid")
        await producer.begin_session(timeout_ms=5_000)
        await producer.add(("t", 0))
        await producer.send("t", b"forgotten")
        topic = await broker.topics.get(TopicName.parse("persistent://public/default/t-partition-0"))
        await topic.readable.wait_for(topic.ledger.last_position)
        await trio.sleep(6)
        assert await committed(client) == []
        assert (await client.offset("t", LATEST, isolation=READ_COMMITTED)).offset == 2
        assert await producer.end(is_commit=True) == ErrorCode.PRODUCER_FENCED
        assert await producer.begin_session() == 0


@pytest.mark.parametrize("is_commit", [True, False])
async def test_a_transaction_survives_the_death_of_its_broker(autojump_clock: MockClock, *, is_commit: bool) -> None:
    """K24, K27, D8: what was written before is decided with what comes after."""
    store, files = MemoryStore(), SimulatedFiles(seed=1)
    async with served(store, files) as (_broker, client):
        await client.create("t", 2)
        producer = TransactionalProducer(client, "tid")
        await producer.begin_session()
        await producer.add(("t", 0), ("t", 1))
        await producer.send("t", b"before")
    async with served(store, files.crash(keep=0.0)) as (_broker, client):
        producer.client = client
        assert await committed(client) == []
        assert (await producer.send("t", b"after")).base_offset == 1
        assert (await producer.send("t", b"there", partition=1)).error_code == 0
        assert await producer.end(is_commit=is_commit) == 0
        assert [await committed(client, partition=partition) for partition in range(2)] == (
            [[b"before", b"after"], [b"there"]] if is_commit else [[], []]
        )


async def test_a_decision_is_applied_by_the_next_owner(autojump_clock: MockClock) -> None:
    """K27, K32: the broker dies between the decision and its markers; the client's retry waits for the same end."""
    store, files = MemoryStore(), SimulatedFiles(seed=1)
    async with served(store, files) as (broker, client):
        await client.create("t", 2)
        producer = TransactionalProducer(client, "tid")
        await producer.begin_session()
        await producer.add(("t", 0), ("t", 1))
        for partition in range(2):
            await producer.send("t", b"x", partition=partition)
        files.stop()  # No marker becomes durable any more.
        assert await producer.end(is_commit=True) == ErrorCode.CONCURRENT_TRANSACTIONS
        files.resume()
        broker.kafka_transactions.settler._due.clear()
    async with served(store, files.crash(keep=0.0)) as (_broker, client):
        producer.client = client
        assert await producer.end(is_commit=True) == 0
        assert [await committed(client, partition=partition) for partition in range(2)] == [[b"x"], [b"x"]]
        assert not await store.scan(*starting_with(KEY_PREFIX))


async def test_a_deleted_topic_counts_as_applied(autojump_clock: MockClock) -> None:
    """K32: the transaction ends on the others."""
    async with served() as (broker, client):
        await client.create("t")
        await client.create("gone")
        producer = TransactionalProducer(client, "tid")
        await producer.begin_session()
        await producer.add(("t", 0), ("gone", 0))
        await producer.send("t", b"x")
        await producer.send("gone", b"y")
        name = TopicName.parse("persistent://public/default/gone-partition-0")
        await broker.topics.delete(name)
        assert await producer.end(is_commit=True) == 0
        assert await committed(client) == [b"x"]
