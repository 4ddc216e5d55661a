"""What Kafka's clients may not do to a scalable topic, and what they are told."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from trio.testing import wait_all_tasks_blocked

from broker.retention import Retention
from broker.retention_policies import topic_key
from storage.entry import TxnId
from storage.metadata.memory import MemoryStore
from tests.support.disk import SimulatedFiles
from tests.support.kafka_batches import batch
from tests.support.kafka_connection import KafkaClient, kafka_client, produce_request, values_of
from tests.support.rooms import TOPIC, Rooms, publish, rooms, segments
from tidewire.wire.kafka.api_keys import ApiKey
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.messages.administration import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribableLogDirTopic,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    ReplacedConfigs,
)
from tidewire.wire.kafka.messages.list_offsets import LATEST
from tidewire.wire.kafka.messages.produce import ProduceResponse
from tidewire.wire.kafka.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tidewire.wire.kafka.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    DescribeProducersRequest,
    DescribeProducersResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tidewire.wire.kafka.records import Record, build
from tidewire.wire.pulsar.building import build_payload
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb


@asynccontextmanager
async def served(segments: int = 1) -> AsyncIterator[tuple[Rooms, KafkaClient]]:
    """A broker with the scalable topic `orders`."""
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker, kafka_client(broker) as client:
        await broker.controller.create_topic(TOPIC, segments, {})
        yield broker, client


async def send(broker: Rooms, segment_id: int, value: bytes, txn: TxnId | None = None, at: int = 5) -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=at)
    await publish((await segments(broker))[segment_id], build_payload(metadata, value), txn)


async def test_writing_is_refused_by_name() -> None:
    """K35, E20: with a code that no client retries; nothing is stored."""
    async with served() as (broker, client):
        await broker.controller.split(TOPIC, 0)
        for number in (0, 1):
            refused = await client.produce("orders", build([Record(None, b"a", 1)]), partition=number)
            assert refused.error_code == ErrorCode.POLICY_VIOLATION
            assert refused.error_message is not None
            assert "scalable topic, which Kafka's clients can only read" in refused.error_message
            assert (await client.offset("orders", LATEST, partition=number)).offset == 0
        async with kafka_client(broker) as other:
            await other.send(produce_request("orders", batch(1, 0, 0), acks=0), 9)
            with pytest.raises(EOFError):
                await other.receive(ProduceResponse, ApiKey.PRODUCE, 9)


async def test_a_transaction_of_kafka_does_not_take_part() -> None:
    """K35: it is refused when the partition is added, before anything is written."""
    async with served() as (_broker, client):
        await client.create("regular")
        init = InitProducerIdRequest("t", 10_000)
        producer = await client.ask(init, InitProducerIdResponse, 4)
        topics = (AddPartitionsToTxnTopic("regular", (0,)), AddPartitionsToTxnTopic("orders", (0,)))
        adding = AddPartitionsToTxnRequest("t", producer.producer_id, producer.producer_epoch, topics)
        answer = await client.ask(adding, AddPartitionsToTxnResponse, 3)
        codes = [part.partition_error_code for topic in answer.results_by_topic for part in topic.results_by_partition]
        assert codes == [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.TOPIC_AUTHORIZATION_FAILED]
        marker = WritableTxnMarker(
            producer.producer_id, producer.producer_epoch, True, (WritableTxnMarkerTopic("orders", (0,)),), 0
        )
        marked = await client.ask(WriteTxnMarkersRequest((marker,)), WriteTxnMarkersResponse, 1)
        assert marked.markers[0].topics[0].partitions[0].error_code == ErrorCode.POLICY_VIOLATION
        asked = DescribeProducersRequest((AddPartitionsToTxnTopic("orders", (0,)),))
        found = await client.ask(asked, DescribeProducersResponse, 0)
        assert (found.topics[0].partitions[0].error_code, found.topics[0].partitions[0].active_producers) == (0, ())


async def test_administrators_of_kafka_change_nothing() -> None:
    """K35, E20: deleting, extending and configuring are refused, with what to do instead."""
    async with served() as (broker, client):
        await send(broker, 0, b"a")
        deleting = DeleteTopicsRequest((DeleteTopicState("orders"),), timeout_ms=1_000)
        (deleted,) = (await client.ask(deleting, DeleteTopicsResponse, 6)).responses
        assert deleted.error_code == ErrorCode.POLICY_VIOLATION
        assert "tidewire topics delete topic://public/default/orders" in (deleted.error_message or "")
        extending = CreatePartitionsRequest((CreatePartitionsTopic("orders", 7),), 1_000, False)
        (extended,) = (await client.ask(extending, CreatePartitionsResponse, 3)).results
        assert extended.error_code == ErrorCode.POLICY_VIOLATION
        altering = AlterConfigsRequest((ReplacedConfigs(2, "orders", ()),))
        (altered,) = (await client.ask(altering, AlterConfigsResponse, 2)).responses
        assert altered.error_code == ErrorCode.POLICY_VIOLATION
        records = DeleteRecordsRequest((DeleteRecordsTopic("orders", (DeleteRecordsPartition(0, 1),)),), 1_000)
        answer = await client.ask(records, DeleteRecordsResponse, 2)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.POLICY_VIOLATION
        creating = CreateTopicsRequest((CreatableTopic("orders", 1, 1),))
        (created,) = (await client.ask(creating, CreateTopicsResponse, 7)).topics
        assert created.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert values_of(await client.fetch("orders", 0)) == [(0, b"a")]


async def test_its_settings_and_sizes_are_shown() -> None:
    """K37: its retention is that of the topic or namespace. Nothing can be changed here."""
    async with served() as (broker, client):
        await send(broker, 0, b"a")
        await broker.retention.store(topic_key(TOPIC), Retention(60, -1))
        await wait_all_tasks_blocked()
        asked = DescribeConfigsRequest((DescribeConfigsResource(2, "orders", None),))
        (result,) = (await client.ask(asked, DescribeConfigsResponse, 4)).results
        assert result.error_code == 0
        found = {config.name: config.value for config in result.configs}
        assert (found["retention.ms"], found["retention.bytes"]) == (str(3_600_000), "-1")
        assert all(config.read_only for config in result.configs)
        sizes = DescribeLogDirsRequest((DescribableLogDirTopic("orders", (0,)),))
        (folder,) = (await client.ask(sizes, DescribeLogDirsResponse, 4)).results
        assert folder.topics[0].partitions[0].partition_size > 0
