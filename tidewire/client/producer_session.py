"""One session of a producer of one segment, and its phases as a table.

A session ends for one reason. What happens behind the end changes nothing: the producer opens another session, or hands
what is unanswered to the segment's children.
"""

from enum import Enum, auto
from typing import Final

from tidewire.client.connection import Connection, Listener
from tidewire.protocol.errors import TidewireError
from tidewire.protocol.listeners import Kind


class Phase(Enum):
    """What a session may do."""

    OPENING = "the broker has not answered yet"
    OPEN = "frames are sent and answered"
    SEALED = "the broker refuses what is unanswered, because the segment is sealed: nothing of it is stored"
    RETIRED = "the same, and the broker has the producer no more"
    CLOSED = "the broker has the producer no more: another session tells whether the segment is sealed or has moved"
    LOST = "what is unanswered may be stored or not: another session is due"


class Event(Enum):
    """What happens to a session."""

    OPENED = auto()
    SEALED = auto()
    CLOSED = auto()
    LOST = auto()


_COLUMNS: Final = (Event.OPENED, Event.SEALED, Event.CLOSED, Event.LOST)
# The broker may close the producer before its answer to PRODUCER is taken up.
_ROWS: Final = {
    Phase.OPENING: (Phase.OPEN, Phase.SEALED, Phase.CLOSED, Phase.LOST),
    Phase.OPEN: (Phase.OPEN, Phase.SEALED, Phase.CLOSED, Phase.LOST),
    # A refusal that came before the connection was lost is still true.
    Phase.SEALED: (Phase.SEALED, Phase.SEALED, Phase.RETIRED, Phase.RETIRED),
    Phase.RETIRED: (Phase.RETIRED,) * 4,
    Phase.CLOSED: (Phase.CLOSED,) * 4,
    Phase.LOST: (Phase.LOST,) * 4,
}

MOVES: Final[dict[tuple[Phase, Event], Phase]] = {
    (phase, event): to for phase, row in _ROWS.items() for event, to in zip(_COLUMNS, row, strict=True)
}
"""Where each event leads from each phase."""


class ProducerSession:
    """See the module's docstring."""

    def __init__(self, connection: Connection, listener: Listener) -> None:
        """Attach `listener` to the connection; `detach` ends that.

        Raises:
            ConnectionLost: the connection has ended.
        """
        self.connection: Final = connection
        self.producer_id: Final = connection.attach(Kind.PRODUCER, listener)
        self.phase = Phase.OPENING
        """Moves by the methods below alone."""
        self.schema_version = b""
        """What the broker calls the producer's schema; known from the phase OPEN on."""
        self.error: TidewireError | None = None
        """Why nothing can be sent any more; set in the phases SEALED, RETIRED and LOST, and in no others."""

    def happened(self, event: Event, error: TidewireError | None = None) -> None:
        """Move to the next phase; SEALED and LOST have an error."""
        before, self.phase = self.phase, MOVES[self.phase, event]
        if self.phase is not before and self.error is None:
            self.error = error

    @property
    def is_open(self) -> bool:
        """Whether the broker has opened it."""
        return self.phase is not Phase.OPENING

    @property
    def is_at_broker(self) -> bool:
        """Whether the broker may still have the producer."""
        return self.phase not in {Phase.CLOSED, Phase.RETIRED}

    def detach(self) -> None:
        """Hear nothing more of it."""
        self.connection.detach(Kind.PRODUCER, self.producer_id)
