"""Topics: how they are created, deleted, extended and emptied, and where their partitions are."""

from dataclasses import dataclass

from tidewire.wire.kafka.fields import INT32, STRING, array, boolean, int8, int16, int32, int64, string, struct, uuid


@dataclass(frozen=True, slots=True)
class CreatableReplicaAssignment:
    """The brokers of a partition, if a client wants to choose them."""

    partition_index: int = int32()
    broker_ids: tuple[int, ...] = array(INT32)


@dataclass(frozen=True, slots=True)
class CreatableTopicConfig:
    """A setting of a topic."""

    name: str = string()
    value: str | None = string(nullable_since=0)


@dataclass(frozen=True, slots=True)
class CreatableTopic:
    """A topic to create. -1 partitions or replicas means the default."""

    name: str = string()
    num_partitions: int = int32()
    replication_factor: int = int16()
    assignments: tuple[CreatableReplicaAssignment, ...] = array(CreatableReplicaAssignment)
    configs: tuple[CreatableTopicConfig, ...] = array(CreatableTopicConfig)


@dataclass(frozen=True, slots=True)
class CreateTopicsRequest:
    """Creates topics."""

    topics: tuple[CreatableTopic, ...] = array(CreatableTopic)
    timeout_ms: int = int32(default=60_000)
    validate_only: bool = boolean(since=1)


@dataclass(frozen=True, slots=True)
class CreatedTopicConfig:
    """A setting of a created topic."""

    name: str = string(since=5)
    value: str | None = string(since=5, nullable_since=5)
    read_only: bool = boolean(since=5)
    config_source: int = int8(since=5, default=-1)
    is_sensitive: bool = boolean(since=5)


@dataclass(frozen=True, slots=True)
class CreatableTopicResult:
    """What became of a topic."""

    name: str = string()
    topic_id: bytes = uuid(since=7)
    error_code: int = int16()
    error_message: str | None = string(since=1, nullable_since=0, default=None)
    topic_config_error_code: int = int16(since=5, tag=0)
    num_partitions: int = int32(since=5, default=-1)
    replication_factor: int = int16(since=5, default=-1)
    configs: tuple[CreatedTopicConfig, ...] | None = array(CreatedTopicConfig, since=5, nullable_since=5)


@dataclass(frozen=True, slots=True)
class CreateTopicsResponse:
    """What became of the topics."""

    throttle_time_ms: int = int32(since=2)
    topics: tuple[CreatableTopicResult, ...] = array(CreatableTopicResult)


@dataclass(frozen=True, slots=True)
class DeleteTopicState:
    """A topic, by name or by id."""

    name: str | None = string(since=6, nullable_since=6, default=None)
    topic_id: bytes = uuid(since=6)


@dataclass(frozen=True, slots=True)
class DeleteTopicsRequest:
    """Deletes topics."""

    topics: tuple[DeleteTopicState, ...] = array(DeleteTopicState, since=6)
    topic_names: tuple[str, ...] = array(STRING, until=5)
    timeout_ms: int = int32()


@dataclass(frozen=True, slots=True)
class DeletableTopicResult:
    """What became of a topic."""

    name: str | None = string(nullable_since=6)
    topic_id: bytes = uuid(since=6)
    error_code: int = int16()
    error_message: str | None = string(since=5, nullable_since=5, default=None)


@dataclass(frozen=True, slots=True)
class DeleteTopicsResponse:
    """What became of the topics."""

    throttle_time_ms: int = int32(since=1)
    responses: tuple[DeletableTopicResult, ...] = array(DeletableTopicResult)


@dataclass(frozen=True, slots=True)
class CreatePartitionsAssignment:
    """The brokers of a new partition."""

    broker_ids: tuple[int, ...] = array(INT32)


@dataclass(frozen=True, slots=True)
class CreatePartitionsTopic:
    """A topic, and how many partitions it has afterwards."""

    name: str = string()
    count: int = int32()
    assignments: tuple[CreatePartitionsAssignment, ...] | None = array(CreatePartitionsAssignment, nullable_since=0)


@dataclass(frozen=True, slots=True)
class CreatePartitionsRequest:
    """Adds partitions to topics."""

    topics: tuple[CreatePartitionsTopic, ...] = array(CreatePartitionsTopic)
    timeout_ms: int = int32()
    validate_only: bool = boolean()


@dataclass(frozen=True, slots=True)
class CreatePartitionsTopicResult:
    """What became of a topic."""

    name: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None)


@dataclass(frozen=True, slots=True)
class CreatePartitionsResponse:
    """What became of the topics."""

    throttle_time_ms: int = int32()
    results: tuple[CreatePartitionsTopicResult, ...] = array(CreatePartitionsTopicResult)


@dataclass(frozen=True, slots=True)
class DeleteRecordsPartition:
    """A partition, and the first offset to keep. -1 means its end."""

    partition_index: int = int32()
    offset: int = int64()


@dataclass(frozen=True, slots=True)
class DeleteRecordsTopic:
    """The partitions of one topic."""

    name: str = string()
    partitions: tuple[DeleteRecordsPartition, ...] = array(DeleteRecordsPartition)


@dataclass(frozen=True, slots=True)
class DeleteRecordsRequest:
    """Deletes the records before an offset (KIP-107)."""

    topics: tuple[DeleteRecordsTopic, ...] = array(DeleteRecordsTopic)
    timeout_ms: int = int32()


@dataclass(frozen=True, slots=True)
class DeleteRecordsPartitionResult:
    """The first offset that is there afterwards."""

    partition_index: int = int32()
    low_watermark: int = int64()
    error_code: int = int16()


@dataclass(frozen=True, slots=True)
class DeleteRecordsTopicResult:
    """The partitions of one topic."""

    name: str = string()
    partitions: tuple[DeleteRecordsPartitionResult, ...] = array(DeleteRecordsPartitionResult)


@dataclass(frozen=True, slots=True)
class DeleteRecordsResponse:
    """What became of the records."""

    throttle_time_ms: int = int32()
    topics: tuple[DeleteRecordsTopicResult, ...] = array(DeleteRecordsTopicResult)


@dataclass(frozen=True, slots=True)
class NamedTopic:
    """A topic that is asked about."""

    name: str = string()


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where the next page of an answer begins."""

    topic_name: str = string()
    partition_index: int = int32()


@dataclass(frozen=True, slots=True)
class DescribeTopicPartitionsRequest:
    """Asks for partitions, page by page (KIP-966)."""

    topics: tuple[NamedTopic, ...] = array(NamedTopic)
    response_partition_limit: int = int32(default=2_000)
    cursor: Cursor | None = struct(Cursor, nullable_since=0, default=None)


@dataclass(frozen=True, slots=True)
class DescribedPartition:
    """A partition, and the broker that leads it."""

    error_code: int = int16()
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(default=-1)
    replica_nodes: tuple[int, ...] = array(INT32)
    isr_nodes: tuple[int, ...] = array(INT32)
    eligible_leader_replicas: tuple[int, ...] | None = array(INT32, nullable_since=0)
    last_known_elr: tuple[int, ...] | None = array(INT32, nullable_since=0)
    offline_replicas: tuple[int, ...] = array(INT32)


@dataclass(frozen=True, slots=True)
class DescribedTopic:
    """A topic with some of its partitions."""

    error_code: int = int16()
    name: str | None = string(nullable_since=0)
    topic_id: bytes = uuid()
    is_internal: bool = boolean()
    partitions: tuple[DescribedPartition, ...] = array(DescribedPartition)
    topic_authorized_operations: int = int32(default=-0x80000000)


@dataclass(frozen=True, slots=True)
class DescribeTopicPartitionsResponse:
    """A page of partitions."""

    throttle_time_ms: int = int32()
    topics: tuple[DescribedTopic, ...] = array(DescribedTopic)
    next_cursor: Cursor | None = struct(Cursor, nullable_since=0, default=None)


@dataclass(frozen=True, slots=True)
class OffsetForLeaderPartition:
    """A partition, and the leader epoch whose end is asked for."""

    partition: int = int32()
    current_leader_epoch: int = int32(since=2, default=-1)
    leader_epoch: int = int32()


@dataclass(frozen=True, slots=True)
class OffsetForLeaderTopic:
    """The partitions of one topic."""

    topic: str = string()
    partitions: tuple[OffsetForLeaderPartition, ...] = array(OffsetForLeaderPartition)


@dataclass(frozen=True, slots=True)
class OffsetForLeaderEpochRequest:
    """Asks where leader epochs end, to notice that a log was cut (KIP-101)."""

    replica_id: int = int32(since=3, default=-2)
    topics: tuple[OffsetForLeaderTopic, ...] = array(OffsetForLeaderTopic)


@dataclass(frozen=True, slots=True)
class EpochEndOffset:
    """The end of a leader epoch."""

    error_code: int = int16()
    partition: int = int32()
    leader_epoch: int = int32(since=1, default=-1)
    end_offset: int = int64(default=-1)


@dataclass(frozen=True, slots=True)
class OffsetForLeaderTopicResult:
    """The partitions of one topic."""

    topic: str = string()
    partitions: tuple[EpochEndOffset, ...] = array(EpochEndOffset)


@dataclass(frozen=True, slots=True)
class OffsetForLeaderEpochResponse:
    """The ends."""

    throttle_time_ms: int = int32(since=2)
    topics: tuple[OffsetForLeaderTopicResult, ...] = array(OffsetForLeaderTopicResult)
