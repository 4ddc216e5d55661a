"""Holding that a transaction is open, for whoever is about to put an op record or to append (T11).

Open means that its header says so and that its group, if it has one, has not decided it. Whoever puts an op record does
so on the condition that both stay as they are; whoever appends asks again, without a pause in between.
"""

from collections.abc import Sequence
from typing import Final

from storage.entry import TxnId
from storage.metadata.store import ABSENT, Check, Conflict, MetadataStore, PutSequential
from txn.errors import TransactionEnded, TransactionNotFound
from txn.group_record import GroupRecord, group_key, state_in
from txn.headers import Header, header_key
from txn.states import TxnState

OP_PUT_SECONDS_MAX: Final = 30
"""How long an owner waits for an op record. Then the outcome is unknown, and the owner treats its claim as lost."""


def state_of(metadata: MetadataStore, txn: TxnId, header: Header) -> TxnState:
    """What is decided of a transaction, as this process's image holds it."""
    if header.group is None or header.state.is_final:
        return header.state
    record = metadata.peek(group_key(header.group.application))
    return state_in(None if record is None else GroupRecord.from_value(record.value), header.group, txn)


def require_open(metadata: MetadataStore, txn: TxnId) -> tuple[Check, ...]:
    """Hold that the transaction is open, as this process's image has it; the conditions under which it stays so.

    Raises:
        TransactionNotFound, TransactionEnded: it is not.
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
    """As `require_open`; a header that this process's image lacks is looked for behind a barrier (D5)."""
    if metadata.peek(header_key(txn)) is None:
        await metadata.barrier()
    require_open(metadata, txn)


async def put_op(metadata: MetadataStore, txn: TxnId, claim: Sequence[Check], put: PutSequential) -> str:
    """Put an op record of an open transaction under its owner's claim; the record's key. It is durable on return.

    Raises:
        TransactionNotFound, TransactionEnded: the transaction is not open; nothing was put.
        Conflict: the claim does not hold; nothing was put.
        StoreUnavailable: the outcome is unknown.
    """
    while True:
        try:
            committed = await metadata.commit([*require_open(metadata, txn), *claim, put])
        except Conflict as conflict:
            if any(conflict.key == check.key for check in claim):
                raise
            # Ended, which the next look tells, or another transaction of its group was aborted, which changes nothing.
            await metadata.barrier()
        else:
            key = committed.keys[-1]
            assert key is not None, "a sequential put names its key"
            return key
