"""What one Spark task reads: a stretch of one segment. Made by the planner, pickled, read by an executor."""

from typing import Final, NamedTuple

from pyspark.sql.datasource import InputPartition


class Position(NamedTuple):
    """The place of an entry, which holds one message or one batch. Ordered within a segment."""

    ledger: int
    entry: int

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}"


EARLIEST: Final = Position(-1, -1)
"""Before every entry."""


class SegmentRange(InputPartition):
    """The entries of a segment, partition or plain topic that come after `start`, up to and with `end`."""

    def __init__(
        self, topic: str, segment: str | None, wire_name: str, *, end: Position, start: Position = EARLIEST
    ) -> None:
        """A range to read.

        Args:
            topic: what the user named, in full.
            segment: which part of it this is, as the `segment` column shows it; None for a topic without parts.
            wire_name: the name under which brokers know that part.
            end: the last entry, which stands in the segment and is visible. Its broker has said so.
            start: the entry before the first one.
        """
        super().__init__(None)
        self.topic = topic
        self.segment = segment
        self.wire_name = wire_name
        self.start = start
        self.end = end

    def __repr__(self) -> str:
        return f"SegmentRange({self.wire_name}, after {self.start}, up to {self.end})"
