"""The layout of a scalable topic: its segments, the hash range of each, and their parents and children. Pure.

The whole layout is one metadata record, and every change is a compare-and-set of that record (docs/design.md#topics).
So each change is a pure function from a layout to the next one, or it raises a `LayoutError` with the reason. The
caller writes the result if the record still has the version that was read; otherwise it starts again.

A split or merge takes three such steps. `begin_split` and `begin_merge` record the intent: which children replace which
parents. `replace_segments` makes the change visible to clients: parents become SEALED and children ACTIVE in one step.
So the active segments divide the hash space exactly at every version of the record. `finish` closes the intent once the
parents' ledgers are sealed. Any controller that finds an open intent can continue from the record alone. An intent is
never undone.

     ACTIVE 0 [0000-ffff]                    begin_split(0): intent {0} -> {1, 2}
          |                                  (children and their cursors created)
     SEALED 0 -+- ACTIVE 1 [0000-7fff]       replace_segments: epoch + 1
               +- ACTIVE 2 [8000-ffff]       (clients told, the parent's ledger sealed)
                                             finish
                                             prune(0), once every subscription drained it: epoch + 1
                                             (its data removed)  forget(0)

`epoch` counts what clients see: it rises with `replace_segments` and `prune`, not with intents or subscriptions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from broker.errors import (
    FewerThanAsked,
    IntentGone,
    IntentOpen,
    NotActive,
    NotAdjacent,
    NotPrunable,
    SegmentCountInvalid,
    SubscriptionExists,
    SubscriptionNotFound,
    TooNarrow,
    UnknownSegment,
)
from broker.layouts.autoscale_policy import AutoScaleOverride
from broker.layouts.parts import Child, HashRange, Intent, LayoutSubscription, Segment, SegmentState
from broker.names import HASH_MAX
from storage.unknown_fields import NOTHING_UNKNOWN, Unknown

INITIAL_SEGMENTS_MAX: Final = 1024
"""Most segments that a topic may start with. Splits can add more, up to the limit of the record's size."""


@dataclass(frozen=True)
class Layout:
    """One version of a topic's layout. Every layout that these functions return passes `checks`."""

    creation_id: str
    """Differs for each creation of a topic of the same name."""
    epoch: int
    next_segment_id: int
    """The next segment id; higher than every id allocated so far."""
    segments: Mapping[int, Segment]
    """Every segment that is not pruned, by id, in ascending order."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """The user's own properties."""
    subscriptions: Mapping[str, LayoutSubscription] = field(default_factory=dict)
    intent: Intent | None = None
    pruned: Mapping[int, Segment] = field(default_factory=dict)
    """Segments that are no longer part of the layout, but whose data is not removed yet."""
    is_deleting: bool = False
    """Whether the topic was deleted, and its remains are being removed."""
    auto_scale: AutoScaleOverride | None = None
    """The topic's own settings for automatic splits and merges."""
    last_split_ms: int | None = None
    last_merge_ms: int | None = None
    """When segments were last replaced by a split, and by a merge, automatic or requested."""
    segments_min: int = 1
    """How many segments the topic was created with. Nothing merges below that unless told to; see `floor`."""
    unknown: Unknown = NOTHING_UNKNOWN
    """Fields of a later release."""

    @property
    def floor(self) -> int:
        """The number of active segments below which nothing merges unless told to: the topic's own setting decides."""
        own = None if self.auto_scale is None else self.auto_scale.min_segments
        return self.segments_min if own is None else own

    def active(self) -> tuple[Segment, ...]:
        """Return the segments that take messages, in the order of their ranges, which divide the hash space."""
        return self._active

    @cached_property
    def _active(self) -> tuple[Segment, ...]:
        active = (segment for segment in self.segments.values() if segment.is_active)
        return tuple(sorted(active, key=lambda segment: segment.range))

    def segment(self, segment_id: int) -> Segment:
        """Return the segment with this id.

        Raises:
            UnknownSegment: it never existed, or it was pruned.
        """
        segment = self.segments.get(segment_id)
        if segment is None:
            raise UnknownSegment(f"The topic has no segment {segment_id}.")
        return segment

    @property
    def is_half_done(self) -> bool:
        """Whether the layout marks an unfinished change."""
        return (
            self.intent is not None
            or self.is_deleting
            or any(subscription.is_deleting or subscription.is_creating for subscription in self.subscriptions.values())
        )

    def has_finished(self, opened: "Layout") -> bool:
        """Return whether what is open in `opened`, an earlier version, is finished. No intent is ever undone.

        It is False if this is another topic of the same name.
        """
        if self.creation_id != opened.creation_id:
            return False
        # Segment ids are never used again.
        return self.intent is None or opened.intent is None or self.intent.children != opened.intent.children

    @property
    def unborn(self) -> tuple[Child, ...]:
        """The children of the open intent while they are not in effect. Nobody can load them."""
        return () if self.intent is None or self.intent.sealing else self.intent.children

    def living_subscriptions(self) -> frozenset[str]:
        """Return the names of the subscriptions that are not being deleted. Every segment has a cursor for each."""
        return frozenset(name for name, subscription in self.subscriptions.items() if not subscription.is_deleting)

    def begin_split(self, segment_id: int) -> "Layout":
        """Open the intent to divide an active segment into two halves.

        Raises:
            UnknownSegment, NotActive, TooNarrow, IntentOpen: the split is not possible.
        """
        parent = self._active_segment(segment_id)
        self._check_no_intent()
        start, end = parent.range
        if start == end:
            raise TooNarrow(f"Segment {segment_id} holds the single hash {start:04x} and cannot be split.")
        middle = (start + end) // 2
        return self._begin((segment_id,), (HashRange(start, middle), HashRange(middle + 1, end)))

    def begin_merge(self, first_id: int, second_id: int, *, allow_fewer: bool = True) -> "Layout":
        """Open the intent to join two active segments whose ranges touch, given in either order.

        Raises:
            UnknownSegment, NotActive, NotAdjacent, IntentOpen: the merge is not possible.
            FewerThanAsked: fewer segments than `floor` would be left, and `allow_fewer` is false.
        """
        first, second = self._active_segment(first_id), self._active_segment(second_id)
        self._check_no_intent()
        lower, upper = sorted((first, second), key=lambda segment: segment.range)
        if lower.range.end + 1 != upper.range.start:
            raise NotAdjacent(
                f"Segments {first_id} and {second_id} are not adjacent, so they cannot be merged. Choose two segments "
                "whose hash ranges touch."
            )
        left = len(self.active()) - 1
        if left < self.floor and not allow_fewer:
            raise FewerThanAsked(
                f"The merge would leave {left} active segment{'' if left == 1 else 's'}, and the topic is to have at "
                f"least {self.floor}. To merge all the same, use --allow-fewer, or allowFewer=true over HTTP."
            )
        merged = HashRange(lower.range.start, upper.range.end)
        return self._begin((min(first_id, second_id), max(first_id, second_id)), (merged,))

    def replace_segments(self, intent: Intent, now_ms: int) -> "Layout":
        """Replace parents by children: parents become SEALED and children ACTIVE, in the next epoch.

        The intent stays open until the parents' ledgers are sealed. If they are already replaced, nothing changes.

        Args:
            intent: the intent that the caller has prepared; it must be the open one.
            now_ms: the time to record, milliseconds since the epoch.

        Raises:
            IntentGone: another intent, or none, is open.
        """
        opened = self._open_intent()
        if (opened.parents, opened.children) != (intent.parents, intent.children):
            raise IntentGone("Another controller ended this split or merge, so it cannot continue here.")
        if opened.sealing:
            return self
        epoch = self.epoch + 1
        segments = dict(self.segments)
        is_merge = len(intent.parents) > 1
        merges = max(segments[parent_id].merges for parent_id in intent.parents) + is_merge
        for parent_id in intent.parents:
            segments[parent_id] = replace(
                segments[parent_id],
                state=SegmentState.SEALED,
                children=tuple(child.id for child in intent.children),
                sealed_at_epoch=epoch,
                sealed_at_ms=now_ms,
            )
        for child in intent.children:
            segments[child.id] = Segment(
                child.id,
                child.range,
                SegmentState.ACTIVE,
                intent.parents,
                (),
                created_at_epoch=epoch,
                created_at_ms=now_ms,
                merges=merges,
            )
        return replace(
            self,
            epoch=epoch,
            segments=segments,
            intent=replace(opened, sealing=True),
            last_split_ms=self.last_split_ms if is_merge else now_ms,
            last_merge_ms=now_ms if is_merge else self.last_merge_ms,
        )

    def finish(self) -> "Layout":
        """Close the open intent. The parents' ledgers must be sealed.

        Raises:
            IntentGone: no intent is open, or its segments are not replaced yet.
        """
        if not self._open_intent().sealing:
            raise IntentGone("The split or merge has not replaced its segments yet, so it cannot be finished.")
        return replace(self, intent=None)

    def prune(self, segment_id: int) -> "Layout":
        """Take a sealed segment out of the layout, in the next epoch.

        The caller must know that every subscription has drained it. It stays in `pruned` until `forget` says that its
        data is removed. Ancestors must be pruned first. An empty sealed segment counts as drained even while its parent
        does not. If it were pruned before its parent, its children would be assigned before the parent's messages are
        read.

        Raises:
            UnknownSegment: it does not exist.
            NotPrunable: it is ACTIVE, still has parents, or is being replaced.
        """
        segment = self.segment(segment_id)
        if segment.is_active:
            raise NotPrunable(f"Segment {segment_id} is ACTIVE and cannot be pruned.")
        if segment.parents:
            raise NotPrunable(f"Segment {segment_id} has parents {list(segment.parents)}, which must be pruned first.")
        if self.intent is not None and segment_id in self.intent.parents:
            raise NotPrunable(f"A split or merge is replacing segment {segment_id}. It can be pruned after that.")
        segments = {other_id: other for other_id, other in self.segments.items() if other_id != segment_id}
        for child_id in segment.children:
            child = segments[child_id]
            segments[child_id] = replace(child, parents=tuple(i for i in child.parents if i != segment_id))
        pruned = {**self.pruned, segment_id: segment}
        return replace(self, epoch=self.epoch + 1, segments=segments, pruned=pruned)

    def forget(self, segment_id: int) -> "Layout":
        """Record that the pruned segment's data is removed. If that is recorded already, nothing changes."""
        if segment_id not in self.pruned:
            return self
        return replace(self, pruned={key: value for key, value in self.pruned.items() if key != segment_id})

    def begin_deletion(self) -> "Layout":
        """Mark the topic as being deleted. If it is already marked, nothing changes."""
        return self if self.is_deleting else replace(self, is_deleting=True)

    def with_auto_scale(self, override: AutoScaleOverride | None) -> "Layout":
        """Set the topic's own settings for automatic splits and merges; None removes them."""
        return replace(self, auto_scale=override)

    def add_subscription(self, name: str, subscription: LayoutSubscription) -> "Layout":
        """Register a subscription. It is allowed while an intent is open; the intent's next step sees it (D10).

        Raises:
            SubscriptionExists: a subscription of this name is registered.
        """
        if name in self.subscriptions:
            raise SubscriptionExists(f"The topic already has a subscription {name}.")
        return replace(self, subscriptions={**self.subscriptions, name: subscription})

    def confirm_subscription(self, name: str) -> "Layout":
        """Record that every segment has the subscription's cursor. A deleted or ending subscription does not change."""
        subscription = self.subscriptions.get(name)
        if subscription is None or not subscription.is_creating:
            return self
        return replace(self, subscriptions={**self.subscriptions, name: replace(subscription, is_creating=False)})

    def begin_removing_subscription(self, name: str) -> "Layout":
        """Mark a subscription as being deleted. If it is already marked, nothing changes.

        Raises:
            SubscriptionNotFound: no subscription of this name is registered.
        """
        subscription = self.subscriptions.get(name)
        if subscription is None:
            raise SubscriptionNotFound(f"There is no subscription {name}.")
        if subscription.is_deleting:
            return self
        return replace(self, subscriptions={**self.subscriptions, name: replace(subscription, is_deleting=True)})

    def remove_subscription(self, name: str) -> "Layout":
        """Remove a subscription's registration.

        Raises:
            SubscriptionNotFound: no subscription of this name is registered.
        """
        if name not in self.subscriptions:
            raise SubscriptionNotFound(f"There is no subscription {name}.")
        return replace(self, subscriptions={key: value for key, value in self.subscriptions.items() if key != name})

    def _active_segment(self, segment_id: int) -> Segment:
        segment = self.segment(segment_id)
        if not segment.is_active:
            raise NotActive(f"Segment {segment_id} is SEALED. Only an ACTIVE segment can be split or merged.")
        return segment

    def _check_no_intent(self) -> None:
        if self.intent is not None:
            raise IntentOpen(
                f"A split or merge of segments {list(self.intent.parents)} is in progress. Try again later."
            )

    def _open_intent(self) -> Intent:
        if self.intent is None:
            raise IntentGone("No split or merge is in progress.")
        return self.intent

    def _begin(self, parents: tuple[int, ...], ranges: tuple[HashRange, ...]) -> "Layout":
        first = self.next_segment_id
        children = tuple(Child(first + offset, hash_range) for offset, hash_range in enumerate(ranges))
        return replace(self, intent=Intent(parents, children), next_segment_id=first + len(children))


def create(
    n: int, now_ms: int, *, creation_id: str, properties: Mapping[str, str] | None = None, segments_min: int = 1
) -> Layout:
    """Create a new topic's layout at epoch 0: segments 0 to `n - 1`, which divide the hash space evenly.

    `segments_min` is the number of segments below which nothing merges unless told to.

    Raises:
        SegmentCountInvalid: `n` is not within 1..INITIAL_SEGMENTS_MAX.
    """
    if not 1 <= n <= INITIAL_SEGMENTS_MAX:
        raise SegmentCountInvalid(f"A topic starts with 1 to {INITIAL_SEGMENTS_MAX} segments, not {n}.")
    size = HASH_MAX + 1
    ranges = [HashRange(i * size // n, (i + 1) * size // n - 1) for i in range(n)]
    segments = {
        i: Segment(i, hash_range, SegmentState.ACTIVE, (), (), created_at_epoch=0, created_at_ms=now_ms)
        for i, hash_range in enumerate(ranges)
    }
    return Layout(
        creation_id,
        epoch=0,
        next_segment_id=n,
        segments=segments,
        properties=dict(properties or {}),
        segments_min=segments_min,
    )
