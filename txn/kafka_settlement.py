"""What a participant's owner does: whether it takes data of a transaction, and what it makes of the decision.

An owner takes data of a transaction in which it is registered, until it begins to settle. Its marker then follows all
that it has taken. So data that meets the decision on its way is decided with the rest. Under a registration that it has
begun to settle, the owner takes nothing more, whatever it read before (K28). EndTxn is answered after all markers, so a
client never has its answer before.

    the topic's      the record of the            data without    the owner
    creation id      transactional id             a marker
    another, none    any                          any             removes the registration: deleted means applied (K32)
    the same         ONGOING by this producer     any             waits
    the same         PREPARE_COMMIT, its markers  some            appends a commit marker, then removes it
    the same         PREPARE_ABORT, its markers   some            appends an abort marker, then removes it
    the same         anything else, or none       some            the same, because only a record proves a commit
    the same         any but ONGOING              none            removes the registration

Data without a marker is what the log says, also after a takeover. So a marker that is durable is never written again
(K27). "Anything else" follows only from damage: a record leaves PREPARE when no registration is left.

A group's data are the offsets that wait for the end. Its owner applies or drops them in the change set that removes
the registration.

Pure.
"""

from enum import Enum
from typing import Final, NamedTuple

from txn.kafka_coordination import begun
from txn.kafka_errors import PartitionNotInTransaction, TransactionEnding
from txn.kafka_participants import Registration
from txn.kafka_states import KafkaTxnState
from txn.kafka_transaction import KafkaTransaction, Producer
from txn.producer_states import EndMarker

COORDINATOR_EPOCH: Final = 0
"""In every marker of an owner. Coordinators have no terms: a deposed one's compare-and-set fails (D15)."""


class Joining(NamedTuple):
    """The participant is not registered yet. Its owner registers it, and asks again."""

    begin: KafkaTransaction | None
    """The record to write in the same change set (`txn.kafka_participants.ops_to_join`)."""


class Settling(Enum):
    """What an owner does with a registration."""

    WAIT = "the transaction is open"
    COMMIT = "append a commit marker, then remove the registration"
    ABORT = "append an abort marker, then remove the registration"
    REMOVE = "remove the registration"


def admitted(
    record: KafkaTransaction | None,
    registration: Registration | None,
    producer: Producer,
    *,
    version: int,
    creation_id: str,
    now_ms: int,
) -> Joining | None:
    """Decide on a Produce or TxnOffsetCommit in a transaction. None: the participant takes it.

    The owner reads both records as of one moment, no older than the request, before it refuses. Once it is registered
    it may trust what it saw last.

    Args:
        record: of the transactional id.
        registration: of this participant under the transactional id.
        producer: who sends.
        version: the transaction version: 2 from Produce 12 and TxnOffsetCommit 5 on.
        creation_id: of the participant.
        now_ms: the time.

    Raises:
        ProducerIdMismatch, ProducerFenced: the transactional id has another producer.
        TransactionEnding: an earlier transaction has not ended here yet, or its end is not removed.
        PartitionNotInTransaction: a client of version 1 has not added the participant.
    """
    step = begun(record, producer, now_ms)
    is_open = step.write is None and step.answer is not None
    if is_open and registration is not None and _is_of(registration, producer, creation_id):
        return None
    if step.answer is None or registration is not None:
        raise TransactionEnding(f"The last transaction of producer {producer} has not ended everywhere. Try again")
    if version == 1:
        raise PartitionNotInTransaction(
            f"Producer {producer} has not added this partition or group to its transaction. Add it first"
        )
    return Joining(step.write)


def settling(
    registration: Registration, record: KafkaTransaction | None, *, creation_id: str | None, has_data: bool
) -> Settling:
    """The table above. Both records are as of one moment.

    Args:
        registration: of this participant.
        record: of its transactional id.
        creation_id: of the participant now; None if it does not exist.
        has_data: whether the participant has data of this producer id without a durable marker. An owner that has
            appended the marker waits for that, and does not call this before.
    """
    if registration.creation_id != creation_id:
        return Settling.REMOVE
    if _is_open(registration, record):
        return Settling.WAIT
    if not has_data:
        return Settling.REMOVE
    return Settling.COMMIT if _is_committed(registration, record) else Settling.ABORT


def marker_of(registration: Registration, record: KafkaTransaction | None) -> EndMarker:
    """The marker that ends the transaction on this partition. Call it if `settling` says so."""
    markers = record.markers if record is not None and _is_ending(registration, record) else None
    producer = markers or registration.producer.bumped
    return EndMarker(
        producer.id, producer.epoch, COORDINATOR_EPOCH, bumps_epoch=producer.epoch > registration.producer.epoch
    )


def _is_of(registration: Registration, producer: Producer, creation_id: str) -> bool:
    return registration.producer == producer and registration.creation_id == creation_id


def _is_open(registration: Registration, record: KafkaTransaction | None) -> bool:
    return record is not None and record.state is KafkaTxnState.ONGOING and record.producer == registration.producer


def _is_ending(registration: Registration, record: KafkaTransaction) -> bool:
    return record.markers in (registration.producer, registration.producer.bumped)


def _is_committed(registration: Registration, record: KafkaTransaction | None) -> bool:
    return record is not None and record.state is KafkaTxnState.PREPARE_COMMIT and _is_ending(registration, record)
