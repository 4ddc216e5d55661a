"""What one Spark task reads: a range of one segment. Made by the planner, pickled, read by an executor."""

from pyspark.sql.datasource import InputPartition

from tidewire.protocol.positions import EARLIEST, EntryPosition


class SegmentRange(InputPartition):
    """The entries of a segment, partition or plain topic that come after `start`, up to and with `end`."""

    def __init__(
        self,
        topic: str,
        segment: str | None,
        wire_name: str,
        *,
        end: EntryPosition,
        start: EntryPosition = EARLIEST,
        messages_max: int | None = None,
    ) -> None:
        """A range to read.

        Args:
            topic: its topic, in full.
            segment: which part of it this is, as the `segment` column shows it; None for a topic without parts.
            wire_name: the name under which brokers know that part.
            end: the last entry; it, or one behind it, is visible. Its broker has said so.
            start: the entry before the first one.
            messages_max: there are no more than this in it; None when nobody has said so.
        """
        super().__init__(None)
        self.topic = topic
        self.segment = segment
        self.wire_name = wire_name
        self.start = start
        self.end = end
        self.messages_max = messages_max

    def __repr__(self) -> str:
        return f"SegmentRange({self.wire_name}, after {self.start}, up to {self.end})"
