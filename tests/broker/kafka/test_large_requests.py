"""No request of one client stops the others, however many parts it has, and however often it names one of them."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock, lockstep_stream_pair, memory_stream_pair

from broker.budgets import ReceiveBudget
from broker.kafka.listener import KafkaServices, open_session
from broker.kafka.requests import Api, Asked
from broker.kafka.session import PRODUCE_BYTES_MAX, REQUEST_EXTRA_BYTES, KafkaSession
from broker.names import TopicName
from broker.outbox import Outbox
from storage.metadata.memory import MemoryStore
from tests.support.disk import SimulatedFiles
from tests.support.kafka_connection import KafkaClient, kafka_client, key_of
from tests.support.rooms import MESSAGE_BYTES_MAX, Rooms, rooms
from tidewire.wire.kafka.api_keys import ApiKey
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.messages.administration import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from tidewire.wire.kafka.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidewire.wire.kafka.messages.groups import DescribeGroupsRequest, DescribeGroupsResponse
from tidewire.wire.kafka.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidewire.wire.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse, MetadataTopic
from tidewire.wire.kafka.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from tidewire.wire.kafka.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
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
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tidewire.wire.kafka.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    DescribeProducersRequest,
    DescribeProducersResponse,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tidewire.wire.kafka.records import Record, build

PARTS = 4_000
NAMES = [f"/{number % 10}" for number in range(PARTS)]
"""They are refused at once, so that nothing but its fairness makes a handler wait."""


@asynccontextmanager
async def served() -> AsyncIterator[tuple[Rooms, KafkaClient]]:
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker, kafka_client(broker) as client:
        yield broker, client


LARGE = {
    "create": (CreateTopicsRequest(tuple(CreatableTopic(n, 1, 1) for n in NAMES)), CreateTopicsResponse, 7),
    "extend": (
        CreatePartitionsRequest(tuple(CreatePartitionsTopic(n, 2, None) for n in NAMES)),
        CreatePartitionsResponse,
        3,
    ),
    "metadata": (
        MetadataRequest(tuple(MetadataRequestTopic(name=f"/{number}") for number in range(PARTS)), False),
        MetadataResponse,
        12,
    ),
    "fetch": (
        FetchRequest(topics=(FetchTopic("t", tuple(FetchPartition(-n - 1) for n in range(PARTS))),)),
        FetchResponse,
        12,
    ),
    "list": (
        ListOffsetsRequest(topics=tuple(ListOffsetsTopic(n, (ListOffsetsPartition(0),)) for n in NAMES)),
        ListOffsetsResponse,
        7,
    ),
    "list partitions": (
        ListOffsetsRequest(topics=(ListOffsetsTopic("/", tuple(ListOffsetsPartition(n) for n in range(PARTS))),)),
        ListOffsetsResponse,
        7,
    ),
    "epochs": (
        OffsetForLeaderEpochRequest(
            topics=tuple(OffsetForLeaderTopic(n, (OffsetForLeaderPartition(0, -1, 0),)) for n in NAMES)
        ),
        OffsetForLeaderEpochResponse,
        4,
    ),
    "join a transaction": (
        AddPartitionsToTxnRequest("tid", 1, 0, tuple(AddPartitionsToTxnTopic(n, (0,)) for n in NAMES)),
        AddPartitionsToTxnResponse,
        3,
    ),
    "commit": (
        OffsetCommitRequest(
            "g", topics=tuple(OffsetCommitRequestTopic(n, (OffsetCommitRequestPartition(0, 1),)) for n in NAMES)
        ),
        OffsetCommitResponse,
        8,
    ),
    "delete records": (
        DeleteRecordsRequest(tuple(DeleteRecordsTopic(n, (DeleteRecordsPartition(0, 0),)) for n in NAMES)),
        DeleteRecordsResponse,
        2,
    ),
    "describe producers": (
        DescribeProducersRequest((AddPartitionsToTxnTopic("/", tuple(range(PARTS))),)),
        DescribeProducersResponse,
        0,
    ),
    "sizes": (
        DescribeLogDirsRequest(tuple(DescribableLogDirTopic(n, (0,)) for n in NAMES)),
        DescribeLogDirsResponse,
        4,
    ),
    "write markers": (
        WriteTxnMarkersRequest(
            (WritableTxnMarker(1, 0, True, (WritableTxnMarkerTopic("/", tuple(range(PARTS))),), 0),)
        ),
        WriteTxnMarkersResponse,
        1,
    ),
}


@pytest.mark.parametrize("what", LARGE)
async def test_others_have_turns_during_a_large_request(what: str) -> None:
    """E11: a long step of the event loop would end the broker's session."""
    request, response, version = LARGE[what]
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with served() as (_broker, client), trio.open_nursery() as nursery:
        await client.send(request, version)
        nursery.start_soon(take_turns)
        await client.receive(response, key_of(request), version)
        nursery.cancel_scope.cancel()
    assert turns > PARTS / 100


async def test_others_have_turns_while_a_large_message_is_read_and_written() -> None:
    """E7: apart from what its handler does, reading a large request and writing its response are many steps."""
    turns = 0

    class Handles:
        @property
        def apis(self) -> Mapping[ApiKey, Api]:
            return {ApiKey.METADATA: Api(MetadataRequest, MetadataResponse, 12, 12, self.handle)}

        async def handle(self, request: MetadataRequest, _asked: Asked) -> MetadataResponse:
            assert request.topics is not None
            return MetadataResponse(topics=(MetadataTopic(name="t"),) * len(request.topics))

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    ours, theirs = memory_stream_pair()
    session = KafkaSession(theirs, Outbox(), ReceiveBudget(1 << 20).share(), "test", 1 << 20)
    session.use(Handles())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.run)
        client = KafkaClient(ours)
        await client.send(MetadataRequest(tuple(MetadataRequestTopic(name="t") for _ in range(9_000))), 12)
        nursery.start_soon(take_turns)
        await client.receive(MetadataResponse, ApiKey.METADATA, 12)
        nursery.cancel_scope.cancel()
    assert turns > 2 * 9_000 / 512


async def test_one_partition_of_many_is_found_without_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """E11: otherwise a request for all partitions of a large topic takes a time that grows with their square."""
    made = 0
    partition = TopicName.partition

    def counted(self: TopicName, index: int) -> TopicName:
        nonlocal made
        made += 1
        return partition(self, index)

    async with served() as (_broker, client):
        await client.create("t", 1_000)
        monkeypatch.setattr(TopicName, "partition", counted)
        request = AddPartitionsToTxnRequest("tid", 1, 0, (AddPartitionsToTxnTopic("t", tuple(range(20))),))
        await client.ask(request, AddPartitionsToTxnResponse, 3)
    assert made == 20


async def test_what_a_request_names_twice_is_answered_once() -> None:
    """E9: a response is not a thousand times as large as the request that asked for it."""
    async with served() as (_broker, client):
        await client.create("t", 100)
        await client.produce("t", build([Record(None, b"x" * 50_000, 1)]))
        fetch = FetchRequest(topics=(FetchTopic("t", (FetchPartition(0, partition_max_bytes=1 << 20),) * 1_000),) * 2)
        (topic,) = (await client.ask(fetch, FetchResponse, 12)).responses
        assert [part.partition_index for part in topic.partitions] == [0]
        metadata = MetadataRequest((MetadataRequestTopic(name="t"),) * 1_000)
        (described,) = (await client.ask(metadata, MetadataResponse, 12)).topics
        assert len(described.partitions) == 100
        offsets = OffsetFetchRequest(groups=(OffsetFetchRequestGroup("g", topics=None),) * 1_000)
        assert len((await client.ask(offsets, OffsetFetchResponse, 8)).groups) == 1
        groups = await client.ask(DescribeGroupsRequest(("g",) * 1_000), DescribeGroupsResponse, 5)
        assert len(groups.groups) == 1


async def test_a_large_produce_request_is_answered_batch_by_batch() -> None:
    """K20, E9: a batch that is too large is refused by name, and the others are stored. So is its connection kept."""
    part = MESSAGE_BYTES_MAX * 3 // 4
    batches = [build([Record(None, b"x" * size, 1)]) for size in (part, 3 * MESSAGE_BYTES_MAX, part)]
    data = tuple(PartitionProduceData(index, made) for index, made in enumerate(batches))
    async with served() as (_broker, client):
        await client.create("t", 3)
        request = ProduceRequest(None, -1, 60_000, (TopicProduceData("t", data),))
        (topic,) = (await client.ask(request, ProduceResponse, 9)).responses
        assert [one.error_code for one in topic.partition_responses] == [0, ErrorCode.MESSAGE_TOO_LARGE, 0]
        assert "Lower batch.size" in (topic.partition_responses[1].error_message or "")
        assert (await client.produce("t", build([Record(None, b"next", 1)]))).base_offset == 1


async def test_a_request_above_its_bound_ends_the_connection() -> None:
    """E9: of another kind, the largest message is the bound."""
    for key, size in ((ApiKey.PRODUCE, PRODUCE_BYTES_MAX), (ApiKey.FETCH, MESSAGE_BYTES_MAX + REQUEST_EXTRA_BYTES)):
        async with served() as (_broker, client):
            with capture_logs() as logs:
                await client.stream.send_all((size + 1).to_bytes(4) + key.to_bytes(2))
                with pytest.raises(EOFError):
                    await client.receive(FetchResponse, ApiKey.FETCH, 12)
            assert f"a request has {size + 1} bytes; at most {size} are allowed" in str(logs)


async def test_a_client_that_reads_nothing_fills_no_memory_with_refused_versions(autojump_clock: MockClock) -> None:
    """E9: as for every other request, the next one waits until the responses before it were read."""
    head = ApiKey.API_VERSIONS.to_bytes(2) + (99).to_bytes(2) + (1).to_bytes(4) + b"\xff\xff\0"
    request = len(head).to_bytes(4) + head
    ours, theirs = lockstep_stream_pair()
    async with served() as (broker, _client), trio.open_nursery() as nursery:
        assert broker.foundation.kafka is not None
        nursery.start_soon(open_session(theirs, "test", KafkaServices.of(broker), broker.foundation.kafka).run)
        broker.foundation.budgets.sending.held_bytes = 1 << 30  # So the place of each connection is small.
        sent = 0
        with trio.move_on_after(10):
            while sent < 10_000:
                await ours.send_all(request * 1_000)
                sent += 1_000
        assert sent < 10_000, "it was read until the responses fill their place"
        nursery.cancel_scope.cancel()
