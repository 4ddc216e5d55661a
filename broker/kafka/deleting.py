"""DeleteRecords: partitions begin at a later offset (K38)."""

from collections.abc import Mapping
from typing import Final

from broker.kafka.errors import EXPECTED, Refused, code_of
from broker.kafka.kafka_topic import LIMIT_OTHERWISE
from broker.kafka.requests import Api, Asked
from broker.kafka.topics import KafkaTopics
from tidewire.wire.kafka.api_keys import ApiKey
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

HIGH_WATERMARK: Final = -1
"""The offset that stands for everything."""

NO_OFFSET: Final = -1


class DeletionHandler:
    """Serves DeleteRecords on one connection."""

    def __init__(self, topics: KafkaTopics) -> None:
        self._topics = topics

    @property
    def apis(self) -> Mapping[ApiKey, Api]:
        """See `Handler`."""
        return {ApiKey.DELETE_RECORDS: Api(DeleteRecordsRequest, DeleteRecordsResponse, 0, 2, self._delete)}

    async def _delete(self, request: DeleteRecordsRequest, _asked: Asked) -> DeleteRecordsResponse:
        topics = []
        for topic in request.topics:
            parts = [await self._delete_below(topic.name, partition) for partition in topic.partitions]
            topics.append(DeleteRecordsTopicResult(topic.name, tuple(parts)))
        return DeleteRecordsResponse(topics=tuple(topics))

    async def _delete_below(self, name: str, partition: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
        index = partition.partition_index
        try:
            topic = await self._topics.writable(name, index, LIMIT_OTHERWISE)
            end = topic.ledger.confirmed_index
            offset = end if partition.offset == HIGH_WATERMARK else partition.offset
            if not 0 <= offset <= end:
                raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE, f"{name}-{index} has offsets up to {end}, not {offset}.")
            await topic.delete_below(offset)
        except EXPECTED as error:
            return DeleteRecordsPartitionResult(index, NO_OFFSET, code_of(error))
        return DeleteRecordsPartitionResult(index, topic.ledger.first_index)
