"""DescribeTopicPartitions: partitions and their leaders, page by page (KIP-966).

A page has at most PAGE_MAX partitions, or fewer if the client wants that. If there are more, it names the partition
that begins the next one. Topics are sorted by name, so the next page begins there, whatever changes meanwhile. So a
response is small, however many partitions there are.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Final

from broker.kafka.errors import EXPECTED, code_of
from broker.kafka.kafka_topic import NO_TOPIC_ID, KafkaTopic
from broker.kafka.leaders import NO_LEADER, Leader, PartitionLeaders
from broker.kafka.requests import Api, Asked
from broker.kafka.topics import KafkaTopics
from storage.metadata.store import StoreUnavailable
from tidewire.wire.kafka.api_keys import ApiKey
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.messages.topics import (
    Cursor,
    DescribedPartition,
    DescribedTopic,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)

PAGE_MAX: Final = 2_000
"""The most partitions of one page, as in Kafka."""


class PageHandler:
    """Serves DescribeTopicPartitions on one connection."""

    def __init__(self, topics: KafkaTopics, leaders: PartitionLeaders) -> None:
        self._topics = topics
        self._leaders = leaders

    @property
    def apis(self) -> Mapping[ApiKey, Api]:
        """See `Handler`."""
        return {
            ApiKey.DESCRIBE_TOPIC_PARTITIONS: Api(
                DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse, 0, 0, self._page
            )
        }

    async def _page(self, request: DescribeTopicPartitionsRequest, _asked: Asked) -> DescribeTopicPartitionsResponse:
        names = sorted({topic.name for topic in request.topics})
        start = request.cursor or Cursor("", 0)
        if start.partition_index < 0:
            refused = tuple(DescribedTopic(ErrorCode.INVALID_REQUEST, name) for name in names)
            return DescribeTopicPartitionsResponse(topics=refused)
        left = min(request.response_partition_limit, PAGE_MAX) if request.response_partition_limit > 0 else PAGE_MAX
        found: list[DescribedTopic] = []
        following: Cursor | None = None
        async with aclosing(self._from(start.topic_name, names)) as topics:
            async for topic in topics:
                if isinstance(topic, DescribedTopic):
                    found.append(topic)
                    continue
                if left == 0:
                    following = Cursor(topic.name, 0)
                    break
                first = start.partition_index if topic.name == start.topic_name else 0
                stop = min(topic.partition_count, first + left)
                found.append(await self._described(topic, first, stop))
                left -= max(0, stop - first)
                if stop < topic.partition_count:
                    following = Cursor(topic.name, stop)
                    break
        return DescribeTopicPartitionsResponse(topics=tuple(found), next_cursor=following)

    async def _from(self, start: str, names: list[str]) -> AsyncGenerator[KafkaTopic | DescribedTopic, None]:
        """The named topics from this name on, or all of them, by name. What cannot be found is described as such."""
        if not names:
            async with aclosing(self._topics.all(start=start)) as every:
                async for topic in every:
                    yield topic
            return
        for name in names:
            if name >= start:
                try:
                    yield await self._topics.find(name)
                except EXPECTED as error:
                    yield DescribedTopic(_code_of(error), name, NO_TOPIC_ID)

    async def _described(self, topic: KafkaTopic, first: int, stop: int) -> DescribedTopic:
        indexes = range(first, stop)
        try:
            leaders = await self._leaders.of([topic.partition(index) for index in indexes])
        except StoreUnavailable:
            return DescribedTopic(ErrorCode.LEADER_NOT_AVAILABLE, topic.name, topic.topic_id)
        partitions = tuple(_partition(index, leader) for index, leader in zip(indexes, leaders, strict=True))
        return DescribedTopic(ErrorCode.NONE, topic.name, topic.topic_id, partitions=partitions)


def _partition(index: int, leader: Leader) -> DescribedPartition:
    if leader.node == NO_LEADER:
        return DescribedPartition(ErrorCode.LEADER_NOT_AVAILABLE, index, NO_LEADER)
    nodes = (leader.node,)
    return DescribedPartition(ErrorCode.NONE, index, leader.node, leader.epoch, nodes, nodes)


def _code_of(error: Exception) -> ErrorCode:
    return ErrorCode.LEADER_NOT_AVAILABLE if isinstance(error, StoreUnavailable) else code_of(error)
