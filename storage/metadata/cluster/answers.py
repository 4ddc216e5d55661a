"""What the controller answers to a write, as values that a frame or a log record can hold.

A change set's result names the key of each operation. The writer knows its operations, so the answer holds only what
the controller assigned: the revision, and the numbers of sequential puts. A refusal is an error of the store's contract
that a broker raises again.

Work on all operations of a change set comes in steps, because one may have 65,536 (E7).

Pure: values in, values out.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import chain
from typing import Final, NamedTuple

from storage.metadata.cluster.fields import LinkError
from storage.metadata.outcomes import Made, Run
from storage.metadata.steps import KEYS_AT_ONCE, Steps
from storage.metadata.store import (
    SEQUENCE_DIGITS,
    ChangeSetTooLarge,
    Committed,
    Conflict,
    InvalidOperation,
    MetadataError,
    Op,
    Put,
    PutSequential,
    SessionLost,
    StoreFull,
)

MESSAGE_BYTES_MAX: Final = 1024
"""The longest message of a refusal, in UTF-8. A longer one is cut, because it is for people."""


class Conflicted(NamedTuple):
    """A condition did not hold, and nothing was changed. See `Conflict`."""

    key: str
    expected: int
    actual: int


class Refusal(IntEnum):
    """Why a write was refused, except for a conflict. The values are those on the link."""

    SESSION_LOST = 3
    TOO_LARGE = 4
    INVALID = 5
    FULL = 6


class Refused(NamedTuple):
    """Nothing was changed."""

    reason: Refusal
    message: str
    """For people; at most MESSAGE_BYTES_MAX."""


Outcome = Made | Conflicted | Refused

_ERRORS: Final[dict[Refusal, type[MetadataError]]] = {
    Refusal.SESSION_LOST: SessionLost,
    Refusal.TOO_LARGE: ChangeSetTooLarge,
    Refusal.INVALID: InvalidOperation,
    Refusal.FULL: StoreFull,
}
_REASONS: Final = {error: reason for reason, error in _ERRORS.items()}


def refusal_of(error: MetadataError) -> Conflicted | Refused:
    """The answer that says what `error` says.

    Only for errors of writes that were not made. A write with an unknown outcome gets no answer: its link ends.
    """
    if isinstance(error, Conflict):
        return Conflicted(error.key, error.expected, error.actual)
    return Refused(_REASONS[type(error)], str(error).encode()[:MESSAGE_BYTES_MAX].decode(errors="ignore"))


def error_of(refusal: Conflicted | Refused) -> MetadataError:
    """The error to raise at the writer."""
    if isinstance(refusal, Conflicted):
        return Conflict(*refusal)
    return _ERRORS[refusal.reason](refusal.message)


def made_in_steps(ops: Sequence[Op], committed: Committed) -> Steps[Made]:
    """The answer to a change set that is durable."""
    runs: list[Run] = []
    first = length = 0
    for done, (op, key) in enumerate(zip(ops, committed.keys, strict=True), 1):
        if isinstance(op, PutSequential):
            assert key is not None, "a sequential put writes a record"
            number = int(key[-SEQUENCE_DIGITS:])
            if length and number == first + length:
                length += 1
            else:
                if length:
                    runs.append(Run(first, length))
                first, length = number, 1
        if done % KEYS_AT_ONCE == 0:
            yield
    if length:
        runs.append(Run(first, length))
    return Made(committed.revision, tuple(runs))


def committed_in_steps(ops: Sequence[Op], made: Made) -> Steps[Committed]:
    """The result of the writer's change set.

    Raises:
        LinkError: the answer has more or fewer numbers than the change set has sequential puts.
    """
    numbers = iter(_each(made.numbers))
    keys: list[str | None] = []
    for done, op in enumerate(ops, 1):
        key = op.key if isinstance(op, Put) else None
        if isinstance(op, PutSequential):
            number = next(numbers, None)
            if number is None:
                raise LinkError(f"the answer at revision {made.revision} has too few sequence numbers")
            key = f"{op.prefix}-{number:0{SEQUENCE_DIGITS}}"
        keys.append(key)
        if done % KEYS_AT_ONCE == 0:
            yield
    if next(numbers, None) is not None:
        raise LinkError(f"the answer at revision {made.revision} has too many sequence numbers")
    return Committed(made.revision, tuple(keys))


def _each(runs: Iterable[Run]) -> Iterable[int]:
    return chain.from_iterable(range(first, first + length) for first, length in runs)
