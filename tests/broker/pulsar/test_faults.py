"""The table from errors to the wire's codes."""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Final

import pytest

import broker
import dispatch
import storage
import txn
from broker.pulsar.faults import fault_of
from storage.errors import DataFolderInUse, ExpectedError, LedgerNotFound, StorageError
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from txn.errors import OutcomeUnknown, OwnershipLost, TxnError

BASES: Final = ("StorageError", "TxnError", "SubscriptionError")
"""Never raised themselves."""

ELSEWHERE: Final = (DataFolderInUse, LedgerNotFound)
"""One ends the start of a broker. The other is met by readers of a ledger that was trimmed, who go on behind it."""


def _errors(base: type[ExpectedError]) -> Iterator[type[ExpectedError]]:
    for error in base.__subclasses__():
        yield error
        yield from _errors(error)


def test_every_error_that_a_room_raises_has_a_code() -> None:
    """An error without one would be told to the client as a defect of the broker."""
    for room in (broker, dispatch, storage, txn):
        for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
            importlib.import_module(module.name)
    without = [
        error
        for error in _errors(ExpectedError)
        if error.__name__ not in BASES and fault_of(error.__new__(error, "reason")) is None
    ]
    assert set(without) == set(ELSEWHERE)


@pytest.mark.parametrize("error", [OwnershipLost("t"), OutcomeUnknown("t", "an op record")])
def test_a_lost_and_an_unanswered_owner_both_send_the_client_to_a_lookup(error: TxnError) -> None:
    """D4, M22: the next owner serves the same request, so the client keeps its producer and asks where that is."""
    fault = fault_of(error)
    assert fault is not None
    assert fault.code == pb.ServiceNotReady
    assert "Look the topic up again" in fault.message


def test_an_error_of_no_room_has_no_code() -> None:
    """Whoever raises it has a defect."""
    assert fault_of(StorageError("of no class that says more")) is None
    assert fault_of(KeyError("defect")) is None
