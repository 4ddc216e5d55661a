"""A topic as Kafka's clients see it, and the refusal of changes to a scalable one."""

from typing import Final, NamedTuple

from broker.errors import TopicNotFound
from broker.kafka.errors import Refused
from broker.kafka.scalable_topics import log_of, partition_count, topic_id_of
from broker.layouts.layout import Layout
from broker.names import TopicName
from broker.partitioned_topics import TOPIC_ID_BYTES, PartitionedTopic
from storage.metadata.store import Check
from tidewire.wire.kafka.error_codes import ErrorCode

NO_TOPIC_ID: Final = bytes(TOPIC_ID_BYTES)

WRITE_OTHERWISE: Final = "Write to it with Pulsar's clients of scalable topics."
LIMIT_OTHERWISE: Final = "Set its retention over HTTP."
"""What to do instead of a change that is refused."""


class KafkaTopic(NamedTuple):
    """A topic as Kafka's clients see it."""

    name: str
    topic_id: bytes
    regular: TopicName
    """The regular topic of this name. Unless it is scalable, its partitions stand behind this topic, or it does itself.
    """
    record: PartitionedTopic | None = None
    """Its record, if it is a partitioned topic."""
    layout: Layout | None = None
    """Its layout, if it is a scalable topic."""
    unchanged: Check | None = None
    """A condition that holds while its record or layout is as it was found. Other topics have none."""

    @property
    def partition_count(self) -> int:
        """How many partitions it has."""
        if self.layout is not None:
            return partition_count(self.layout)
        return 1 if self.record is None else self.record.partitions

    @property
    def partitions(self) -> tuple[TopicName | None, ...]:
        """The topic behind each partition; None for a pruned segment. There may be many; `partition` makes one name."""
        return tuple(self.partition(index) for index in range(self.partition_count))

    def partition(self, index: int) -> TopicName | None:
        """The topic behind a partition; None for a pruned segment.

        Raises:
            TopicNotFound: the topic has no such partition.
        """
        if not 0 <= index < self.partition_count:
            raise TopicNotFound(f"The topic {self.name} has no partition {index}; it has {self.partition_count}.")
        if self.layout is not None:
            return log_of(self.regular.as_scalable, self.layout, index)
        return self.regular if self.record is None else self.regular.partition(index)

    def require_regular(self, instead: str) -> None:
        """Check that Kafka's clients may change the topic. `instead` tells what to do if they may not.

        Raises:
            Refused: it is scalable.
        """
        if self.layout is not None:
            raise read_only(self.name, instead)

    @classmethod
    def of_record(cls, record: PartitionedTopic) -> "KafkaTopic":
        """A partitioned topic."""
        return cls(record.name.local, record.topic_id, record.name, record, unchanged=record.unchanged)

    @classmethod
    def of_layout(cls, regular: TopicName, layout: Layout, unchanged: Check | None = None) -> "KafkaTopic":
        """A scalable topic, which has the name of this regular one."""
        return cls(regular.local, topic_id_of(layout), regular, layout=layout, unchanged=unchanged)


def read_only(name: str, instead: str) -> Refused:
    """Return why Kafka's clients may not change a scalable topic. They do not retry after this code."""
    reason = f"{name} is a scalable topic, which Kafka's clients can only read. {instead}"
    return Refused(ErrorCode.POLICY_VIOLATION, reason)
