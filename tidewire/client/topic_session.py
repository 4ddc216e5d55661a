"""One session of a consumer of one segment, and its phases as a table.

After its end the consumer opens another session.
"""

from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import Final

from tidewire.client.acknowledgements import IDS_PER_COMMAND_MAX, AckCommand
from tidewire.client.connection import Connection, Listener
from tidewire.client.phased_session import PhasedSession, moves
from tidewire.protocol.listeners import Kind
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import message_id


class Phase(Enum):
    """What a session may do."""

    SUBSCRIBING = "the broker has not answered yet"
    OPEN = "messages come and are acknowledged"
    ENDED = "as OPEN, and the broker has sent the last message of a sealed topic"
    MOVING = "the subscription is being moved: messages from the old place still come, and are dropped"
    MOVED = "the move ended, perhaps without effect: another session is due"
    CLOSED = "the broker has closed the consumer: another session is due"
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
# The broker may report the end, or close, before this client handles its answer to SUBSCRIBE.
_ROWS: Final = {
    Phase.SUBSCRIBING: (Phase.OPEN, Phase.ENDED, Phase.MOVING, Phase.MOVED, Phase.CLOSED, Phase.LOST),
    Phase.OPEN: (Phase.OPEN, Phase.ENDED, Phase.MOVING, Phase.MOVED, Phase.CLOSED, Phase.LOST),
    Phase.ENDED: (Phase.ENDED, Phase.ENDED, Phase.MOVING, Phase.MOVED, Phase.CLOSED, Phase.LOST),
    Phase.MOVING: (Phase.MOVING, Phase.MOVING, Phase.MOVING, Phase.MOVED, Phase.CLOSED, Phase.LOST),
    Phase.MOVED: (Phase.MOVED, Phase.MOVED, Phase.MOVED, Phase.MOVED, Phase.CLOSED, Phase.LOST),
    Phase.CLOSED: (Phase.CLOSED,) * 6,
    Phase.LOST: (Phase.LOST,) * 6,
}

MOVES: Final = moves(_COLUMNS, _ROWS)
"""Where each event leads from each phase."""

USABLE: Final = frozenset({Phase.OPEN, Phase.ENDED})
"""Phases in which the consumer can send acknowledgements and requests."""

DELIVERS: Final = USABLE | {Phase.SUBSCRIBING}
"""Phases in which arriving messages are kept. In the others some were dropped, and a gap must not be delivered."""

OVER: Final = frozenset({Phase.MOVED, Phase.CLOSED, Phase.LOST})
"""Phases of a session that cannot be used again."""


class TopicSession(PhasedSession[Phase, Event]):
    """See the module's docstring. `error` is set in the phase LOST and in no other."""

    def __init__(self, connection: Connection, listener: Listener) -> None:
        """As `PhasedSession`."""
        super().__init__(connection, Kind.CONSUMER, listener, MOVES, Phase.SUBSCRIBING)
        self.consumer_id: Final = self._id
        self.permits_due = 0
        """Messages that left the inbox and whose permits were not given again yet; below half of the queue's size."""

    def write(self, command: pb.BaseCommand) -> None:
        """Queue it for sending."""
        self.connection.write(encode_command(command))

    def acknowledge(self, told: Iterable[AckCommand]) -> None:
        """Send acknowledgements that need no answer."""
        for command in told:
            self.write(commands.ack(self.consumer_id, command.message_ids, cumulative=command.cumulative))

    def redeliver(self, entries: Sequence[tuple[int, int]]) -> None:
        """Request these (ledger, entry) again."""
        for start in range(0, len(entries), IDS_PER_COMMAND_MAX):
            ids = [message_id(*entry) for entry in entries[start : start + IDS_PER_COMMAND_MAX]]
            self.write(commands.redeliver(self.consumer_id, ids))

    def taken(self, messages: int, queue_messages_max: int) -> None:
        """That many messages have left the inbox. Give their permits again once they are half of the queue."""
        self.permits_due += messages
        if 2 * self.permits_due >= queue_messages_max:
            self.write(commands.flow(self.consumer_id, self.permits_due))
            self.permits_due = 0


class Moves:
    """The moves of one consumer's subscription that are in progress, and the sessions that they end.

    The broker closes the session that was open when the move began. A session opened meanwhile may be at the old place
    or at the new one. So it delivers nothing, and another one follows.
    """

    def __init__(self) -> None:
        """No move is in progress."""
        self._under_way = 0
        self._closed_by_broker: TopicSession | None = None

    def begin(self, session: TopicSession | None) -> None:
        """A move begins. `session` is the current session, if any."""
        self._under_way += 1
        if session is not self._closed_by_broker:
            self._closed_by_broker = session if session is not None and session.phase in USABLE else None
        if session is not None:
            session.happened(Event.MOVE_BEGUN)

    def opening(self, session: TopicSession) -> None:
        """A new session is being opened."""
        if self._under_way:
            session.happened(Event.MOVE_BEGUN)

    def end(self, session: TopicSession | None, *, is_done: bool) -> bool:
        """A move has ended. `is_done`: the broker did it, else that is unknown. Returns whether this ends `session`."""
        self._under_way -= 1
        if session is None or (is_done and session is self._closed_by_broker):
            return False
        session.happened(Event.MOVE_ENDED)
        return True
