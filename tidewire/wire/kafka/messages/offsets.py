"""The offsets that groups have committed: how far each has read each partition. Version 10 would use topic ids."""

from dataclasses import dataclass

from tidewire.wire.kafka.fields import INT32, array, boolean, int16, int32, int64, string


@dataclass(frozen=True, slots=True)
class OffsetCommitRequestPartition:
    """How far a partition was read."""

    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(since=6, default=-1)
    committed_metadata: str | None = string(nullable_since=0)


@dataclass(frozen=True, slots=True)
class OffsetCommitRequestTopic:
    """The partitions of one topic."""

    name: str = string()
    partitions: tuple[OffsetCommitRequestPartition, ...] = array(OffsetCommitRequestPartition)


@dataclass(frozen=True, slots=True)
class OffsetCommitRequest:
    """Commits offsets. A member names its generation; an outsider has -1 and no member id."""

    group_id: str = string()
    generation_id: int = int32(since=1, default=-1)
    member_id: str = string(since=1)
    group_instance_id: str | None = string(since=7, nullable_since=7, default=None)
    retention_time_ms: int = int64(since=2, until=4, default=-1)
    topics: tuple[OffsetCommitRequestTopic, ...] = array(OffsetCommitRequestTopic)


@dataclass(frozen=True, slots=True)
class OffsetCommitResponsePartition:
    """What became of a partition's offset."""

    partition_index: int = int32()
    error_code: int = int16()


@dataclass(frozen=True, slots=True)
class OffsetCommitResponseTopic:
    """The partitions of one topic."""

    name: str = string()
    partitions: tuple[OffsetCommitResponsePartition, ...] = array(OffsetCommitResponsePartition)


@dataclass(frozen=True, slots=True)
class OffsetCommitResponse:
    """What became of the offsets."""

    throttle_time_ms: int = int32(since=3)
    topics: tuple[OffsetCommitResponseTopic, ...] = array(OffsetCommitResponseTopic)


@dataclass(frozen=True, slots=True)
class OffsetFetchRequestTopic:
    """Partitions of one topic whose offsets are asked for."""

    name: str = string()
    partition_indexes: tuple[int, ...] = array(INT32)


@dataclass(frozen=True, slots=True)
class OffsetFetchRequestGroup:
    """Partitions of one group (KIP-709). None means all."""

    group_id: str = string(since=8)
    member_id: str | None = string(since=9, nullable_since=9, default=None)
    member_epoch: int = int32(since=9, default=-1)
    topics: tuple[OffsetFetchRequestTopic, ...] | None = array(OffsetFetchRequestTopic, since=8, nullable_since=8)


@dataclass(frozen=True, slots=True)
class OffsetFetchRequest:
    """Asks for offsets: of one group up to version 7, of several since version 8."""

    group_id: str = string(until=7)
    topics: tuple[OffsetFetchRequestTopic, ...] | None = array(OffsetFetchRequestTopic, until=7, nullable_since=2)
    groups: tuple[OffsetFetchRequestGroup, ...] = array(OffsetFetchRequestGroup, since=8)
    require_stable: bool = boolean(since=7)


@dataclass(frozen=True, slots=True)
class OffsetFetchResponsePartition:
    """A committed offset; -1 if there is none."""

    partition_index: int = int32()
    committed_offset: int = int64(default=-1)
    committed_leader_epoch: int = int32(since=5, default=-1)
    metadata: str | None = string(nullable_since=0)
    error_code: int = int16()


@dataclass(frozen=True, slots=True)
class OffsetFetchResponseTopic:
    """The partitions of one topic."""

    name: str = string()
    partitions: tuple[OffsetFetchResponsePartition, ...] = array(OffsetFetchResponsePartition)


@dataclass(frozen=True, slots=True)
class OffsetFetchResponseGroup:
    """The offsets of one group."""

    group_id: str = string(since=8)
    topics: tuple[OffsetFetchResponseTopic, ...] = array(OffsetFetchResponseTopic, since=8)
    error_code: int = int16(since=8)


@dataclass(frozen=True, slots=True)
class OffsetFetchResponse:
    """The offsets."""

    throttle_time_ms: int = int32(since=3)
    topics: tuple[OffsetFetchResponseTopic, ...] = array(OffsetFetchResponseTopic, until=7)
    error_code: int = int16(since=2, until=7)
    groups: tuple[OffsetFetchResponseGroup, ...] = array(OffsetFetchResponseGroup, since=8)


@dataclass(frozen=True, slots=True)
class OffsetDeleteRequestPartition:
    """A partition whose offset is to go."""

    partition_index: int = int32()


@dataclass(frozen=True, slots=True)
class OffsetDeleteRequestTopic:
    """The partitions of one topic."""

    name: str = string()
    partitions: tuple[OffsetDeleteRequestPartition, ...] = array(OffsetDeleteRequestPartition)


@dataclass(frozen=True, slots=True)
class OffsetDeleteRequest:
    """Deletes committed offsets (KIP-496)."""

    group_id: str = string()
    topics: tuple[OffsetDeleteRequestTopic, ...] = array(OffsetDeleteRequestTopic)


@dataclass(frozen=True, slots=True)
class OffsetDeleteResponse:
    """What became of the offsets."""

    error_code: int = int16()
    throttle_time_ms: int = int32()
    topics: tuple[OffsetCommitResponseTopic, ...] = array(OffsetCommitResponseTopic)
