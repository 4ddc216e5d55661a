"""The states of a transaction and the moves between them, as a table.

A transaction is decided by one compare-and-set on its header (PIP-473): OPEN moves to COMMITTED or to ABORTED, both of
which are final. A time-out is an abort that nobody asked for; it leaves no state of its own.

Pure.
"""

from enum import Enum, StrEnum
from typing import Final


class TxnState(StrEnum):
    """What a header says. The values are what stands in the metadata store."""

    OPEN = "OPEN"
    COMMITTED = "COMMITTED"
    ABORTED = "ABORTED"

    @property
    def is_final(self) -> bool:
        """Whether no move leads out of it."""
        return self is not TxnState.OPEN


class EndAction(Enum):
    """What a caller asks for."""

    COMMIT = "commit"
    ABORT = "abort"


class Answer(Enum):
    """What becomes of the request."""

    CHANGE = "change the header"
    REPEATED = "it is so already: success"
    REFUSED = "the opposite is decided: invalid status"


TARGET: Final = {EndAction.COMMIT: TxnState.COMMITTED, EndAction.ABORT: TxnState.ABORTED}
"""Where each action leads."""

MOVES: Final[dict[tuple[TxnState, EndAction], Answer]] = {
    (TxnState.OPEN, EndAction.COMMIT): Answer.CHANGE,
    (TxnState.OPEN, EndAction.ABORT): Answer.CHANGE,
    (TxnState.COMMITTED, EndAction.COMMIT): Answer.REPEATED,
    (TxnState.COMMITTED, EndAction.ABORT): Answer.REFUSED,
    (TxnState.ABORTED, EndAction.COMMIT): Answer.REFUSED,
    (TxnState.ABORTED, EndAction.ABORT): Answer.REPEATED,
}
"""Every pair of state and request (T2, T7)."""
