"""Who is sent what. One pure function per kind of subscription: consumers and entries in, an assignment out.

Every policy passes over consumers without permits or whose outlet is not writable: a slow consumer costs the others
nothing. An entry needs one permit to be sent and uses as many as it has messages, so it may take its consumer below
zero. Policies neither read nor send; what they leave over stays with the dispatcher.

Entries that are pieces of one message go to one consumer. When that one has no room they are kept for it, and the
entries behind them go to others all the same.
"""

from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol


class Candidate(NamedTuple):
    """What a policy knows of a consumer."""

    permits: int
    """Messages it may be sent now: its flow permits, less where what it holds unacknowledged is bounded."""
    writable: bool
    """Whether its outlet takes more."""
    priority: int
    """Lower numbers come first; the next level is served only when nobody on this one can take more."""

    @property
    def room(self) -> int:
        """Messages it takes at this moment."""
        return self.permits if self.writable and self.permits > 0 else 0


class Piece(NamedTuple):
    """What a policy knows of an entry that is a piece of a message."""

    message: Hashable
    """Which one; equal for its pieces."""
    consumer: int | None
    """Who is getting it already, by index."""


NO_PIECES: Final[Mapping[int, Piece]] = MappingProxyType({})


class Assignment(NamedTuple):
    """A policy's answer. Consumers and entries are named by their index in the arguments."""

    shares: list[tuple[int, list[int]]]
    """Per consumer that gets anything, what it gets, in order."""
    left: list[int]
    """Entries for which nobody has room, in order."""
    turn: int
    """For the next call: whose turn it is."""
    kept: Sequence[tuple[int, int]] = ()
    """Entries that only one consumer may have, which has no room, and that consumer; in order of the entries."""


class Policy(Protocol):
    """What all policies are."""

    def __call__(
        self, consumers: Sequence[Candidate], messages: Sequence[int], turn: int, pieces: Mapping[int, Piece], /
    ) -> Assignment:
        """Assign entries, given by their message counts in order of position; `pieces` are named by their index."""


def exclusive(
    consumers: Sequence[Candidate],
    messages: Sequence[int],
    turn: int = 0,
    pieces: Mapping[int, Piece] = NO_PIECES,
) -> Assignment:
    """Everything to the one consumer, in order, until its permits are used up."""
    assert len(consumers) <= 1, "an exclusive subscription has one consumer"
    permits = consumers[0].permits if consumers and consumers[0].writable else 0
    taken = 0
    while permits > 0 and taken < len(messages):
        permits -= messages[taken]
        taken += 1
    shares = [(0, list(range(taken)))] if taken else []
    return Assignment(shares, list(range(taken, len(messages))), turn)


def shared(
    consumers: Sequence[Candidate], messages: Sequence[int], turn: int, pieces: Mapping[int, Piece] = NO_PIECES
) -> Assignment:
    """Entries one by one in turn, among the consumers of the first priority level that can take any.

    A piece of a message of which a consumer has a piece goes to that one, and takes nobody's turn. Once nobody at all
    has room, the rest is left.
    """
    permits = [consumer.permits if consumer.writable else 0 for consumer in consumers]
    getting = {piece.message: piece.consumer for piece in pieces.values() if piece.consumer is not None}
    shares: dict[int, list[int]] = {}
    kept: list[tuple[int, int]] = []
    turns = _turns(consumers, permits, turn)
    taken = 0
    for entry, count in enumerate(messages):
        piece = pieces.get(entry)
        index = None if piece is None else getting.get(piece.message)
        if index is None:
            index = next(turns, None)
            if index is None:
                break
            turn = index + 1
            if piece is not None:
                getting[piece.message] = index
        if permits[index] > 0:
            shares.setdefault(index, []).append(entry)
            permits[index] -= count
        elif any(permit > 0 for permit in permits):
            kept.append((entry, index))
        else:
            break
        taken += 1
    return Assignment(list(shares.items()), list(range(taken, len(messages))), turn, kept)


def _turns(consumers: Sequence[Candidate], permits: Sequence[int], turn: int) -> Iterator[int]:
    """Whose turn it is, again and again; `permits` are looked at each time, and the end is when nobody has any."""
    for level in sorted({consumer.priority for consumer in consumers}):
        members = [
            index for index, consumer in enumerate(consumers) if consumer.priority == level and permits[index] > 0
        ]
        ring = deque([index for index in members if index >= turn] + [index for index in members if index < turn])
        while ring:
            index = ring.popleft()
            if permits[index] > 0:
                yield index
                ring.append(index)
                turn = index + 1
