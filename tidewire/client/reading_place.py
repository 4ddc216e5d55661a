"""A reader's position on one segment, which the broker does not keep. Pure."""

from tidewire.protocol.chunks import Chunks
from tidewire.protocol.positions import AFTER_ALL, Position


class ReadingPlace:
    """Moves forward with the delivered messages. Not used by durable subscriptions."""

    __slots__ = ("_resume_after", "last")

    def __init__(self, start_after: Position | None) -> None:
        """A reader that begins behind the message `start_after`."""
        self.last = start_after
        """The last delivered message, or the start."""
        # Where the next session has to begin, if that is further back than `last`.
        self._resume_after: Position | None = None

    @property
    def subscribe_after(self) -> Position | None:
        """The message behind which the next session has to begin."""
        return self._resume_after or self.last

    @property
    def unwanted_upto(self) -> Position | None:
        """Messages up to this one are not to be delivered again."""
        # A "latest" that could not be pinned excludes nothing.
        return None if self.last == AFTER_ALL else self.last

    def pin(self, place: Position) -> None:
        """A reader that begins at "latest" begins behind this message."""
        self.last = self._resume_after = place

    def delivered(self, place: Position) -> None:
        """A message was delivered. A redelivered one that lies further back changes nothing."""
        if self.last is None or self.last == AFTER_ALL or place.order > self.last.order:
            self.last = place

    def session_ended(self, chunks: Chunks) -> None:
        """The next session has to read incomplete messages again, from their first chunks."""
        if self.last is not None and chunks.is_past(self.last):
            self._resume_after = chunks.resume_after(self.last)
