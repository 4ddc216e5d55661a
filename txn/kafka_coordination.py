"""The requests to Kafka's coordinator: a record and a request make a new record and an answer, or an error.

The caller reads the record as of no earlier than the request, takes the step, and writes `Step.write` on the version
that it read. After a conflict it reads again and takes the step again. Then it does what `Step` says about the answer.

Versions: clients of transaction version 1 add partitions and offsets before they write, and keep their epoch. Those of
version 2 (KIP-890) begin by writing, and every end gives them the next epoch. So a request of an earlier transaction
has a stale epoch (Jepsen's finding on Kafka). `docs/design.md#kafkas-transactions` has the whole protocol.

Pure.
"""

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from txn.kafka_errors import (
    EndTxnLate,
    InvalidTransactionState,
    InvalidTransactionTimeout,
    ProducerFenced,
    ProducerIdMismatch,
)
from txn.kafka_states import COMPLETED, ENDS, INITS, Asker, End, Init, KafkaTxnState
from txn.kafka_transaction import KafkaTransaction, Producer

TIMEOUT_MS_MAX: Final = 15 * 60 * 1000
"""The longest transaction, unless configured otherwise: Kafka's transaction.max.timeout.ms."""


class Step(NamedTuple):
    """What a request leads to."""

    write: KafkaTransaction | None
    """The record to write by compare-and-set. None: it stays as it is."""
    answer: Producer | None
    """Who the client is from now on. None: wait until the transaction has ended, then take the step again.

    If the record that now stands is ending, the caller waits before it gives the answer, too: until the record has
    another version. It must not take the step again, because the next transaction may be open by then. A caller that
    has waited for long enough raises TransactionEnding. The decision stands (K32).
    """


@dataclass(frozen=True, slots=True)
class InitProducerId:
    """A producer begins, or continues after an error (KIP-360)."""

    timeout_ms: int
    expected: Producer | None = None
    """Who the producer believes to be."""


@dataclass(frozen=True, slots=True)
class EndTxn:
    """A producer ends its transaction."""

    producer: Producer
    is_commit: bool
    version: int
    """The transaction version of the request: 1 up to EndTxn 4, 2 from EndTxn 5 on."""
    is_late: bool = False
    """Whether a newer connection has carried an Add* of the open transaction (K31).

    Only the front end can know. It numbers connections as it accepts them. For each transactional id it remembers the
    highest number that carried an Add*, until the transaction ends. A client never goes back to an older connection.
    Version 2 needs no such memory.
    """


def initialised(
    record: KafkaTransaction | None,
    request: InitProducerId,
    now_ms: int,
    new_id: int | None,
    timeout_ms_max: int = TIMEOUT_MS_MAX,
) -> Step:
    """InitProducerId with a transactional id. `new_id` is needed if `record` is None or `needs_producer_id`.

    Raises:
        InvalidTransactionTimeout: the timeout is out of bounds.
        ProducerFenced: another producer has replaced the expected one.
    """
    if not 0 < request.timeout_ms <= timeout_ms_max:
        raise InvalidTransactionTimeout(request.timeout_ms, timeout_ms_max)
    if record is None:
        # Also for a producer whose idle record was deleted.
        assert new_id is not None, "a new record needs a producer id"
        made = KafkaTransaction(Producer(new_id, 0), KafkaTxnState.EMPTY, request.timeout_ms, now_ms)
        return Step(made, made.producer)
    asker = _asker(record, request.expected)
    match INITS[record.state, asker]:
        case Init.NEXT:
            made = replace(
                record,
                producer=_next(record, new_id),
                state=KafkaTxnState.EMPTY,
                timeout_ms=request.timeout_ms,
                changed_ms=now_ms,
                last=request.expected,
            )
            return Step(made, made.producer)
        case Init.REPEATED:
            return Step(None, record.producer)
        case Init.ABORT:
            return Step(aborted(record, now_ms, new_id, is_fenced=asker is Asker.NEW), None)
        case Init.WAIT:
            return Step(None, None)
        case Init.FENCED:
            raise _fenced(record, request.expected)


def begun(record: KafkaTransaction | None, producer: Producer, now_ms: int) -> Step:
    """Join a transaction, and begin it if none is open.

    Version 1: AddPartitionsToTxn and AddOffsetsToTxn. Version 2: a Produce or TxnOffsetCommit that joins a participant.
    The participants join in the same change set (`txn.kafka_participants.ops_to_join`).

    Raises:
        ProducerIdMismatch, ProducerFenced: the transactional id has another producer.
    """
    current = _require(record, producer)
    match _asker(current, producer):
        case Asker.CURRENT if current.state.is_ending:
            return Step(None, None)
        case Asker.CURRENT if current.state.is_idle:
            # The producer knows its epoch, so the one before has nothing left to repeat.
            made = replace(current, state=KafkaTxnState.ONGOING, started_ms=now_ms, changed_ms=now_ms, last=None)
            return Step(made, producer)
        case Asker.CURRENT:
            return Step(None, producer)
        case _:
            raise _fenced(current, producer)


def ended(record: KafkaTransaction | None, request: EndTxn, now_ms: int, new_id: int | None) -> Step:
    """EndTxn. `new_id` is needed if the record `needs_producer_id` and the request has version 2.

    Raises:
        ProducerIdMismatch, ProducerFenced: the transactional id has another producer.
        InvalidTransactionState: there is no such transaction, or the opposite is decided.
        EndTxnLate: the client has left the connection and begun another transaction (K31).
    """
    current = _require(record, request.producer)
    asker = _asker(current, request.producer)
    match ENDS.get((current.state, request.version, request.is_commit, asker), End.FENCED):
        case End.DECIDE:
            if request.version == 1 and request.is_late:
                raise EndTxnLate(
                    f"An EndTxn of producer {request.producer} was delayed on a connection that is older than its open "
                    "transaction"
                )
            state = KafkaTxnState.PREPARE_COMMIT if request.is_commit else KafkaTxnState.PREPARE_ABORT
            decided = replace(current, state=state, changed_ms=now_ms)
            made = (
                replace(decided, markers=current.producer)
                if request.version == 1
                else _with_next(decided, new_id, last=current.producer)
            )
            return Step(made, made.producer)
        case End.NEXT:
            made = replace(
                current,
                producer=_next(current, new_id),
                state=KafkaTxnState.COMPLETE_ABORT,
                changed_ms=now_ms,
                last=current.producer,
            )
            return Step(made, made.producer)
        case End.REPEATED:
            return Step(None, current.producer)
        case End.FENCED:
            raise _fenced(current, request.producer)
        case End.INVALID:
            wanted = "commit" if request.is_commit else "abort"
            raise InvalidTransactionState(
                f"Producer {request.producer} wants to {wanted} a transaction, but its state is {current.state}"
            )


def aborted(record: KafkaTransaction, now_ms: int, new_id: int | None, *, is_fenced: bool) -> KafkaTransaction:
    """The coordinator's own abort of an open transaction. `new_id` is needed if the record `needs_producer_id`.

    It always takes the next epoch, so that the producer cannot go on in the transaction. After a timeout (`is_fenced`
    False) the producer may learn its new epoch by aborting, or by InitProducerId (KIP-588). When another producer or an
    administrator takes its place, it may not.
    """
    assert record.state is KafkaTxnState.ONGOING, "only an open transaction can be aborted"
    decided = replace(record, state=KafkaTxnState.PREPARE_ABORT, changed_ms=now_ms)
    return _with_next(decided, new_id, last=None if is_fenced else record.producer)


def completed(record: KafkaTransaction, now_ms: int) -> KafkaTransaction:
    """Every participant has applied the decision: no registration is left, and none can follow."""
    return replace(record, state=COMPLETED[record.state], changed_ms=now_ms, started_ms=None, markers=None)


def _with_next(decided: KafkaTransaction, new_id: int | None, last: Producer | None) -> KafkaTransaction:
    """A decision that ends the epoch of its transaction."""
    return replace(decided, producer=_next(decided, new_id), markers=decided.producer.bumped, last=last)


def _next(record: KafkaTransaction, new_id: int | None) -> Producer:
    if not record.needs_producer_id:
        return record.producer.bumped
    assert new_id is not None, "behind the last epoch, a producer needs another id"
    return Producer(new_id, 0)


def _asker(record: KafkaTransaction, producer: Producer | None) -> Asker:
    if producer is None:
        return Asker.NEW
    if producer == record.producer:
        return Asker.CURRENT
    return Asker.LAST if producer == record.last else Asker.STALE


def _require(record: KafkaTransaction | None, producer: Producer) -> KafkaTransaction:
    """The record, if this producer has ever been its own as far as the record tells."""
    if record is None:
        raise ProducerIdMismatch(
            f"No transactional id has the producer {producer}. It may have been idle for too long. Initialise it again"
        )
    if producer.id != record.producer.id and producer != record.last:
        raise ProducerIdMismatch(f"The transactional id has the producer {record.producer}, and not {producer}")
    return record


def _fenced(record: KafkaTransaction, producer: Producer | None) -> ProducerFenced:
    return ProducerFenced(f"Producer {producer} was replaced by {record.producer}, so its request is refused")
