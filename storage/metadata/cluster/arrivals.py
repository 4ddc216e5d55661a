"""Decides each write of another broker once, however often it arrives (M22).

A write has the identity of its writer, the session of the link, and a number. The writer numbers its writes one by one
and sends those without an answer again on its next link, in order (`Unanswered`). The controller logs the outcome of
each write that it makes, together with the write. So the outcomes are state of the log, and the next controller knows
them too (`Outcomes`). Refusals are not logged: they changed nothing, so a repeated write is decided anew.

    a write arrives                                    | what it gets (`Arrivals.take`)
    above the window                                   | the link ends: a writer never sends it
    below the highest `answered_below` of its writer   | nothing: it is a copy, and its writer has the answer
    it was made                                        | the answer again
    it is being decided                                | nothing now: the answer goes to the newest link
    anything else                                      | it is decided

The writer says below which number all its writes are answered. The controller forgets those outcomes. No write is sent
more than WINDOW above that number, so the outcomes of one writer are bounded, even if its oldest write takes long.

Pure: no IO, no waiting.
"""

from collections.abc import Iterator
from enum import Enum
from typing import Final, Generic, TypeVar

from storage.metadata.cluster.fields import LinkError
from storage.metadata.outcomes import Made, Outcomes, WriteId

WINDOW: Final = 4096
"""How far the number of a write may be above the lowest one without an answer."""

T = TypeVar("T")


class Verdict(Enum):
    """What the controller does with a write that has arrived."""

    DECIDE = "decide it"
    WAIT = "its answer comes when the decision is durable"
    DROP = "its writer has the answer"


class Arrivals:
    """The writes that arrived at the controller of one reign: which of them to decide."""

    __slots__ = ("_answered_below", "_deciding", "_outcomes")

    def __init__(self, outcomes: Outcomes) -> None:
        self._outcomes = outcomes
        self._deciding: dict[int, set[int]] = {}
        """The numbers of each writer that are being decided."""
        self._answered_below: dict[int, int] = {}
        """What each writer has said in this reign. The log may know less, because refusals are not logged."""

    def take(self, write: WriteId) -> Made | Verdict:
        """The answer to give again, or what to do. After DECIDE, the caller decides it and then calls `decided`.

        Raises:
            LinkError: its number does not fit what its writer has said.
        """
        session, number, answered_below = write
        known = max(answered_below, self._answered_below.get(session, 0), self._outcomes.answered_below(session))
        if not 1 <= answered_below <= number < answered_below + WINDOW:
            raise LinkError(f"write {number} cannot follow the answers to all writes below {answered_below}")
        self._answered_below[session] = known
        if number < known:
            return Verdict.DROP
        made = self._outcomes.find(write)
        if made is not None:
            return made
        deciding = self._deciding.setdefault(session, set())
        if number in deciding:
            return Verdict.WAIT
        deciding.add(number)
        return Verdict.DECIDE

    def decided(self, write: WriteId) -> None:
        """Its outcome is on record, or it was refused. Its session may have ended meanwhile."""
        if write.session in self._deciding:
            self._deciding[write.session].remove(write.number)

    def session_ended(self, session: int) -> None:
        """The end of a session is on record, and its link is closed."""
        self._deciding.pop(session, None)
        self._answered_below.pop(session, None)


class Unanswered(Generic[T]):
    """The writes of one process that have no answer yet, in order, with whatever the caller keeps for each."""

    __slots__ = ("_next", "_writes")

    def __init__(self) -> None:
        self._next = 1
        self._writes: dict[int, T] = {}

    @property
    def has_room(self) -> bool:
        """Whether another write may be added. If not, an answer to the oldest one makes room."""
        return self._next < self.answered_below + WINDOW

    @property
    def answered_below(self) -> int:
        """Every write below this number has its answer."""
        return next(iter(self._writes), self._next)

    def add(self, write: T) -> int:
        """The number of a new write."""
        assert self.has_room, "the caller waits for room"
        number = self._next
        self._next += 1
        self._writes[number] = write
        return number

    def answered(self, number: int) -> T | None:
        """Take out the write that an answer is for; None if it has been answered before."""
        return self._writes.pop(number, None)

    def again(self) -> Iterator[tuple[int, T]]:
        """All writes without an answer, in the order to send them on a new link."""
        return iter(list(self._writes.items()))
