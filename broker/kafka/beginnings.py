"""Where groups begin on segments that appear while they read a scalable topic: at the first record (K41).

Kafka's consumers ask for their group's offset on each partition that they get. Without one they begin where their own
policy says. With `latest` they would miss what was written to a child before they learned of the split. So the broker
answers with offset 0 for such a child. Two things tell that the group was reading before:

- it has an offset on an ancestor, or on a partition whose segment was pruned;
- its members got partitions of the topic before the child existed. A group remembers how many there were then.
"""

from collections.abc import Collection, Mapping
from typing import Final

from broker.kafka.errors import EXPECTED, Refused
from broker.kafka.groups.coordinator import GroupCoordinator
from broker.kafka.groups.generations import ASSIGNMENT_BYTES_MAX
from broker.kafka.groups.offsets import FetchedOffset, Offset, TopicPartition
from broker.kafka.groups.subscription import partitions_in
from broker.kafka.requests import take_turns
from broker.kafka.scalable_topics import partition_count, read_from_start
from broker.kafka.topics import KafkaTopics

START: Final = FetchedOffset(Offset(0))
"""The offset of a group that has not committed one."""


class Beginnings:
    """See the module's docstring."""

    def __init__(self, topics: KafkaTopics, groups: GroupCoordinator) -> None:
        self._topics = topics
        self._groups = groups

    async def counts(self, assignments: Collection[bytes]) -> dict[str, int]:
        """Return how many partitions of each scalable topic whoever made these assignments knew, as far as they say."""
        known: dict[str, int] = {}
        if sum(map(len, assignments)) > ASSIGNMENT_BYTES_MAX:
            # The group will refuse them.
            return known
        number = 0
        for assignment in assignments:
            for topic, partitions in partitions_in(assignment):
                await take_turns(number)
                number += 1
                known[topic] = max(known.get(topic, 0), 1 + max(partitions, default=-1))
        scalable: dict[str, int] = {}
        for topic, count in known.items():
            try:
                if (await self._topics.find(topic)).layout is not None:
                    scalable[topic] = count
            except EXPECTED:
                continue  # Clients name topics as they like. Nothing is remembered of one that does not exist.
        return scalable

    async def more_for(self, group: str, member_id: str) -> dict[str, int]:
        """Return the topics that have more partitions than this leader of the group knew, and how many they have."""
        more: dict[str, int] = {}
        for topic, known in (await self._groups.known_to(group, member_id)).items():
            try:
                layout = (await self._topics.find(topic)).layout
            except EXPECTED:
                continue  # It may have been deleted. The client will find out.
            count = 0 if layout is None else partition_count(layout)
            if count > known:
                more[topic] = count
        return more

    async def found(self, group: str, offsets: Mapping[TopicPartition, FetchedOffset]) -> list[TopicPartition]:
        """Return those of these partitions without an offset that the group reads from their beginning.

        Raises:
            ExpectedError: it cannot be found out now.
        """
        missing: dict[str, list[int]] = {}
        for place, offset in offsets.items():
            if offset.offset is None and offset.error is None:
                missing.setdefault(place.topic, []).append(place.partition)
        begun: list[TopicPartition] = []
        for topic, indexes in missing.items():
            try:
                layout = await self._topics.newest_layout(topic)
            except Refused:
                continue  # It is no legal name.
            if layout is not None:
                committed, seen = await self._groups.reading(group, topic)
                begun += [TopicPartition(topic, each) for each in read_from_start(layout, indexes, committed, seen)]
        return begun
