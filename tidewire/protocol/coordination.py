"""What coordinators of transactions say, and asking one for a transaction's end until its outcome is known.

A transaction's id says which coordinator decides it (its upper half). A coordinator is led by one broker at a time.
"""

from typing import Final

from tidewire.protocol.errors import OperationTimedOut, OutcomeUnknown, ProtocolViolation, TidewireError
from tidewire.protocol.refusals import TRANSIENT, Refused, TransactionNotFound
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

TransactionId = tuple[int, int]


def leaders_of(update: pb.CommandWatchTcAssignmentsUpdate) -> dict[int, str]:
    """By coordinator, its broker's URL. One that nobody leads at the moment is not in there."""
    return {
        assigned.tc_id: assigned.broker_service_url
        for assigned in update.snapshot.assignments
        if assigned.broker_service_url
    }


def transaction_of(answer: pb.CommandNewTxnResponse, coordinator: int) -> TransactionId:
    """The id of a transaction that this coordinator has begun.

    Raises:
        ProtocolViolation: it names another coordinator, which later requests would go to.
    """
    if answer.txnid_most_bits != coordinator:
        raise ProtocolViolation(
            f"transaction coordinator {coordinator} gave out an id of coordinator {answer.txnid_most_bits}"
        )
    return answer.txnid_most_bits, answer.txnid_least_bits


class Ending:
    """The end of one transaction. While no answer comes, it is asked for again, with the same id.

    ======================  ==============  =====================================================
    what comes              the first time  when it was asked for before
    ======================  ==============  =====================================================
    a passing failure       ask again       ask again
    TransactionNotFound     raise it        unknown: the transaction may have ended and be forgotten
    UnknownError            raise it        ask again: Pulsar refuses so while the other is under way
    another refusal         raise it        raise it
    the time is over        not asked, or unknown
    ======================  ==============  =====================================================
    """

    def __init__(self, transaction_id: TransactionId, *, commit: bool) -> None:
        """Not asked yet."""
        self._transaction_id: Final = transaction_id
        self._commit: Final = commit
        self._asked = 0
        """How often."""
        self.last: TidewireError | None = None
        """Why it is to be asked for again."""

    def ask(self, request_id: int) -> pb.BaseCommand:
        """The request. From now on it may have happened."""
        self._asked += 1
        return commands.end_txn(request_id, self._transaction_id, commit=self._commit)

    def failed(self, error: TidewireError) -> None:
        """It could not be asked, or was answered by an error. Returns when it is to be asked again, after a pause.

        Raises:
            OutcomeUnknown: nobody can tell any more.
            TidewireError: `error` itself, which is final.
        """
        self.last = error
        if isinstance(error, TRANSIENT):
            return
        if self._asked > 1:
            if isinstance(error, TransactionNotFound):
                raise OutcomeUnknown(f"{self} was not answered, so its outcome is unknown") from error
            if isinstance(error, Refused) and error.code == pb.ServerError.UnknownError:
                return
        raise error

    def out_of_time(self, seconds: float) -> TidewireError:
        """What to raise when the time is over, which was so long."""
        if self._asked:
            return OutcomeUnknown(f"{self} was not answered within {seconds} s")
        return OperationTimedOut(f"{self}: no coordinator within {seconds} s")

    def __str__(self) -> str:
        return f"{'committing' if self._commit else 'aborting'} {self._transaction_id}"
