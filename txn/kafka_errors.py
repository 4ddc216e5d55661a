"""What Kafka's coordinator refuses. Each class names the code of Kafka's protocol that the front end answers with."""

from txn.errors import TxnError


class InvalidTransactionalId(TxnError):
    """A transactional id is empty or too long. INVALID_REQUEST."""


class TransactionalIdDamaged(TxnError):
    """A record of a transactional id cannot be read. The message names its key. UNKNOWN_SERVER_ERROR."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"The record {key} is damaged: {reason}. Restore it from a copy")


class TransactionalIdNotFound(TxnError):
    """An administrator asks for a transactional id without a record. TRANSACTIONAL_ID_NOT_FOUND."""

    def __init__(self, transactional_id: str) -> None:
        super().__init__(f"The transactional id {transactional_id!r} does not exist, or was idle for too long")


class ProducerIdMismatch(TxnError):
    """The transactional id has no record, or another producer id. INVALID_PRODUCER_ID_MAPPING."""


class ProducerFenced(TxnError):
    """A newer producer, or an abort by the coordinator, has replaced this one.

    PRODUCER_FENCED. To Produce and TxnOffsetCommit Kafka answers INVALID_PRODUCER_EPOCH instead, which lets a client
    abort and continue.
    """


class InvalidTransactionState(TxnError):
    """The request does not fit the transaction's state. INVALID_TXN_STATE."""


class InvalidTransactionTimeout(TxnError):
    """A transaction should stay open for longer than allowed, or for no time. INVALID_TRANSACTION_TIMEOUT."""

    def __init__(self, timeout_ms: int, timeout_ms_max: int) -> None:
        super().__init__(
            f"A transaction timeout of {timeout_ms} ms is refused. Set transaction.timeout.ms to between 1 and "
            f"{timeout_ms_max}"
        )


class TransactionEnding(TxnError):
    """The last transaction is decided, and some participants have not applied it yet. CONCURRENT_TRANSACTIONS.

    The decision stands. A retry waits for the same end (K32).
    """

    retriable = True


class TransactionOverdue(TxnError):
    """A transaction is past its deadline, and the metadata store has no space to decide it. UNKNOWN_SERVER_ERROR.

    Clients then give their producer up, and its successor finds out. They are not told that it was aborted: that is not
    durable yet, and a commit that was delayed on another connection or at another broker may come before the abort.
    """

    definite = False

    def __init__(self, transactional_id: str) -> None:
        super().__init__(
            f"The transaction of {transactional_id} has timed out, and the metadata store has no space to end it. "
            "Begin a new producer with this transactional id, which ends it"
        )


class EndTxnLate(TxnError):
    """An EndTxn was delayed on a connection that its client has left. INVALID_TXN_STATE, which nobody reads (K31)."""


class PartitionNotInTransaction(TxnError):
    """A client of transaction version 1 writes to a partition or group that it has not added. INVALID_TXN_STATE."""


class InvalidPattern(TxnError):
    """A pattern of transactional ids cannot be matched here. INVALID_REGULAR_EXPRESSION."""

    def __init__(self, pattern: str, reason: str) -> None:
        super().__init__(f"The pattern {pattern[:100]!r} is not served: {reason}. Use text, '.', '.*' and '.+'")
