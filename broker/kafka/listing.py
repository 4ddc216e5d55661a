"""ListOffsets and OffsetForLeaderEpoch: offsets by time, of a log's ends, and of epochs (K39, K44).

`record_times.py` searches by the times of records.
"""

from collections.abc import Mapping

from broker.kafka.errors import EXPECTED, Refused, SegmentPruned, code_of
from broker.kafka.fetching import require_epoch
from broker.kafka.reading import READ_COMMITTED
from broker.kafka.record_times import RecordTimes
from broker.kafka.requests import Api, Asked
from broker.kafka.topics import KafkaTopics
from tidewire.wire.kafka.api_keys import ApiKey
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.messages.list_offsets import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
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


class ListingHandler:
    """Serves questions about offsets on one connection."""

    def __init__(self, topics: KafkaTopics, times: RecordTimes) -> None:
        self._topics = topics
        self._times = times

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
        except SegmentPruned as pruned:
            if pruned.known_end is None or partition.leader_epoch < 0:
                # To a client that remembers an epoch, the log was truncated.
                return EpochEndOffset(partition=partition.partition)
            # The log was never truncated, so each of its epochs ended there or before.
            return EpochEndOffset(
                partition=partition.partition, leader_epoch=partition.leader_epoch, end_offset=pruned.known_end
            )
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
                except SegmentPruned as pruned:
                    offset = pruned.end if partition.timestamp in {LATEST, EARLIEST, EARLIEST_LOCAL} else -1
                    parts.append(ListOffsetsPartitionResponse(partition.partition_index, offset=offset))
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
        await topic.caught_up()
        end = topic.readable_end if is_committed or not topic.has_markers else topic.ledger.confirmed_index
        timestamp, offset = -1, -1
        match partition.timestamp:
            case _ if partition.timestamp == LATEST:
                offset = end
            case _ if partition.timestamp in {EARLIEST, EARLIEST_LOCAL}:
                offset = topic.ledger.first_index
            case _ if partition.timestamp == MAX_TIMESTAMP:
                timestamp, offset = await self._times.latest(topic, end)
            case _ if partition.timestamp == LATEST_TIERED:
                pass  # No record is on other storage.
            case _ if partition.timestamp >= 0:
                timestamp, offset = await self._times.first_at(topic, partition.timestamp, end)
            case _:
                raise Refused(ErrorCode.UNSUPPORTED_VERSION, f"The timestamp {partition.timestamp} is not served.")
        epoch = topic.ledger.leader_epoch
        return ListOffsetsPartitionResponse(
            partition.partition_index, timestamp=timestamp, offset=offset, leader_epoch=epoch
        )
