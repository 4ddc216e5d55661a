"""The layouts of `persistent://` topics, for clients of scalable topics (PIP-475).

If such a client opens a regular topic, the broker gives it a layout with one ACTIVE segment for all hashes. That
segment is the topic itself, under its own name. The layout is not stored; it applies while none is stored for the name.

A migration stores a layout. The topic becomes the SEALED parent of a segment that takes messages from then on, like a
split with one child. So the code for splits also serves migrations:

     epoch 0, not stored     ACTIVE 0 = persistent://t/n/x
                                  |
     epoch 1                 SEALED 0 = persistent://t/n/x --- ACTIVE 1 [0000-ffff]
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from broker.layouts.layout import Layout
from broker.layouts.parts import Child, HashRange, Intent, LayoutSubscription, Segment, SegmentState, SubscriptionKind
from broker.names import HASH_MAX, SegmentDescriptor, TopicName
from dispatch.subscription_types import SubscriptionType

LEGACY_SEGMENT_ID: Final = 0
"""The segment id of a regular topic, also after its migration. There are no partitioned topics, so one id is enough."""

KIND_BY_TYPE: Final = {
    SubscriptionType.EXCLUSIVE: SubscriptionKind.STREAM,
    SubscriptionType.SHARED: SubscriptionKind.QUEUE,
}
"""What a regular topic's subscription is on a scalable topic."""

_SYNTHETIC: Final = ""
"""The creation id of a layout that was never created."""


def synthetic_layout(regular: TopicName) -> Layout:
    """Return the layout of a `persistent://` topic for a client of scalable topics."""
    segment = Segment(
        LEGACY_SEGMENT_ID,
        HashRange(0, HASH_MAX),
        SegmentState.ACTIVE,
        (),
        (),
        created_at_epoch=0,
        created_at_ms=0,
        legacy_topic_name=str(regular),
    )
    return Layout(_SYNTHETIC, epoch=0, next_segment_id=LEGACY_SEGMENT_ID + 1, segments={segment.id: segment})


FIRST_CHILD: Final = Child(LEGACY_SEGMENT_ID + 1, HashRange(0, HASH_MAX))
"""The segment that replaces a migrated topic. In other topics, segment 1 never has the full hash range: it is one of
several first segments, or half of a split one."""


def migrated_layout(
    regular: TopicName, creation_id: str, subscriptions: Mapping[str, LayoutSubscription], now_ms: int
) -> Layout:
    """Return the first layout of a migrated topic. What remains is to seal the regular topic."""
    intent = Intent((LEGACY_SEGMENT_ID,), (FIRST_CHILD,))
    begun = replace(synthetic_layout(regular), intent=intent, next_segment_id=FIRST_CHILD.id + 1)
    # `last_split_ms` stays unset: a migration must not delay the first automatic split.
    return replace(
        begun.replace_segments(intent, now_ms),
        creation_id=creation_id,
        subscriptions=dict(subscriptions),
        last_split_ms=None,
    )


def is_synthetic(layout: Layout) -> bool:
    """Return whether `synthetic_layout` made the layout."""
    return layout.creation_id == _SYNTHETIC


def segment_topic(topic: TopicName, segment: Segment) -> TopicName:
    """Return the topic with a segment's messages: the segment's own, or a regular topic that was migrated."""
    if segment.legacy_topic_name is None:
        return topic.segment_name(segment.descriptor)
    return TopicName.parse(segment.legacy_topic_name)


def listed_name(topic: TopicName, name: TopicName) -> TopicName:
    """Return the `segment://` name of what `segment_topic` returned for a segment of `topic`."""
    if name.segment is not None:
        return name
    return topic.segment_name(SegmentDescriptor(0, HASH_MAX, LEGACY_SEGMENT_ID))


def segment_of(name: TopicName) -> tuple[TopicName, int]:
    """Return the `topic://` name and segment id of a segment or regular topic, for clients of scalable topics."""
    if name.segment is not None:
        return name.scalable_topic, name.segment.segment_id
    return name.as_scalable, LEGACY_SEGMENT_ID


def segment_in(layout: Layout, name: TopicName) -> Segment | None:
    """Return the segment whose messages the topic `name` has; None if the layout has none."""
    topic, segment_id = segment_of(name)
    segment = layout.segments.get(segment_id)
    return segment if segment is not None and segment_topic(topic, segment) == name else None
