"""What Kafka's coordinator answers in each state of a transaction, as tables (docs/design.md#kafkas-transactions).

    state            it means                                              it leads to
    EMPTY            the producer has begun nothing since InitProducerId   ONGOING; COMPLETE_ABORT
    ONGOING          the transaction is open                               PREPARE_COMMIT, PREPARE_ABORT
    PREPARE_COMMIT   committed; some participants have not applied it      COMPLETE_COMMIT
    PREPARE_ABORT    aborted; some participants have not applied it        COMPLETE_ABORT
    COMPLETE_COMMIT  committed, and applied everywhere                     ONGOING, EMPTY; COMPLETE_ABORT
    COMPLETE_ABORT   aborted, and applied everywhere                       ONGOING, EMPTY; COMPLETE_ABORT

The move from ONGOING is the decision: one compare-and-set. Kafka also has PrepareEpochFence and Dead. Here the abort
and its new epoch are one write, so nothing lies between them. An idle record is simply deleted.

Who asks is `current` if it knows the producer id and epoch in the record. It is `last` if it knows the pair that was
replaced with its knowledge: its request may be the repeat of one whose answer was lost. `new` names none. Any other is
`stale`.

Pure.
"""

from enum import Enum, StrEnum
from typing import Final


class KafkaTxnState(StrEnum):
    """The state in a record. The values are those of Kafka's administrators, and stand in the metadata store."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"

    @property
    def is_ending(self) -> bool:
        """Whether it is decided, and not applied everywhere."""
        return self in COMPLETED

    @property
    def is_idle(self) -> bool:
        """Whether no transaction is open or ending, so that no participant is registered."""
        return self in IDLE


_EMPTY: Final = KafkaTxnState.EMPTY
_ONGOING: Final = KafkaTxnState.ONGOING
_PREPARE_COMMIT: Final = KafkaTxnState.PREPARE_COMMIT
_PREPARE_ABORT: Final = KafkaTxnState.PREPARE_ABORT
_COMPLETE_COMMIT: Final = KafkaTxnState.COMPLETE_COMMIT
_COMPLETE_ABORT: Final = KafkaTxnState.COMPLETE_ABORT

IDLE: Final = frozenset({_EMPTY, _COMPLETE_COMMIT, _COMPLETE_ABORT})

COMPLETED: Final = {_PREPARE_COMMIT: _COMPLETE_COMMIT, _PREPARE_ABORT: _COMPLETE_ABORT}
"""Where a decided transaction goes once the last participant has applied it."""

MOVES: Final = {
    _EMPTY: frozenset({_EMPTY, _ONGOING, _COMPLETE_ABORT}),
    _ONGOING: frozenset({_PREPARE_COMMIT, _PREPARE_ABORT}),
    _PREPARE_COMMIT: frozenset({_COMPLETE_COMMIT}),
    _PREPARE_ABORT: frozenset({_COMPLETE_ABORT}),
    _COMPLETE_COMMIT: frozenset({_EMPTY, _ONGOING, _COMPLETE_ABORT}),
    _COMPLETE_ABORT: frozenset({_EMPTY, _ONGOING, _COMPLETE_ABORT}),
}
"""Every move that a record may make."""


class Asker(Enum):
    """Who asks, by the producer id and epoch in its request."""

    NEW = "names none"
    CURRENT = "is the record's producer"
    LAST = "is the one before, whose answer may be lost"
    STALE = "was replaced, or never was"


class Init(Enum):
    """What InitProducerId does."""

    NEXT = "hand out the next epoch"
    REPEATED = "hand out the current epoch again"
    ABORT = "abort the open transaction first"
    WAIT = "wait until the transaction has ended"
    FENCED = "refuse: producer fenced"


class End(Enum):
    """What EndTxn does."""

    DECIDE = "decide the open transaction"
    NEXT = "there is no transaction: abort it by the next epoch alone"
    REPEATED = "it is so already: success"
    FENCED = "refuse: producer fenced"
    INVALID = "refuse: invalid state"


INITS: Final[dict[tuple[KafkaTxnState, Asker], Init]] = {
    **{(state, Asker.NEW): Init.NEXT for state in IDLE},
    **{(state, Asker.CURRENT): Init.NEXT for state in IDLE},
    **{(state, Asker.LAST): Init.REPEATED for state in IDLE},
    (_ONGOING, Asker.NEW): Init.ABORT,
    (_ONGOING, Asker.CURRENT): Init.ABORT,
    (_ONGOING, Asker.LAST): Init.FENCED,
    **{(state, asker): Init.WAIT for state in COMPLETED for asker in (Asker.NEW, Asker.CURRENT, Asker.LAST)},
    **{(state, Asker.STALE): Init.FENCED for state in KafkaTxnState},
}
"""Every pair of state and asker (K30). Kafka lets a stale producer abort the open transaction. It may not here."""

_COLUMNS: Final = (
    (1, True, Asker.CURRENT),
    (1, False, Asker.CURRENT),
    (2, True, Asker.CURRENT),
    (2, True, Asker.LAST),
    (2, False, Asker.CURRENT),
    (2, False, Asker.LAST),
)
"""Transaction version, whether it commits, and the asker."""

_GRID: Final = {
    # Version 1: a commit, an abort. Version 2: a commit by the current and the last producer, an abort by either.
    _EMPTY: (End.INVALID, End.INVALID, End.INVALID, End.FENCED, End.NEXT, End.FENCED),
    _ONGOING: (End.DECIDE, End.DECIDE, End.DECIDE, End.FENCED, End.DECIDE, End.FENCED),
    _PREPARE_COMMIT: (End.REPEATED, End.INVALID, End.FENCED, End.REPEATED, End.FENCED, End.INVALID),
    _PREPARE_ABORT: (End.INVALID, End.REPEATED, End.FENCED, End.FENCED, End.FENCED, End.REPEATED),
    _COMPLETE_COMMIT: (End.REPEATED, End.INVALID, End.INVALID, End.REPEATED, End.NEXT, End.INVALID),
    _COMPLETE_ABORT: (End.INVALID, End.REPEATED, End.INVALID, End.FENCED, End.NEXT, End.REPEATED),
}

ENDS: Final[dict[tuple[KafkaTxnState, int, bool, Asker], End]] = {
    (state, *column): end for state, row in _GRID.items() for column, end in zip(_COLUMNS, row, strict=True)
}
"""EndTxn, by state, transaction version, whether it commits, and asker. Anybody who is not in it is fenced.

A client of version 2 (EndTxn 5) repeats a request with the epoch that the request ended, and with the same outcome. So
a commit by the last producer that meets an abort has met the coordinator's own one, and is fenced (K29, KAFKA-20785).
"""
