"""One session of a consumer of one segment, and its phases as a table.

A session ends for one reason. What happens behind the end changes nothing: the consumer opens another session.
"""

from enum import Enum, auto
from typing import Final

from tidewire.client.connection import Connection, Listener
from tidewire.protocol.errors import TidewireError
from tidewire.protocol.listeners import Kind


class Phase(Enum):
    """What a session may do."""

    SUBSCRIBING = "the broker has not answered yet"
    OPEN = "messages come and are acknowledged"
    ENDED = "the same, and the broker has sent the last message of a sealed topic"
    MOVING = "the subscription is being moved: what still comes is from where it stood before, and is dropped"
    MOVED = "the subscription was moved, or nobody knows: another session is due"
    CLOSED = "the broker has the consumer no more: another session is due"
    LOST = "the connection has ended: another session is due"


class Event(Enum):
    """What happens to a session."""

    OPENED = auto()
    END_REACHED = auto()
    MOVE_BEGUN = auto()
    MOVE_ENDED = auto()
    CLOSED = auto()
    LOST = auto()


_COLUMNS: Final = (Event.OPENED, Event.END_REACHED, Event.MOVE_BEGUN, Event.MOVE_ENDED, Event.CLOSED, Event.LOST)
# The broker may say that the end is reached, or close, before its answer to SUBSCRIBE is taken up.
_ROWS: Final = {
    Phase.SUBSCRIBING: (Phase.OPEN, Phase.ENDED, Phase.MOVING, Phase.MOVED, Phase.CLOSED, Phase.LOST),
    Phase.OPEN: (Phase.OPEN, Phase.ENDED, Phase.MOVING, Phase.MOVED, Phase.CLOSED, Phase.LOST),
    Phase.ENDED: (Phase.ENDED, Phase.ENDED, Phase.MOVING, Phase.MOVED, Phase.CLOSED, Phase.LOST),
    Phase.MOVING: (Phase.MOVING, Phase.MOVING, Phase.MOVING, Phase.MOVED, Phase.CLOSED, Phase.LOST),
    Phase.MOVED: (Phase.MOVED, Phase.MOVED, Phase.MOVED, Phase.MOVED, Phase.CLOSED, Phase.LOST),
    Phase.CLOSED: (Phase.CLOSED,) * 6,
    Phase.LOST: (Phase.LOST,) * 6,
}

MOVES: Final[dict[tuple[Phase, Event], Phase]] = {
    (phase, event): to for phase, row in _ROWS.items() for event, to in zip(_COLUMNS, row, strict=True)
}
"""Where each event leads from each phase."""

USABLE: Final = frozenset({Phase.OPEN, Phase.ENDED})
"""Phases in which the broker may be told and asked."""

DELIVERS: Final = USABLE | {Phase.SUBSCRIBING}
"""Phases in which messages that come are kept. In the others some were dropped, and a gap must not be delivered."""

OVER: Final = frozenset({Phase.MOVED, Phase.CLOSED, Phase.LOST})
"""Phases from which no other but an end leads."""


class TopicSession:
    """See the module's docstring."""

    def __init__(self, connection: Connection, listener: Listener) -> None:
        """Attach `listener` to the connection; `detach` ends that.

        Raises:
            ConnectionLost: the connection has ended.
        """
        self.connection: Final = connection
        self.consumer_id: Final = connection.attach(Kind.CONSUMER, listener)
        self.phase = Phase.SUBSCRIBING
        """Moves by `happened` alone."""
        self.permits_due = 0
        """Messages that were taken out of the inbox and not asked for again; below half of the queue's length."""
        self.lost: TidewireError | None = None
        """Why the connection ended; set in the phase LOST and in no other."""

    def happened(self, event: Event) -> None:
        """Move to the next phase."""
        self.phase = MOVES[self.phase, event]

    def lose(self, error: TidewireError) -> None:
        """The connection has ended."""
        self.happened(Event.LOST)
        if self.phase is Phase.LOST and self.lost is None:
            self.lost = error

    def detach(self) -> None:
        """Hear nothing more of it."""
        self.connection.detach(Kind.CONSUMER, self.consumer_id)
