"""A topic's layout: which segments hold which part of the hash space, which are sealed, and who came of whom.

Pure. The broker pushes a layout as a whole and numbers it by an epoch that only rises. A `persistent://` topic has a
layout too, made here of its partitions, so that producers route over one kind of thing.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from tidewire.client.message import NO_SEGMENT
from tidewire.client.names import partition_topic, segment_topic
from tidewire.protocol.errors import ProtocolViolation
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.hashing import HASH_SPACE_SIZE


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment, or one partition, or a whole plain topic."""

    segment_id: int
    topic: str
    """The name to produce to and to subscribe to."""
    hash_start: int
    hash_end: int
    """Inclusive."""
    is_active: bool
    parent_ids: tuple[int, ...] = ()
    is_legacy: bool = False
    """An older, regular topic seen through a scalable one."""

    def overlaps(self, other: "Segment") -> bool:
        """Whether some key belongs to both."""
        return self.hash_start <= other.hash_end and other.hash_start <= self.hash_end


@dataclass(frozen=True)
class Layout:
    """One epoch of a topic's layout."""

    epoch: int
    segments: dict[int, Segment]
    """Every segment still known, active and sealed, by id."""
    controller_url: str | None = None
    """The broker that divides segments among stream consumers; None until the first of them asks."""

    @classmethod
    def of_dag(cls, topic: str, dag: pb.ScalableTopicDAG) -> Self:
        """The layout that a broker sent for `topic`.

        Raises:
            ProtocolViolation: its active segments do not divide the hash space among them.
        """
        segments = {
            info.segment_id: Segment(
                info.segment_id,
                info.legacy_topic_name or segment_topic(topic, info.hash_start, info.hash_end, info.segment_id),
                info.hash_start,
                info.hash_end,
                info.state == pb.SegmentState.ACTIVE,
                tuple(info.parent_ids),
                bool(info.legacy_topic_name),
            )
            for info in dag.segments
        }
        layout = cls(dag.epoch, segments, dag.controller_broker_url or None)
        layout.check()
        return layout

    @classmethod
    def of_partitions(cls, topic: str, partitions: int) -> Self:
        """The layout of a `persistent://` topic: its partitions, or itself when it has none."""
        if partitions == 0:
            alone = Segment(NO_SEGMENT, topic, 0, HASH_SPACE_SIZE - 1, is_active=True)
            return cls(0, {NO_SEGMENT: alone})
        return cls(
            0,
            {
                index: Segment(
                    index, partition_topic(topic, index), 0, HASH_SPACE_SIZE - 1, is_active=True, is_legacy=True
                )
                for index in range(partitions)
            },
        )

    @cached_property
    def active(self) -> tuple[Segment, ...]:
        """The segments that take messages, by hash range."""
        return tuple(
            sorted(
                (segment for segment in self.segments.values() if segment.is_active),
                key=lambda segment: (segment.hash_start, segment.segment_id),
            )
        )

    @cached_property
    def _starts(self) -> list[int]:
        return [segment.hash_start for segment in self.active]

    @cached_property
    def _by_modulus(self) -> bool:
        # Partitions of an older topic do not divide the hash space; their producers have always counted them off.
        return len(self.active) > 1 and all(segment.is_legacy for segment in self.active)

    def check(self) -> None:
        """Every hash belongs to exactly one active segment, or to partitions that are counted off.

        Raises:
            ProtocolViolation: it does not.
        """
        if self._by_modulus:
            return
        expected_start = 0
        for segment in self.active:
            if segment.hash_start != expected_start or segment.hash_end < segment.hash_start:
                raise ProtocolViolation(f"the active segments of a layout do not divide the hash space: {self.active}")
            expected_start = segment.hash_end + 1
        if expected_start != HASH_SPACE_SIZE:
            raise ProtocolViolation(f"the active segments of a layout do not fill the hash space: {self.active}")

    def segment_of(self, key_hash: int) -> Segment:
        """The active segment that takes messages with this key hash."""
        if self._by_modulus:
            return self.active[key_hash % len(self.active)]
        return self.active[bisect_right(self._starts, key_hash) - 1]

    def is_active(self, segment_id: int) -> bool:
        """Whether the segment is known and takes messages."""
        segment = self.segments.get(segment_id)
        return segment is not None and segment.is_active

    def ancestors(self, segment_ids: Iterable[int]) -> set[int]:
        """All segments that these came of, at any distance, without themselves; unknown ones are skipped."""
        found: set[int] = set()
        waiting = list(segment_ids)
        while waiting:
            segment = self.segments.get(waiting.pop())
            if segment is not None:
                new = [parent for parent in segment.parent_ids if parent not in found]
                found.update(new)
                waiting.extend(new)
        return found
