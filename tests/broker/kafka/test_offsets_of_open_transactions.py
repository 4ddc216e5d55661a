"""Offsets that wait for a transaction, when they or their group are deleted meanwhile."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from broker.kafka.groups.offsets import KEY_PREFIX as OFFSETS
from broker.kafka.groups.offsets import TopicPartition, offset_key
from storage.metadata.memory import MemoryStore
from storage.metadata.store import starting_with
from tests.support.disk import SimulatedFiles
from tests.support.kafka_connection import KafkaClient, kafka_client
from tests.support.kafka_producer import TransactionalProducer
from tests.support.rooms import Rooms, moving_clock, rooms
from tidewire.wire.kafka.messages.groups import DeleteGroupsRequest, DeleteGroupsResponse
from tidewire.wire.kafka.messages.offsets import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from txn.deferred_puts import KEY_PREFIX as PUTS


@asynccontextmanager
async def waiting(*offsets: int) -> AsyncIterator[tuple[Rooms, KafkaClient, TransactionalProducer]]:
    """A broker, and a transaction with an offset of group g on each partition of topic t."""
    async with (
        rooms(MemoryStore(), SimulatedFiles(seed=1), clock=moving_clock()) as broker,
        kafka_client(broker) as client,
    ):
        await client.create("t", len(offsets))
        producer = TransactionalProducer(client, "tid")
        await producer.begin_session()
        await producer.add_group("g")
        for partition, offset in enumerate(offsets):
            assert await producer.commit_offset("g", "t", offset, partition=partition) == 0
        yield broker, client, producer


async def kept(broker: Rooms) -> list[str]:
    return [record.key for record in await broker.metadata.scan(*starting_with(OFFSETS))]


async def test_a_deleted_group_gets_no_offset_of_a_transaction() -> None:
    """K36: nobody would see the group, and the offset would never expire, not even with its topic."""
    async with waiting(5) as (broker, client, producer):
        answer = await client.ask(DeleteGroupsRequest(("g",)), DeleteGroupsResponse, 2)
        assert answer.results[0].error_code == 0
        assert await producer.end(is_commit=True) == 0
        assert await kept(broker) == []
        assert not await broker.metadata.scan(*starting_with(PUTS))


async def test_a_deleted_offset_does_not_come_back_with_a_transaction() -> None:
    """K36: the offsets of other partitions do."""
    async with waiting(5, 6) as (broker, client, producer):
        topics = (OffsetDeleteRequestTopic("t", (OffsetDeleteRequestPartition(0),)),)
        answer = await client.ask(OffsetDeleteRequest("g", topics), OffsetDeleteResponse, 0)
        assert answer.topics[0].partitions[0].error_code == 0
        assert await producer.end(is_commit=True) == 0
        assert await kept(broker) == [offset_key("g", TopicPartition("t", 1))]
