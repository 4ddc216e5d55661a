"""What a task writes to: topics and their segments, each segment in a phase of a table.

A segment that is sealed stays so. Its rows go to its children, and it is forgotten.
"""

from collections import deque
from enum import Enum
from typing import Final

from tidewire.protocol.layout import Layout, Segment
from tidewire.spark.batching import Producing, SentFrame, Waiting
from tidewire.spark.connection import BlockingConnection
from tidewire.spark.routing import Routes


class Phase(Enum):
    """How far a task has come with a segment."""

    UNTOUCHED = "the transaction does not write here yet"
    CLOSED = "the coordinator knows that the transaction writes here, and no producer is open"
    OPEN = "a producer takes frames"
    SEALED = "its broker has said that what is unanswered is not stored and will not be"


MOVES: Final = {
    Phase.UNTOUCHED: frozenset({Phase.CLOSED}),
    Phase.CLOSED: frozenset({Phase.OPEN, Phase.SEALED}),
    Phase.OPEN: frozenset({Phase.CLOSED, Phase.SEALED}),
    # The broker refuses each frame that is left.
    Phase.SEALED: frozenset({Phase.SEALED}),
}
"""Where each phase may lead."""


class OpenProducer:
    """A producer of one segment, at its broker."""

    def __init__(self, connection: BlockingConnection, producing: Producing, next_sequence_id: int) -> None:
        self.connection: Final = connection
        self.producing: Final = producing
        self.next_sequence_id = next_sequence_id
        """Of the next frame's first message. Higher than that of every message that was sent."""


class WrittenSegment:
    """What is on its way to one segment."""

    def __init__(self, part: Segment) -> None:
        self.part: Final = part
        self.waiting: Final = Waiting()
        """Rows that were not sent. They come behind what is unanswered."""
        self.unanswered: Final[deque[SentFrame]] = deque()
        """Frames in the order of sending. There are none in the phases UNTOUCHED and CLOSED."""
        self._phase = Phase.UNTOUCHED
        self._producer: OpenProducer | None = None

    @property
    def phase(self) -> Phase:
        """Moves by the methods below alone."""
        return self._phase

    @property
    def producer(self) -> OpenProducer | None:
        """There is one in the phase OPEN, there may be one in the phase SEALED, and none in the others."""
        return self._producer

    @property
    def is_sealed(self) -> bool:
        """Whether it takes nothing more."""
        return self._phase is Phase.SEALED

    def included(self) -> None:
        """The coordinator knows that the transaction writes here."""
        self._move(Phase.CLOSED)

    def opened(self, producer: OpenProducer) -> None:
        """Frames may be sent."""
        self._move(Phase.OPEN)
        self._producer = producer

    def closed(self) -> None:
        """The broker has closed the producer, and nothing is in doubt."""
        if not self.is_sealed:
            assert not self.unanswered, "nobody knows whether they are stored"
            self._move(Phase.CLOSED)
        self._producer = None

    def sealed(self) -> None:
        """The broker takes nothing more."""
        self._move(Phase.SEALED)

    def _move(self, to: Phase) -> None:
        assert to in MOVES[self._phase], f"{self._phase} does not lead to {to}"
        self._phase = to


class WrittenTopic:
    """A topic's layout, and the segments that are written to."""

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.session_id = 0
        """Of the newest layout session. Layouts of earlier ones are not listened to."""
        self.connection: BlockingConnection | None = None
        """The one on which layouts are pushed; None until one was asked for."""
        self.layout = Layout(-1, {})
        """As pushed last."""
        self.is_new = False
        """Whether rows are not divided by `layout` yet."""
        self.routes: Routes | None = None
        """By which rows are divided; None until the first layout came."""
        self.segments: Final[dict[int, WrittenSegment]] = {}
        """By number."""
