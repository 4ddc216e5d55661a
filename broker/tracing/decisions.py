"""Ends the traces' transactions when this broker hears of a decision, whichever broker has made it."""

from broker.tracing.spans import Tracing
from storage.metadata.store import Record
from txn.headers import Header, txn_of_key
from txn.states import TxnState


class TracedHeaders:
    """A follower of headers (`txn/header_watch.py`). It reads only those of transactions with traced messages."""

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
