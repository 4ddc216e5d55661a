"""ListOffsets: the offset of a moment, or of a log's beginning or end."""

from dataclasses import dataclass
from typing import Final

from tidewire.wire.kafka.fields import array, int8, int16, int32, int64, string

LATEST: Final = -1
"""The timestamp that asks for the end."""
EARLIEST: Final = -2
"""The timestamp that asks for the beginning."""
MAX_TIMESTAMP: Final = -3
"""The timestamp that asks for the record with the latest timestamp (KIP-734)."""
EARLIEST_LOCAL: Final = -4
"""The timestamp that asks for the first record on the broker's own disk (KIP-405)."""
LATEST_TIERED: Final = -5
"""The timestamp that asks for the last record on other storage (KIP-1005)."""


@dataclass(frozen=True, slots=True)
class ListOffsetsPartition:
    """A partition and a moment, in milliseconds since the epoch."""

    partition_index: int = int32()
    current_leader_epoch: int = int32(since=4, default=-1)
    timestamp: int = int64()


@dataclass(frozen=True, slots=True)
class ListOffsetsTopic:
    """The partitions of one topic."""

    name: str = string()
    partitions: tuple[ListOffsetsPartition, ...] = array(ListOffsetsPartition)


@dataclass(frozen=True, slots=True)
class ListOffsetsRequest:
    """The moments that are asked about."""

    replica_id: int = int32(default=-1)
    isolation_level: int = int8(since=2)
    topics: tuple[ListOffsetsTopic, ...] = array(ListOffsetsTopic)
    timeout_ms: int = int32(since=10)


@dataclass(frozen=True, slots=True)
class ListOffsetsPartitionResponse:
    """The first offset at or behind a moment; -1 if there is none."""

    partition_index: int = int32()
    error_code: int = int16()
    timestamp: int = int64(since=1, default=-1)
    offset: int = int64(since=1, default=-1)
    leader_epoch: int = int32(since=4, default=-1)


@dataclass(frozen=True, slots=True)
class ListOffsetsTopicResponse:
    """The partitions of one topic."""

    name: str = string()
    partitions: tuple[ListOffsetsPartitionResponse, ...] = array(ListOffsetsPartitionResponse)


@dataclass(frozen=True, slots=True)
class ListOffsetsResponse:
    """The offsets."""

    throttle_time_ms: int = int32(since=2)
    topics: tuple[ListOffsetsTopicResponse, ...] = array(ListOffsetsTopicResponse)
