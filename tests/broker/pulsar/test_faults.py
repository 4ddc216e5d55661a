"""The table that maps errors to the wire's codes."""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Final

import pytest

import broker
import dispatch
import storage
import txn
from broker.errors import OpenSendsFull, SendInDoubt, StartError
from broker.pulsar.faults import fault_of
from storage.backup.cut import CutExists, CutFailed
from storage.epoch_files import EpochTaken
from storage.errors import DataFolderInUse, ExpectedError, LedgerNotFound, NoSpace, StorageError
from storage.file_systems import NetworkFileSystem
from storage.metadata.cluster.fields import LinkError
from storage.metadata.cluster.following import LinkRefused
from storage.metadata.cluster.frames import OtherProtocol
from storage.metadata.cluster.link_streams import LinkLost
from storage.metadata.store import ChangeSetTooLarge, InvalidOperation
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from txn.errors import OutcomeUnknown, OwnershipLost, ProducerIdsDamaged, TxnError
from txn.kafka_errors import (
    EndTxnLate,
    InvalidPattern,
    InvalidTransactionalId,
    InvalidTransactionState,
    InvalidTransactionTimeout,
    PartitionNotInTransaction,
    ProducerFenced,
    ProducerIdMismatch,
    TransactionalIdDamaged,
    TransactionalIdNotFound,
    TransactionEnding,
    TransactionOverdue,
)
from txn.producer_states import (
    CoordinatorStale,
    EarlierTransactionOpen,
    OutOfOrderSequence,
    OutsideOfTransaction,
    ProducerEpochStale,
    TooManyProducers,
)

BASES: Final = ("StorageError", "TxnError", "SubscriptionError", "StartError")
"""Never raised themselves."""

OF_KAFKA: Final = (
    CoordinatorStale,
    EarlierTransactionOpen,
    EndTxnLate,
    InvalidPattern,
    InvalidTransactionState,
    InvalidTransactionTimeout,
    InvalidTransactionalId,
    OutOfOrderSequence,
    OutsideOfTransaction,
    PartitionNotInTransaction,
    ProducerEpochStale,
    ProducerFenced,
    ProducerIdMismatch,
    ProducerIdsDamaged,
    TooManyProducers,
    TransactionEnding,
    TransactionOverdue,
    TransactionalIdDamaged,
    TransactionalIdNotFound,
)
"""Errors of Kafka's producers and coordinators, whose front end has codes of its own."""

ELSEWHERE: Final = (
    DataFolderInUse,
    NetworkFileSystem,
    LedgerNotFound,
    EpochTaken,
    LinkError,
    OtherProtocol,
    LinkLost,
    LinkRefused,
    CutFailed,
    CutExists,
)
"""Errors that no client meets. Two end the start of a broker. Readers of a ledger that was trimmed go on behind it. A
broker that does not get an epoch tries the next one. Four end the link of two brokers. The last two are of a backup,
which is asked for over HTTP."""

GIVEN_UP: Final = (
    pb.AuthorizationError,
    pb.ConsumerAssignError,
    pb.ConsumerBusy,
    pb.IncompatibleSchema,
    pb.NotAllowedError,
    pb.ProducerBusy,
    pb.SubscriptionNotFound,
    pb.TopicNotFound,
    pb.TransactionConflict,
)
"""Codes at which Pulsar's clients fail a request at once: `PulsarClientException.isRetriableError` of the Java client.

At any other they repeat the request, with growing pauses, until their operation times out.
`tests/scenarios/test_repeated_requests.py` has the C++ client show it.
"""

GIVEN_UP_ON_PURPOSE: Final = (SendInDoubt, OpenSendsFull)
"""Only a SEND meets them. The table says why its client is not to repeat it by itself."""


def _errors(base: type[ExpectedError]) -> Iterator[type[ExpectedError]]:
    for error in base.__subclasses__():
        yield error
        yield from _errors(error)


def _raised() -> set[type[ExpectedError]]:
    """Return every class of error that some room raises, but for the other front end's own."""
    for room in (broker, dispatch, storage, txn):
        for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
            importlib.import_module(module.name)
    found = {error for error in _errors(ExpectedError) if error.__name__ not in BASES}
    found = {error for error in found if not error.__module__.startswith("broker.kafka.")}
    return {error for error in found if not issubclass(error, StartError)}


def _code_of(error: type[ExpectedError]) -> pb.ServerError | None:
    try:
        return fault_of(error.__new__(error, "reason")).code
    except ExpectedError:
        return None


def test_every_error_that_a_room_raises_has_a_code() -> None:
    """To the client, an error without a code would look like a defect of the broker."""
    without = {error for error in _raised() if _code_of(error) is None}
    assert without == {*ELSEWHERE, *OF_KAFKA}


def test_a_client_repeats_what_may_succeed_later() -> None:
    """With a permanent code, a retriable error would fail a request that could succeed a moment later."""
    given_up = {error for error in _raised() if error.retriable and _code_of(error) in GIVEN_UP}
    assert given_up == set(GIVEN_UP_ON_PURPOSE)


@pytest.mark.parametrize("error", [ChangeSetTooLarge, InvalidOperation])
def test_a_client_does_not_repeat_what_the_metadata_store_never_takes(error: type[ExpectedError]) -> None:
    """M25: with the code of an unreachable store, clients would repeat the request until their operation times out."""
    assert _code_of(error) in GIVEN_UP


@pytest.mark.parametrize("error", [OwnershipLost("t"), OutcomeUnknown("t", "an op record")])
def test_a_lost_and_an_unanswered_owner_both_send_the_client_to_a_lookup(error: TxnError) -> None:
    """D4, M22: the next owner serves the same request, so the client keeps its producer and looks up the owner."""
    fault = fault_of(error)
    assert fault.code == pb.ServiceNotReady
    assert "Look the topic up again" in fault.message


def test_a_client_gets_whole_sentences() -> None:
    """Storage writes clauses, because its messages also stand after a colon."""
    assert fault_of(NoSpace("the disk is full")).message == "The disk is full."


def test_an_error_of_no_room_has_no_code() -> None:
    """Such an error is a defect, and it ends the connection."""
    for error in (StorageError("of no class that says more"), KeyError("defect")):
        with pytest.raises(type(error)) as raised:
            fault_of(error)
        assert raised.value is error
