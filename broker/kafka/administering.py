"""CreateTopics, DeleteTopics and CreatePartitions.

A setting that this broker cannot keep is refused by name. A new topic can be used at once: its first request loads it.
A deletion answers when nothing is left of the topic, or when its client's time is over; it then goes on.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

import trio

from broker.errors import TooFewPartitions, TopicNotFound
from broker.kafka.errors import EXPECTED, Refused, code_of
from broker.kafka.requests import Api, Asked, take_turns
from broker.kafka.topic_settings import TopicSettings
from broker.kafka.topics import KafkaTopics
from broker.partitioned_topics import PARTITIONS_MAX, PartitionedTopics
from tidewire.wire.kafka.api_keys import ApiKey
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.messages.topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreatedTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

REPLICATION: Final = 1
"""A partition has one log. Its durability is that of the ledger store."""


class AdministrationHandler:
    """Serves changes of topics on one connection."""

    def __init__(self, topics: KafkaTopics, settings: TopicSettings, partitioned: PartitionedTopics) -> None:
        self._topics = topics
        self._settings = settings
        self._partitioned = partitioned

    @property
    def apis(self) -> Mapping[ApiKey, Api]:
        """See `Handler`."""
        return {
            ApiKey.CREATE_TOPICS: Api(CreateTopicsRequest, CreateTopicsResponse, 2, 7, self._create),
            ApiKey.DELETE_TOPICS: Api(DeleteTopicsRequest, DeleteTopicsResponse, 1, 6, self._delete),
            ApiKey.CREATE_PARTITIONS: Api(CreatePartitionsRequest, CreatePartitionsResponse, 0, 3, self._extend),
        }

    async def _create(self, request: CreateTopicsRequest, _asked: Asked) -> CreateTopicsResponse:
        times = Counter(topic.name for topic in request.topics)
        results = []
        for number, topic in enumerate(request.topics):
            await take_turns(number)
            try:
                if times[topic.name] > 1:
                    raise Refused(ErrorCode.INVALID_REQUEST, f"The request creates {topic.name} twice.")
                results.append(await self._create_one(topic, is_trial=request.validate_only))
            except EXPECTED as error:
                results.append(
                    CreatableTopicResult(topic.name, error_code=code_of(error), error_message=str(error), configs=None)
                )
        return CreateTopicsResponse(topics=tuple(results))

    async def _create_one(self, topic: CreatableTopic, *, is_trial: bool) -> CreatableTopicResult:
        configs = {}
        for config in topic.configs:
            configs[config.name] = self._settings.checked(config.name, config.value)
        if topic.assignments:
            raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "The broker places partitions itself. Assign none.")
        if topic.replication_factor not in {-1, REPLICATION}:
            raise Refused(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"A partition has one log, which the ledger store keeps. Use the replication factor 1 or -1, not "
                f"{topic.replication_factor}.",
            )
        if topic.num_partitions != -1:
            _require_count(topic.num_partitions)
        partitions = 0 if topic.num_partitions == -1 else topic.num_partitions
        shown = tuple(
            CreatedTopicConfig(one.name, one.value, not one.setting.is_free, one.source)
            for one in self._settings.shown(configs)
        )
        if is_trial:
            await self._topics.require_free(topic.name)
            return CreatableTopicResult(
                topic.name, num_partitions=partitions, replication_factor=REPLICATION, configs=shown
            )
        made = await self._topics.create(topic.name, partitions, configs)
        return CreatableTopicResult(
            topic.name,
            made.topic_id,
            num_partitions=made.partition_count,
            replication_factor=REPLICATION,
            configs=shown,
        )

    async def _delete(self, request: DeleteTopicsRequest, _asked: Asked) -> DeleteTopicsResponse:
        states = request.topics or tuple(DeleteTopicState(name) for name in request.topic_names)
        results: list[DeletableTopicResult] = []
        with trio.move_on_after(max(0, request.timeout_ms) / 1000):
            while len(results) < len(states):
                results.append(await self._delete_one(states[len(results)]))
        late = states[len(results) :]
        results += [DeletableTopicResult(state.name, error_code=ErrorCode.REQUEST_TIMED_OUT) for state in late]
        return DeleteTopicsResponse(responses=tuple(results))

    async def _delete_one(self, state: DeleteTopicState) -> DeletableTopicResult:
        if state.name is None:
            return DeletableTopicResult(None, state.topic_id, ErrorCode.UNKNOWN_TOPIC_ID, "Topics go by name here.")
        try:
            topic = await self._topics.find(state.name)
            topic.require_regular(f"Delete it with `tidewire topics delete {topic.regular.as_scalable}`.")
            if topic.record is None:
                raise Refused(
                    ErrorCode.POLICY_VIOLATION,
                    f"{state.name} is a topic of Pulsar's clients, without partitions. Delete it as they do.",
                )
            deleted = await self._partitioned.delete(topic.record.name)
            await self._partitioned.wait_gone(deleted)
        except EXPECTED as error:
            return DeletableTopicResult(state.name, error_code=code_of(error), error_message=str(error))
        return DeletableTopicResult(state.name, topic.topic_id)

    async def _extend(self, request: CreatePartitionsRequest, _asked: Asked) -> CreatePartitionsResponse:
        results = []
        for topic in request.topics:
            try:
                await self._extend_one(topic, is_trial=request.validate_only)
                results.append(CreatePartitionsTopicResult(topic.name))
            except EXPECTED as error:
                results.append(CreatePartitionsTopicResult(topic.name, code_of(error), str(error)))
        return CreatePartitionsResponse(results=tuple(results))

    async def _extend_one(self, topic: CreatePartitionsTopic, *, is_trial: bool) -> None:
        found = await self._topics.find(topic.name)
        found.require_regular("It gets a partition for each segment. Split one with `tidewire topics split`.")
        if found.record is None:
            raise TopicNotFound(f"{topic.name} has no partitions that could become more.")
        if topic.assignments:
            raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "The broker places partitions itself. Assign none.")
        _require_count(topic.count)
        if topic.count <= found.partition_count:
            raise TooFewPartitions(f"{topic.name} has {found.partition_count} partitions. Ask for more than that.")
        if not is_trial:
            await self._partitioned.extend(found.record.name, topic.count)


def _require_count(partitions: int) -> None:
    if not 0 < partitions <= PARTITIONS_MAX:
        raise Refused(ErrorCode.INVALID_PARTITIONS, f"A topic has 1 to {PARTITIONS_MAX} partitions, not {partitions}.")
