"""How far a reader has come on one segment, since the broker keeps nothing of it. Pure."""

from tidewire.client.chunks import Chunks
from tidewire.protocol.positions import AFTER_ALL, Position


class ReadingPlace:
    """Moves on with what is delivered. Of a durable subscription it says nothing."""

    __slots__ = ("_resume_after", "last")

    def __init__(self, start_after: Position | None) -> None:
        """Behind which message to begin."""
        self.last = start_after
        """The last message that was delivered, or where it began."""
        # From where everything has to be sent again, if that is further back.
        self._resume_after: Position | None = None

    @property
    def subscribe_after(self) -> Position | None:
        """From where the next session has to begin."""
        return self._resume_after or self.last

    @property
    def unwanted_upto(self) -> Position | None:
        """Messages up to this one are not to be delivered."""
        # Of a "latest" that could not be pinned, nothing is to be left out.
        return None if self.last == AFTER_ALL else self.last

    def pin(self, place: Position) -> None:
        """The latest message is this one."""
        self.last = self._resume_after = place

    def delivered(self, place: Position) -> None:
        """A message was; one that came again for the sake of another that was begun before it stays behind."""
        if self.last is None or self.last == AFTER_ALL or place.order > self.last.order:
            self.last = place

    def session_ended(self, chunks: Chunks) -> None:
        """What was begun has to come again, from its beginning."""
        if self.last is not None and chunks.is_past(self.last):
            self._resume_after = chunks.resume_after(self.last)
