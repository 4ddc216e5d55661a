"""Headers and op records: their contents, and the index keys that find them."""

import hypothesis.strategies as st
from hypothesis import given

from storage.entry import TxnId
from storage.metadata.store import Record
from storage.position import Position
from txn.headers import (
    BY_DEADLINE,
    BY_FINAL_STATE,
    Header,
    fixed_width,
    header_key,
    is_v5,
    stamped_until,
    txn_from_name,
    txn_name,
    txn_of_key,
    v5_id,
)
from txn.ops import WRITES_BY_SEGMENT, WriteOp, ops_of, segment_index_key, writes_of_segment
from txn.states import TxnState

ids = st.builds(v5_id, st.integers(0, 2**31), st.integers(0, 2**61))
times = st.integers(0, 2**45)


@given(ids)
def test_an_id_survives_its_keys(txn: TxnId) -> None:
    """T33: v5 ids have bit 62, which their keys leave out and restore."""
    assert is_v5(txn)
    assert txn_from_name(txn_name(txn)) == txn
    assert txn_of_key(header_key(txn)) == txn


def test_a_v4_id_is_no_v5_id() -> None:
    """T33: the two kinds cannot collide."""
    assert not is_v5(TxnId(0, 0))
    assert not is_v5(TxnId(3, 2**61))


@given(ids, times, times)
def test_an_open_header_stands_under_its_deadline_only(txn: TxnId, created: int, timeout: int) -> None:
    """T1, T32: an open header is found by its deadline, and survives the store."""
    header = Header(TxnState.OPEN, timeout, created)
    put = header.to_put(txn, 0)
    assert Header.from_value(put.value) == header
    assert [entry.name for entry in put.indexes] == [BY_DEADLINE]
    assert put.partition_key == txn_name(txn)
    start, end = stamped_until("", timeout)
    assert start <= put.indexes[0].key < end
    assert not put.indexes[0].key < stamped_until("", timeout - 1)[1]


@given(ids, times, st.sampled_from([TxnState.COMMITTED, TxnState.ABORTED]))
def test_a_final_header_stands_under_its_state_only(txn: TxnId, finalized: int, state: TxnState) -> None:
    """T1, T32: a final header is found by (state, finalized_ms), and survives the store."""
    header = Header(TxnState.OPEN, 10, 5).ended(state, finalized)
    put = header.to_put(txn, 7)
    assert Header.from_value(put.value) == header
    assert put.expected == 7
    assert [entry.name for entry in put.indexes] == [BY_FINAL_STATE]
    start, end = stamped_until(f"{state}:", finalized)
    assert start <= put.indexes[0].key < end
    assert not put.indexes[0].key < stamped_until(f"{state}:", finalized - 1)[1]


@given(st.integers(0, 10**19), st.integers(0, 10**19))
def test_numbers_in_keys_keep_their_order(one: int, other: int) -> None:
    """M12: 9 < 10 < 10^19 also holds for the keys as text."""
    assert (fixed_width(one) < fixed_width(other)) == (one < other)


@given(ids, st.text(min_size=1), st.text(min_size=1))
def test_an_op_record_names_one_segment(txn: TxnId, segment: str, other: str) -> None:
    """T3, T32: only its own segment finds an op record, whatever the names contain."""
    op = WriteOp(txn, segment, "creation", Position(4, 2))
    put = op.to_put()
    key = f"{put.prefix}-{1:020d}"
    record = Record(key, put.value, 3, put.indexes, put.partition_key)
    assert WriteOp.from_record(record) == op
    assert put.partition_key == txn_name(txn)
    assert put.indexes[0].name == WRITES_BY_SEGMENT
    start, end = writes_of_segment(segment)
    assert start <= put.indexes[0].key < end
    if other != segment:
        assert not start <= segment_index_key(other) < end


def test_the_ops_of_one_transaction_are_no_others() -> None:
    """T3: transaction 1_1 does not own the records of 1_10."""
    start, end = ops_of(v5_id(1, 1))
    assert start <= f"/txn/op/1_1-{5:020d}" < end
    assert not start <= f"/txn/op/1_10-{5:020d}" < end
