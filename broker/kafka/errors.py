"""Errors that only Kafka's protocol knows, and the one table from errors to its codes."""

from typing import Final

from broker.cluster.ownership import OwnedElsewhere
from broker.errors import (
    BrokerError,
    ClosedMeanwhile,
    LayoutUnreadable,
    ProducersFull,
    TooFewPartitions,
    TopicClosed,
    TopicDamaged,
    TopicExists,
    TopicNotFound,
)
from broker.names import InvalidTopicName
from storage.errors import (
    ExpectedError,
    Fenced,
    LedgerCorrupt,
    LedgerFailed,
    LedgerListCorrupt,
    LedgerNotFound,
    LedgerNotMade,
    LedgerSealed,
    NoSpace,
    StorageError,
)
from storage.metadata.store import StoreFull, StoreUnavailable
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.record_batches import CorruptBatch, UnsupportedFormat
from txn.errors import OutcomeUnknown, OwnershipLost
from txn.kafka_errors import (
    EndTxnLate,
    InvalidPattern,
    InvalidTransactionalId,
    InvalidTransactionState,
    InvalidTransactionTimeout,
    PartitionNotInTransaction,
    ProducerFenced,
    ProducerIdMismatch,
    TransactionalIdDamaged,
    TransactionalIdNotFound,
    TransactionEnding,
    TransactionOverdue,
)
from txn.producer_states import (
    CoordinatorStale,
    EarlierTransactionOpen,
    OutOfOrderSequence,
    OutsideOfTransaction,
    ProducerEpochStale,
    TooManyProducers,
)


class Refused(BrokerError):
    """A request, or a part of one, breaks a rule of Kafka's protocol. It has the code for its client."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        self.code = code
        super().__init__(message)


class SegmentPruned(TopicNotFound):
    """A partition's segment was pruned, so the partition has no records. It begins and ends where the segment ended."""

    def __init__(self, message: str, end: int | None) -> None:
        super().__init__(message)
        self.known_end = end
        """Where the segment ended; None if an earlier release pruned it, and nobody knows."""

    @property
    def end(self) -> int:
        """The only offset in the partition."""
        return 0 if self.known_end is None else self.known_end


# The code decides what a client does. At a retriable one it asks for the metadata again, and then retries.
_CODES: Final[dict[type[Exception], ErrorCode]] = {
    InvalidTopicName: ErrorCode.INVALID_TOPIC_EXCEPTION,
    TopicNotFound: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    SegmentPruned: ErrorCode.OFFSET_OUT_OF_RANGE,
    LayoutUnreadable: ErrorCode.KAFKA_STORAGE_ERROR,
    TopicExists: ErrorCode.TOPIC_ALREADY_EXISTS,
    TooFewPartitions: ErrorCode.INVALID_PARTITIONS,
    TopicClosed: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ClosedMeanwhile: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    OwnedElsewhere: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    OwnershipLost: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    OutcomeUnknown: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    Fenced: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    LedgerSealed: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    StoreUnavailable: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    # As at a full quota. See also `produce_code_of`.
    NoSpace: ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    StoreFull: ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    LedgerNotMade: ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    ProducersFull: ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    TooManyProducers: ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    LedgerFailed: ErrorCode.KAFKA_STORAGE_ERROR,
    LedgerCorrupt: ErrorCode.KAFKA_STORAGE_ERROR,
    LedgerListCorrupt: ErrorCode.KAFKA_STORAGE_ERROR,
    TopicDamaged: ErrorCode.KAFKA_STORAGE_ERROR,
    # It was trimmed meanwhile, so the offset is no longer there.
    LedgerNotFound: ErrorCode.OFFSET_OUT_OF_RANGE,
    StorageError: ErrorCode.KAFKA_STORAGE_ERROR,
    CorruptBatch: ErrorCode.CORRUPT_MESSAGE,
    UnsupportedFormat: ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    OutOfOrderSequence: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ProducerEpochStale: ErrorCode.INVALID_PRODUCER_EPOCH,
    CoordinatorStale: ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    OutsideOfTransaction: ErrorCode.INVALID_TXN_STATE,
    EarlierTransactionOpen: ErrorCode.CONCURRENT_TRANSACTIONS,
    InvalidPattern: ErrorCode.INVALID_REGULAR_EXPRESSION,
    InvalidTransactionalId: ErrorCode.INVALID_REQUEST,
    TransactionalIdNotFound: ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    TransactionalIdDamaged: ErrorCode.UNKNOWN_SERVER_ERROR,
    ProducerIdMismatch: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ProducerFenced: ErrorCode.PRODUCER_FENCED,
    InvalidTransactionState: ErrorCode.INVALID_TXN_STATE,
    InvalidTransactionTimeout: ErrorCode.INVALID_TRANSACTION_TIMEOUT,
    TransactionEnding: ErrorCode.CONCURRENT_TRANSACTIONS,
    TransactionOverdue: ErrorCode.UNKNOWN_SERVER_ERROR,
    EndTxnLate: ErrorCode.INVALID_TXN_STATE,
    PartitionNotInTransaction: ErrorCode.INVALID_TXN_STATE,
    # All other refusals are permanent.
    BrokerError: ErrorCode.INVALID_REQUEST,
    ExpectedError: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def code_of(error: Exception) -> ErrorCode:
    """Return the code of an expected error.

    Raises:
        Exception: the error itself, if it is unexpected. It is a bug of the broker and ends the connection.
    """
    if isinstance(error, Refused):
        return error.code
    for kind in type(error).__mro__:
        code = _CODES.get(kind)
        if code is not None:
            return code
    raise error


def coordinator_code_of(error: Exception) -> ErrorCode:
    """As `code_of`, for a request to a coordinator: of a group's offsets, or of a transaction.

    At COORDINATOR_NOT_AVAILABLE, every client looks up the coordinator again and retries. Of a store that is away or
    full, Java's consumers up to 4.3 take the other codes as fatal. Its producers of 3.9 retry at any retriable code,
    and older ones only at those of coordinators.
    """
    code = code_of(error)
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if code in _UNAVAILABLE else code


def produce_code_of(error: Exception) -> ErrorCode:
    """As `code_of`, for a batch that was not stored.

    When there is no space for it, every client keeps its records and retries at NOT_ENOUGH_REPLICAS. At
    THROTTLING_QUOTA_EXCEEDED, librdkafka and aiokafka would give them up. At PRODUCER_FENCED a client gives up its
    transactional id. Kafka's broker answers INVALID_PRODUCER_EPOCH instead: the client aborts and goes on, if it may.
    """
    code = code_of(error)
    return _OF_PRODUCE.get(code, code)


_OF_PRODUCE: Final = {
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
}
_UNAVAILABLE: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.THROTTLING_QUOTA_EXCEEDED})

EXPECTED: Final = (ExpectedError, CorruptBatch, UnsupportedFormat)
"""What `code_of` may be asked about."""
