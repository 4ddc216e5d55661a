"""What the owner of a partition or group does with the data and the end of a Kafka transaction."""

import itertools
from dataclasses import replace

import pytest

from txn.kafka_coordination import EndTxn, aborted, begun, completed, ended
from txn.kafka_errors import PartitionNotInTransaction, ProducerFenced, ProducerIdMismatch, TransactionEnding
from txn.kafka_participants import Kind, Participant, Registration
from txn.kafka_settlement import COORDINATOR_EPOCH, Joining, Settling, admitted, marker_of, settling
from txn.kafka_states import KafkaTxnState
from txn.kafka_transaction import KafkaTransaction, Producer
from txn.producer_states import EndMarker

NOW = 5_000
WRITER = Producer(7, 5)
EMPTY = KafkaTransaction(WRITER, KafkaTxnState.EMPTY, 1_000, 0)
HERE = Registration("app", Participant(Kind.PARTITION, "t"), WRITER, "made")


def opened() -> KafkaTransaction:
    record = begun(EMPTY, WRITER, 1).write
    assert record is not None
    return record


def decided(*, version: int, is_commit: bool) -> KafkaTransaction:
    record = ended(opened(), EndTxn(WRITER, is_commit, version), NOW, None).write
    assert record is not None
    return record


OPEN = opened()
COMMIT_1, COMMIT_2 = (decided(version=version, is_commit=True) for version in (1, 2))
ABORT_1, ABORT_2 = (decided(version=version, is_commit=False) for version in (1, 2))
TIMED_OUT = aborted(OPEN, NOW, None, is_fenced=False)
NEXT_OPEN = begun(completed(COMMIT_2, NOW), Producer(7, 6), NOW).write
DONE = completed(COMMIT_1, NOW)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (OPEN, Settling.WAIT),
        (COMMIT_1, Settling.COMMIT),
        (COMMIT_2, Settling.COMMIT),
        (ABORT_1, Settling.ABORT),
        (ABORT_2, Settling.ABORT),
        (TIMED_OUT, Settling.ABORT),
        (None, Settling.ABORT),
        (DONE, Settling.ABORT),
        (NEXT_OPEN, Settling.ABORT),
        (replace(COMMIT_1, producer=Producer(8, 5), markers=Producer(8, 5)), Settling.ABORT),
    ],
)
def test_an_owner_applies_the_end(record: KafkaTransaction | None, expected: Settling) -> None:
    """K27, K32: once, only here, and a commit only if a record proves it. A deleted topic counts as applied."""
    assert settling(HERE, record, creation_id="made", has_data=True) is expected
    without = Settling.WAIT if record is OPEN else Settling.REMOVE
    assert settling(HERE, record, creation_id="made", has_data=False) is without
    for other, has_data in itertools.product(("made again", None), (True, False)):
        assert settling(HERE, record, creation_id=other, has_data=has_data) is Settling.REMOVE


@pytest.mark.parametrize(
    ("record", "epoch", "bumps"),
    [
        (COMMIT_1, 5, False),
        (ABORT_1, 5, False),
        (COMMIT_2, 6, True),
        (ABORT_2, 6, True),
        (TIMED_OUT, 6, True),
        (None, 6, True),
        (NEXT_OPEN, 6, True),
    ],
)
def test_a_marker_has_the_epoch_of_the_end(record: KafkaTransaction | None, epoch: int, bumps: bool) -> None:
    """K27, K28: from version 2 on, and after each abort by the coordinator, it fences the transaction's epoch."""
    assert marker_of(HERE, record) == EndMarker(7, epoch, COORDINATOR_EPOCH, bumps)


def admit(
    record: KafkaTransaction | None,
    registration: Registration | None,
    producer: Producer = WRITER,
    *,
    version: int = 2,
) -> Joining | None:
    return admitted(record, registration, producer, version=version, creation_id="made", now_ms=NOW)


@pytest.mark.parametrize("version", [1, 2])
def test_a_registered_partition_takes_data(version: int) -> None:
    """K28: of its producer, while the transaction is open."""
    assert admit(OPEN, HERE, version=version) is None


def test_the_first_data_of_version_2_join_and_begin() -> None:
    """K28: on the condition that the transaction is open, or can begin."""
    assert admit(OPEN, None) == Joining(None)
    for idle in (EMPTY, DONE):
        assert admit(idle, None) == Joining(begun(idle, WRITER, NOW).write)


@pytest.mark.parametrize("record", [OPEN, EMPTY, DONE])
def test_version_1_adds_a_partition_first(record: KafkaTransaction) -> None:
    """K28: data that come behind the end of their transaction begin none."""
    with pytest.raises(PartitionNotInTransaction, match="Add it first"):
        admit(record, None, version=1)


@pytest.mark.parametrize("registration", [HERE, None])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("record", [COMMIT_1, ABORT_1])
def test_nothing_is_taken_behind_a_decision(
    record: KafkaTransaction, version: int, registration: Registration | None
) -> None:
    """K28: the marker is on its way."""
    with pytest.raises(TransactionEnding):
        admit(record, registration, version=version)


@pytest.mark.parametrize("registration", [HERE, None])
@pytest.mark.parametrize("record", [COMMIT_2, ABORT_2, TIMED_OUT, NEXT_OPEN, completed(TIMED_OUT, NOW)])
def test_a_stale_epoch_is_refused(record: KafkaTransaction, registration: Registration | None) -> None:
    """K28: from the decision on."""
    with pytest.raises(ProducerFenced):
        admit(record, registration)


@pytest.mark.parametrize("record", [EMPTY, OPEN, COMMIT_1, DONE, None])
def test_another_id_is_refused(record: KafkaTransaction | None) -> None:
    """K30: it belongs to another transactional id, or to none."""
    with pytest.raises(ProducerIdMismatch):
        admit(record, None, Producer(8, 5))


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("left", [replace(HERE, creation_id="made before"), replace(HERE, producer=Producer(7, 4))])
def test_the_registration_of_something_else_goes_first(left: Registration, version: int) -> None:
    """K32: of a deleted topic of this name, or of an earlier transaction. Its end would leave these data undecided."""
    with pytest.raises(TransactionEnding):
        admit(OPEN, left, version=version)
    with pytest.raises(TransactionEnding):
        admit(EMPTY, HERE, version=version)
