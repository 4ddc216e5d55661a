"""What the clients of a simulated cluster asked, and what they and the watches were told, in order."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from storage.metadata.store import Change, Op, Record, Session


@dataclass
class Call:
    """One call of a client."""

    broker: str
    began: int
    """Its place in the order of all events."""
    ops: tuple[Op, ...] = ()
    """Of a write. A read has none."""
    ended: int | None = None
    """When it was answered; None if it never was, because its process ended."""
    outcome: str = "unknown"
    """done, conflict, refused (certainly not made) or unknown."""
    revision: int = 0
    """Of the write, or of the state that a read was answered from."""
    keys: tuple[str | None, ...] = ()
    records: Mapping[str, Record | None] = field(default_factory=dict)
    """What a read was told."""
    conflict: tuple[str, int] | None = None
    """The key and its actual version."""


class Told(NamedTuple):
    """One step of a watch."""

    at: int
    """Its place in the order of all events."""
    change: Change
    images: int
    """How many images the process had taken by then. An image may fold several change sets into one step."""
    is_taking_over: bool
    """Whether the process takes over. It shows the image that it read before it counts it."""


@dataclass
class Watched:
    """What one watch of one process was told."""

    broker: str
    prefix: str
    steps: list[Told] = field(default_factory=list)
    is_over: bool = False
    """Whether its process has ended."""


@dataclass
class Held:
    """A session of a client."""

    broker: str
    session: Session
    is_over: bool = False
    """Whether its owner ended it, or its process has ended."""
    is_disturbed: bool = False
    """Whether its process was stopped, or its connections were."""


class History:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.watched: list[Watched] = []
        self.sessions: list[Held] = []
        self.complaints: list[str] = []
        """What was found wrong at once."""
        self._events = 0

    def tick(self) -> int:
        """The place of an event in the order of all events."""
        self._events += 1
        return self._events

    def begin(self, broker: str, ops: tuple[Op, ...] = ()) -> Call:
        """A client calls."""
        call = Call(broker, self.tick(), ops)
        self.calls.append(call)
        return call

    def end(self, call: Call, outcome: str) -> None:
        """The call has an answer."""
        call.ended = self.tick()
        call.outcome = outcome

    def owner_leaves(self, broker: str) -> None:
        """The present process of a broker ends. What it holds and is told is not judged from now on."""
        for watched in self.watched:
            watched.is_over |= watched.broker == broker
        for held in self.sessions:
            held.is_over |= held.broker == broker

    def disturbed(self, *brokers: str) -> None:
        """Something may have ended the sessions of these brokers."""
        for held in self.sessions:
            held.is_disturbed |= held.broker in brokers
