"""Checks that a transaction is open, before an op record is written or an entry is appended (T11).

A transaction is open if its header says so and its group, if it has one, has not decided it. An op record is written on
the condition that both stay as they are. An append checks again, without a pause before it.
"""

from collections.abc import Sequence
from typing import Final

from storage.entry import TxnId
from storage.metadata.store import ABSENT, Check, Conflict, MetadataStore, PutSequential, RecordVersion
from txn.errors import TransactionEnded, TransactionNotFound
from txn.group_record import GroupRecord, group_key, state_in
from txn.headers import Header, header_key
from txn.states import TxnState

OP_PUT_SECONDS_MAX: Final = 30
"""How long an owner waits for an op record. After that, the outcome is unknown and the owner treats its claim as lost.
"""


def state_of(metadata: MetadataStore, txn: TxnId, header: Header) -> TxnState:
    """The decision about a transaction, according to this process's image."""
    if header.group is None or header.state.is_final:
        return header.state
    record = metadata.peek(group_key(header.group.application))
    return state_in(None if record is None else GroupRecord.from_value(record.value), header.group, txn)


def require_open(metadata: MetadataStore, txn: TxnId) -> tuple[Check, ...]:
    """Return the conditions under which the transaction stays open, if it is open in this process's image.

    Raises:
        TransactionNotFound, TransactionEnded: it is not open.
    """
    record = metadata.peek(header_key(txn))
    if record is None:
        raise TransactionNotFound(txn)
    header = Header.from_value(record.value)
    state = state_of(metadata, txn, header)
    if state.is_final:
        raise TransactionEnded(txn, state)
    check = Check(record.key, record.version)
    if header.group is None:
        return (check,)
    key = group_key(header.group.application)
    group = metadata.peek(key)
    return check, Check(key, ABSENT if group is None else group.version)


async def require_open_anywhere(metadata: MetadataStore, txn: TxnId) -> None:
    """As `require_open`. If this process's image lacks the header, look again behind a barrier (D5)."""
    if metadata.peek(header_key(txn)) is None:
        await metadata.barrier()
    require_open(metadata, txn)


async def put_op(metadata: MetadataStore, txn: TxnId, claim: Sequence[Check], put: PutSequential) -> RecordVersion:
    """Write an op record of an open transaction under its owner's claim. Returns its place. Durable on return.

    Raises:
        TransactionNotFound, TransactionEnded: the transaction is not open. Nothing was written.
        Conflict: the claim does not hold. Nothing was written.
        StoreUnavailable: the outcome is unknown.
    """
    while True:
        try:
            committed = await metadata.commit([*require_open(metadata, txn), *claim, put])
        except Conflict as conflict:
            if any(conflict.key == check.key for check in claim):
                raise
            # The transaction has ended, which the next check finds. Or another transaction of its group was aborted.
            await metadata.barrier()
        else:
            key = committed.keys[-1]
            assert key is not None, "a sequential put names its key"
            return RecordVersion(key, committed.revision)
