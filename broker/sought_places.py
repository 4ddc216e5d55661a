"""Where readers go on that were moved by a seek. Pure.

A broker closes a consumer that was moved, and its client subscribes again. A durable subscription has its cursor. A
reader has none, and its client then names a start of its own: after a seek to a time the earliest message, or the last
one that it had read before. So the broker remembers the place.

The place holds until the client has read something behind it. Its client shows that by naming another start than the
one with which it first came back. What is remembered of readers that are away is bounded by number and by time.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, NamedTuple

from broker.names import TopicName
from storage.position import Position

AWAY_MAX: Final = 2_000
"""Readers of one broker that are away and whose place is remembered; beyond, those longest away are forgotten."""

AWAY_SECONDS_MAX: Final = 600
"""How long a reader may be away; later it begins where its client says."""


class ReaderId(NamedTuple):
    """By what a reader is known when it comes back."""

    topic: TopicName
    subscription: str
    consumer: str


@dataclass(slots=True)
class Sought:
    """The place of one reader that was moved."""

    place: Position
    """Everything at or below it is not wanted (a mark-delete position)."""
    start: tuple[int, ...] | None = None
    """The start that its client named when it first came back; None while it has not."""


class SoughtPlaces:
    """The places of moved readers. A session keeps its reader's place, too, and hands it in when the reader leaves."""

    def __init__(self) -> None:
        self._left: OrderedDict[ReaderId, tuple[Sought, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._left)

    def left(self, reader: ReaderId, sought: Sought, now: float) -> None:
        """A moved reader was disconnected; `now` is in seconds."""
        self._left[reader] = (sought, now)
        self._left.move_to_end(reader)
        while self._left:
            eldest, (_sought, since) = next(iter(self._left.items()))
            if len(self._left) <= AWAY_MAX and now - since <= AWAY_SECONDS_MAX:
                break
            del self._left[eldest]

    def returned(self, reader: ReaderId, start: tuple[int, ...], now: float) -> Sought | None:
        """The place at which a reader that subscribes goes on; None: it begins where its client says, at `start`."""
        sought, since = self._left.get(reader, (None, now))
        if sought is None:
            return None
        if now - since > AWAY_SECONDS_MAX or sought.start not in (None, start):
            del self._left[reader]
            return None
        sought.start = start
        return sought

    def forget(self, reader: ReaderId) -> None:
        """Its client has closed it."""
        self._left.pop(reader, None)
