"""DeleteRecords: what is gone for readers of both protocols, for good, and when it leaves the disk."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.names import TopicName
from storage.metadata.memory import MemoryStore
from storage.position import EARLIEST
from tests.support.disk import SimulatedFiles
from tests.support.kafka_connection import READ_COMMITTED, KafkaClient, committed_entries, kafka_client, values_of
from tests.support.kafka_producer import TransactionalProducer
from tests.support.rooms import Rooms, rooms, visible
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.messages.list_offsets import EARLIEST as FIRST
from tidewire.wire.kafka.messages.list_offsets import LATEST
from tidewire.wire.kafka.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tidewire.wire.kafka.records import Record, build

PARTITION = TopicName.parse("persistent://public/default/t-partition-0")


@asynccontextmanager
async def served(store: MemoryStore, files: SimulatedFiles) -> AsyncIterator[tuple[Rooms, KafkaClient]]:
    async with rooms(store, files) as broker, kafka_client(broker) as client:
        yield broker, client


async def deleted(client: KafkaClient, offset: int, topic: str = "t") -> DeleteRecordsPartitionResult:
    part = (DeleteRecordsPartition(0, offset),)
    answer = await client.ask(DeleteRecordsRequest((DeleteRecordsTopic(topic, part),)), DeleteRecordsResponse, 2)
    return answer.topics[0].partitions[0]


async def test_a_partition_begins_in_the_middle_of_a_batch_also_after_a_restart(autojump_clock: MockClock) -> None:
    """K38: earliest, Fetch and Pulsar's readers respect it; a batch that is partly deleted is still sent whole."""
    store, files = MemoryStore(), SimulatedFiles(seed=1)
    async with served(store, files) as (_broker, client):
        await client.create("t")
        for number in range(3):
            await client.produce("t", build([Record(None, b"%d" % (number * 2 + n), 1) for n in range(2)]))
        result = await deleted(client, 3)
        assert (result.error_code, result.low_watermark) == (0, 3)
        assert (await deleted(client, 1)).low_watermark == 3, "it never goes back"
    async with served(store, files.crash(keep=0.0)) as (broker, client):
        assert (await client.offset("t", FIRST)).offset == 3
        assert (await client.offset("t", 0)).offset == 3
        assert (await client.fetch("t", 2)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        data = await client.fetch("t", 3)
        assert (data.log_start_offset, [offset for offset, _value in values_of(data)]) == (3, [2, 3, 4, 5])
        topic = await broker.topics.get(PARTITION)
        subscription = await topic.subscribe("s", EARLIEST)
        assert [entry.first_index for entry in await visible(topic)] == [2, 4]
        assert await subscription.visible_backlog() == 2
        found = (await broker.monitor.series()).subscriptions
        assert [one.backlog_messages for one in found.values()] == [3], "the batch is partly deleted"


async def test_whole_ledgers_leave_the_disk_though_nobody_has_acknowledged_them(autojump_clock: MockClock) -> None:
    """K38: without a policy, too."""
    async with served(MemoryStore(), SimulatedFiles(seed=1)) as (broker, client):
        await client.create("t")
        topic = await broker.topics.get(PARTITION)
        await topic.subscribe("s", EARLIEST)
        for number in range(4):
            await client.produce("t", build([Record(None, b"%d" % number, 1)]))
            topic.ledger.request_roll()
            await wait_all_tasks_blocked()
        kept = [info.first_index for info in topic.ledger.closed]
        assert kept == [0, 1, 2, 3]
        await deleted(client, 2)
        await wait_all_tasks_blocked()
        assert [info.first_index for info in topic.ledger.closed] == [2, 3]
        assert [entry.first_index for entry in await visible(topic)] == [2, 3]
        assert (await deleted(client, -1)).low_watermark == 4
        await wait_all_tasks_blocked()
        assert not topic.ledger.closed
        assert (await client.offset("t", LATEST)).offset == 4
        assert (await client.produce("t", build([Record(None, b"next", 1)]))).base_offset == 4


@pytest.mark.parametrize(("topic", "offset"), [("t", 2), ("t", -2), ("x", 0)])
async def test_what_cannot_be_deleted_is_refused(topic: str, offset: int) -> None:
    async with served(MemoryStore(), SimulatedFiles(seed=1)) as (_broker, client):
        await client.create("t")
        await client.produce("t", build([Record(None, b"a", 1)]))
        code = ErrorCode.OFFSET_OUT_OF_RANGE if topic == "t" else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await deleted(client, offset, topic)).error_code == code
        assert (await client.offset("t", FIRST)).offset == 0


async def test_the_last_stable_offset_is_not_below_the_first_one(autojump_clock: MockClock) -> None:
    """K38: records of an open transaction may be deleted. `latest` of committed records must then still be an offset.

    Otherwise a consumer that begins there is out of range, begins at the latest offset again, and so on.
    """
    async with served(MemoryStore(), SimulatedFiles(seed=1)) as (_broker, client):
        await client.create("t")
        producer = TransactionalProducer(client, "tid")
        await producer.begin_session()
        await producer.add(("t", 0))
        await producer.send("t", b"0", b"1", b"2", b"3")
        assert (await deleted(client, 3)).low_watermark == 3
        latest = (await client.offset("t", LATEST, isolation=READ_COMMITTED)).offset
        assert latest == 3
        data = await client.fetch("t", latest, isolation=READ_COMMITTED)
        assert (data.error_code, data.last_stable_offset, data.high_watermark) == (0, 3, 4)
        assert values_of(data) == []
        await producer.send("t", b"4")
        await producer.end(is_commit=True)
        assert committed_entries(await client.fetch("t", 3, isolation=READ_COMMITTED), 3) == ([(3, b"3"), (4, b"4")], 6)
