"""Metadata: the brokers, and which of them leads each partition."""

from dataclasses import dataclass

from tidewire.wire.kafka.fields import INT32, array, boolean, int16, int32, string, uuid


@dataclass(frozen=True, slots=True)
class MetadataRequestTopic:
    """A topic that is asked about, by id (KIP-516) or by name."""

    topic_id: bytes = uuid(since=10)
    name: str | None = string(nullable_since=10)


@dataclass(frozen=True, slots=True)
class MetadataRequest:
    """The topics that are asked about. None means all topics; in version 0, none does."""

    topics: tuple[MetadataRequestTopic, ...] | None = array(MetadataRequestTopic, nullable_since=1)
    allow_auto_topic_creation: bool = boolean(since=4, default=True)
    include_cluster_authorized_operations: bool = boolean(since=8, until=10)
    include_topic_authorized_operations: bool = boolean(since=8)


@dataclass(frozen=True, slots=True)
class MetadataBroker:
    """A broker, and where clients reach it."""

    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(since=1, nullable_since=1, default=None)


@dataclass(frozen=True, slots=True)
class MetadataPartition:
    """A partition, and the broker that leads it."""

    error_code: int = int16()
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(since=7, default=-1)
    replica_nodes: tuple[int, ...] = array(INT32)
    isr_nodes: tuple[int, ...] = array(INT32)
    offline_replicas: tuple[int, ...] = array(INT32, since=5)


@dataclass(frozen=True, slots=True)
class MetadataTopic:
    """A topic with its partitions."""

    error_code: int = int16()
    name: str | None = string(nullable_since=12)
    topic_id: bytes = uuid(since=10)
    is_internal: bool = boolean(since=1)
    partitions: tuple[MetadataPartition, ...] = array(MetadataPartition)
    topic_authorized_operations: int = int32(since=8, default=-0x80000000)


@dataclass(frozen=True, slots=True)
class MetadataResponse:
    """The cluster as the answering broker knows it."""

    throttle_time_ms: int = int32(since=3)
    brokers: tuple[MetadataBroker, ...] = array(MetadataBroker)
    cluster_id: str | None = string(since=2, nullable_since=2, default=None)
    controller_id: int = int32(since=1, default=-1)
    topics: tuple[MetadataTopic, ...] = array(MetadataTopic)
    cluster_authorized_operations: int = int32(since=8, until=10, default=-0x80000000)
    error_code: int = int16(since=13)
