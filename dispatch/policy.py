"""Who is sent what. One pure function per kind of subscription: consumers and entries in, an assignment out.

Every policy passes over consumers without permits or whose outlet is not writable: a slow consumer costs the others
nothing. An entry needs one permit to be sent and uses as many as it has messages, so it may take its consumer below
zero. Policies neither read nor send; what they leave over stays with the dispatcher.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Candidate(NamedTuple):
    """What a policy knows of a consumer."""

    permits: int
    """Messages it may be sent now: its flow permits, less where what it holds unacknowledged is bounded."""
    writable: bool
    """Whether its outlet takes more."""
    priority: int
    """Lower numbers come first; the next level is served only when nobody on this one can take more."""


class Assignment(NamedTuple):
    """A policy's answer. Consumers and entries are named by their index in the arguments."""

    shares: list[tuple[int, list[int]]]
    """Per consumer that gets anything, what it gets, in order."""
    left: list[int]
    """Entries for which nobody has room, in order."""
    turn: int
    """For the next call: whose turn it is."""


Policy = Callable[[Sequence[Candidate], Sequence[int], int], Assignment]
"""Takes the consumers, the entries' message counts (in order of position), and whose turn it is."""


def exclusive(consumers: Sequence[Candidate], messages: Sequence[int], turn: int = 0) -> Assignment:
    """Everything to the one consumer, in order, until its permits are used up."""
    assert len(consumers) <= 1, "an exclusive subscription has one consumer"
    permits = consumers[0].permits if consumers and consumers[0].writable else 0
    taken = 0
    while permits > 0 and taken < len(messages):
        permits -= messages[taken]
        taken += 1
    shares = [(0, list(range(taken)))] if taken else []
    return Assignment(shares, list(range(taken, len(messages))), turn)


def shared(consumers: Sequence[Candidate], messages: Sequence[int], turn: int) -> Assignment:
    """Entries one by one in turn, among the consumers of the first priority level that can take any."""
    permits = [consumer.permits if consumer.writable else 0 for consumer in consumers]
    shares: dict[int, list[int]] = {}
    taken = 0
    for level in sorted({consumer.priority for consumer in consumers}):
        members = [
            index for index, consumer in enumerate(consumers) if consumer.priority == level and permits[index] > 0
        ]
        ring = deque([index for index in members if index >= turn] + [index for index in members if index < turn])
        while ring and taken < len(messages):
            index = ring.popleft()
            shares.setdefault(index, []).append(taken)
            permits[index] -= messages[taken]
            taken += 1
            turn = index + 1
            if permits[index] > 0:
                ring.append(index)
    return Assignment(list(shares.items()), list(range(taken, len(messages))), turn)
