"""What administrators are told about transactional ids: ListTransactions and DescribeTransactions (KIP-664).

Pure.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from txn.kafka_errors import TransactionalIdNotFound
from txn.kafka_participants import Kind, Participant, Registration
from txn.kafka_states import KafkaTxnState
from txn.kafka_transaction import KafkaTransaction, Producer


@dataclass(frozen=True, slots=True)
class ListFilter:
    """Which transactional ids are asked for."""

    states: Collection[str] = ()
    """Names of states. None of them: all."""
    producer_ids: Collection[int] = ()
    """None of them: all."""
    longer_than_ms: int = -1
    """Only transactions that have been open or ending for longer. Negative: all, and idle transactional ids."""

    @property
    def unknown_states(self) -> list[str]:
        """Names that no state has. They match nothing, and the client is told."""
        return [name for name in self.states if name not in set(KafkaTxnState)]

    def matches(self, record: KafkaTransaction, now_ms: int) -> bool:
        """Whether this record is asked for."""
        return (
            (not self.states or record.state in self.states)
            and (not self.producer_ids or record.producer.id in self.producer_ids)
            and (self.longer_than_ms < 0 or _age_ms(record, now_ms) > self.longer_than_ms)
        )


@dataclass(frozen=True, slots=True)
class Description:
    """A transactional id, as administrators see it."""

    producer: Producer
    """While a transaction is open or ending, the producer of its data."""
    state: KafkaTxnState
    timeout_ms: int
    started_ms: int
    """-1 if no transaction is open or ending."""
    participants: tuple[Participant, ...]
    """Those that have not applied the end."""

    @property
    def partitions(self) -> tuple[str, ...]:
        """The names of the participating partitions' topics."""
        return tuple(name for kind, name in self.participants if kind is Kind.PARTITION)


def described(
    transactional_id: str, record: KafkaTransaction | None, registrations: Iterable[Registration]
) -> Description:
    """Describe a transactional id.

    Raises:
        TransactionalIdNotFound: it has no record.
    """
    if record is None:
        raise TransactionalIdNotFound(transactional_id)
    started_ms = -1 if record.started_ms is None else record.started_ms
    left = tuple(registration.participant for registration in registrations)
    producer = record.markers or record.producer
    return Description(producer, record.state, record.timeout_ms, started_ms, left)


def _age_ms(record: KafkaTransaction, now_ms: int) -> int:
    return -1 if record.started_ms is None else now_ms - record.started_ms
