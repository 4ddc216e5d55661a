"""The record of a transactional id: its contents, keys and index entries."""

from dataclasses import replace

import hypothesis.strategies as st
import orjson
import pytest
from hypothesis import given

from txn.errors import RecordUnreadable
from txn.headers import moment_of
from txn.kafka_errors import InvalidTransactionalId
from txn.kafka_states import KafkaTxnState
from txn.kafka_transaction import (
    BY_DEADLINE,
    BY_IDLE,
    ENDING,
    EPOCH_LAST,
    PRODUCER_ID_MAX,
    TRANSACTIONAL_ID_BYTES_MAX,
    KafkaTransaction,
    Producer,
    transaction_key,
    transactional_id_of,
)

times = st.integers(0, 2**45)
producers = st.builds(Producer, st.integers(0, PRODUCER_ID_MAX), st.integers(0, EPOCH_LAST))


@st.composite
def records(draw: st.DrawFn) -> KafkaTransaction:
    """Draw a record of any state."""
    state = draw(st.sampled_from(KafkaTxnState))
    made = KafkaTransaction(draw(producers), state, draw(st.integers(1, 10**6)), draw(times))
    if not state.is_idle:
        made = replace(made, started_ms=draw(times))
    if state.is_ending:
        made = replace(made, markers=draw(producers).bumped)
    return replace(made, last=draw(st.none() | producers))


@given(records(), st.text(min_size=1, max_size=40))
def test_a_record_survives_the_store(record: KafkaTransaction, name: str) -> None:
    """D15: every field comes back, and the key names the transactional id, whatever it contains."""
    put = record.to_put(name, 7)
    assert KafkaTransaction.from_value(put.value) == record
    assert (put.key, put.expected) == (transaction_key(name), 7)
    assert transactional_id_of(put.key) == name


@given(records())
def test_a_record_is_in_the_index_of_its_state(record: KafkaTransaction) -> None:
    """K32: deadlines, decisions and idle records are found by their moment, each in one index only."""
    (entry,) = record.to_put("app", 0).indexes
    moments = {BY_DEADLINE: record.deadline_ms, ENDING: record.changed_ms, BY_IDLE: record.changed_ms}
    assert moment_of(entry.key) == moments[entry.name]
    assert entry.name == (BY_IDLE if record.state.is_idle else ENDING if record.state.is_ending else BY_DEADLINE)


@given(st.text(min_size=1, max_size=9), st.text(min_size=1, max_size=9))
def test_two_ids_have_two_keys(one: str, other: str) -> None:
    """K30: a slash or a percent sign in an id cannot make it another one."""
    assert (transaction_key(one) == transaction_key(other)) == (one == other)


@pytest.mark.parametrize("name", ["", "é" * 513, "x" * (TRANSACTIONAL_ID_BYTES_MAX + 1)])
def test_an_id_is_neither_empty_nor_long(name: str) -> None:
    """E8: it becomes a key of the store."""
    with pytest.raises(InvalidTransactionalId, match="bytes is refused"):
        transaction_key(name)
    assert transaction_key("é" * 512)


def test_fields_of_a_later_release_are_kept() -> None:
    """C22: an older broker changes the record of a newer one."""
    fields = {"producer": [5, 1], "state": "Empty", "timeout_ms": 9, "changed_ms": 8, "later": {"a": [1]}}
    record = KafkaTransaction.from_value(orjson.dumps(fields))
    assert orjson.loads(replace(record, changed_ms=10).to_put("app", 1).value) == {**fields, "changed_ms": 10}


GOOD = {
    "producer": [5, 1],
    "state": "PrepareCommit",
    "timeout_ms": 9,
    "changed_ms": 8,
    "started_ms": 1,
    "markers": [5, 1],
}


@pytest.mark.parametrize(
    "change",
    [
        {"producer": [5]},
        {"producer": [-1, 0]},
        {"producer": [2**63, 0]},
        {"producer": [5, EPOCH_LAST + 2]},
        {"producer": "51"},
        {"state": "Dead"},
        {"timeout_ms": "9"},
        {"changed_ms": None},
        {"markers": None},
        {"started_ms": None},
        {"state": "Ongoing"},
        {"state": "CompleteCommit", "markers": None},
        {"last": [5, 1.5]},
    ],
)
def test_a_damaged_record_says_so(change: dict[str, object]) -> None:
    """E11: nothing is guessed of it, least of all a commit."""
    assert KafkaTransaction.from_value(orjson.dumps(GOOD)).state is KafkaTxnState.PREPARE_COMMIT
    with pytest.raises(RecordUnreadable, match="transactional id cannot be read"):
        KafkaTransaction.from_value(orjson.dumps({**GOOD, **change}))


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"producer', b"\xff"])
def test_bytes_that_are_no_record_say_so(value: bytes) -> None:
    """E11: so does any other value."""
    with pytest.raises(RecordUnreadable):
        KafkaTransaction.from_value(value)


def test_an_index_key_without_a_moment_says_so() -> None:
    """E11: a sweep passes it over."""
    with pytest.raises(RecordUnreadable, match="has no moment"):
        moment_of("soon:app")
