"""A group's record: its contents, and what it says about a transaction."""

import pytest

from storage.metadata.store import Put
from txn.group_record import Content, GroupRecord, GroupState, state_in
from txn.headers import TransactionGroup, v5_id
from txn.states import TxnState


@pytest.mark.parametrize("applied", [None, 6])
def test_a_record_reads_as_it_was_written(applied: int | None) -> None:
    winners = frozenset({v5_id(3, 4), v5_id(0, 1)})
    for record in (
        GroupRecord(7, state=GroupState.COMMITTED, since_ms=5, once=True, applied=7, winners=winners),
        GroupRecord(7, state=GroupState.OPEN, since_ms=5, applied=applied),
        GroupRecord(7, state=GroupState.OPEN, since_ms=5, applied=applied, origin="query"),
        GroupRecord(7, state=GroupState.OPEN, since_ms=5, applied=applied, content=Content("plan", "rows")),
        GroupRecord(7, state=GroupState.OPEN, since_ms=5, applied=applied, content=Content(None, "rows")),
    ):
        put = record.to_put("a/b", 3)
        assert isinstance(put, Put)
        assert GroupRecord.from_value(put.value) == record
        assert put.key == "/txn/group/a%2Fb"


def test_what_a_record_says_of_a_transaction() -> None:
    """A table compares the record's batch and state with the batch in the header."""
    txn, loser = v5_id(0, 1), v5_id(0, 2)
    committed = GroupRecord(7, GroupState.COMMITTED, 5, applied=7, winners=frozenset({txn}))
    undecided = GroupRecord(7, GroupState.OPEN, 5)
    for record, batch, of, expected in (
        (None, 7, txn, TxnState.OPEN),
        (undecided, 7, txn, TxnState.OPEN),
        (committed, 7, txn, TxnState.COMMITTED),
        (committed, 7, loser, TxnState.ABORTED),
        (undecided, 6, txn, TxnState.ABORTED),
        (committed, 6, txn, TxnState.ABORTED),
        (undecided, 8, txn, TxnState.OPEN),
        (committed, 8, txn, TxnState.OPEN),
    ):
        assert state_in(record, TransactionGroup("app", batch), of) is expected
