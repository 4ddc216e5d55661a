"""What can be wrong with a transactional request. Each says whether the same request may succeed later.

And with a record of the metadata store.
"""

from typing import Final

from storage.entry import TxnId
from storage.errors import ExpectedError

UNREADABLE: Final = (AttributeError, LookupError, TypeError, ValueError)
"""What taking a damaged record apart raises."""


class RecordUnreadable(ValueError):
    """A record's key or value is not what this program writes: it was damaged, or somebody else wrote it."""


class TxnError(ExpectedError):
    """Base of this room's errors."""


class TransactionNotFound(TxnError):
    """No header of this id is in the store: it never was, or its retention is over."""

    def __init__(self, txn: TxnId) -> None:
        super().__init__(f"Transaction ({txn.most},{txn.least}) is not known")


class TransactionEnded(TxnError):
    """A write or acknowledgement came after the decision; nothing was appended (T11, T12)."""

    def __init__(self, txn: TxnId, state: str) -> None:
        super().__init__(f"Transaction ({txn.most},{txn.least}) is already {state}")


class InvalidTxnStatus(TxnError):
    """The opposite outcome is decided, durably (T7, D13)."""

    def __init__(self, txn: TxnId, state: str, wanted: str) -> None:
        super().__init__(f"Cannot {wanted} transaction ({txn.most},{txn.least}): it is already {state}")


class GroupDecides(TxnError):
    """A commit of one transaction that belongs to a group, which is committed by naming its winners."""

    def __init__(self, txn: TxnId) -> None:
        super().__init__(f"Transaction ({txn.most},{txn.least}) belongs to a group: end the group, naming its winners")


class TooManyWinners(TxnError):
    """A group is to commit more transactions than its record can name; nothing was decided."""


class GroupAborted(TxnError):
    """A group was aborted for good; nothing can be written in it, or committed."""

    def __init__(self, application: str) -> None:
        super().__init__(f"The job {application!r} was aborted, so nothing more can be written for it")


class AppliedByAnother(TxnError):
    """A batch has the number of one that was applied, but somebody else counts; nothing was done."""

    def __init__(self, application: str, batch: int, applied: int, origin: str) -> None:
        super().__init__(
            f"Batches up to {applied} of application {application!r} were written by {origin!r}; batch {batch} is "
            f"of somebody else, who counts anew, so it is not written and not taken as written either. "
            f"Go on where {origin!r} was (its checkpoint), or name another application"
        )


class AppliedOtherwise(TxnError):
    """A batch has the number of one that was applied, or a lower one, and holds something else; nothing was done."""

    def __init__(self, application: str, batch: int, applied: int) -> None:
        what = (
            f"Batch {batch} of application {application!r} is not the one that was written under this number"
            if batch == applied
            else f"Batch {batch} of application {application!r} comes again, but batches up to {applied} were written"
        )
        super().__init__(
            f"{what}, so it is neither written nor taken as written. A checkpoint that was copied or restored gives "
            "numbers to other rows: go on with the newest checkpoint, or name another application (txn_app_id), under "
            "which rows that are read again are written again. If this batch only has other rows each time that it is "
            "computed, let it count as written with trust_batch_numbers"
        )


class CoordinatorNotFound(TxnError):
    """No coordinator has this id."""

    def __init__(self, tc_id: int, count: int) -> None:
        super().__init__(f"There is no transaction coordinator {tc_id}; ids are 0 to {count - 1}")


class WrongDomain(TxnError):
    """A v5 transaction on a topic that takes v4 ones only, or the other way round (D6, T33)."""


class TransactionConflict(TxnError):
    """What is acknowledged is acknowledged already, or pending in another transaction; nothing was changed (T24)."""


class AcknowledgementTooLarge(TxnError):
    """One command acknowledges more than its op record can hold; nothing of it was acknowledged."""

    def __init__(self, subscription: str, reason: str) -> None:
        super().__init__(
            f"The acknowledgement on subscription {subscription} is too large: {reason}. Acknowledge fewer messages at "
            "once"
        )


class PendingAcksFull(TxnError):
    """Open transactions hold as many acknowledgements of the subscription as it remembers. Later it may have room."""

    retriable = True


class PendingAcksDiscarded(TxnError):
    """The subscription was moved, is being removed, or goes back: what was sent before is not acknowledged any more."""

    retriable = True


class OwnershipLost(TxnError):
    """The claim on a topic does not hold any more, so nothing was written. A lookup finds the new owner."""

    retriable = True

    def __init__(self, topic: str) -> None:
        super().__init__(f"This broker no longer owns {topic}. Look the topic up again")


class OutcomeUnknown(TxnError):
    """The metadata store gave no answer to a write, so this broker stops serving the segment.

    The next owner, which may be this broker, reads whether the write was made.
    """

    retriable = True
    definite = False

    def __init__(self, topic: str, write: str) -> None:
        super().__init__(
            f"The metadata store did not confirm {write} on {topic}, which may have been made. "
            "Look the topic up again: its next owner reads what was written"
        )
