"""What transaction coordinators answer, and how a client requests a transaction's end until the outcome is known.

The upper half of a transaction's id is the number of its coordinator. One broker at a time leads a coordinator.
"""

from typing import Final

from tidewire.protocol.errors import OperationTimedOut, OutcomeUnknown, ProtocolViolation, TidewireError
from tidewire.protocol.refusals import TRANSIENT, Refused, TransactionNotFound
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

TransactionId = tuple[int, int]


def leaders_of(update: pb.CommandWatchTcAssignmentsUpdate) -> dict[int, str]:
    """Return the URL of each coordinator's leader. Coordinators without a leader are left out."""
    return {
        assigned.tc_id: assigned.broker_service_url
        for assigned in update.snapshot.assignments
        if assigned.broker_service_url
    }


def transaction_of(answer: pb.CommandNewTxnResponse, coordinator: int) -> TransactionId:
    """Return the id of the new transaction.

    Raises:
        ProtocolViolation: the id names another coordinator, so later requests would go to the wrong one.
    """
    if answer.txnid_most_bits != coordinator:
        raise ProtocolViolation(
            f"transaction coordinator {coordinator} answered with an id of coordinator {answer.txnid_most_bits}"
        )
    return answer.txnid_most_bits, answer.txnid_least_bits


class Ending:
    """The end of one transaction. Until an answer arrives, the client repeats the request with the same id.

    ======================  ====================  ==================================================================
    what happens            at the first request  at a repeated request
    ======================  ====================  ==================================================================
    a transient failure     repeat                repeat
    TransactionNotFound     raise it              OutcomeUnknown: the transaction may have ended and been forgotten
    UnknownError            raise it              repeat: Pulsar answers so while the earlier request is in progress
    another refusal         raise it              raise it
    the time is over        OperationTimedOut before the first request, OutcomeUnknown after it
    ======================  ====================  ==================================================================
    """

    def __init__(self, transaction_id: TransactionId, *, commit: bool) -> None:
        """Set up; nothing was requested yet."""
        self._transaction_id: Final = transaction_id
        self._commit: Final = commit
        self._asked = 0
        """The number of requests."""
        self.last: TidewireError | None = None
        """Why the latest request failed."""

    def ask(self, request_id: int) -> pb.BaseCommand:
        """Make the request. From now on the transaction may have ended."""
        self._asked += 1
        return commands.end_txn(request_id, self._transaction_id, commit=self._commit)

    def failed(self, error: TidewireError) -> None:
        """Take the failure of an attempt. If this returns, repeat the request after a delay.

        Raises:
            OutcomeUnknown: the outcome cannot be learned any more.
            TidewireError: `error` itself, because it is final.
        """
        self.last = error
        if isinstance(error, TRANSIENT):
            return
        if self._asked > 1:
            if isinstance(error, TransactionNotFound):
                raise OutcomeUnknown(
                    f"{self} got no answer in time, and the coordinator no longer knows the transaction, so its "
                    f"outcome is unknown"
                ) from error
            if isinstance(error, Refused) and error.code == pb.ServerError.UnknownError:
                return
        raise error

    def out_of_time(self, seconds: float) -> TidewireError:
        """Return the error to raise when the time is over. `seconds` is how long it was."""
        if self._asked:
            return OutcomeUnknown(f"{self} got no answer within {seconds} s, so its outcome is unknown")
        return OperationTimedOut(f"{self} was not requested: no coordinator could be reached within {seconds} s")

    def __str__(self) -> str:
        return f"the {'commit' if self._commit else 'abort'} of transaction {self._transaction_id}"
