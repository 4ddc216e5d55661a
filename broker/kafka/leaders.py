"""Which broker leads a partition: its owner, or the broker that should own it and loads it at its first request."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from broker.addresses import KafkaNode
from broker.cluster.locator import Locator
from broker.names import TopicName
from broker.topics import Topics

NO_LEADER: Final = -1


class Leader(NamedTuple):
    """The leader of a partition."""

    node: int
    """The number of its broker; NO_LEADER if there is none for now."""
    epoch: int
    """Its leader epoch, as far as this broker knows it; -1 otherwise."""


class PartitionLeaders:
    """See the module's docstring."""

    def __init__(self, locator: Locator, loaded: Topics, me: KafkaNode) -> None:
        """Set up; `me` is this broker."""
        self._locator = locator
        self._loaded = loaded
        self._me = me

    async def of(self, names: Sequence[TopicName]) -> list[Leader]:
        """Return the leader of each of these partitions.

        Raises:
            StoreUnavailable: the store did not say who owns them.
        """
        leaders = []
        for name, member in zip(names, await self._locator.leaders(names), strict=True):
            if member is None or member.kafka is None:
                leaders.append(Leader(NO_LEADER, -1))
            else:
                leaders.append(Leader(member.kafka.id, self._epoch(name) if member.kafka.id == self._me.id else -1))
        return leaders

    def _epoch(self, name: TopicName) -> int:
        topic = self._loaded.running(name)
        return -1 if topic is None else topic.ledger.leader_epoch
