"""A scalable topic as Kafka's clients see it: a partition for each segment that it ever had (K41).

    topic://tenant/namespace/x, split once         partition
    SEALED 0 -+- ACTIVE 1                          0, 1, 2
              +- ACTIVE 2

A segment's id is its partition's number for good. So numbers never shrink, and a pruned segment leaves a partition
without records. Children of a split count when it is in effect. Pure.
"""

from collections.abc import Collection, Set
from hashlib import blake2b

from broker.layouts.layout import Layout
from broker.layouts.legacy import segment_topic
from broker.names import TopicName
from broker.partitioned_topics import TOPIC_ID_BYTES


def partition_count(layout: Layout) -> int:
    """How many partitions the topic has, those of pruned segments included."""
    return min((child.id for child in layout.unborn), default=layout.next_segment_id)


def log_of(topic: TopicName, layout: Layout, index: int) -> TopicName | None:
    """The segment, or migrated regular topic, behind this partition; None if it was pruned."""
    segment = layout.segments.get(index)
    return None if segment is None else segment_topic(topic, segment)


def topic_id_of(layout: Layout) -> bytes:
    """The topic's id, which differs for each creation of a topic of the same name."""
    return blake2b(layout.creation_id.encode(), digest_size=TOPIC_ID_BYTES).digest()


def was_migrated_from(layout: Layout, regular: TopicName) -> bool:
    """Whether the messages of this regular topic are those of a segment."""
    segments = [*layout.segments.values(), *layout.pruned.values()]
    return any(segment.legacy_topic_name == str(regular) for segment in segments)


def read_from_start(layout: Layout, indexes: Collection[int], committed: Set[int], seen: int | None) -> list[int]:
    """Which of these partitions, on which a group has no offset, it reads from their beginning, whatever its policy is.

    They are those whose segments splits and merges made while the group was reading the topic (K41).

    Args:
        layout: the topic's layout.
        indexes: the partitions.
        committed: the topic's partitions on which the group has offsets.
        seen: how many partitions the group knew when it began to read the topic; None if it is not known to read it.
    """
    descended: set[int] = set()
    # Parents come before children.
    for segment in layout.segments.values():
        if segment.id in committed or not descended.isdisjoint(segment.parents):
            descended.add(segment.id)
    # Nobody knows any more of which segments a pruned one was an ancestor.
    pruned = min((index for index in committed if index not in layout.segments), default=layout.next_segment_id)
    first_new = layout.next_segment_id if seen is None else seen
    found: list[int] = []
    for index in indexes:
        made = layout.segments.get(index)
        is_child = made is not None and made.created_at_epoch > 0
        if is_child and (index in descended or index > pruned or index >= first_new):
            found.append(index)
    return found
