"""`persistent://` topics as clients of scalable topics see them (PIP-475).

A regular topic that such a client opens has a layout too: one ACTIVE segment with all hashes, which is that topic
itself, by its own name. Nothing of it is stored; it is what holds as long as no layout stands under the name.

Its migration stores one. The topic becomes the SEALED parent of a segment that takes messages from then on, as if it
had been replaced in a split with one child; so everything that follows splits follows migrations:

     epoch 0, not stored     ACTIVE 0 = persistent://t/n/x
                                  |
     epoch 1                 SEALED 0 = persistent://t/n/x --- ACTIVE 1 [0000-ffff]
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from broker.layouts.layout import Layout
from broker.layouts.parts import Child, HashRange, Intent, Segment, SegmentState, Subscription
from broker.names import HASH_MAX, TopicName

LEGACY_SEGMENT_ID: Final = 0
"""The segment that a regular topic is, or was: there are no partitioned ones here, so it is the only one."""

_SYNTHETIC: Final = ""
"""The creation id of a layout that was never created."""


def synthetic_layout(regular: TopicName) -> Layout:
    """What a client of scalable topics is told of a `persistent://` topic."""
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
"""The segment that takes over from a migrated topic. No topic that was not migrated ever has it: a segment of this id
is one of several from the beginning there, or half of one."""


def migrated_layout(
    regular: TopicName, creation_id: str, subscriptions: Mapping[str, Subscription], now_ms: int
) -> Layout:
    """The first layout of a topic that was a regular one; it only remains to seal that."""
    intent = Intent((LEGACY_SEGMENT_ID,), (FIRST_CHILD,))
    begun = replace(synthetic_layout(regular), intent=intent, next_segment_id=FIRST_CHILD.id + 1)
    # Not a split, after which others would have to wait.
    return replace(
        begun.replace_segments(intent, now_ms),
        creation_id=creation_id,
        subscriptions=dict(subscriptions),
        last_split_ms=None,
    )


def is_synthetic(layout: Layout) -> bool:
    """Whether it was made by `synthetic_layout`."""
    return layout.creation_id == _SYNTHETIC


def segment_topic(topic: TopicName, segment: Segment) -> TopicName:
    """The topic that holds the messages of a segment of the `topic://` topic: one of its own, or a regular one."""
    if segment.legacy_topic_name is None:
        return topic.segment_name(segment.descriptor)
    return TopicName.parse(segment.legacy_topic_name)


def segment_of(name: TopicName) -> tuple[TopicName, int]:
    """The `topic://` name and the segment's id by which clients of scalable topics know a segment or regular topic."""
    if name.segment is not None:
        return name.scalable_topic, name.segment.segment_id
    return name.as_scalable, LEGACY_SEGMENT_ID
