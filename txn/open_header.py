"""Checks that a transaction is open, before an op record is written or an entry is appended (T11).

A transaction is open if its header says so and its group, if it has one, has not decided it. An op record is written on
the condition that both stay as they are. An append checks again, without a pause before it.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Final

from storage.entry import TxnId
from storage.metadata.store import ABSENT, Check, Conflict, Fresh, MetadataStore, PutSequential, Record, RecordVersion
from txn.errors import RecordUnreadable, TransactionEnded, TransactionNotFound
from txn.group_record import GroupRecord, group_key, state_in
from txn.headers import Header, header_key
from txn.states import TxnState

OP_PUT_SECONDS_MAX: Final = 30
"""How long an owner waits for an op record. After that, the outcome is unknown and the owner treats its claim as lost.
"""


Lookup = Callable[[str], Record | None]
"""Finds a record by its key: in this process's image, or in a fresh answer of the store."""


def state_of(lookup: Lookup, txn: TxnId, header: Header) -> TxnState:
    """The decision about a transaction, according to its header and its group's record."""
    if header.group is None or header.state.is_final:
        return header.state
    record = lookup(group_key(header.group.application))
    return state_in(None if record is None else GroupRecord.from_value(record.value), header.group, txn)


def require_open(lookup: Lookup, txn: TxnId) -> tuple[Check, ...]:
    """Return the conditions under which the transaction stays open, if it is open.

    Raises:
        TransactionNotFound, TransactionEnded: it is not open.
    """
    record = lookup(header_key(txn))
    if record is None:
        raise TransactionNotFound(txn)
    header = Header.from_value(record.value)
    state = state_of(lookup, txn, header)
    if state.is_final:
        raise TransactionEnded(txn, state)
    check = Check(record.key, record.version)
    if header.group is None:
        return (check,)
    key = group_key(header.group.application)
    group = lookup(key)
    return check, Check(key, ABSENT if group is None else group.version)


async def fresh_headers(metadata: MetadataStore, txns: Collection[TxnId], *besides: str) -> Fresh:
    """Ask the store for the headers of these transactions, the records of their groups, and the keys `besides`.

    All of it is at one revision, no older than the call.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    headers = [header_key(txn) for txn in txns]
    # A transaction never changes its group. So an old image names the right one, or none yet.
    groups = _groups(map(metadata.peek, headers))
    while True:
        found = await metadata.fresh([*headers, *groups, *besides])
        named = _groups(map(found.records.__getitem__, headers))
        if named <= groups:
            return found
        groups |= named


def _groups(headers: Iterable[Record | None]) -> set[str]:
    """The keys of the records of these transactions' groups."""
    keys: set[str] = set()
    for record in headers:
        # Whoever needs the state of a damaged header finds the damage.
        with suppress(RecordUnreadable):
            group = None if record is None else Header.from_value(record.value).group
            keys.update(() if group is None else (group_key(group.application),))
    return keys


async def require_open_anywhere(metadata: MetadataStore, txn: TxnId) -> tuple[Check, ...]:
    """As `require_open`, in this process's image. If the image lacks the header, the store is asked for it (D5)."""
    lookup: Lookup = metadata.peek
    if lookup(header_key(txn)) is None:
        lookup = (await fresh_headers(metadata, [txn])).records.get
    return require_open(lookup, txn)


async def put_op(metadata: MetadataStore, txn: TxnId, claim: Sequence[Check], put: PutSequential) -> RecordVersion:
    """Write an op record of an open transaction under its owner's claim. Returns its place. Durable on return.

    Raises:
        TransactionNotFound, TransactionEnded: the transaction is not open. Nothing was written.
        Conflict: the claim does not hold. Nothing was written.
        StoreUnavailable: the outcome is unknown.
    """
    conditions = await require_open_anywhere(metadata, txn)
    while True:
        try:
            committed = await metadata.commit([*conditions, *claim, put])
        except Conflict as conflict:
            if any(conflict.key == check.key for check in claim):
                raise
            # The transaction has ended, which this check finds. Or another transaction of its group was aborted.
            conditions = require_open((await fresh_headers(metadata, [txn])).records.get, txn)
        else:
            key = committed.keys[-1]
            assert key is not None, "a sequential put names its key"
            return RecordVersion(key, committed.revision)
