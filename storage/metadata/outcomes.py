"""The outcomes of numbered writes, which are state of the log (M22).

A write of another broker has the identity of its writer, the session of the link, and a number. The controller logs the
outcome of each write that it makes, in the write's own change set. So the next controller knows it too, and answers a
write that is sent again instead of making it twice (`cluster.arrivals`).

The writer says below which number all its writes are answered. The outcomes of those are forgotten.

Pure: no IO, no waiting.
"""

from collections.abc import Iterator
from typing import NamedTuple


class Run(NamedTuple):
    """Numbers without a gap that sequential puts got, in the order of the operations."""

    first: int
    length: int


class Made(NamedTuple):
    """The write is durable."""

    revision: int
    """As `Committed.revision`. For a new session, its id."""
    numbers: tuple[Run, ...] = ()


class WriteId(NamedTuple):
    """Which write it is."""

    session: int
    """The session of its writer's link."""
    number: int
    """The writer's first write has 1."""
    answered_below: int
    """The writer has the answers of all its writes below this number. At most `number`."""


class ContradictedOutcome(ValueError):
    """The log says that a write was made which, by what it says before, cannot have been made."""


class _Writer:
    __slots__ = ("answered_below", "made")

    def __init__(self) -> None:
        self.answered_below = 0
        self.made: dict[int, Made] = {}

    def forget_below(self, number: int) -> None:
        first, self.answered_below = self.answered_below, max(number, self.answered_below)
        # Whichever is shorter: the numbers passed, or the outcomes kept.
        if number - first <= len(self.made):
            for passed in range(first, number):
                self.made.pop(passed, None)
        else:
            self.made = {kept: made for kept, made in self.made.items() if kept >= number}


class Outcomes:
    """The outcomes on record of every writer whose session lives. Changes only by records of the log."""

    __slots__ = ("_writers",)

    def __init__(self) -> None:
        self._writers: dict[int, _Writer] = {}

    def find(self, write: WriteId) -> Made | None:
        """The outcome of a write; None if it was not made, or is below what its writer had answers for."""
        writer = self._writers.get(write.session)
        return None if writer is None else writer.made.get(write.number)

    def answered_below(self, session: int) -> int:
        """What the log knows of a writer's answers; 0 for a writer without a write on record."""
        writer = self._writers.get(session)
        return 0 if writer is None else writer.answered_below

    def note(self, write: WriteId, made: Made) -> None:
        """A write is on record.

        Raises:
            ContradictedOutcome: by earlier records, it was made before, or its writer had its answer.
        """
        writer = self._writers.get(write.session)
        if writer is None:
            writer = self._writers[write.session] = _Writer()
        writer.forget_below(write.answered_below)
        if write.number < writer.answered_below:
            raise ContradictedOutcome(f"{write} was made, although its writer had its answer")
        if write.number in writer.made:
            raise ContradictedOutcome(f"{write} was made twice")
        writer.made[write.number] = made

    def session_ended(self, session: int) -> None:
        """The end of a session is on record. Nobody asks for its writes any more."""
        self._writers.pop(session, None)

    def each(self) -> Iterator[tuple[WriteId, Made]]:
        """Every outcome, for a snapshot. `note` takes them back in this order."""
        for session, writer in self._writers.items():
            for number, made in writer.made.items():
                yield WriteId(session, number, writer.answered_below), made
