"""A stream consumer's registration with its topic's controller, and its phases as a table.

After its end the consumer registers again.
"""

from collections import deque
from enum import Enum, auto
from typing import Final

from tidewire.client.connection import Connection, Listener
from tidewire.client.phased_session import PhasedSession, moves
from tidewire.protocol.listeners import Kind
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb


class Phase(Enum):
    """What a registration may do."""

    JOINING = "the controller has not answered yet"
    JOINED = "the controller assigns shares and answers requests"
    CLOSED = "the controller has closed the consumer: another registration is due"
    LOST = "the connection has ended: another registration is due"


class Event(Enum):
    """What happens to a registration."""

    JOINED = auto()
    CLOSED = auto()
    LOST = auto()


_COLUMNS: Final = (Event.JOINED, Event.CLOSED, Event.LOST)
# The broker may close the consumer before this client handles its answer.
_ROWS: Final = {
    Phase.JOINING: (Phase.JOINED, Phase.CLOSED, Phase.LOST),
    Phase.JOINED: (Phase.JOINED, Phase.CLOSED, Phase.LOST),
    Phase.CLOSED: (Phase.CLOSED,) * 3,
    Phase.LOST: (Phase.LOST,) * 3,
}

MOVES: Final = moves(_COLUMNS, _ROWS)
"""Where each event leads from each phase."""


class Registration(PhasedSession[Phase, Event]):
    """See the module's docstring. `error` is set in the phase LOST and in no other."""

    def __init__(self, connection: Connection, listener: Listener) -> None:
        """As `PhasedSession`; `end` detaches it."""
        super().__init__(connection, Kind.CONSUMER, listener, MOVES, Phase.JOINING)
        self.consumer_id: Final = self._id
        self.shares: Final[deque[pb.ScalableConsumerAssignment]] = deque()
        """Assigned shares, each handled in turn. The consumer must resubscribe to a segment that left and came back, as
        the broker expects. Their epochs never fall."""
        self._epoch = -1

    def answered(self, answer: pb.CommandScalableTopicSubscribeResponse) -> None:
        """The controller has accepted the consumer."""
        self.happened(Event.JOINED)
        # A share that overtook the answer is at least as new as the one in it.
        if answer.HasField("assignment") and self._epoch < 0:
            self.assigned(answer.assignment)

    def assigned(self, share: pb.ScalableConsumerAssignment) -> None:
        """A share has come. One of an older layout is dropped."""
        if share.layout_epoch >= self._epoch:
            self._epoch = share.layout_epoch
            self.shares.append(share)

    def leave(self) -> None:
        """Tell the controller that the consumer leaves, unless the controller has closed it. Does not wait."""
        if self.phase is not Phase.CLOSED:
            self.connection.write(encode_command(commands.close_consumer(self.consumer_id)))
        self.happened(Event.CLOSED)

    def end(self) -> None:
        """Leave, and stop listening."""
        self.detach()
        self.leave()
