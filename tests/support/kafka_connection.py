"""A client of Kafka's protocol over a stream, that asks one request after another, or several at once.

async with kafka_client(broker) as client:
    response = await client.ask(MetadataRequest(...), MetadataResponse, version=12)

It shares the declarations of messages with the broker. Those are compared with `kio` elsewhere.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

import trio
from trio.testing import memory_stream_pair

from broker.kafka.listener import KafkaServices, open_session
from tests.support.rooms import Rooms
from tidewire.wire.kafka.api_keys import ApiKey, is_flexible
from tidewire.wire.kafka.codec import Input, Pieces, decoder, encoder
from tidewire.wire.kafka.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from tidewire.wire.kafka.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidewire.wire.kafka.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from tidewire.wire.kafka.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidewire.wire.kafka.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tidewire.wire.kafka.record_batches import batches
from tidewire.wire.kafka.records import Record, read, read_marker

Response = TypeVar("Response")

READ_COMMITTED: Final = 1

_SERVICES: Final[WeakKeyDictionary[Rooms, KafkaServices]] = WeakKeyDictionary()


def key_of(request: object) -> ApiKey:
    """Return the kind of a request, from the name of its class."""
    words = type(request).__name__.removesuffix("Request")
    snake = "".join(f"_{letter}" if letter.isupper() else letter.upper() for letter in words)
    return ApiKey[snake.removeprefix("_")]


class KafkaClient:
    """One connection."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._numbers = 0
        self._read = bytearray()

    async def send(self, request: object, version: int) -> int:
        """Send a request. Returns its correlation id."""
        return await self.send_together([request], version)

    async def send_together(self, requests: Iterable[object], version: int) -> int:
        """Send requests in one piece. Returns the correlation id of the last one."""
        await self.stream.send_all(b"".join([self._encoded(request, version) for request in requests]))
        return self._numbers

    def _encoded(self, request: object, version: int) -> bytes:
        self._numbers += 1
        key = key_of(request)
        flexible = is_flexible(key, version)
        body: Pieces = []
        encoder(type(request), version, is_flexible=flexible)(body, request)
        head = key.to_bytes(2) + version.to_bytes(2) + self._numbers.to_bytes(4) + len(b"test").to_bytes(2) + b"test"
        data = head + (b"\0" if flexible else b"") + b"".join(body)
        return len(data).to_bytes(4) + data

    async def receive(self, response: type[Response], key: ApiKey, version: int) -> tuple[int, Response]:
        """Receive the next response, with its correlation id."""
        size = int.from_bytes(await self._take(4))
        data = await self._take(size)
        flexible = is_flexible(key, version)
        start = 5 if flexible and key is not ApiKey.API_VERSIONS else 4
        return int.from_bytes(data[:4]), decoder(response, version, is_flexible=flexible)(Input(data, start))

    async def ask(self, request: object, response: type[Response], version: int) -> Response:
        """Send a request and return its response."""
        number = await self.send(request, version)
        answered, made = await self.receive(response, key_of(request), version)
        assert answered == number
        return made

    async def _take(self, size: int) -> bytes:
        while len(self._read) < size:
            data = await self.stream.receive_some()
            if not data:
                raise EOFError("the broker closed the connection")
            self._read += data
        taken = bytes(self._read[:size])
        del self._read[:size]
        return taken

    # What many tests do

    async def create(self, topic: str, partitions: int = 1) -> None:
        """Create a topic."""
        request = CreateTopicsRequest((CreatableTopic(topic, partitions, 1),))
        (result,) = (await self.ask(request, CreateTopicsResponse, 7)).topics
        assert result.error_code == 0, result.error_message

    async def produce(self, topic: str, *some: bytes, partition: int = 0, acks: int = -1) -> PartitionProduceResponse:
        """Send record batches to one partition."""
        answer = await self.ask(produce_request(topic, *some, partition=partition, acks=acks), ProduceResponse, 9)
        ((one,),) = [topic.partition_responses for topic in answer.responses]
        return one

    async def fetch(self, topic: str, offset: int, *, partition: int = 0, **options: Any) -> PartitionData:
        """Fetch one partition."""
        answer = await self.ask(fetch_request(topic, offset, partition=partition, **options), FetchResponse, 12)
        assert answer.error_code == 0
        ((one,),) = [topic.partitions for topic in answer.responses]
        return one

    async def offset(
        self, topic: str, timestamp: int, *, partition: int = 0, isolation: int = 0
    ) -> ListOffsetsPartitionResponse:
        """Ask for the offset of a moment."""
        wanted = ListOffsetsPartition(partition, timestamp=timestamp)
        request = ListOffsetsRequest(isolation_level=isolation, topics=(ListOffsetsTopic(topic, (wanted,)),))
        answer = await self.ask(request, ListOffsetsResponse, 7)
        ((one,),) = [topic.partitions for topic in answer.topics]
        return one


def produce_request(
    topic: str, *some: bytes, partition: int = 0, acks: int = -1, transactional_id: str | None = None
) -> ProduceRequest:
    """Make a request for one partition."""
    data = (TopicProduceData(topic, (PartitionProduceData(partition, b"".join(some)),)),)
    return ProduceRequest(transactional_id, acks=acks, timeout_ms=10_000, topic_data=data)


def fetch_request(
    topic: str,
    offset: int,
    *,
    partition: int = 0,
    isolation: int = 0,
    wait_ms: int = 0,
    size_min: int = 1,
    size_max: int = 1 << 20,
    epoch: int = -1,
) -> FetchRequest:
    """Make a request for one partition."""
    wanted = FetchPartition(partition, epoch, offset, partition_max_bytes=size_max)
    return FetchRequest(
        max_wait_ms=wait_ms, min_bytes=size_min, isolation_level=isolation, topics=(FetchTopic(topic, (wanted,)),)
    )


def records_of(data: PartitionData) -> list[tuple[int, Record]]:
    """Return the records of a fetched partition with their offsets, without those of markers."""
    whole: object = data.records or b""
    assert isinstance(whole, bytes), "a client reads them as bytes"
    found = []
    for header, batch in batches(whole):
        if header.record_count and not header.is_control:
            found += [(header.base_offset + delta, record) for delta, record in read(header, batch, 1 << 24)]
    return found


def committed_entries(data: PartitionData, offset: int) -> tuple[list[tuple[int, bytes | None]], int]:
    """Return what a consumer of committed records shows from this offset on: the filter of Kafka's clients (K13).

    These are offsets and values, and then the offset behind all that was fetched, shown or not.
    """
    whole: object = data.records or b""
    assert isinstance(whole, bytes), "a client reads them as bytes"
    waiting = sorted((one.first_offset, one.producer_id) for one in data.aborted_transactions or ())
    aborted: set[int] = set()
    shown: list[tuple[int, bytes | None]] = []
    behind = offset
    for header, batch in batches(whole):
        behind = header.base_offset + header.last_offset_delta + 1
        while waiting and waiting[0][0] < behind:
            aborted.add(waiting.pop(0)[1])
        if header.is_control:
            if not read_marker(header, batch).is_commit:
                aborted.discard(header.producer_id)
        elif header.record_count and not (header.is_transactional and header.producer_id in aborted):
            found = ((header.base_offset + delta, record.value) for delta, record in read(header, batch, 1 << 24))
            shown += [entry for entry in found if entry[0] >= offset]
    return shown, behind


def committed_in(data: PartitionData) -> list[bytes | None]:
    """Return the values alone, of all that was fetched."""
    return [value for _offset, value in committed_entries(data, 0)[0]]


def values_of(data: PartitionData) -> list[tuple[int, bytes | None]]:
    """Return the values of a fetched partition with their offsets."""
    return [(offset, record.value) for offset, record in records_of(data)]


async def commit(client: KafkaClient, group: str, partition: int, offset: int, *, topic: str = "orders") -> None:
    """Commit a group's offset, without being a member."""
    part = OffsetCommitRequestPartition(partition, offset)
    request = OffsetCommitRequest(group, -1, "", topics=(OffsetCommitRequestTopic(topic, (part,)),))
    answer = await client.ask(request, OffsetCommitResponse, 8)
    assert answer.topics[0].partitions[0].error_code == 0


async def committed(client: KafkaClient, group: str, *partitions: int, topic: str = "orders") -> list[int]:
    """Ask where a group goes on, for some partitions; -1 if it has no offset."""
    wanted = (OffsetFetchRequestTopic(topic, partitions),)
    request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group, topics=wanted),))
    (answer,) = (await client.ask(request, OffsetFetchResponse, 8)).groups
    assert answer.error_code == 0
    parts = answer.topics[0].partitions
    assert [part.error_code for part in parts] == [0] * len(parts)
    return [part.committed_offset for part in parts]


@asynccontextmanager
async def kafka_client(broker: Rooms) -> AsyncIterator[KafkaClient]:
    """Connect to a broker, for the length of the block."""
    ours, theirs = memory_stream_pair()
    assert broker.foundation.kafka is not None
    async with trio.open_nursery() as nursery:
        services = _SERVICES.get(broker)
        if services is None:
            # Those of the first client, which leaves last, serve all clients of the broker.
            services = _SERVICES[broker] = KafkaServices.of(broker)
            await nursery.start(services.groups.run)
        nursery.start_soon(open_session(theirs, "test", services, broker.foundation.kafka).run)
        async with ours:
            yield KafkaClient(ours)
        nursery.cancel_scope.cancel()
