"""The parts of a layout: segments, subscriptions, and the intent of an unfinished split or merge.

They are plain values. `broker.layouts.layout` changes them, and `broker.layouts.record` encodes them.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from broker.names import SegmentDescriptor
from storage.unknown_fields import NOTHING_UNKNOWN, Unknown


class HashRange(NamedTuple):
    """The key hashes `start` to `end`, both included, within 0..HASH_MAX."""

    start: int
    end: int


class SegmentState(StrEnum):
    """The states of a segment, with Pulsar's names. An ACTIVE segment takes messages; a SEALED one is read-only."""

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
    """The segments that it replaced, except pruned ones, in ascending order."""
    children: tuple[int, ...]
    """The segments that replaced it, in ascending order; empty exactly while it is ACTIVE."""
    created_at_epoch: int
    created_at_ms: int
    sealed_at_epoch: int | None = None
    """The epoch in which it became SEALED."""
    sealed_at_ms: int | None = None
    legacy_topic_name: str | None = None
    """The `persistent://` topic whose messages this segment holds, if the topic was migrated from one."""
    merges: int = 0
    """The most merges on any path to its ancestors, including pruned ones."""
    unknown: Unknown = NOTHING_UNKNOWN
    """Fields of a later release."""

    @property
    def is_active(self) -> bool:
        """Whether it takes messages."""
        return self.state is SegmentState.ACTIVE

    @property
    def descriptor(self) -> SegmentDescriptor:
        """The last part of its name: `8000-ffff-1`."""
        return SegmentDescriptor(self.range.start, self.range.end, self.id)


class SubscriptionKind(StrEnum):
    """How a subscription's consumers share the topic, with Pulsar's names."""

    STREAM = "STREAM"
    """Ordered: each segment goes to one consumer, parents before children."""
    QUEUE = "QUEUE"
    """Unordered: every consumer subscribes to every segment."""


class StartPosition(StrEnum):
    """Where a new subscription's cursors begin on the existing segments."""

    EARLIEST = "EARLIEST"
    LATEST = "LATEST"


@dataclass(frozen=True, slots=True)
class LayoutSubscription:
    """A durable subscription. Every segment, including children of later splits, has a cursor for it."""

    kind: SubscriptionKind
    creation_id: str
    """Differs for each creation of a subscription of the same name (D16)."""
    start: StartPosition
    created_at_ms: int
    is_creating: bool = False
    """Whether its cursors are being created. No client sees it before every segment has one."""
    is_deleting: bool = False
    """Whether its cursors are being removed. Until that is done, no subscription of this name can be created."""
    unknown: Unknown = NOTHING_UNKNOWN
    """Fields of a later release."""


class Child(NamedTuple):
    """A segment that an intent will create."""

    id: int
    range: HashRange

    @property
    def descriptor(self) -> SegmentDescriptor:
        """The last part of its future name."""
        return SegmentDescriptor(self.range.start, self.range.end, self.id)


@dataclass(frozen=True, slots=True)
class Intent:
    """A recorded but unfinished split (one parent, two children) or merge (two parents, one child)."""

    parents: tuple[int, ...]
    children: tuple[Child, ...]
    sealing: bool = False
    """Whether the segments are replaced. What remains is to seal the parents' ledgers."""
    unknown: Unknown = NOTHING_UNKNOWN
    """Fields of a later release."""
