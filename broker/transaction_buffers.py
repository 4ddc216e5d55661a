"""Chooses the transaction buffer of each topic from a table, by its domain and namespace.

`broker.py` fills the table. A namespace's own row takes precedence over its domain's row (T35).
"""

from collections.abc import Callable, Mapping

from broker.names import Domain, TopicName
from storage.managed_ledger import ManagedLedger
from storage.metadata.store import Check
from txn.buffer import TransactionBuffer

MakeBuffer = Callable[[ManagedLedger, Check], TransactionBuffer]
"""Makes the buffer of an open managed ledger under its owner's claim; it has not recovered yet."""

ANY_NAMESPACE = None


class TransactionBuffers:
    """See the module's docstring."""

    def __init__(self, table: Mapping[tuple[Domain, str | None], MakeBuffer]) -> None:
        """Take the table. A key is a domain with a namespace (`tenant/namespace`), or with ANY_NAMESPACE."""
        self._table = table

    def make(self, name: TopicName, ledger: ManagedLedger, claim: Check) -> TransactionBuffer:
        """Make the buffer of a topic that is being opened."""
        by_namespace = self._table.get((name.domain, name.tenant_namespace))
        return (by_namespace or self._table[name.domain, ANY_NAMESPACE])(ledger, claim)
