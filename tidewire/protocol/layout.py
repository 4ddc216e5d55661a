"""A topic's layout: which segments hold which part of the hash space, which are sealed, and who came of whom.

The broker pushes a layout as a whole and numbers it by an epoch that only rises. A `persistent://` topic has a layout
too, made here of its partitions, so that everybody works with one kind of thing.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import NamedTuple, Self

from tidewire.protocol.errors import ProtocolViolation
from tidewire.protocol.topic_names import (
    NO_SEGMENT,
    SCALABLE,
    partition_name,
    partition_topic,
    segment_name,
    segment_topic,
)
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.hashing import HASH_SPACE_SIZE


class Segment(NamedTuple):
    """A segment of a scalable topic, a partition of a partitioned one, or all of a plain one."""

    topic: str
    """The topic that it is part of."""
    name: str | None
    """Its name within the topic; None for all of a plain topic."""
    wire_name: str
    """The name under which brokers know it."""
    segment_id: int = NO_SEGMENT
    """Unique within the topic. Children have higher ids than their parents."""
    parent_ids: tuple[int, ...] = ()
    hashes: tuple[int, int] | None = None
    """First and last hash of the keys that it takes; None when its keys are not routed by ranges of hashes."""
    is_active: bool = True
    """Whether it takes messages. A sealed segment never takes messages again."""
    created_ms: int = 0
    """When it was created, milliseconds since the epoch; a segment of another topic of the same name has another."""

    @property
    def is_legacy(self) -> bool:
        """Whether it is an older, regular topic seen through a scalable one."""
        return self.hashes is None and self.topic.startswith(SCALABLE)

    def overlaps(self, other: "Segment") -> bool:
        """Whether some key belongs to both."""
        if self.hashes is None or other.hashes is None:
            return True
        return self.hashes[0] <= other.hashes[1] and other.hashes[0] <= self.hashes[1]


class Succession(Enum):
    """How a layout that a broker pushed relates to the one that is known."""

    NEWER = "it takes the place of the known one; the epoch may be the same when only the controller moved"
    STALE = "it is an earlier one of the same topic"
    OTHER_TOPIC = "it is of another topic of the same name: the known one was deleted"


@dataclass(frozen=True)
class Layout:
    """One epoch of a topic's layout."""

    epoch: int
    segments: dict[int, Segment]
    """Every segment still known, active and sealed, by id."""
    controller_url: str | None = None
    """The broker that divides segments among stream consumers; None until the first of them asks."""

    @classmethod
    def of_update(cls, topic: str, update: pb.CommandScalableTopicUpdate) -> Self:
        """The layout in a broker's push for `topic`, which may resolve to another name.

        Raises:
            ProtocolViolation: its active segments do not divide the hash space among them.
        """
        resolved = update.resolved_topic_name
        return cls.of_dag(resolved if resolved.startswith(SCALABLE) else topic, update.dag)

    @classmethod
    def of_dag(cls, topic: str, dag: pb.ScalableTopicDAG) -> Self:
        """The layout that a broker sent for the scalable topic `topic`.

        Raises:
            ProtocolViolation: its active segments do not divide the hash space among them.
        """
        infos = sorted(dag.segments, key=lambda info: info.segment_id)
        layout = cls(
            dag.epoch, {info.segment_id: _segment(topic, info) for info in infos}, dag.controller_broker_url or None
        )
        layout.check()
        return layout

    @classmethod
    def of_partitions(cls, topic: str, partitions: int) -> Self:
        """The layout of a `persistent://` topic: its partitions, or itself when it has none."""
        if partitions == 0:
            return cls(0, {NO_SEGMENT: Segment(topic, None, topic, NO_SEGMENT)})
        names = [partition_name(index) for index in range(partitions)]
        return cls(
            0, {index: Segment(topic, name, partition_topic(topic, name), index) for index, name in enumerate(names)}
        )

    @cached_property
    def active(self) -> tuple[Segment, ...]:
        """The segments that take messages, by hash range."""
        return tuple(
            sorted(
                (segment for segment in self.segments.values() if segment.is_active),
                key=lambda segment: (segment.hashes or (0, 0), segment.segment_id),
            )
        )

    @cached_property
    def _starts(self) -> list[int]:
        """The first hash of each active segment; empty when partitions are counted off."""
        # Partitions of an older topic do not divide the hash space; their producers have always counted them off.
        firsts = [segment.hashes[0] for segment in self.active if segment.hashes is not None]
        return firsts if len(firsts) == len(self.active) else []

    def check(self) -> None:
        """See that every hash belongs to exactly one active segment, or to partitions that are counted off.

        Raises:
            ProtocolViolation: it does not.
        """
        if self.active and all(segment.hashes is None for segment in self.active):
            return
        expected_first = 0
        for segment in self.active:
            first, last = segment.hashes or (-1, -1)
            if first != expected_first or last < first:
                raise ProtocolViolation(f"the active segments of a layout do not divide the hash space: {self.active}")
            expected_first = last + 1
        if expected_first != HASH_SPACE_SIZE:
            raise ProtocolViolation(f"the active segments of a layout do not fill the hash space: {self.active}")

    def segment_of(self, key_hash: int) -> Segment:
        """The active segment that takes messages with this key hash."""
        starts = self._starts
        if starts:
            return self.active[bisect_right(starts, key_hash) - 1]
        return self.active[key_hash % len(self.active)]

    def is_active(self, segment_id: int) -> bool:
        """Whether the segment is known and takes messages."""
        segment = self.segments.get(segment_id)
        return segment is not None and segment.is_active

    def succession(self, known: "Layout") -> Succession:
        """How this layout, which was pushed, relates to the one that is known.

        A topic's ids only rise and are never used again. So of two layouts of one topic, the later has no further
        segment with an id as low as one of the earlier's, and a segment that is in both was created once.
        """
        shared = self.segments.keys() & known.segments.keys()
        if any(self.segments[one].created_ms != known.segments[one].created_ms for one in shared):
            return Succession.OTHER_TOPIC
        is_stale = self.epoch < known.epoch
        earlier, later = (self, known) if is_stale else (known, self)
        further = later.segments.keys() - shared
        if further and min(further) < max(earlier.segments, default=NO_SEGMENT):
            return Succession.OTHER_TOPIC
        if is_stale and not shared and _newest_ms(self) > _newest_ms(known):
            return Succession.OTHER_TOPIC
        return Succession.STALE if is_stale else Succession.NEWER


def ancestors(segment_ids: Iterable[int], segments: Mapping[int, Segment]) -> set[int]:
    """All segments that these came of, at any distance, as far as they are known; parents count that are unknown."""
    found: set[int] = set()
    waiting = list(segment_ids)
    while waiting:
        segment = segments.get(waiting.pop())
        if segment is not None:
            new = set(segment.parent_ids) - found
            found |= new
            waiting += new
    return found


def due(unread: Collection[int], segments: Mapping[int, Segment]) -> list[int]:
    """Of the segments that were not read to their end, those whose turn it is: all they came of was read."""
    found: list[int] = []
    behind: set[int] = set()
    # Parents have lower ids, so they are looked at before their children.
    for segment_id in sorted(segments):
        if any(parent in unread or parent in behind for parent in segments[segment_id].parent_ids):
            behind.add(segment_id)
        elif segment_id in unread:
            found.append(segment_id)
    return found


def _segment(topic: str, info: pb.SegmentInfoProto) -> Segment:
    name = segment_name(info.hash_start, info.hash_end, info.segment_id)
    return Segment(
        topic,
        name,
        info.legacy_topic_name or segment_topic(topic, name),
        info.segment_id,
        tuple(info.parent_ids),
        # What is in a topic that was made before there were segments came there by other rules.
        None if info.legacy_topic_name else (info.hash_start, info.hash_end),
        info.state == pb.SegmentState.ACTIVE,
        info.created_at_ms,
    )


def _newest_ms(layout: Layout) -> int:
    return max((segment.created_ms for segment in layout.segments.values()), default=0)
