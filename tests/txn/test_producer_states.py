"""What a log knows of its producers: which batches and markers it takes."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from txn.errors import TxnError
from txn.producer_rows import BATCHES_KEPT, ProducerRows
from txn.producer_states import (
    SEQUENCE_MAX,
    Batch,
    CoordinatorStale,
    Duplicate,
    EarlierTransactionOpen,
    EndMarker,
    OutOfOrderSequence,
    OutsideOfTransaction,
    ProducerEpochStale,
    ProducerStates,
    last_sequence,
)

NOW = 1_000_000


def batch(first: int, *, count: int = 1, epoch: int = 0, producer: int = 9, in_txn: bool = False) -> Batch:
    return Batch(producer, epoch, first, last_sequence(first, count), in_txn)


def marker(epoch: int = 0, *, coordinator: int = 0, v2: bool = False) -> EndMarker:
    return EndMarker(9, epoch, coordinator, v2)


class Log:
    """Appends what the states allow, as a partition does."""

    def __init__(self) -> None:
        self.states = ProducerStates()
        self.end = 0

    def append(self, one: Batch, *, has_open: bool = False) -> int:
        """Return the batch's base offset, whether it is new or a duplicate."""
        found = self.states.check(one, has_open=has_open)
        if isinstance(found, Duplicate):
            return found.base_offset
        base = self.end
        self.end += (one.last_sequence - one.first_sequence) % (SEQUENCE_MAX + 1) + 1
        self.states.note(one, base, NOW)
        return base


def test_batches_continue_their_numbers() -> None:
    """K23: each begins behind the one before."""
    log = Log()
    assert [log.append(batch(0, count=3)), log.append(batch(3)), log.append(batch(4, count=2))] == [0, 3, 4]


def test_a_repeated_batch_gets_its_first_answer() -> None:
    """K23: it is stored once, as long as it is one of the last five."""
    log = Log()
    for first in range(BATCHES_KEPT + 1):
        log.append(batch(first))
    assert [log.append(batch(first)) for first in range(1, BATCHES_KEPT + 1)] == [1, 2, 3, 4, 5]
    assert log.end == BATCHES_KEPT + 1
    with pytest.raises(OutOfOrderSequence):
        log.append(batch(0))


@pytest.mark.parametrize("first", [0, 1, 3, 5, 7])
def test_any_other_number_is_out_of_order(first: int) -> None:
    """K24: after one was refused, so are those behind it."""
    log = Log()
    log.append(batch(0, count=2))
    log.append(batch(2, count=2))
    with pytest.raises(OutOfOrderSequence, match="4 is next"):
        log.append(batch(first))


def test_a_part_of_a_batch_is_no_duplicate() -> None:
    """K24: both ends must be those of the batch that was stored."""
    log = Log()
    log.append(batch(0, count=3))
    with pytest.raises(OutOfOrderSequence):
        log.append(batch(0, count=2))


def test_numbers_begin_again_behind_the_largest() -> None:
    """K24: within a batch, and between two."""
    log = Log()
    log.append(batch(SEQUENCE_MAX - 1, count=2))
    log.append(batch(0))
    assert log.append(batch(SEQUENCE_MAX - 1, count=2)) == 0
    spanning = Log()
    spanning.append(batch(SEQUENCE_MAX, count=3))
    assert last_sequence(SEQUENCE_MAX, 3) == 1
    assert spanning.append(batch(2)) == 3


def test_an_unknown_producer_begins_anywhere() -> None:
    """K26: its state may have expired, or its records were deleted."""
    assert Log().append(batch(77)) == 0


def test_a_new_epoch_begins_at_zero() -> None:
    """K24: and its numbers are not those of the epoch before."""
    log = Log()
    log.append(batch(0))
    with pytest.raises(OutOfOrderSequence, match="0 is next"):
        log.append(batch(1, epoch=1))
    assert log.append(batch(0, epoch=1)) == 1
    assert log.append(batch(1, epoch=1)) == 2


def test_an_earlier_epoch_is_fenced() -> None:
    """K28: its batches and its markers."""
    log = Log()
    log.append(batch(0, epoch=3))
    with pytest.raises(ProducerEpochStale):
        log.append(batch(1, epoch=2))
    with pytest.raises(ProducerEpochStale):
        log.states.check_marker(marker(2), has_open=True)


def test_a_producer_with_an_open_transaction_writes_nothing_outside_of_it() -> None:
    """K28: it would be read before the transaction is decided."""
    log = Log()
    log.append(batch(0, in_txn=True))
    with pytest.raises(OutsideOfTransaction):
        log.append(batch(1), has_open=True)
    assert log.append(batch(1, in_txn=True), has_open=True) == 1
    assert log.append(batch(2), has_open=False) == 2


def test_a_new_epoch_waits_for_the_marker_of_the_one_before() -> None:
    """K28: otherwise its records would belong to the old transaction."""
    log = Log()
    log.append(batch(0, in_txn=True))
    with pytest.raises(EarlierTransactionOpen):
        log.append(batch(0, epoch=1, in_txn=True), has_open=True)
    assert log.append(batch(0, epoch=1, in_txn=True)) == 1


def test_numbers_go_on_behind_a_marker_of_the_same_epoch() -> None:
    """K29: with version 1, one epoch has many transactions."""
    log = Log()
    log.append(batch(0, in_txn=True))
    log.states.check_marker(marker(), has_open=True)
    log.states.note_marker(marker(), NOW)
    assert log.append(batch(1, in_txn=True)) == 1


def test_a_marker_of_version_2_begins_an_epoch() -> None:
    """K27, K29: data that arrives behind it is fenced, and so is the marker that comes again."""
    log = Log()
    log.append(batch(0, in_txn=True))
    ended = marker(1, v2=True)
    log.states.check_marker(ended, has_open=True)
    log.states.note_marker(ended, NOW)
    with pytest.raises(ProducerEpochStale):
        log.append(batch(1, in_txn=True))
    with pytest.raises(ProducerEpochStale):
        log.states.check_marker(ended, has_open=False)
    with pytest.raises(OutOfOrderSequence):
        log.append(batch(1, epoch=1, in_txn=True))
    assert log.append(batch(0, epoch=1, in_txn=True)) == 1
    log.states.check_marker(marker(1), has_open=False)
    log.states.check_marker(ended, has_open=True)
    log.states.check_marker(marker(2, v2=True), has_open=True)


def test_a_deposed_coordinator_ends_nothing() -> None:
    """D15: its marker comes late."""
    log = Log()
    log.append(batch(0, in_txn=True))
    log.states.note_marker(marker(coordinator=5), NOW)
    with pytest.raises(CoordinatorStale):
        log.states.check_marker(marker(coordinator=4), has_open=True)
    log.states.check_marker(marker(coordinator=5), has_open=True)


def test_a_marker_for_an_unknown_producer_is_taken() -> None:
    """K26, K27: its state has expired."""
    states = ProducerStates()
    states.check_marker(marker(), has_open=False)
    states.note_marker(marker(3), NOW)
    found = states.get(9)
    assert found is not None
    assert found.epoch == 3


def test_producers_expire_by_idle_time_alone() -> None:
    """K26: not by their number, and not with a transaction open."""
    states = ProducerStates()
    for producer in range(5_000):
        states.note(batch(0, producer=producer), producer, NOW + producer)
    assert len(states) == 5_000
    states.expire(NOW + 4_990, besides={3})
    assert sorted(producer for producer, _ in states) == [3, *range(4_990, 5_000)]
    assert states.get(4_989) is None


def test_producers_may_come_and_go_while_they_are_listed() -> None:
    """E7: a list of many is made in steps."""
    states = ProducerStates()
    for producer in range(4):
        states.note(batch(0, producer=producer), producer, NOW + producer)
    listed = []
    for producer, _ in states:
        listed.append(producer)
        if producer == 0:
            states.expire(NOW + 2, besides=())
            states.note(batch(0, producer=9), 9, NOW + 9)
    assert listed == [0, 2, 3]


def test_a_marker_is_a_sign_of_life() -> None:
    """K26: a clock that went back makes nobody older."""
    states = ProducerStates()
    states.note(batch(0), 0, NOW)
    states.note_marker(marker(), NOW + 50)
    states.note(batch(1), 2, NOW - 100)
    states.expire(NOW + 50, besides=())
    assert len(states) == 1
    states.expire(NOW + 51, besides=())
    assert len(states) == 0


steps = st.one_of(
    st.builds(
        batch,
        st.integers(0, 3),
        count=st.integers(1, 2),
        epoch=st.integers(0, 2),
        producer=st.integers(8, 9),
        in_txn=st.booleans(),
    ),
    st.builds(marker, st.integers(0, 2), coordinator=st.integers(0, 2), v2=st.booleans()),
)


def answer(states: ProducerStates, step: Batch | EndMarker, *, has_open: bool) -> object:
    try:
        if isinstance(step, Batch):
            return states.check(step, has_open=has_open)
        states.check_marker(step, has_open=has_open)
    except TxnError as refused:
        return type(refused)
    return None


@given(st.lists(steps, max_size=30), steps, st.booleans())
def test_a_snapshot_answers_as_the_original(taken: list[Batch | EndMarker], asked: Batch, has_open: bool) -> None:
    """K24, K26: after a restart the last batches, epochs and coordinators are the same."""
    states = ProducerStates()
    for offset, step in enumerate(taken):
        if answer(states, step, has_open=False) is None:
            if isinstance(step, Batch):
                states.note(step, offset, NOW + offset)
            else:
                states.note_marker(step, NOW + offset)
    again = ProducerStates(ProducerRows(bytes(states.rows.data)))
    assert dict(again) == dict(states)
    assert all(len(state.batches) <= BATCHES_KEPT for _, state in again)
    assert answer(again, asked, has_open=has_open) == answer(states, asked, has_open=has_open)
