"""Fetch: record batches of partitions, from an offset on. Up to version 12, topics go by their names."""

from collections.abc import Sequence
from dataclasses import dataclass

from tidewire.wire.kafka.fields import INT32, array, int8, int16, int32, int64, records, string, struct
from tidewire.wire.kafka.messages.produce import LeaderIdAndEpoch


@dataclass(frozen=True, slots=True)
class FetchPartition:
    """A partition to read, and from where."""

    partition: int = int32()
    current_leader_epoch: int = int32(since=9, default=-1)
    fetch_offset: int = int64()
    last_fetched_epoch: int = int32(since=12, default=-1)
    log_start_offset: int = int64(since=5, default=-1)
    partition_max_bytes: int = int32()


@dataclass(frozen=True, slots=True)
class FetchTopic:
    """The partitions of one topic."""

    topic: str = string()
    partitions: tuple[FetchPartition, ...] = array(FetchPartition)


@dataclass(frozen=True, slots=True)
class ForgottenTopic:
    """Partitions that leave the fetch session."""

    topic: str = string(since=7)
    partitions: tuple[int, ...] = array(INT32, since=7)


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """What to read. In a fetch session (KIP-227), partitions that are not named are as in the request before."""

    cluster_id: str | None = string(since=12, nullable_since=12, default=None, tag=0)
    replica_id: int = int32(default=-1)
    max_wait_ms: int = int32()
    min_bytes: int = int32()
    max_bytes: int = int32(since=3, default=0x7FFFFFFF)
    isolation_level: int = int8(since=4)
    session_id: int = int32(since=7)
    session_epoch: int = int32(since=7, default=-1)
    topics: tuple[FetchTopic, ...] = array(FetchTopic)
    forgotten_topics_data: tuple[ForgottenTopic, ...] = array(ForgottenTopic, since=7)
    rack_id: str = string(since=11)


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """A transaction that was aborted, with its first offset. A READ_COMMITTED consumer drops its records."""

    producer_id: int = int64(since=4)
    first_offset: int = int64(since=4)


@dataclass(frozen=True, slots=True)
class EpochEndOffset:
    """Where the log of the broker and that of a follower part (KIP-595)."""

    epoch: int = int32(default=-1)
    end_offset: int = int64(default=-1)


@dataclass(frozen=True, slots=True)
class SnapshotId:
    """A snapshot to fetch instead (KIP-630). Only brokers meet it."""

    end_offset: int = int64(default=-1)
    epoch: int = int32(default=-1)


@dataclass(frozen=True, slots=True)
class PartitionData:
    """What was read of one partition."""

    partition_index: int = int32()
    error_code: int = int16()
    high_watermark: int = int64(default=-1)
    last_stable_offset: int = int64(since=4, default=-1)
    log_start_offset: int = int64(since=5, default=-1)
    diverging_epoch: EpochEndOffset = struct(EpochEndOffset, since=12, tag=0, default=EpochEndOffset())
    current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch, since=12, tag=1, default=LeaderIdAndEpoch())
    snapshot_id: SnapshotId = struct(SnapshotId, since=12, tag=2, default=SnapshotId())
    aborted_transactions: tuple[AbortedTransaction, ...] | None = array(AbortedTransaction, since=4, nullable_since=4)
    preferred_read_replica: int = int32(since=11, default=-1)
    records: Sequence[bytes] | None = records()


@dataclass(frozen=True, slots=True)
class FetchableTopicResponse:
    """The partitions of one topic."""

    topic: str = string()
    partitions: tuple[PartitionData, ...] = array(PartitionData)


@dataclass(frozen=True, slots=True)
class FetchResponse:
    """What was read."""

    throttle_time_ms: int = int32(since=1)
    error_code: int = int16(since=7)
    session_id: int = int32(since=7)
    responses: tuple[FetchableTopicResponse, ...] = array(FetchableTopicResponse)
