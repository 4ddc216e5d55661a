"""What one Spark task reads: a range of one segment. The planner makes it, and an executor gets it pickled."""

from pyspark.sql.datasource import InputPartition

from tidewire.protocol.positions import EARLIEST, EntryPosition


class SegmentRange(InputPartition):
    """The entries of a segment, partition or plain topic behind `start`, up to and including `end`."""

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
            topic: the topic's full name.
            segment: the part's name, as in the column `segment`; None for a topic without parts.
            wire_name: the name under which brokers know the part.
            end: the last entry. Its broker has said that this entry or a later one is visible.
            start: the entry before the first one.
            messages_max: the most messages that the range can hold; None if unknown.
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
