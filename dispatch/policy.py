"""Who is sent what. One pure function for each kind of subscription: consumers and entries in, an assignment out.

Every policy skips consumers without permits and those whose outlet is not writable, so a slow consumer costs the others
nothing. Sending an entry requires one permit and uses as many as it has messages. So the permits of a consumer may go
below zero. Policies neither read nor send. The dispatcher keeps what they leave over.

Entries that are pieces of one message go to one consumer. If that consumer has no room, they are kept for it, and the
entries behind them still go to others.
"""

from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol


class Candidate(NamedTuple):
    """A consumer in the form that a policy takes."""

    permits: int
    """Messages that it may be sent now: its flow permits, cut by a bound on unacknowledged messages."""
    writable: bool
    """Whether its outlet accepts more."""
    priority: int
    """Lower numbers come first. The next level is served only if nobody on this one can accept more."""

    @property
    def room(self) -> int:
        """Messages that it accepts at this moment."""
        return self.permits if self.writable and self.permits > 0 else 0


class Piece(NamedTuple):
    """An entry that is a piece of a message, in the form that a policy takes."""

    message: Hashable
    """Which message. Equal for all its pieces."""
    consumer: int | None
    """The consumer that gets the message already, by index."""


NO_PIECES: Final[Mapping[int, Piece]] = MappingProxyType({})


class Assignment(NamedTuple):
    """A policy's answer. Indexes into the arguments name consumers and entries."""

    shares: list[tuple[int, list[int]]]
    """For each consumer that gets entries, those entries, in order."""
    left: list[int]
    """Entries that no consumer has room for, in order."""
    turn: int
    """The turn for the next call."""
    kept: Sequence[tuple[int, int]] = ()
    """Entries that only one consumer may have, which has no room, with that consumer. In order of the entries."""


class Policy(Protocol):
    """The signature of all policies."""

    def __call__(
        self, consumers: Sequence[Candidate], messages: Sequence[int], turn: int, pieces: Mapping[int, Piece], /
    ) -> Assignment:
        """Assign entries, given by their message counts in order of position. `pieces` are by index."""


def exclusive(
    consumers: Sequence[Candidate],
    messages: Sequence[int],
    turn: int = 0,
    pieces: Mapping[int, Piece] = NO_PIECES,
) -> Assignment:
    """Everything to the only consumer, in order, until its permits are used up."""
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
    """Entries one by one in turn, to the consumers of the first priority level that can accept any.

    A piece of a message goes to the consumer that has other pieces of it, out of turn. Once nobody has room, the rest
    is left.
    """
    permits = [consumer.permits if consumer.writable else 0 for consumer in consumers]
    with_room = sum(permit > 0 for permit in permits)
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
            with_room -= permits[index] <= 0
        elif with_room:
            kept.append((entry, index))
        else:
            break
        taken += 1
    return Assignment(list(shares.items()), list(range(taken, len(messages))), turn, kept)


def _turns(consumers: Sequence[Candidate], permits: Sequence[int], turn: int) -> Iterator[int]:
    """The consumers in turn, repeatedly. Checks `permits` each time, and ends when nobody has any."""
    levels: dict[int, list[int]] = {}
    for index, consumer in enumerate(consumers):
        if permits[index] > 0:
            levels.setdefault(consumer.priority, []).append(index)
    for level in sorted(levels):
        members = levels[level]
        ring = deque([index for index in members if index >= turn] + [index for index in members if index < turn])
        while ring:
            index = ring.popleft()
            if permits[index] > 0:
                yield index
                ring.append(index)
                turn = index + 1
