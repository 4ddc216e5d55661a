"""Transactions and idempotent producers: their ids, what a transaction touches, its end, and what is known of them."""

from dataclasses import dataclass

from tidewire.wire.kafka.fields import INT32, INT64, STRING, array, boolean, int16, int32, int64, string
from tidewire.wire.kafka.messages.offsets import OffsetCommitResponseTopic


@dataclass(frozen=True, slots=True)
class InitProducerIdRequest:
    """Asks for a producer id; with a transactional id, also ends what an earlier producer of it left open."""

    transactional_id: str | None = string(nullable_since=0)
    transaction_timeout_ms: int = int32()
    producer_id: int = int64(since=3, default=-1)
    producer_epoch: int = int16(since=3, default=-1)


@dataclass(frozen=True, slots=True)
class InitProducerIdResponse:
    """The producer's id and epoch."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16()


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnTopic:
    """Partitions of one topic that a transaction is about to write."""

    name: str = string()
    partitions: tuple[int, ...] = array(INT32)


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnTransaction:
    """A transaction with its partitions. Only brokers send several."""

    transactional_id: str = string(since=4)
    producer_id: int = int64(since=4)
    producer_epoch: int = int16(since=4)
    verify_only: bool = boolean(since=4)
    topics: tuple[AddPartitionsToTxnTopic, ...] = array(AddPartitionsToTxnTopic, since=4)


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnRequest:
    """Adds partitions to a transaction before its first write there."""

    transactional_id: str = string(until=3)
    producer_id: int = int64(until=3)
    producer_epoch: int = int16(until=3)
    topics: tuple[AddPartitionsToTxnTopic, ...] = array(AddPartitionsToTxnTopic, until=3)
    transactions: tuple[AddPartitionsToTxnTransaction, ...] = array(AddPartitionsToTxnTransaction, since=4)


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnPartitionResult:
    """What became of a partition."""

    partition_index: int = int32()
    partition_error_code: int = int16()


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnTopicResult:
    """The partitions of one topic."""

    name: str = string()
    results_by_partition: tuple[AddPartitionsToTxnPartitionResult, ...] = array(AddPartitionsToTxnPartitionResult)


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnResult:
    """The partitions of one transaction."""

    transactional_id: str = string(since=4)
    topic_results: tuple[AddPartitionsToTxnTopicResult, ...] = array(AddPartitionsToTxnTopicResult, since=4)


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnResponse:
    """What became of the partitions."""

    throttle_time_ms: int = int32()
    error_code: int = int16(since=4)
    results_by_transaction: tuple[AddPartitionsToTxnResult, ...] = array(AddPartitionsToTxnResult, since=4)
    results_by_topic: tuple[AddPartitionsToTxnTopicResult, ...] = array(AddPartitionsToTxnTopicResult, until=3)


@dataclass(frozen=True, slots=True)
class AddOffsetsToTxnRequest:
    """Adds a group's offsets to a transaction."""

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    group_id: str = string()


@dataclass(frozen=True, slots=True)
class AddOffsetsToTxnResponse:
    """Whether they were added."""

    throttle_time_ms: int = int32()
    error_code: int = int16()


@dataclass(frozen=True, slots=True)
class EndTxnRequest:
    """Commits or aborts a transaction."""

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    committed: bool = boolean()


@dataclass(frozen=True, slots=True)
class EndTxnResponse:
    """Whether it has ended. Since version 5 the producer has another epoch from then on (KIP-890)."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(since=5, default=-1)
    producer_epoch: int = int16(since=5, default=-1)


@dataclass(frozen=True, slots=True)
class WritableTxnMarkerTopic:
    """Partitions of one topic that get a marker."""

    name: str = string()
    partition_indexes: tuple[int, ...] = array(INT32)


@dataclass(frozen=True, slots=True)
class WritableTxnMarker:
    """The end of a transaction; `transaction_result` is whether it was committed."""

    producer_id: int = int64()
    producer_epoch: int = int16()
    transaction_result: bool = boolean()
    topics: tuple[WritableTxnMarkerTopic, ...] = array(WritableTxnMarkerTopic)
    coordinator_epoch: int = int32()


@dataclass(frozen=True, slots=True)
class WriteTxnMarkersRequest:
    """Writes markers by hand, to end a hanging transaction (KIP-664)."""

    markers: tuple[WritableTxnMarker, ...] = array(WritableTxnMarker)


@dataclass(frozen=True, slots=True)
class WritableTxnMarkerResult:
    """What became of a marker."""

    producer_id: int = int64()
    topics: tuple[OffsetCommitResponseTopic, ...] = array(OffsetCommitResponseTopic)


@dataclass(frozen=True, slots=True)
class WriteTxnMarkersResponse:
    """What became of the markers."""

    markers: tuple[WritableTxnMarkerResult, ...] = array(WritableTxnMarkerResult)


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitRequestPartition:
    """How far a partition was read."""

    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(since=2, default=-1)
    committed_metadata: str | None = string(nullable_since=0)


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitRequestTopic:
    """The partitions of one topic."""

    name: str = string()
    partitions: tuple[TxnOffsetCommitRequestPartition, ...] = array(TxnOffsetCommitRequestPartition)


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitRequest:
    """Commits offsets with a transaction."""

    transactional_id: str = string()
    group_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    generation_id: int = int32(since=3, default=-1)
    member_id: str = string(since=3)
    group_instance_id: str | None = string(since=3, nullable_since=3, default=None)
    topics: tuple[TxnOffsetCommitRequestTopic, ...] = array(TxnOffsetCommitRequestTopic)


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitResponse:
    """What became of the offsets."""

    throttle_time_ms: int = int32()
    topics: tuple[OffsetCommitResponseTopic, ...] = array(OffsetCommitResponseTopic)


@dataclass(frozen=True, slots=True)
class DescribeProducersRequest:
    """Asks which producers write to partitions (KIP-664)."""

    topics: tuple[AddPartitionsToTxnTopic, ...] = array(AddPartitionsToTxnTopic)


@dataclass(frozen=True, slots=True)
class ProducerState:
    """A producer that writes to a partition."""

    producer_id: int = int64()
    producer_epoch: int = int32()
    last_sequence: int = int32(default=-1)
    last_timestamp: int = int64(default=-1)
    coordinator_epoch: int = int32()
    current_txn_start_offset: int = int64(default=-1)


@dataclass(frozen=True, slots=True)
class DescribedPartition:
    """A partition with its producers."""

    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None)
    active_producers: tuple[ProducerState, ...] = array(ProducerState)


@dataclass(frozen=True, slots=True)
class DescribedTopic:
    """The partitions of one topic."""

    name: str = string()
    partitions: tuple[DescribedPartition, ...] = array(DescribedPartition)


@dataclass(frozen=True, slots=True)
class DescribeProducersResponse:
    """The producers."""

    throttle_time_ms: int = int32()
    topics: tuple[DescribedTopic, ...] = array(DescribedTopic)


@dataclass(frozen=True, slots=True)
class DescribeTransactionsRequest:
    """Asks for the state of transactions."""

    transactional_ids: tuple[str, ...] = array(STRING)


@dataclass(frozen=True, slots=True)
class DescribedTransaction:
    """The state of a transactional id, and what its transaction has touched."""

    error_code: int = int16()
    transactional_id: str = string()
    transaction_state: str = string()
    transaction_timeout_ms: int = int32()
    transaction_start_time_ms: int = int64()
    producer_id: int = int64()
    producer_epoch: int = int16()
    topics: tuple[AddPartitionsToTxnTopic, ...] = array(AddPartitionsToTxnTopic)


@dataclass(frozen=True, slots=True)
class DescribeTransactionsResponse:
    """The states."""

    throttle_time_ms: int = int32()
    transaction_states: tuple[DescribedTransaction, ...] = array(DescribedTransaction)


@dataclass(frozen=True, slots=True)
class ListTransactionsRequest:
    """Asks for the transactional ids that the asked broker coordinates."""

    state_filters: tuple[str, ...] = array(STRING)
    producer_id_filters: tuple[int, ...] = array(INT64)
    duration_filter_ms: int = int64(since=1, default=-1)
    transactional_id_pattern: str | None = string(since=2, nullable_since=2, default=None)


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    """A transactional id."""

    transactional_id: str = string()
    producer_id: int = int64()
    transaction_state: str = string()


@dataclass(frozen=True, slots=True)
class ListTransactionsResponse:
    """The transactional ids."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    unknown_state_filters: tuple[str, ...] = array(STRING)
    transaction_states: tuple[ListedTransaction, ...] = array(ListedTransaction)
