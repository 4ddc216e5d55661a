"""A topic's layout: its segments, their hash ranges, which are sealed, and which segments are their parents.

The broker always pushes a whole layout. Its epoch only rises. A `persistent://` topic gets a layout too, made here
from its partitions, so that all callers work with layouts.
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
    """A segment of a scalable topic, a partition of a partitioned topic, or a whole plain topic."""

    topic: str
    """The topic that it belongs to."""
    name: str | None
    """Its name within the topic; None for a whole plain topic."""
    wire_name: str
    """The name under which brokers know it."""
    segment_id: int = NO_SEGMENT
    """Unique within the topic. Children have higher ids than their parents."""
    parent_ids: tuple[int, ...] = ()
    hashes: tuple[int, int] | None = None
    """The lowest and the highest key hash that it takes; None if keys are not routed by hash range."""
    is_active: bool = True
    """Whether it takes messages. A sealed segment never takes messages again."""
    created_ms: int = 0
    """When it was created, in milliseconds since 1970. It differs if the topic was deleted and created again."""

    @property
    def is_legacy(self) -> bool:
        """Whether it is a regular topic that serves as a segment of the scalable topic."""
        return self.hashes is None and self.topic.startswith(SCALABLE)

    def overlaps(self, other: "Segment") -> bool:
        """Return whether some key hash belongs to both segments."""
        if self.hashes is None or other.hashes is None:
            return True
        return self.hashes[0] <= other.hashes[1] and other.hashes[0] <= self.hashes[1]


class Succession(Enum):
    """How a pushed layout relates to the known one."""

    NEWER = "it replaces the known layout; the epoch is the same if only the controller moved"
    STALE = "it is an earlier layout of the same topic"
    OTHER_TOPIC = "it belongs to a new topic of the same name, because the known topic was deleted"


@dataclass(frozen=True)
class Layout:
    """One epoch of a topic's layout."""

    epoch: int
    segments: dict[int, Segment]
    """All segments that the layout has, active and sealed, by id."""
    controller_url: str | None = None
    """The broker that assigns segments to stream consumers; None until the first of them registers."""

    @classmethod
    def of_update(cls, topic: str, update: pb.CommandScalableTopicUpdate) -> Self:
        """Read the layout that a broker pushed for `topic`. The topic may resolve to another name.

        Raises:
            ProtocolViolation: the active segments do not cover every hash exactly once.
        """
        resolved = update.resolved_topic_name
        return cls.of_dag(resolved if resolved.startswith(SCALABLE) else topic, update.dag)

    @classmethod
    def of_dag(cls, topic: str, dag: pb.ScalableTopicDAG) -> Self:
        """Read the layout that a broker sent for the scalable topic `topic`.

        Raises:
            ProtocolViolation: the active segments do not cover every hash exactly once.
        """
        infos = sorted(dag.segments, key=lambda info: info.segment_id)
        layout = cls(
            dag.epoch, {info.segment_id: _segment(topic, info) for info in infos}, dag.controller_broker_url or None
        )
        layout.check()
        return layout

    @classmethod
    def of_partitions(cls, topic: str, partitions: int) -> Self:
        """Make the layout of a `persistent://` topic: its partitions, or the topic itself if it has none."""
        if partitions == 0:
            return cls(0, {NO_SEGMENT: Segment(topic, None, topic, NO_SEGMENT)})
        names = [partition_name(index) for index in range(partitions)]
        return cls(
            0, {index: Segment(topic, name, partition_topic(topic, name), index) for index, name in enumerate(names)}
        )

    @cached_property
    def active(self) -> tuple[Segment, ...]:
        """The segments that take messages, in the order of their hash ranges."""
        return tuple(
            sorted(
                (segment for segment in self.segments.values() if segment.is_active),
                key=lambda segment: (segment.hashes or (0, 0), segment.segment_id),
            )
        )

    @cached_property
    def _starts(self) -> list[int]:
        """The lowest hash of each active segment; empty if keys are routed by hash modulo the number of partitions."""
        # The partitions of a regular topic have no hash ranges. Its v4 producers route by modulo, too.
        firsts = [segment.hashes[0] for segment in self.active if segment.hashes is not None]
        return firsts if len(firsts) == len(self.active) else []

    def check(self) -> None:
        """Check that each hash belongs to exactly one active segment. Partitions without ranges always pass.

        Raises:
            ProtocolViolation: some hash belongs to no active segment, or to several.
        """
        if self.active and all(segment.hashes is None for segment in self.active):
            return
        expected_first = 0
        for segment in self.active:
            first, last = segment.hashes or (-1, -1)
            if first != expected_first or last < first:
                raise ProtocolViolation(
                    f"the broker sent a layout whose active segments overlap or leave a gap: {self.active}"
                )
            expected_first = last + 1
        if expected_first != HASH_SPACE_SIZE:
            raise ProtocolViolation(
                f"the broker sent a layout whose active segments do not reach the last hash: {self.active}"
            )

    def segment_of(self, key_hash: int) -> Segment:
        """Return the active segment that takes messages with this key hash."""
        starts = self._starts
        if starts:
            return self.active[bisect_right(starts, key_hash) - 1]
        return self.active[key_hash % len(self.active)]

    def is_active(self, segment_id: int) -> bool:
        """Return whether the segment is known and takes messages."""
        segment = self.segments.get(segment_id)
        return segment is not None and segment.is_active

    def succession(self, known: "Layout") -> Succession:
        """Return how this pushed layout relates to the known one.

        A topic's segment ids only rise and are never reused. So two layouts of one topic have two properties. A segment
        that is in both has one creation time. A segment that only the later one has gets a higher id than all segments
        of the earlier one.
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
    """Return the ids of all known ancestors of these segments. An unknown parent's id is included."""
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
    """Return the unread segments that may be read now, because all their ancestors were read to the end."""
    found: list[int] = []
    behind: set[int] = set()
    # Parents have lower ids, so the loop sees them before their children.
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
        # The messages of a regular topic were not routed by hash range.
        None if info.legacy_topic_name else (info.hash_start, info.hash_end),
        info.state == pb.SegmentState.ACTIVE,
        info.created_at_ms,
    )


def _newest_ms(layout: Layout) -> int:
    return max((segment.created_ms for segment in layout.segments.values()), default=0)
