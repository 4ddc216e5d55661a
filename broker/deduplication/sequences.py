"""Which sends of which producers a topic holds: by name and sequence id, in bounded memory. Pure.

A producer's ids are kept as ranges and not as the highest alone: a send that was refused leaves a gap, and its
successors, sent before the refusal was heard, stand behind it. Sent again it is new, whatever came after it.

    at most PRODUCERS_MAX producers, the least recent forgotten first
    at most RANGES_MAX ranges of each; the lowest two are joined, as if what is between them had been stored
    the places of the last POSITIONS_MAX sends of all of them together
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from storage.position import EARLIEST, Position

PRODUCERS_MAX: Final = 500
"""Producers that are remembered for a topic."""

RANGES_MAX: Final = 8
"""Ranges of ids that are remembered for a producer; one that numbers its messages without gaps has one."""

POSITIONS_MAX: Final = 4_096
"""Sends whose places are remembered for a topic, to be named again in a second receipt."""

NAME_BYTES_MAX: Final = 256
"""A producer whose name is longer in UTF-8 is not remembered: names are kept, and clients choose them."""


class SendId(NamedTuple):
    """What tells a send of a producer from its others."""

    first: int
    """The sequence id of its first message."""
    last: int
    """That of its last; the same as `first` when it is no batch."""
    chunk: int = 0
    """Which part of a message that is sent in several; they share their sequence id."""
    chunks: int = 1


class Stored(NamedTuple):
    """A send that is in the topic already."""

    position: Position
    """Where; EARLIEST when that is not remembered."""
    durable_at: Position
    """It is durable once this position is."""


@dataclass(slots=True)
class _Producer:
    ranges: list[list[int]] = field(default_factory=list)
    """First and last id of each, rising, with gaps between them."""
    newest: Position = EARLIEST
    """Of its last entry."""
    partial: tuple[int, int] | None = None
    """Sequence id and last stored part of a message of which parts are missing."""

    def has(self, send: SendId) -> bool:
        if any(low <= send.first and send.last <= high for low, high in self.ranges):
            return True
        return self.partial is not None and self.partial[0] == send.last and send.chunk <= self.partial[1]

    def add(self, send: SendId, position: Position) -> None:
        self.newest = position
        if send.chunk + 1 < send.chunks:
            self.partial = (send.last, send.chunk)
            return
        self.partial = None
        low, high = send.first, max(send.first, send.last)
        apart = [kept for kept in self.ranges if kept[1] < low - 1 or kept[0] > high + 1]
        for kept in self.ranges:
            if kept[1] >= low - 1 and kept[0] <= high + 1:
                low, high = min(low, kept[0]), max(high, kept[1])
        apart.append([low, high])
        apart.sort()
        while len(apart) > RANGES_MAX:
            apart[0:2] = [[apart[0][0], apart[1][1]]]
        self.ranges = apart


class Sequences:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._producers: OrderedDict[str, _Producer] = OrderedDict()
        self._positions: OrderedDict[tuple[str, int, int], Position] = OrderedDict()

    def find(self, name: str, send: SendId) -> Stored | None:
        """Where a send is that the topic holds already; None for one that is new."""
        producer = self._producers.get(name)
        if producer is None or not producer.has(send):
            return None
        position = self._positions.get((name, send.last, send.chunk), EARLIEST)
        return Stored(position, producer.newest if position == EARLIEST else position)

    def note(self, name: str, send: SendId, position: Position) -> None:
        """The send was appended there; positions of successive calls rise."""
        if len(name) > NAME_BYTES_MAX or len(name.encode()) > NAME_BYTES_MAX:
            return
        producer = self._producers.setdefault(name, _Producer())
        producer.add(send, position)
        self._producers.move_to_end(name)
        if len(self._producers) > PRODUCERS_MAX:
            self._producers.popitem(last=False)
        self._positions[name, send.last, send.chunk] = position
        if len(self._positions) > POSITIONS_MAX:
            self._positions.popitem(last=False)

    def knows(self, name: str) -> bool:
        """Whether the producer is remembered."""
        return name in self._producers

    def last_id(self, name: str) -> int:
        """The highest sequence id that the producer has stored whole; -1 when none is remembered."""
        producer = self._producers.get(name)
        return producer.ranges[-1][1] if producer is not None and producer.ranges else -1

    def to_json(self) -> dict[str, Any]:
        """Everything but the places of sends."""
        return {
            name: {"ranges": producer.ranges, "newest": list(producer.newest), "partial": producer.partial}
            for name, producer in self._producers.items()
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Sequences":
        """Undo `to_json`."""
        made = cls()
        for name, kept in content.items():
            partial = kept["partial"]
            made._producers[name] = _Producer(
                kept["ranges"], Position(*kept["newest"]), None if partial is None else (partial[0], partial[1])
            )
        return made
