"""Where readers continue after a seek. Pure.

A seek closes the consumer, and its client subscribes again. A durable subscription has its cursor. A reader has none,
and its client then names a start of its own: after a seek to a time the earliest message, or the last message that it
read before. So the broker remembers the position.

The position holds until the client has read something behind it. The client shows that when it names another start than
the one with which it first came back. The memory of disconnected readers is bounded by number and by time.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, NamedTuple

from broker.names import TopicName
from storage.position import Position

AWAY_MAX: Final = 2_000
"""Disconnected readers of one broker whose position is remembered; beyond that, the longest away is forgotten."""

AWAY_SECONDS_MAX: Final = 600
"""How long a reader may be away; later it begins where its client says."""


class ReaderId(NamedTuple):
    """What identifies a reader that comes back."""

    topic: TopicName
    subscription: str
    consumer: str


@dataclass(slots=True)
class SeekPosition:
    """Where one reader continues after its seek."""

    mark_delete: Position
    """The reader wants nothing at or below it."""
    start: tuple[int, ...] | None = None
    """The start that its client named when it first came back; None while it has not."""


class ReaderPositions:
    """Positions of disconnected readers. A connected reader's session keeps its position and hands it in at its end."""

    def __init__(self) -> None:
        self._left: OrderedDict[ReaderId, tuple[SeekPosition, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._left)

    def left(self, reader: ReaderId, seek_position: SeekPosition, now: float) -> None:
        """A moved reader was disconnected; `now` is in seconds."""
        self._left[reader] = (seek_position, now)
        self._left.move_to_end(reader)
        while self._left:
            eldest, (_position, since) = next(iter(self._left.items()))
            if len(self._left) <= AWAY_MAX and now - since <= AWAY_SECONDS_MAX:
                break
            del self._left[eldest]

    def returned(self, reader: ReaderId, start: tuple[int, ...], now: float) -> SeekPosition | None:
        """Where a reader that subscribes continues. None: it begins at `start`, as its client says."""
        seek_position, since = self._left.get(reader, (None, now))
        if seek_position is None:
            return None
        if now - since > AWAY_SECONDS_MAX or seek_position.start not in (None, start):
            del self._left[reader]
            return None
        seek_position.start = start
        return seek_position

    def forget(self, reader: ReaderId) -> None:
        """Its client has closed it."""
        self._left.pop(reader, None)
