"""ListOffsets and OffsetForLeaderEpoch: offsets by time, of a log's ends, and of epochs (K39, K44).

A search by time looks at the timestamps of records, which need not rise. It reads the headers of batches in order, and
the records of the first batch that has one late enough.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Final

import trio

from broker.entry_codecs import Converter
from broker.kafka.entry_codec import INFLATED_BYTES_MAX
from broker.kafka.errors import EXPECTED, Refused, code_of
from broker.kafka.fetching import require_epoch
from broker.kafka.reading import READ_COMMITTED
from broker.kafka.requests import Api, Asked
from broker.kafka.topics import KafkaTopics
from broker.topic import Topic
from storage.entry import Entry
from storage.position import EARLIEST as FIRST_POSITION
from tidewire.wire.kafka.api_keys import ApiKey
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.messages.list_offsets import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tidewire.wire.kafka.messages.topics import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from tidewire.wire.kafka.record_batches import BatchHeader, CorruptBatch, UnsupportedFormat, read_header
from tidewire.wire.kafka.records import read

ENTRIES_AT_ONCE: Final = 500
BYTES_AT_ONCE: Final = 1024 * 1024


class ListingHandler:
    """Serves questions about offsets on one connection."""

    def __init__(self, topics: KafkaTopics, convert: Converter) -> None:
        self._topics = topics
        self._convert = convert

    @property
    def apis(self) -> Mapping[ApiKey, Api]:
        """See `Handler`."""
        return {
            ApiKey.LIST_OFFSETS: Api(ListOffsetsRequest, ListOffsetsResponse, 1, 9, self._list_offsets),
            ApiKey.OFFSET_FOR_LEADER_EPOCH: Api(
                OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse, 2, 4, self._epoch_ends
            ),
        }

    async def _epoch_ends(self, request: OffsetForLeaderEpochRequest, _asked: Asked) -> OffsetForLeaderEpochResponse:
        topics = []
        for topic in request.topics:
            parts = [await self._epoch_end(topic.topic, partition) for partition in topic.partitions]
            topics.append(OffsetForLeaderTopicResult(topic.topic, tuple(parts)))
        return OffsetForLeaderEpochResponse(topics=tuple(topics))

    async def _epoch_end(self, name: str, partition: OffsetForLeaderPartition) -> EpochEndOffset:
        try:
            topic = await self._topics.partition(name, partition.partition)
            require_epoch(topic, partition.current_leader_epoch)
        except EXPECTED as error:
            return EpochEndOffset(code_of(error), partition.partition)
        if not 0 <= partition.leader_epoch <= topic.ledger.leader_epoch:
            return EpochEndOffset(partition=partition.partition)
        epoch, end = topic.ledger.epoch_end(partition.leader_epoch)
        return EpochEndOffset(partition=partition.partition, leader_epoch=epoch, end_offset=end)

    async def _list_offsets(self, request: ListOffsetsRequest, _asked: Asked) -> ListOffsetsResponse:
        is_committed = request.isolation_level == READ_COMMITTED
        topics = []
        for topic in request.topics:
            parts = []
            for partition in topic.partitions:
                try:
                    parts.append(await self._list(topic.name, partition, is_committed=is_committed))
                except EXPECTED as error:
                    parts.append(ListOffsetsPartitionResponse(partition.partition_index, code_of(error)))
            topics.append(ListOffsetsTopicResponse(topic.name, tuple(parts)))
        return ListOffsetsResponse(topics=tuple(topics))

    async def _list(
        self, name: str, partition: ListOffsetsPartition, *, is_committed: bool
    ) -> ListOffsetsPartitionResponse:
        topic = await self._topics.partition(name, partition.partition_index)
        require_epoch(topic, partition.current_leader_epoch)
        # A client that has seen a commit return must find it below the end (docs/design.md#read-your-commit).
        await topic.markers.caught_up()
        end = topic.markers.last_stable_offset if is_committed else topic.ledger.confirmed_index
        timestamp, offset = -1, -1
        match partition.timestamp:
            case _ if partition.timestamp == LATEST:
                offset = end
            case _ if partition.timestamp == EARLIEST:
                offset = topic.ledger.first_index
            case _ if partition.timestamp == MAX_TIMESTAMP:
                timestamp, offset = await self._latest(topic, end)
            case _ if partition.timestamp >= 0:
                timestamp, offset = await self._first_at(topic, partition.timestamp, end)
            case _:
                raise Refused(ErrorCode.UNSUPPORTED_VERSION, f"The timestamp {partition.timestamp} is not served.")
        epoch = topic.ledger.leader_epoch
        return ListOffsetsPartitionResponse(
            partition.partition_index, timestamp=timestamp, offset=offset, leader_epoch=epoch
        )

    async def _first_at(self, topic: Topic, timestamp: int, end: int) -> tuple[int, int]:
        """The timestamp and offset of the first record below `end` that is not earlier; -1 if there is none."""
        async with aclosing(_batches(topic, end, self._convert)) as found:
            async for entry, header, batch in found:
                if header.max_timestamp_ms >= timestamp:
                    for at, offset in _timestamps(entry, header, batch):
                        if at >= timestamp and topic.ledger.first_index <= offset < end:
                            return at, offset
        return -1, -1

    async def _latest(self, topic: Topic, end: int) -> tuple[int, int]:
        """The timestamp and offset of the first of the latest records below `end`; -1 if there is none."""
        latest = (-1, -1)
        async with aclosing(_batches(topic, end, self._convert)) as found:
            async for entry, header, batch in found:
                if header.max_timestamp_ms > latest[0]:
                    for at, offset in _timestamps(entry, header, batch):
                        if at > latest[0] and offset < end:
                            latest = at, offset
        return latest


async def _batches(
    topic: Topic, end: int, convert: Converter
) -> AsyncGenerator[tuple[Entry, BatchHeader, bytes], None]:
    """Yield the entries below `end` that have records, each with the header and bytes of its batch."""
    at = topic.ledger.next_after(FIRST_POSITION)
    upto = topic.ledger.confirmed.value
    while entries := await topic.ledger.read(at, upto=upto, entries_max=ENTRIES_AT_ONCE, bytes_max=BYTES_AT_ONCE):
        for entry in entries:
            if entry.first_index >= end:
                return
            if not entry.is_control:
                batch = (await convert(entry)).payload
                try:
                    yield entry, read_header(batch), batch
                except (CorruptBatch, UnsupportedFormat):
                    continue  # It was checked when it came. No record of a damaged one can be found.
        at = topic.ledger.next_after(entries[-1].position)
        await trio.lowlevel.checkpoint()


def _timestamps(entry: Entry, header: BatchHeader, batch: bytes) -> list[tuple[int, int]]:
    try:
        return [
            (record.timestamp_ms, entry.first_index + delta)
            for delta, record in read(header, batch, INFLATED_BYTES_MAX)
        ]
    except CorruptBatch:
        return []
