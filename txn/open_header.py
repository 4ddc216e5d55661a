"""Holding that a transaction is open, for whoever is about to put an op record or to append (T11).

Whoever acts on the version puts it into the conditions of his change set; whoever appends asks again, without a pause
in between.
"""

from storage.entry import TxnId
from storage.metadata.store import MetadataStore
from txn.errors import TransactionEnded, TransactionNotFound
from txn.headers import Header, header_key


async def open_version(metadata: MetadataStore, txn: TxnId) -> int:
    """As `require_open`; a header that this process's image lacks is looked for behind a barrier (D5)."""
    if metadata.peek(header_key(txn)) is None:
        await metadata.barrier()
    return require_open(metadata, txn)


def require_open(metadata: MetadataStore, txn: TxnId) -> int:
    """The version of the transaction's header, as this process's image holds it, which must be open.

    Raises:
        TransactionNotFound, TransactionEnded: it is not.
    """
    record = metadata.peek(header_key(txn))
    if record is None:
        raise TransactionNotFound(txn)
    state = Header.from_value(record.value).state
    if state.is_final:
        raise TransactionEnded(txn, state)
    return record.version
