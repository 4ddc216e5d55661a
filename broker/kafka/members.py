"""The brokers that serve Kafka's clients, among all members of the cluster."""

from collections.abc import Mapping

from broker.cluster.members import Members
from broker.cluster.placement import Member


class KafkaMembers:
    """See the module's docstring."""

    def __init__(self, members: Members) -> None:
        self._members = members

    @property
    def live(self) -> Mapping[str, Member]:
        """Those that run now, by broker id."""
        return {broker: member for broker, member in self._members.live.items() if member.kafka is not None}

    @property
    def is_alone(self) -> bool:
        """See `Members`."""
        return self._members.is_alone
