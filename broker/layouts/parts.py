"""What a layout is made of: segments, subscriptions, and the intent of a split or merge that is not finished.

Plain values; how they change is `broker.layouts.layout`, how they are written `broker.layouts.record`.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from broker.names import SegmentDescriptor


class HashRange(NamedTuple):
    """The key hashes `start` to `end`, both included, within 0..HASH_MAX."""

    start: int
    end: int


class SegmentState(StrEnum):
    """A segment's life, in Pulsar's words: first it takes messages, then it only gives them out."""

    ACTIVE = "ACTIVE"
    SEALED = "SEALED"


@dataclass(frozen=True, slots=True)
class Segment:
    """One node of the layout."""

    id: int
    """Unique within the topic, never reused."""
    range: HashRange
    state: SegmentState
    parents: tuple[int, ...]
    """The segments it took over from, those pruned left out, in ascending order."""
    children: tuple[int, ...]
    """The segments that took over from it, in ascending order; empty exactly while it is ACTIVE."""
    created_at_epoch: int
    created_at_ms: int
    sealed_at_epoch: int | None = None
    """The epoch since which it is SEALED."""
    sealed_at_ms: int | None = None
    legacy_topic_name: str | None = None
    """The `persistent://` topic whose messages this segment holds, if the topic was migrated from one."""
    merges: int = 0
    """Merges on the longest line of its descent, pruned ancestors counted too."""

    @property
    def is_active(self) -> bool:
        """Whether it takes messages."""
        return self.state is SegmentState.ACTIVE

    @property
    def descriptor(self) -> SegmentDescriptor:
        """What its name ends in: `8000-ffff-1`."""
        return SegmentDescriptor(self.range.start, self.range.end, self.id)


class SubscriptionKind(StrEnum):
    """How a subscription's consumers share the topic, in Pulsar's words."""

    STREAM = "STREAM"
    """Ordered: each segment goes to one consumer, parents before children."""
    QUEUE = "QUEUE"
    """Unordered: every consumer attaches to every segment."""


class StartPosition(StrEnum):
    """Where a subscription's cursors begin on the segments that are there when it is created."""

    EARLIEST = "EARLIEST"
    LATEST = "LATEST"


@dataclass(frozen=True, slots=True)
class Subscription:
    """A durable subscription; every segment, children of later splits too, holds a cursor for it."""

    kind: SubscriptionKind
    creation_id: str
    """Differs each time a subscription of the same name is created (D16)."""
    start: StartPosition
    created_at_ms: int
    is_creating: bool = False
    """Its cursors are being made; nobody has been told that it exists before each segment had one."""
    is_deleting: bool = False
    """Its cursors are being removed; until that is done no other of its name can be created."""


class Child(NamedTuple):
    """A segment that an intent is going to make."""

    id: int
    range: HashRange

    @property
    def descriptor(self) -> SegmentDescriptor:
        """What its name will end in."""
        return SegmentDescriptor(self.range.start, self.range.end, self.id)


@dataclass(frozen=True, slots=True)
class Intent:
    """A split (one parent, two children) or merge (two parents, one child) that is written down but not finished."""

    parents: tuple[int, ...]
    children: tuple[Child, ...]
    sealing: bool = False
    """The segments are replaced, so it only rolls forward: what is left to do is to seal the parents' ledgers."""
