"""The states of a transaction and the moves between them, as a table.

One compare-and-set on its header decides a transaction (PIP-473). OPEN moves to COMMITTED or to ABORTED, and both are
final. A timeout is an abort that no client asked for. It has no state of its own.

Pure.
"""

from enum import Enum, StrEnum
from typing import Final


class TxnState(StrEnum):
    """The state in a header. The values are those in the metadata store."""

    OPEN = "OPEN"
    COMMITTED = "COMMITTED"
    ABORTED = "ABORTED"

    @property
    def is_final(self) -> bool:
        """Whether no move leads out of it."""
        return self is not TxnState.OPEN


class EndAction(Enum):
    """What a caller requests."""

    COMMIT = "commit"
    ABORT = "abort"


class Answer(Enum):
    """What happens to the request."""

    CHANGE = "change the header"
    REPEATED = "it is so already: success"
    REFUSED = "the opposite is decided: invalid status"


TARGET: Final = {EndAction.COMMIT: TxnState.COMMITTED, EndAction.ABORT: TxnState.ABORTED}
"""The state that each action leads to."""

MOVES: Final[dict[tuple[TxnState, EndAction], Answer]] = {
    (TxnState.OPEN, EndAction.COMMIT): Answer.CHANGE,
    (TxnState.OPEN, EndAction.ABORT): Answer.CHANGE,
    (TxnState.COMMITTED, EndAction.COMMIT): Answer.REPEATED,
    (TxnState.COMMITTED, EndAction.ABORT): Answer.REFUSED,
    (TxnState.ABORTED, EndAction.COMMIT): Answer.REFUSED,
    (TxnState.ABORTED, EndAction.ABORT): Answer.REPEATED,
}
"""Every pair of state and request (T2, T7)."""
