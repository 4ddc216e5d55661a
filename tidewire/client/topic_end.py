"""Whether a reader has passed the end that a segment had at one moment. Pure.

The broker tells the end: the last message that consumers could get when it answered. So a reader knows that it is there
without waiting for silence. The reader may never be handed that message: it began behind it, or it is a chunk of an
incomplete message. So what counts are the entries that the reader is done with.
"""

from typing import NamedTuple

from tidewire.protocol.positions import EARLIEST, EntryPosition, Position


class ToldEnd(NamedTuple):
    """What a broker says about the end of a segment, after it has applied every transaction decided before."""

    last: EntryPosition
    """The last message that consumers could get; EARLIEST if there is none."""
    acknowledged: EntryPosition
    """Up to where this reader has acknowledged everything, or wanted none. EARLIEST if the broker does not say."""
    goes_on: bool
    """More may follow: the segment takes messages, or has an open transaction. False if the broker does not say."""


class TopicEnd:
    """The end of one segment, for one reader of it. Entries are passed in order."""

    __slots__ = ("_passed", "_told", "is_due")

    def __init__(self) -> None:
        """Nobody wants to know the end yet."""
        self.is_due = False
        """Whether the broker is to be asked."""
        self._told: ToldEnd | None = None
        self._passed = EARLIEST

    def ask(self) -> None:
        """The end as of now is wanted. An earlier answer does not count."""
        self._told, self.is_due = None, True

    def answered(self, told: ToldEnd, place: Position | None) -> None:
        """The broker has answered. `place` is the message behind which the reader reads, if it knows."""
        self._told, self.is_due = told, False
        self.passed(told.acknowledged)
        if place is not None and place.is_whole_entry:
            self.passed(EntryPosition(place.ledger_id, place.entry_id))

    def passed(self, entry: EntryPosition) -> bool:
        """The reader is done with this entry: nothing more of it comes. Returns whether that reaches the end."""
        was_reached = self.is_reached
        self._passed = max(self._passed, entry)
        return self.is_reached and not was_reached

    @property
    def is_reached(self) -> bool:
        """Whether the end is known, and nothing up to it is still to come."""
        return self._told is not None and self._passed >= self._told.last

    @property
    def is_before_more(self) -> bool:
        """Whether it is reached, and the broker said that more may follow."""
        return self._told is not None and self._told.goes_on and self.is_reached
