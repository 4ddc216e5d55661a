"""One session of a producer of one segment, and its phases as a table.

After its end the producer opens another session, or passes the unanswered messages to the segment's children.
"""

from enum import Enum, auto
from typing import Final

from tidewire.client.connection import Connection, Listener
from tidewire.client.phased_session import PhasedSession, moves
from tidewire.protocol.listeners import Kind


class Phase(Enum):
    """What a session may do."""

    OPENING = "the broker has not answered yet"
    OPEN = "frames are sent and answered"
    SEALED = "the broker refuses the unanswered frames because the segment is sealed: none of them is stored"
    RETIRED = "as SEALED, and the broker has closed the producer"
    CLOSED = "the broker has closed the producer: the next session tells whether the segment is sealed or has moved"
    LOST = "unanswered frames may or may not be stored: another session is due"


class Event(Enum):
    """What happens to a session."""

    OPENED = auto()
    SEALED = auto()
    CLOSED = auto()
    LOST = auto()


_COLUMNS: Final = (Event.OPENED, Event.SEALED, Event.CLOSED, Event.LOST)
# The broker may close the producer before this client handles its answer to PRODUCER.
_ROWS: Final = {
    Phase.OPENING: (Phase.OPEN, Phase.SEALED, Phase.CLOSED, Phase.LOST),
    Phase.OPEN: (Phase.OPEN, Phase.SEALED, Phase.CLOSED, Phase.LOST),
    # A refusal that came before the connection was lost still holds.
    Phase.SEALED: (Phase.SEALED, Phase.SEALED, Phase.RETIRED, Phase.RETIRED),
    Phase.RETIRED: (Phase.RETIRED,) * 4,
    Phase.CLOSED: (Phase.CLOSED,) * 4,
    Phase.LOST: (Phase.LOST,) * 4,
}

MOVES: Final = moves(_COLUMNS, _ROWS)
"""Where each event leads from each phase."""


class ProducerSession(PhasedSession[Phase, Event]):
    """See the module's docstring. `error` is set in the phases SEALED, RETIRED and LOST, and in no others."""

    def __init__(self, connection: Connection, listener: Listener) -> None:
        """As `PhasedSession`."""
        super().__init__(connection, Kind.PRODUCER, listener, MOVES, Phase.OPENING)
        self.producer_id: Final = self._id
        self.schema_version = b""
        """The broker's version of the producer's schema; known from the phase OPEN on."""

    @property
    def is_open(self) -> bool:
        """Whether the broker has opened it."""
        return self.phase is not Phase.OPENING

    @property
    def is_at_broker(self) -> bool:
        """Whether the broker may still know the producer."""
        return self.phase not in {Phase.CLOSED, Phase.RETIRED}
