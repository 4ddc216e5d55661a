"""What can be wrong with a transactional request, or with a record of the metadata store."""

from typing import Final

from storage.entry import TxnId
from storage.errors import ExpectedError

UNREADABLE: Final = (AttributeError, LookupError, TypeError, ValueError)
"""The errors of decoding a damaged record."""


class RecordUnreadable(ValueError):
    """A record's key or value is not what this program writes. It was damaged, or another program wrote it."""


class TxnError(ExpectedError):
    """Base of this room's errors."""


class TransactionNotFound(TxnError):
    """There is no header with this id. It never existed, or its retention is over."""

    def __init__(self, txn: TxnId) -> None:
        super().__init__(f"Transaction {txn.shown} does not exist, or ended too long ago")


class TransactionEnded(TxnError):
    """A write or acknowledgement came after the decision. Nothing was appended (T11, T12)."""

    def __init__(self, txn: TxnId, state: str) -> None:
        super().__init__(f"Transaction {txn.shown} is already {state}. Begin a new one")


class ProducerIdsDamaged(TxnError):
    """The counter of producer ids cannot be read, so no id can be handed out. The message names its key."""


class OpRecordDamaged(TxnError):
    """An op record cannot be read, so nobody knows what its transaction did. The message names its key."""


class InvalidTxnStatus(TxnError):
    """The opposite outcome is decided, durably (T7, D13)."""

    def __init__(self, txn: TxnId, state: str, wanted: str) -> None:
        super().__init__(f"Cannot {wanted} transaction {txn.shown}: it is already {state}")


class GroupDecides(TxnError):
    """A commit of one transaction of a group. A group is committed by naming its winners."""

    def __init__(self, txn: TxnId) -> None:
        super().__init__(f"Transaction {txn.shown} belongs to a group. End the group and name its winners")


class TooManyWinners(TxnError):
    """A group should commit more transactions than its record can name. Nothing was decided."""


class GroupAborted(TxnError):
    """A group was aborted for good. It accepts no transactions and no commit."""

    def __init__(self, application: str) -> None:
        super().__init__(
            f"The job {application!r} was aborted, so nothing more can be written for it. Start it under another name"
        )


class AppliedByAnother(TxnError):
    """A batch with this number is applied, but it came from another origin. Nothing was done."""

    def __init__(self, application: str, batch: int, applied: int, origin: str) -> None:
        super().__init__(
            f"Batches up to {applied} of application {application!r} were written by {origin!r}. Batch {batch} came "
            f"from a different query whose numbering restarted, so it was neither written nor taken as written. "
            f"Continue from the checkpoint of {origin!r}, or name another application"
        )


class AppliedOtherwise(TxnError):
    """A batch with this number or a higher one is applied, with other contents. Nothing was done."""

    def __init__(self, application: str, batch: int, applied: int) -> None:
        what = (
            f"Batch {batch} of application {application!r} differs from the one that was written under this number"
            if batch == applied
            else f"Batch {batch} of application {application!r} was repeated, but batches up to {applied} were written"
        )
        super().__init__(
            f"{what}, so it was neither written nor taken as written. A copied or restored checkpoint assigns numbers "
            "to other rows. Continue with the newest checkpoint, or name another application (txn_app_id). Under "
            "another name, rows that are read again are written again. If this batch only has other rows each time "
            "that it is computed, set trust_batch_numbers to count it as written"
        )


class CoordinatorNotFound(TxnError):
    """No coordinator has this id."""

    def __init__(self, tc_id: int, count: int) -> None:
        super().__init__(f"Transaction coordinator {tc_id} does not exist. Ids are 0 to {count - 1}")


class WrongDomain(TxnError):
    """A v5 transaction on a topic that accepts only v4 transactions, or the reverse (D6, T33)."""


class TransactionConflict(TxnError):
    """Something is acknowledged already, or pending in another transaction. Nothing was changed (T24)."""


class AcknowledgementTooLarge(TxnError):
    """One command acknowledges more than its op record can hold; nothing of it was acknowledged."""

    def __init__(self, subscription: str, reason: str) -> None:
        super().__init__(
            f"The acknowledgement on subscription {subscription} is too large: {reason}. Acknowledge fewer messages at "
            "once"
        )


class PendingAcksFull(TxnError):
    """Open transactions hold as many acknowledgements of the subscription as allowed, or a command has too many."""

    retriable = True


class PendingAcksDiscarded(TxnError):
    """The subscription was moved, is being removed, or goes back. Earlier deliveries can no longer be acknowledged."""

    retriable = True


class OwnershipLost(TxnError):
    """The claim on a topic no longer holds. Nothing was written. A lookup finds the new owner."""

    retriable = True

    def __init__(self, topic: str) -> None:
        super().__init__(f"This broker no longer owns {topic}. Look the topic up again")


class OutcomeUnknown(TxnError):
    """The metadata store did not answer a write, so this broker stops serving the segment.

    The next owner, which may be this broker, reads whether the write was made.
    """

    retriable = True
    definite = False

    def __init__(self, topic: str, write: str) -> None:
        super().__init__(
            f"The metadata store did not confirm {write} on {topic}, which may have been made. "
            "Look the topic up again: its next owner reads what was written"
        )
