"""`persistent://` topics as clients of scalable topics see them (PIP-475).

A regular topic that such a client opens has a layout too: one ACTIVE segment with all hashes, which is that topic
itself, by its own name. Nothing of it is stored; it is what holds as long as no layout stands under the name. Its epoch
is 0, and a stored layout that takes its place is a later one.
"""

from typing import Final

from broker.names import HASH_MAX, TopicName
from broker.scalable.layout import Layout
from broker.scalable.layout_parts import HashRange, Segment, SegmentState

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
