"""What a task writes to: topics and their segments. A table defines each segment's phases.

A sealed segment stays sealed. Its unstored rows go to its children, and the task forgets it.
"""

from collections import deque
from enum import Enum
from typing import Final

from tidewire.protocol.layout import Layout, Segment
from tidewire.protocol.unanswered import End, Fate, fate, remembers
from tidewire.spark.batching import Producing, SentFrame, Waiting
from tidewire.spark.connection import BlockingConnection
from tidewire.spark.errors import WriteFailed
from tidewire.spark.routing import Routes


class Phase(Enum):
    """A task's progress with a segment."""

    UNTOUCHED = "the transaction does not write here yet"
    CLOSED = "the coordinator knows that the transaction writes here, and no producer is open"
    OPEN = "a producer sends frames"
    SEALED = "the broker has said that the unanswered frames are not stored and will not be"


MOVES: Final = {
    Phase.UNTOUCHED: frozenset({Phase.CLOSED}),
    Phase.CLOSED: frozenset({Phase.OPEN, Phase.SEALED}),
    Phase.OPEN: frozenset({Phase.CLOSED, Phase.SEALED}),
    # The broker refuses each remaining frame.
    Phase.SEALED: frozenset({Phase.SEALED}),
}
"""The phases that may follow each phase."""


class OpenProducer:
    """A producer of one segment that its broker has opened."""

    def __init__(self, connection: BlockingConnection, producing: Producing, next_sequence_id: int) -> None:
        self.connection: Final = connection
        self.producing: Final = producing
        self.next_sequence_id = next_sequence_id
        """The id of the next frame's first message, above the ids of all sent messages."""
        self.answered_upto = -1
        """The highest sequence id with a receipt; -1 for none."""
        self.epoch = 0
        """How often it was opened again under its name."""


class WrittenSegment:
    """The unsent and unanswered rows of one segment."""

    def __init__(self, part: Segment) -> None:
        self.part: Final = part
        self.waiting: Final = Waiting()
        """Rows that were not sent. They come after the unanswered ones."""
        self.unanswered: Final[deque[SentFrame]] = deque()
        """Frames in the order of sending. In the phase CLOSED they are those of `doubted`."""
        self._phase = Phase.UNTOUCHED
        self._producer: OpenProducer | None = None
        self._doubted: OpenProducer | None = None

    @property
    def phase(self) -> Phase:
        """Only the methods below change it."""
        return self._phase

    @property
    def producer(self) -> OpenProducer | None:
        """Set in the phase OPEN, perhaps set in the phase SEALED, and None in the others."""
        return self._producer

    @property
    def doubted(self) -> OpenProducer | None:
        """The producer that the broker closed before it answered all frames; None if there is no doubt."""
        return self._doubted

    @property
    def is_sealed(self) -> bool:
        """Whether the segment stores nothing more."""
        return self._phase is Phase.SEALED

    def included(self) -> None:
        """The coordinator knows that the transaction writes here."""
        self._move(Phase.CLOSED)

    def opened(self, connection: BlockingConnection, producing: Producing, remembered_upto: int) -> OpenProducer:
        """A producer is open, so frames may be sent: first the unanswered ones again, if there are any.

        Args:
            connection: to the segment's broker.
            producing: the session. If a producer is `doubted`, it has the name of that one.
            remembered_upto: the highest sequence id that the broker remembers of this name; -1 for none.

        Raises:
            WriteFailed: the broker would not recognise those of the unanswered frames that are stored.
        """
        producer, former = OpenProducer(connection, producing, remembered_upto + 1), self._doubted
        if former is not None:
            is_remembered = remembers(former.answered_upto, remembered_upto)
            if fate(End.CLOSED, in_transaction=True, is_remembered=is_remembered) is Fate.UNKNOWN:
                raise WriteFailed(f"the broker of {self.part.wire_name} closed the producer before it answered a task")
            producer.next_sequence_id = former.next_sequence_id
            producer.answered_upto = former.answered_upto
            producer.epoch = former.epoch + 1
        self._move(Phase.OPEN)
        self._producer, self._doubted = producer, None
        return producer

    def closed(self) -> None:
        """The broker has closed the producer. Unless the segment is sealed, unanswered frames may be stored."""
        if not self.is_sealed:
            self._move(Phase.CLOSED)
            self._doubted = self._producer if self.unanswered else None
        self._producer = None

    def sealed(self) -> None:
        """The broker stores nothing more, and nothing that is unanswered is stored."""
        self._move(Phase.SEALED)
        self._doubted = None

    def _move(self, to: Phase) -> None:
        assert to in MOVES[self._phase], f"{self._phase} does not lead to {to}"
        self._phase = to


class WrittenTopic:
    """A topic's layout, and the segments that the task writes to."""

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.session_id = 0
        """The id of the newest layout session. Layouts of earlier sessions are ignored."""
        self.connection: BlockingConnection | None = None
        """The connection of that session; None before the first one."""
        self.layout = Layout(-1, {})
        """The newest pushed layout."""
        self.is_new = False
        """Whether the routes do not follow `layout` yet."""
        self.routes: Routes | None = None
        """Divides rows among segments; None before the first layout."""
        self.segments: Final[dict[int, WrittenSegment]] = {}
        """By segment id."""
