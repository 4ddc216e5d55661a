"""What administrators ask when something is stuck. Java's client can all of it, and kafka-python most of it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from tests.support.kafka_clients.places import Place


class Writer(NamedTuple):
    """What a partition knows of a producer."""

    producer_id: int
    epoch: int
    coordinator_epoch: int
    """-1 before its first transaction ended."""
    open_from: int
    """Where its open transaction began, or -1."""


class Transaction(NamedTuple):
    """What a coordinator knows of a transactional id."""

    state: str
    """Kafka's name, such as `Ongoing`."""
    producer_id: int
    epoch: int
    places: frozenset[Place]
    """The partitions that its open transaction has written to."""


class Inspector(Protocol):
    """Looks into partitions, transactions and groups, and puts them right by hand."""

    def writers(self, place: Place) -> Sequence[Writer]:
        """Return the producers that a partition knows (KIP-664)."""

    def transactions(self) -> Mapping[str, str]:
        """Return the states of all transactional ids (KIP-664)."""

    def transaction(self, transactional_id: str) -> Transaction:
        """Describe a transactional id (KIP-664)."""

    def abort_transaction(self, place: Place, writer: Writer) -> None:
        """Abort what a producer has open in one partition, whatever its coordinator says (KIP-664)."""

    def fence(self, transactional_id: str) -> None:
        """Let the present producer with this id do nothing more, and abort what it has open (KIP-699)."""

    def sizes(self) -> Mapping[Place, int]:
        """Return how many bytes each partition has on disk."""

    def delete_offset(self, group_id: str, place: Place) -> None:
        """Let a group forget a partition (KIP-496)."""

    def remove_member(self, group_id: str, instance_id: str) -> None:
        """Take a static member out of its group (KIP-345)."""

    def close(self) -> None:
        """Close it."""
