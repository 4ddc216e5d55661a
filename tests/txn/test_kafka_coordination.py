"""Each request to Kafka's coordinator, in each state, from each producer, of each transaction version."""

import itertools
from dataclasses import replace

import pytest

from txn.kafka_coordination import (
    TIMEOUT_MS_MAX,
    EndTxn,
    InitProducerId,
    Step,
    aborted,
    begun,
    completed,
    ended,
    initialised,
)
from txn.kafka_errors import (
    EndTxnLate,
    InvalidTransactionState,
    InvalidTransactionTimeout,
    ProducerFenced,
    ProducerIdMismatch,
)
from txn.kafka_states import MOVES, KafkaTxnState
from txn.kafka_transaction import EPOCH_LAST, KafkaTransaction, Producer

S = KafkaTxnState
NOW = 5_000
NEW_ID = 99

CURRENT = Producer(7, 6)
LAST = Producer(7, 5)
STALE = Producer(7, 3)
HIGHER = Producer(7, 8)
OTHER = Producer(8, 6)
EXHAUSTED = Producer(7, EPOCH_LAST)
PRODUCERS = {"current": CURRENT, "last": LAST, "stale": STALE, "higher": HIGHER, "other": OTHER}


def record(state: KafkaTxnState, *, producer: Producer = CURRENT) -> KafkaTransaction:
    """Return a record as the requests make it: an open transaction has no last producer."""
    return KafkaTransaction(
        producer,
        state,
        timeout_ms=1_000,
        changed_ms=4_000,
        started_ms=None if state.is_idle else 3_000,
        last=None if state is S.ONGOING else LAST,
        markers=producer if state.is_ending else None,
    )


def said(step: Step, before: KafkaTransaction) -> str:
    """Return a step in short: the state and producer that it writes, and whom it answers."""
    if step.write is not None:
        assert step.write.state in MOVES[before.state]
        assert step.write.changed_ms == NOW
        assert step.write.unknown == before.unknown
    written = "-" if step.write is None else f"{step.write.state} {step.write.producer.id}/{step.write.producer.epoch}"
    answered = "wait" if step.answer is None else f"{step.answer.id}/{step.answer.epoch}"
    return f"{written} -> {answered}"


def outcome(request: object, before: KafkaTransaction) -> str:
    """Return what a request leads to, or the error's name."""
    try:
        if isinstance(request, InitProducerId):
            return said(initialised(before, request, NOW, NEW_ID), before)
        if isinstance(request, EndTxn):
            return said(ended(before, request, NOW, NEW_ID), before)
        assert isinstance(request, Producer)
        return said(begun(before, request, NOW), before)
    except (ProducerFenced, ProducerIdMismatch, InvalidTransactionState) as refused:
        return type(refused).__name__


IDLE_INIT = {"none": "Empty 7/7 -> 7/7", "current": "Empty 7/7 -> 7/7", "last": "- -> 7/6"}
ENDING_INIT = dict.fromkeys(("none", "current", "last"), "- -> wait")
ABORT = "PrepareAbort 7/7 -> wait"

INITS = {
    S.EMPTY: IDLE_INIT,
    S.COMPLETE_COMMIT: IDLE_INIT,
    S.COMPLETE_ABORT: IDLE_INIT,
    S.ONGOING: {"none": ABORT, "current": ABORT},
    S.PREPARE_COMMIT: ENDING_INIT,
    S.PREPARE_ABORT: ENDING_INIT,
}


@pytest.mark.parametrize(("state", "who"), list(itertools.product(S, ["none", *PRODUCERS])))
def test_init_producer_id(state: KafkaTxnState, who: str) -> None:
    """K30, C22: the next epoch, the same one again, an abort first, or a refusal."""
    before = replace(record(state), unknown=(("later", b"1"),))
    found = outcome(InitProducerId(1_000, PRODUCERS.get(who)), before)
    assert found == INITS[state].get(who, "ProducerFenced")


def test_a_new_transactional_id_gets_an_id_and_the_first_epoch() -> None:
    """K30: also when the producer believes to have one, whose idle record was deleted."""
    for expected in (None, CURRENT):
        step = initialised(None, InitProducerId(1_000, expected), NOW, NEW_ID)
        assert step.answer == Producer(NEW_ID, 0)
        assert step.write == KafkaTransaction(Producer(NEW_ID, 0), S.EMPTY, 1_000, NOW)


@pytest.mark.parametrize("timeout_ms", [-1, 0, TIMEOUT_MS_MAX + 1])
def test_a_timeout_has_bounds(timeout_ms: int) -> None:
    """E8: an open transaction holds back every reader."""
    for before in (None, *map(record, S)):
        with pytest.raises(InvalidTransactionTimeout, match=f"between 1 and {TIMEOUT_MS_MAX}"):
            initialised(before, InitProducerId(timeout_ms), NOW, NEW_ID)
    for allowed in (1, TIMEOUT_MS_MAX):
        step = initialised(record(S.EMPTY), InitProducerId(allowed), NOW, None)
        assert step.write is not None
        assert step.write.timeout_ms == allowed


@pytest.mark.parametrize(("expected", "last"), [(None, None), (EXHAUSTED, EXHAUSTED)])
def test_an_exhausted_epoch_rotates_the_id(expected: Producer | None, last: Producer | None) -> None:
    """K30: and whoever asked with the old pair may ask again."""
    before = record(S.COMPLETE_COMMIT, producer=EXHAUSTED)
    assert before.needs_producer_id
    step = initialised(before, InitProducerId(1_000, expected), NOW, NEW_ID)
    assert step.write is not None
    assert (step.answer, step.write.last) == (Producer(NEW_ID, 0), last)
    if expected is not None:
        assert initialised(step.write, InitProducerId(1_000, expected), NOW, None) == Step(None, Producer(NEW_ID, 0))


@pytest.mark.parametrize(("expected", "again"), [(None, Producer(7, 8)), (CURRENT, Producer(7, 7))])
def test_init_while_a_transaction_is_open_aborts_it_first(expected: Producer | None, again: Producer) -> None:
    """K30: a producer that continues gets the epoch of the abort; another one gets an epoch above it."""
    request = InitProducerId(1_000, expected)
    step = initialised(record(S.ONGOING), request, NOW, None)
    assert step.write is not None
    assert (step.write.markers, step.write.last) == (Producer(7, 7), expected)
    assert initialised(step.write, request, NOW, None) == Step(None, None)
    assert initialised(completed(step.write, NOW), request, NOW, None).answer == again


BEGUN = {state: "Ongoing 7/6 -> 7/6" if state.is_idle else "- -> wait" for state in S} | {S.ONGOING: "- -> 7/6"}


@pytest.mark.parametrize(("state", "who"), list(itertools.product(S, PRODUCERS)))
def test_joining_a_transaction(state: KafkaTxnState, who: str) -> None:
    """K28: only the current producer begins a transaction or joins one, and not while the last one ends."""
    expected = BEGUN[state] if who == "current" else "ProducerIdMismatch" if who == "other" else "ProducerFenced"
    assert outcome(PRODUCERS[who], record(state)) == expected


def test_a_transaction_begins_once() -> None:
    """K28: further participants do not write the record, so its version names the transaction."""
    step = begun(record(S.COMPLETE_ABORT), CURRENT, NOW)
    assert step.write is not None
    assert (step.write.started_ms, step.write.deadline_ms, step.write.last) == (NOW, NOW + 1_000, None)
    assert begun(step.write, CURRENT, NOW + 9) == Step(None, CURRENT)


FENCED, INVALID, MISMATCH = "ProducerFenced", "InvalidTransactionState", "ProducerIdMismatch"
SAME = "- -> 7/6"
NEXT = "CompleteAbort 7/7 -> 7/7"
COMMITS = {1: "PrepareCommit 7/6 -> 7/6", 2: "PrepareCommit 7/7 -> 7/7"}
ABORTS = {1: "PrepareAbort 7/6 -> 7/6", 2: "PrepareAbort 7/7 -> 7/7"}

ENDS_V1 = {
    S.EMPTY: (INVALID, INVALID),
    S.ONGOING: (COMMITS[1], ABORTS[1]),
    S.PREPARE_COMMIT: (SAME, INVALID),
    S.PREPARE_ABORT: (INVALID, SAME),
    S.COMPLETE_COMMIT: (SAME, INVALID),
    S.COMPLETE_ABORT: (INVALID, SAME),
}
"""A commit and an abort by the current producer."""

ENDS_V2 = {
    S.EMPTY: {"current": (INVALID, NEXT), "last": (FENCED, FENCED)},
    S.ONGOING: {"current": (COMMITS[2], ABORTS[2]), "last": (FENCED, FENCED)},
    S.PREPARE_COMMIT: {"current": (FENCED, FENCED), "last": (SAME, INVALID)},
    S.PREPARE_ABORT: {"current": (FENCED, FENCED), "last": (FENCED, SAME)},
    S.COMPLETE_COMMIT: {"current": (INVALID, NEXT), "last": (SAME, INVALID)},
    S.COMPLETE_ABORT: {"current": (INVALID, NEXT), "last": (FENCED, SAME)},
}
"""A commit and an abort by the current and by the last producer."""


@pytest.mark.parametrize(("state", "who", "is_commit"), list(itertools.product(S, PRODUCERS, [True, False])))
def test_end_txn_of_version_1(state: KafkaTxnState, who: str, is_commit: bool) -> None:
    """K32: the epoch stays, only the current producer ends anything, and a repeat keeps the decision."""
    expected = MISMATCH if who == "other" else FENCED
    if who == "current":
        expected = ENDS_V1[state][not is_commit]
    assert outcome(EndTxn(PRODUCERS[who], is_commit, version=1), record(state)) == expected


@pytest.mark.parametrize(("state", "who", "is_commit"), list(itertools.product(S, PRODUCERS, [True, False])))
def test_end_txn_of_version_2(state: KafkaTxnState, who: str, is_commit: bool) -> None:
    """K29: each end takes the next epoch, and a repeat has the epoch before; an abort meets no commit."""
    expected = ENDS_V2[state].get(who, (MISMATCH if who == "other" else FENCED,) * 2)[not is_commit]
    assert outcome(EndTxn(PRODUCERS[who], is_commit, version=2), record(state)) == expected


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("is_commit", [True, False])
def test_an_end_is_repeated_until_it_is_applied_and_after(version: int, is_commit: bool) -> None:
    """K29, K32: the same answer each time, and the decision stands."""
    request = EndTxn(CURRENT, is_commit, version)
    decided = ended(record(S.ONGOING), request, NOW, None)
    assert decided.write is not None
    assert decided.answer == (CURRENT if version == 1 else Producer(7, 7))
    assert decided.write.markers == decided.answer
    assert ended(decided.write, request, NOW, None) == Step(None, decided.answer)
    done = completed(decided.write, NOW + 1)
    assert (done.started_ms, done.markers, done.changed_ms) == (None, None, NOW + 1)
    assert ended(done, request, NOW, None) == Step(None, decided.answer)
    with pytest.raises(InvalidTransactionState if is_commit or version == 1 else ProducerFenced):
        ended(done, replace(request, is_commit=not is_commit), NOW, None)


def test_an_end_of_version_2_rotates_an_exhausted_id() -> None:
    """K30: its markers have the epoch above the last one, and its repeat gets the new id."""
    request = EndTxn(EXHAUSTED, is_commit=True, version=2)
    step = ended(record(S.ONGOING, producer=EXHAUSTED), request, NOW, NEW_ID)
    assert step.write is not None
    assert (step.answer, step.write.last) == (Producer(NEW_ID, 0), EXHAUSTED)
    assert step.write.markers == Producer(7, EPOCH_LAST + 1)
    assert ended(completed(step.write, NOW), request, NOW, None).answer == Producer(NEW_ID, 0)


def test_an_end_of_version_1_keeps_an_exhausted_epoch() -> None:
    """K30: only the next InitProducerId needs another id."""
    step = ended(record(S.ONGOING, producer=EXHAUSTED), EndTxn(EXHAUSTED, is_commit=True, version=1), NOW, None)
    assert step.answer == EXHAUSTED


def test_an_abort_without_a_transaction_fences_what_is_on_its_way() -> None:
    """K28: a client of version 2 may abort before it knows whether its data arrived."""
    step = ended(record(S.EMPTY), EndTxn(CURRENT, is_commit=False, version=2), NOW, None)
    assert step.write is not None
    with pytest.raises(ProducerFenced):
        begun(step.write, CURRENT, NOW)


def test_a_late_end_of_version_1_ends_nothing() -> None:
    """K31: its client has left the connection. Where nothing is open, it may hear of the end that it asked for."""
    late = EndTxn(CURRENT, is_commit=True, version=1, is_late=True)
    with pytest.raises(EndTxnLate):
        ended(record(S.ONGOING), late, NOW, None)
    assert ended(record(S.COMPLETE_COMMIT), late, NOW, None).answer == CURRENT


@pytest.mark.parametrize("is_fenced", [True, False])
@pytest.mark.parametrize("version", [1, 2])
def test_the_coordinators_abort_fences_the_producer(version: int, is_fenced: bool) -> None:
    """K29, K28: a commit that meets it is fenced, and so are its data. After a timeout the producer may go on."""
    gone = completed(aborted(record(S.ONGOING), NOW, None, is_fenced=is_fenced), NOW)
    for now in (aborted(record(S.ONGOING), NOW, None, is_fenced=is_fenced), gone):
        assert now.producer == Producer(7, 7)
        for is_commit in [True] if version == 2 and not is_fenced else [True, False]:
            with pytest.raises(ProducerFenced):
                ended(now, EndTxn(CURRENT, is_commit, version), NOW, None)
        with pytest.raises(ProducerFenced):
            begun(now, CURRENT, NOW)
    if is_fenced:
        with pytest.raises(ProducerFenced):
            initialised(gone, InitProducerId(1_000, CURRENT), NOW, None)
    else:
        assert initialised(gone, InitProducerId(1_000, CURRENT), NOW, None).answer == Producer(7, 7)


def test_the_coordinators_abort_rotates_an_exhausted_id() -> None:
    """K30: its markers have the epoch above the last one, so they fence the producer on each partition."""
    made = aborted(record(S.ONGOING, producer=EXHAUSTED), NOW, NEW_ID, is_fenced=False)
    assert (made.producer, made.markers) == (Producer(NEW_ID, 0), Producer(7, EPOCH_LAST + 1))
    request = EndTxn(EXHAUSTED, is_commit=False, version=2)
    assert ended(completed(made, NOW), request, NOW, None).answer == Producer(NEW_ID, 0)


def test_without_a_record_there_is_no_producer() -> None:
    """K30: the transactional id was idle for too long, or never was."""
    with pytest.raises(ProducerIdMismatch, match="Initialise it again"):
        begun(None, CURRENT, NOW)
    for version in (1, 2):
        with pytest.raises(ProducerIdMismatch, match="Initialise it again"):
            ended(None, EndTxn(CURRENT, is_commit=True, version=version), NOW, None)


@pytest.mark.parametrize("is_commit", [True, False])
def test_two_ends_at_once_have_one_outcome(is_commit: bool) -> None:
    """K30: InitProducerId races EndTxn. Whoever comes second sees the first, and the epoch rises once."""
    init, end = InitProducerId(1_000, CURRENT), EndTxn(CURRENT, is_commit, 2)
    first = ended(record(S.ONGOING), end, NOW, None).write
    assert first is not None
    assert initialised(completed(first, NOW), init, NOW, None) == Step(None, Producer(7, 7))
    other = initialised(record(S.ONGOING), init, NOW, None).write
    assert other is not None
    if is_commit:
        with pytest.raises(ProducerFenced):
            ended(other, end, NOW, None)
    else:
        assert ended(other, end, NOW, None) == Step(None, Producer(7, 7))
    assert initialised(completed(other, NOW), init, NOW, None) == Step(None, Producer(7, 7))
