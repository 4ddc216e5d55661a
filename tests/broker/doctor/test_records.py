"""What the doctor reads in metadata records, and what it passes over."""

import pytest

from broker.cluster.membership import BROKERS
from broker.cluster.ownership import KEY_PREFIX as CLAIMS
from broker.cluster.ownership import claim_key
from broker.doctor.facts import Waiting
from broker.doctor.records import OVERDUE_MS, PREFIXES, RecordReader
from storage.entry import TxnId
from storage.metadata.store import Record
from storage.position import Position
from txn.headers import KEY_PREFIX as HEADERS
from txn.headers import Header, header_key
from txn.ops import KEY_PREFIX as OPS
from txn.ops import WriteOp
from txn.states import TxnState

NOW_MS = 10**12
BROKER = Record(BROKERS + "one", b'{"folder": "f", "http_url": null}', 1, session=7)
CLAIM = Record(claim_key("persistent://a/b/c"), b'{"broker": "one", "service_url": "pulsar://one:1"}', 2, session=7)


@pytest.mark.parametrize("is_running", [True, False])
def test_records_of_ended_sessions_count_nothing_if_no_broker_runs(is_running: bool) -> None:
    """E4: the folder of a stopped cluster still has what its brokers owned in the moment of their end."""
    reader = RecordReader(NOW_MS, is_running=is_running)
    reader.take(BROKERS, BROKER)
    reader.take(CLAIMS, CLAIM)
    assert bool(reader.facts.registered) == bool(reader.facts.claims) == is_running


def test_only_transactions_that_nobody_ends_are_overdue() -> None:
    """C17: brokers allow for two hours between their clocks, and may have seen a transaction late."""
    reader = RecordReader(NOW_MS)
    for number, (state, late_ms) in enumerate(
        [(TxnState.OPEN, OVERDUE_MS + 1), (TxnState.OPEN, OVERDUE_MS), (TxnState.ABORTED, OVERDUE_MS + 1)]
    ):
        header = Header(TxnState.OPEN, NOW_MS - late_ms, 0)
        put = (header if state is TxnState.OPEN else header.ended(state, 1)).to_put(TxnId(0, number), 0)
        reader.take(HEADERS, Record(put.key, put.value, 1, put.indexes))
    assert reader.facts.overdue == {header_key(TxnId(0, 0)): OVERDUE_MS + 1}


def test_the_oldest_record_that_waits_is_known() -> None:
    reader = RecordReader(NOW_MS)
    for version in (8, 5, 9):
        put = WriteOp(TxnId(0, 1), "segment://a/b/c/0000-ffff-0", "c", Position(0, 0)).to_put()
        reader.take(OPS, Record(f"{put.prefix}-{version:020d}", put.value, version))
    assert reader.facts.waiting == {"segment://a/b/c/0000-ffff-0": Waiting(3, 5)}


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b"\xff", b'{"id": ', b"null"])
def test_a_damaged_record_is_a_fact(prefix: str, value: bytes) -> None:
    """E1, E7: whatever is in it, nothing raises, and its key is named. An empty draining record is none."""
    reader = RecordReader(NOW_MS)
    reader.take(prefix, Record(prefix if prefix == PREFIXES[0] else prefix + "x", value, 1))
    assert len(reader.facts.unreadable) <= 1
    if prefix != "/draining/":
        assert reader.facts.unreadable
