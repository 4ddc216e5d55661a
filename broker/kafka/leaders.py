"""Which broker leads a partition: its owner, or the broker that should own it and loads it at its first request.

librdkafka takes another leader only with a higher epoch. So a broker that should own a partition is named with the
epoch that it would take (`Locator.leaders`).

A pruned segment has no owner. Any broker answers for its partition, and the one with the lowest number stands for them.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from broker.addresses import KafkaNode
from broker.cluster.locator import Locator
from broker.cluster.members import Members
from broker.names import TopicName

NO_LEADER: Final = -1


class Leader(NamedTuple):
    """The leader of a partition."""

    node: int
    """The number of its broker; NO_LEADER if there is none for now."""
    epoch: int
    """Its leader epoch; -1 without a leader."""


class PartitionLeaders:
    """See the module's docstring."""

    def __init__(self, locator: Locator, members: Members, me: KafkaNode) -> None:
        """Set up; `me` is this broker."""
        self._locator = locator
        self._members = members
        self._me = me

    async def of(self, names: Sequence[TopicName | None]) -> list[Leader]:
        """Return the leader of each of these partitions. None stands for that of a pruned segment.

        Raises:
            StoreUnavailable: the store did not say who owns them.
        """
        living = [name for name in names if name is not None]
        found = iter(await self._locator.leaders(living))
        leaders = []
        for name in names:
            if name is None:
                leaders.append(Leader(self._lowest, -1))
                continue
            member, epoch = next(found)
            if member is None or member.kafka is None:
                leaders.append(Leader(NO_LEADER, -1))
            else:
                leaders.append(Leader(member.kafka.id, epoch))
        return leaders

    @property
    def _lowest(self) -> int:
        others = [member.kafka.id for member in self._members.live.values() if member.kafka is not None]
        return min([self._me.id, *others])
