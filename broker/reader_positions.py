"""Where readers continue after a seek. Pure.

A seek closes the consumer, and its client subscribes again. A durable subscription continues from its cursor. A reader
has no cursor, so its client names a start position. After a seek to a time, that is the earliest message, or the last
message that it read before the seek. So the broker remembers the position of the seek.

The position holds until the client has read a message after it. The client then names another start than the one with
which it first came back. The memory for disconnected readers is bounded by number and by time.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, NamedTuple

from broker.names import TopicName
from storage.position import Position

AWAY_MAX: Final = 2_000
"""Most disconnected readers that a broker remembers. Beyond this, it forgets the one disconnected first."""

AWAY_SECONDS_MAX: Final = 600
"""How long a disconnected reader is remembered. After that, it begins where its client says."""


class ReaderId(NamedTuple):
    """Identifies a reader across connections."""

    topic: TopicName
    subscription: str
    consumer: str


@dataclass(slots=True)
class SeekPosition:
    """Where one reader continues after its seek."""

    mark_delete: Position
    """The reader wants only entries after this position."""
    start: tuple[int, ...] | None = None
    """The start that its client named when it first came back; None before that."""


class ReaderPositions:
    """The positions of disconnected readers. The session of a connected reader holds its position until it ends."""

    def __init__(self) -> None:
        self._left: OrderedDict[ReaderId, tuple[SeekPosition, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._left)

    def left(self, reader: ReaderId, seek_position: SeekPosition, now: float) -> None:
        """Note that a reader with a seek position was disconnected; `now` is in seconds."""
        self._left[reader] = (seek_position, now)
        self._left.move_to_end(reader)
        while self._left:
            eldest, (_position, since) = next(iter(self._left.items()))
            if len(self._left) <= AWAY_MAX and now - since <= AWAY_SECONDS_MAX:
                break
            del self._left[eldest]

    def returned(self, reader: ReaderId, start: tuple[int, ...], now: float) -> SeekPosition | None:
        """Return where a subscribing reader continues; None if it begins at `start`, as its client says."""
        seek_position, since = self._left.get(reader, (None, now))
        if seek_position is None:
            return None
        if now - since > AWAY_SECONDS_MAX or seek_position.start not in (None, start):
            del self._left[reader]
            return None
        seek_position.start = start
        return seek_position

    def forget(self, reader: ReaderId) -> None:
        """Forget a reader that its client has closed."""
        self._left.pop(reader, None)
