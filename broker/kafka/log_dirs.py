"""DescribeLogDirs: the sizes of the partitions that this broker serves. Its ledgers are in one place."""

from collections.abc import Mapping
from contextlib import aclosing

from broker.kafka.errors import EXPECTED
from broker.kafka.requests import Api, Asked
from broker.kafka.topics import KafkaTopics
from broker.topics import Topics
from tidewire.wire.kafka.api_keys import ApiKey
from tidewire.wire.kafka.messages.administration import (
    DescribableLogDirTopic,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


class LogDirHandler:
    """Serves DescribeLogDirs on one connection."""

    def __init__(self, topics: KafkaTopics, loaded: Topics, folder: str) -> None:
        self._topics = topics
        self._loaded = loaded
        self._folder = folder

    @property
    def apis(self) -> Mapping[ApiKey, Api]:
        """See `Handler`."""
        return {ApiKey.DESCRIBE_LOG_DIRS: Api(DescribeLogDirsRequest, DescribeLogDirsResponse, 1, 4, self._describe)}

    async def _describe(self, request: DescribeLogDirsRequest, _asked: Asked) -> DescribeLogDirsResponse:
        wanted = request.topics
        if wanted is None:
            async with aclosing(self._topics.all()) as every:
                wanted = tuple(
                    [DescribableLogDirTopic(one.name, tuple(range(one.partition_count))) async for one in every]
                )
        topics = [await self._sizes(topic) for topic in wanted]
        found = tuple(topic for topic in topics if topic.partitions)
        return DescribeLogDirsResponse(results=(DescribeLogDirsResult(log_dir=self._folder, topics=found),))

    async def _sizes(self, topic: DescribableLogDirTopic) -> DescribeLogDirsTopic:
        """The sizes of those partitions that are loaded here."""
        try:
            found = await self._topics.find(topic.topic)
        except EXPECTED:
            # As in Kafka: what is not here is left out.
            return DescribeLogDirsTopic(topic.topic)
        parts = []
        for index in topic.partitions:
            name = found.partition(index) if 0 <= index < found.partition_count else None
            running = None if name is None else self._loaded.running(name)
            if running is not None:
                parts.append(DescribeLogDirsPartition(index, running.ledger.statistics().size_bytes))
        return DescribeLogDirsTopic(topic.topic, tuple(parts))
