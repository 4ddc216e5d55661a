"""Registrations of partitions and groups in Kafka transactions: contents, keys, and the change set that joins."""

from dataclasses import replace

import hypothesis.strategies as st
import orjson
import pytest
from hypothesis import given

from storage.metadata.memory import MemoryStore
from storage.metadata.store import ABSENT, Conflict, Put, Record
from txn.errors import RecordUnreadable
from txn.kafka_coordination import EndTxn, begun, ended
from txn.kafka_participants import (
    BY_PARTICIPANT,
    Kind,
    Participant,
    Registration,
    ops_to_join,
    registrations_at,
    registrations_of,
)
from txn.kafka_states import KafkaTxnState
from txn.kafka_transaction import EPOCH_LAST, PRODUCER_ID_MAX, KafkaTransaction, Producer, transaction_key

names = st.text(min_size=1, max_size=20)
registrations = st.builds(
    Registration,
    names,
    st.builds(Participant, st.sampled_from(Kind), names),
    st.builds(Producer, st.integers(0, PRODUCER_ID_MAX), st.integers(0, EPOCH_LAST)),
    st.text(max_size=20),
)

PARTITION = Participant(Kind.PARTITION, "persistent://public/default/orders-partition-3")
WRITER = Producer(7, 6)
REGISTRATION = Registration("app/1", PARTITION, WRITER, "made-once")


def stored(put: Put) -> Record:
    return Record(put.key, put.value, 1, put.indexes, put.partition_key)


@given(registrations)
def test_a_registration_survives_the_store(registration: Registration) -> None:
    """K27: its key names transaction and participant, whatever their names contain."""
    put = registration.to_put()
    assert Registration.from_record(stored(put)) == registration
    assert put.expected == ABSENT
    start, end = registrations_of(registration.transactional_id)
    assert start <= put.key < end


@given(registrations, registrations)
def test_only_its_own_transaction_and_participant_find_it(one: Registration, other: Registration) -> None:
    """D16, K27: ranges of two names do not overlap."""
    put = one.to_put()
    start, end = registrations_of(other.transactional_id)
    assert (start <= put.key < end) == (one.transactional_id == other.transactional_id)
    (entry,) = put.indexes
    start, end = registrations_at(other.participant)
    assert entry.name == BY_PARTICIPANT
    assert (start <= entry.key < end) == (one.participant == other.participant)


def test_fields_of_a_later_release_are_kept() -> None:
    """C22: they come back with the record."""
    record = stored(REGISTRATION.to_put())
    later = record._replace(value=orjson.dumps({**orjson.loads(record.value), "later": 1}))
    assert Registration.from_record(later) == replace(REGISTRATION, unknown=(("later", b"1"),))
    assert orjson.loads(Registration.from_record(later).to_put().value) == orjson.loads(later.value)


@pytest.mark.parametrize(
    "change",
    [
        {"producer": [7]},
        {"producer": [7, EPOCH_LAST + 1]},
        {"creation_id": None},
    ],
)
def test_a_damaged_registration_says_so(change: dict[str, object]) -> None:
    """E11: its transaction then waits for somebody to restore it."""
    record = stored(REGISTRATION.to_put())
    with pytest.raises(RecordUnreadable, match="registration"):
        Registration.from_record(record._replace(value=orjson.dumps({**orjson.loads(record.value), **change})))


@pytest.mark.parametrize("key", ["/kafka/txn-op/app", "/kafka/txn-op/app/topic/x", "/kafka/txn-op/a/b/group/x"])
def test_a_key_of_nothing_says_so(key: str) -> None:
    """E11: only partitions and groups take part."""
    record = stored(REGISTRATION.to_put())
    with pytest.raises(RecordUnreadable):
        Registration.from_record(record._replace(key=key))


async def test_no_participant_joins_behind_the_decision() -> None:
    """K28: it joins on the version at which the transaction is open, and many may join at once."""
    metadata = MemoryStore()
    made = await metadata.commit([KafkaTransaction(WRITER, KafkaTxnState.EMPTY, 1_000, 0).to_put("app/1", ABSENT)])

    async def read() -> KafkaTransaction:
        record = await metadata.get(transaction_key("app/1"))
        assert record is not None
        return KafkaTransaction.from_value(record.value)

    step = begun(await read(), WRITER, 5)
    version = (await metadata.commit(ops_to_join("app/1", made.revision, step.write, [REGISTRATION]))).revision
    others = [replace(REGISTRATION, participant=Participant(Kind.GROUP, f"g{number}")) for number in range(3)]
    for other in others[:2]:
        await metadata.commit(ops_to_join("app/1", version, begun(await read(), WRITER, 6).write, [other]))
    with pytest.raises(Conflict):
        await metadata.commit(ops_to_join("app/1", version, None, [REGISTRATION]))
    decision = ended(await read(), EndTxn(WRITER, is_commit=True, version=1), 7, None).write
    assert decision is not None
    await metadata.commit([decision.to_put("app/1", version)])
    with pytest.raises(Conflict):
        await metadata.commit(ops_to_join("app/1", version, None, [others[2]]))
    found = await metadata.scan(*registrations_of("app/1"))
    assert {Registration.from_record(each) for each in found} == {REGISTRATION, *others[:2]}
    (hit,) = await metadata.query(BY_PARTICIPANT, *registrations_at(PARTITION))
    assert hit.record.key == REGISTRATION.key
