"""Metadata and DescribeCluster: the brokers, the topics, and which broker leads each partition.

A topic can be used as soon as it was created: its partitions have leaders then (`leaders.py`).
"""

from collections.abc import Mapping
from contextlib import aclosing
from typing import Final

from broker.addresses import KafkaNode
from broker.cluster.members import Members
from broker.errors import TopicNotFound
from broker.kafka.errors import EXPECTED, code_of
from broker.kafka.kafka_topic import NO_TOPIC_ID, KafkaTopic
from broker.kafka.leaders import NO_LEADER, Leader, PartitionLeaders
from broker.kafka.requests import Api, Asked, take_turns
from broker.kafka.topics import KafkaTopics
from broker.names import TopicName
from storage.metadata.store import StoreUnavailable
from tidewire.wire.kafka.api_keys import ApiKey
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.messages.administration import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from tidewire.wire.kafka.messages.metadata import (
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
)

BROKERS: Final = 1
_SINCE_NO_NAMES: Final = 12
"""The type of endpoints that DescribeCluster lists."""


class MetadataHandler:
    """Serves what clients ask to find their way."""

    def __init__(
        self,
        topics: KafkaTopics,
        leaders: PartitionLeaders,
        members: Members,
        me: KafkaNode,
        *,
        cluster: str,
    ) -> None:
        """Set up; `me` is this broker as this client reaches it."""
        self._topics = topics
        self._leaders = leaders
        self._members = members
        self._me = me
        self._cluster = cluster

    @property
    def apis(self) -> Mapping[ApiKey, Api]:
        """See `Handler`."""
        return {
            ApiKey.METADATA: Api(MetadataRequest, MetadataResponse, 0, 12, self._metadata),
            ApiKey.DESCRIBE_CLUSTER: Api(
                DescribeClusterRequest, DescribeClusterResponse, 0, 2, self._cluster_described
            ),
        }

    async def _cluster_described(self, request: DescribeClusterRequest, _asked: Asked) -> DescribeClusterResponse:
        if request.endpoint_type != BROKERS:
            reason = "This broker lists the brokers of the cluster, and no controllers. Ask for endpoint type 1."
            return DescribeClusterResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=reason)
        nodes = self._nodes()
        return DescribeClusterResponse(
            cluster_id=self._cluster,
            controller_id=nodes[0].id,
            brokers=tuple(DescribeClusterBroker(node.id, *node.address) for node in nodes),
        )

    async def _metadata(self, request: MetadataRequest, asked: Asked) -> MetadataResponse:
        found: list[KafkaTopic | MetadataTopic] = []
        if request.topics is None or (asked.version == 0 and not request.topics):
            async with aclosing(self._topics.all()) as every:
                found += [topic async for topic in every]
        else:
            # Each once, as in Kafka. Otherwise a small request could ask for a very large response.
            for number, wanted in enumerate(dict.fromkeys(request.topics)):
                await take_turns(number)
                # Java asks for an id beside an empty name. As in Kafka, an id decides.
                if wanted.name is None or wanted.topic_id != NO_TOPIC_ID:
                    # Topics go by their names here. Until version 11, a topic of the answer must have one.
                    nameless = None if asked.version >= _SINCE_NO_NAMES else ""
                    found.append(MetadataTopic(ErrorCode.UNKNOWN_TOPIC_ID, nameless, wanted.topic_id))
                else:
                    found.append(await self._find(wanted.name, creates=request.allow_auto_topic_creation))
        partitions = [name for topic in found if isinstance(topic, KafkaTopic) for name in topic.partitions]
        try:
            leaders = dict(zip(partitions, await self._leaders.of(partitions), strict=True))
        except StoreUnavailable:
            # Nobody knows who leads them now. The client keeps the brokers that it knows, and asks again.
            found = [
                MetadataTopic(ErrorCode.LEADER_NOT_AVAILABLE, topic.name, topic.topic_id)
                if isinstance(topic, KafkaTopic)
                else topic
                for topic in found
            ]
            leaders = {}
        nodes = self._nodes()
        topics = [
            topic if isinstance(topic, MetadataTopic) else await self._described(topic, leaders) for topic in found
        ]
        return MetadataResponse(
            brokers=tuple(MetadataBroker(node.id, *node.address) for node in nodes),
            cluster_id=self._cluster,
            # Any broker takes an administrator's requests. The lowest number stands for them.
            controller_id=nodes[0].id,
            topics=tuple(topics),
        )

    async def _described(self, topic: KafkaTopic, leaders: Mapping[TopicName | None, Leader]) -> MetadataTopic:
        partitions = []
        for number, name in enumerate(topic.partitions):
            await take_turns(number)
            partitions.append(_partition(number, leaders[name]))
        return MetadataTopic(name=topic.name, topic_id=topic.topic_id, partitions=tuple(partitions))

    async def _find(self, name: str, *, creates: bool) -> KafkaTopic | MetadataTopic:
        try:
            return await (self._topics.find_or_create(name) if creates else self._topics.find(name))
        except TopicNotFound:
            return MetadataTopic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name, NO_TOPIC_ID)
        except StoreUnavailable:
            return MetadataTopic(ErrorCode.LEADER_NOT_AVAILABLE, name, NO_TOPIC_ID)
        except EXPECTED as error:
            return MetadataTopic(code_of(error), name, NO_TOPIC_ID)

    def _nodes(self) -> list[KafkaNode]:
        others = [m.kafka for m in self._members.live.values() if m.kafka is not None and m.kafka.id != self._me.id]
        return sorted([self._me, *others])


def _partition(number: int, leader: Leader) -> MetadataPartition:
    if leader.node == NO_LEADER:
        return MetadataPartition(ErrorCode.LEADER_NOT_AVAILABLE, number, NO_LEADER)
    nodes = (leader.node,)
    return MetadataPartition(ErrorCode.NONE, number, leader.node, leader.epoch, nodes, nodes)
