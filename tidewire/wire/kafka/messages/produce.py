"""Produce: record batches for partitions. Up to version 12, topics go by their names."""

from dataclasses import dataclass

from tidewire.wire.kafka.fields import array, int16, int32, int64, records, string, struct


@dataclass(frozen=True, slots=True)
class PartitionProduceData:
    """The record batches for one partition."""

    index: int = int32()
    records: bytes | None = records()


@dataclass(frozen=True, slots=True)
class TopicProduceData:
    """The partitions of one topic."""

    name: str = string()
    partition_data: tuple[PartitionProduceData, ...] = array(PartitionProduceData)


@dataclass(frozen=True, slots=True)
class ProduceRequest:
    """What to append. `acks` is 0 (no response), 1, or -1; this broker always makes batches durable first."""

    transactional_id: str | None = string(since=3, nullable_since=3, default=None)
    acks: int = int16()
    timeout_ms: int = int32()
    topic_data: tuple[TopicProduceData, ...] = array(TopicProduceData)


@dataclass(frozen=True, slots=True)
class BatchIndexAndErrorMessage:
    """A record of a refused batch that caused the refusal (KIP-467)."""

    batch_index: int = int32(since=8)
    batch_index_error_message: str | None = string(since=8, nullable_since=8, default=None)


@dataclass(frozen=True, slots=True)
class LeaderIdAndEpoch:
    """The leader to go to instead (KIP-951)."""

    leader_id: int = int32(default=-1)
    leader_epoch: int = int32(default=-1)


@dataclass(frozen=True, slots=True)
class NodeEndpoint:
    """Where clients reach a leader that the response names (KIP-951)."""

    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable_since=0, default=None)


@dataclass(frozen=True, slots=True)
class PartitionProduceResponse:
    """What became of the batches for one partition."""

    index: int = int32()
    error_code: int = int16()
    base_offset: int = int64(default=-1)
    log_append_time_ms: int = int64(since=2, default=-1)
    log_start_offset: int = int64(since=5, default=-1)
    record_errors: tuple[BatchIndexAndErrorMessage, ...] = array(BatchIndexAndErrorMessage, since=8)
    error_message: str | None = string(since=8, nullable_since=8, default=None)
    current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch, since=10, tag=0, default=LeaderIdAndEpoch())


@dataclass(frozen=True, slots=True)
class TopicProduceResponse:
    """The partitions of one topic."""

    name: str = string()
    partition_responses: tuple[PartitionProduceResponse, ...] = array(PartitionProduceResponse)


@dataclass(frozen=True, slots=True)
class ProduceResponse:
    """What became of the batches."""

    responses: tuple[TopicProduceResponse, ...] = array(TopicProduceResponse)
    throttle_time_ms: int = int32(since=1)
    node_endpoints: tuple[NodeEndpoint, ...] = array(NodeEndpoint, since=10, tag=0)
