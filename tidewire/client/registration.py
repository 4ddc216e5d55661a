"""A stream consumer's registration with its topic's controller, and its phases as a table.

A registration ends for one reason. What happens behind the end changes nothing: the consumer registers again.
"""

from collections import deque
from enum import Enum, auto
from typing import Final

from tidewire.client.connection import Connection, Listener
from tidewire.protocol.errors import TidewireError
from tidewire.protocol.listeners import Kind
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb


class Phase(Enum):
    """What a registration may do."""

    JOINING = "the controller has not answered yet"
    JOINED = "shares come, and the controller may be asked"
    CLOSED = "the controller has the consumer no more: another registration is due"
    LOST = "the connection has ended: another registration is due"


class Event(Enum):
    """What happens to a registration."""

    JOINED = auto()
    CLOSED = auto()
    LOST = auto()


_COLUMNS: Final = (Event.JOINED, Event.CLOSED, Event.LOST)
# The broker may close before its answer is taken up.
_ROWS: Final = {
    Phase.JOINING: (Phase.JOINED, Phase.CLOSED, Phase.LOST),
    Phase.JOINED: (Phase.JOINED, Phase.CLOSED, Phase.LOST),
    Phase.CLOSED: (Phase.CLOSED,) * 3,
    Phase.LOST: (Phase.LOST,) * 3,
}

MOVES: Final[dict[tuple[Phase, Event], Phase]] = {
    (phase, event): to for phase, row in _ROWS.items() for event, to in zip(_COLUMNS, row, strict=True)
}
"""Where each event leads from each phase."""


class Registration:
    """See the module's docstring."""

    def __init__(self, connection: Connection, listener: Listener) -> None:
        """Attach `listener` to the connection; `end` ends that.

        Raises:
            ConnectionLost: the connection has ended.
        """
        self.connection: Final = connection
        self.consumer_id: Final = connection.attach(Kind.CONSUMER, listener)
        self.phase = Phase.JOINING
        """Moves by the methods below alone."""
        self.lost: TidewireError | None = None
        """Why the connection ended; set in the phase LOST and in no other."""
        self.shares: Final[deque[pb.ScalableConsumerAssignment]] = deque()
        """Each is taken up in its turn: a segment that left and came back is subscribed to anew, as the broker expects.
        Their epochs never fall."""
        self._epoch = -1

    def happened(self, event: Event) -> None:
        """Move to the next phase."""
        self.phase = MOVES[self.phase, event]

    def lose(self, error: TidewireError) -> None:
        """The connection has ended."""
        self.happened(Event.LOST)
        if self.phase is Phase.LOST and self.lost is None:
            self.lost = error

    def answered(self, answer: pb.CommandScalableTopicSubscribeResponse) -> None:
        """The controller knows the consumer."""
        self.happened(Event.JOINED)
        # A share that overtook the answer is at least as new.
        if answer.HasField("assignment") and self._epoch < 0:
            self.assigned(answer.assignment)

    def assigned(self, share: pb.ScalableConsumerAssignment) -> None:
        """A share has come; one of an older layout is dropped."""
        if share.layout_epoch >= self._epoch:
            self._epoch = share.layout_epoch
            self.shares.append(share)

    def leave(self) -> None:
        """Tell the controller soon that the consumer is gone, unless it has closed it."""
        if self.phase is not Phase.CLOSED:
            self.connection.write(encode_command(commands.close_consumer(self.consumer_id)))
        self.happened(Event.CLOSED)

    def end(self) -> None:
        """Leave, and hear nothing more."""
        self.connection.detach(Kind.CONSUMER, self.consumer_id)
        self.leave()
