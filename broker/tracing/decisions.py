"""Ends the traces' transactions when this broker hears of a decision, whichever broker has made it.

Each class follows the records of one kind of transactions, and reads only those with traced messages.
"""

from broker.tracing.spans import Tracing
from storage.metadata.store import Record
from txn.headers import Header, txn_of_key
from txn.kafka_states import KafkaTxnState
from txn.kafka_transaction import KafkaTransaction, transactional_id_of
from txn.states import TxnState


class TracedHeaders:
    """A follower of the headers of v5 transactions (`txn/header_watch.py`)."""

    def __init__(self, tracing: Tracing) -> None:
        """Set up. The header watch calls it."""
        self._tracing = tracing

    def shown(self, record: Record) -> None:
        """See `RecordFollower`."""
        txn = txn_of_key(record.key)
        if not self._tracing.is_traced(txn):
            return
        header = Header.from_value(record.value)
        if header.finalized_ms is not None:
            outcome = "commit" if header.state is TxnState.COMMITTED else "abort"
            self._tracing.ended(txn, outcome, decided_ms=header.finalized_ms)

    def removed(self, key: str) -> None:
        """See `RecordFollower`."""
        self._tracing.forget(txn_of_key(key))


class TracedTransactionalIds:
    """A follower of the records of Kafka's transactional ids (`txn/kafka_watch.py`)."""

    def __init__(self, tracing: Tracing) -> None:
        """Set up. The watch calls it."""
        self._tracing = tracing

    def shown(self, record: Record) -> None:
        """See `RecordFollower`."""
        transactional_id = transactional_id_of(record.key)
        if not self._tracing.is_traced(transactional_id):
            return
        transaction = KafkaTransaction.from_value(record.value)
        if transaction.state.is_ending:
            outcome = "commit" if transaction.state is KafkaTxnState.PREPARE_COMMIT else "abort"
            self._tracing.ended(transactional_id, outcome, decided_ms=transaction.changed_ms)

    def removed(self, key: str) -> None:
        """See `RecordFollower`."""
        self._tracing.forget(transactional_id_of(key))
