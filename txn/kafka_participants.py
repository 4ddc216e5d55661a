"""Registrations: which partitions and groups take part in a Kafka transaction.

    /kafka/txn-op/<quoted transactional id>/partition/<quoted topic>
    /kafka/txn-op/<quoted transactional id>/group/<quoted group>

A registration is durable before the participant takes anything of the transaction. It joins on the condition that the
transaction's record has the version at which the transaction is open. So none can follow the decision. Its owner
removes it once the outcome is durable there. A transactional id has one undecided or ending transaction at most, so its
name identifies the transaction.

    version  who writes it                     when
    1        the coordinator                   AddPartitionsToTxn, AddOffsetsToTxn
    2        the participant's owner (KIP-890)  its first Produce or TxnOffsetCommit, which may begin the transaction

An index finds the registrations of a partition or group, for its owner's takeover. The creation id tells a topic or
group that was made again from the one that took part.

Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple
from urllib.parse import unquote

import orjson

from storage.metadata.store import ABSENT, Check, IndexEntry, Op, Put, Record, exactly, starting_with
from storage.unknown_fields import NOTHING_UNKNOWN, Unknown, restored, unknown_in
from txn.errors import UNREADABLE, RecordUnreadable
from txn.kafka_errors import TransactionalIdDamaged
from txn.kafka_transaction import EPOCH_LAST, KafkaTransaction, Producer, producer_from, quoted, transaction_key

KEY_PREFIX: Final = "/kafka/txn-op/"
BY_PARTICIPANT: Final = "kafka-txn-op-by-participant"

_FIELDS: Final = frozenset({"producer", "creation_id"})


class Kind(StrEnum):
    """What takes part. The values stand in keys."""

    PARTITION = "partition"
    GROUP = "group"


class Participant(NamedTuple):
    """A partition of a topic, or a consumer group with offsets in the transaction."""

    kind: Kind
    name: str
    """The full name of the partition's topic, or the group's id."""


@dataclass(frozen=True, slots=True)
class Registration:
    """One participant of one transaction."""

    transactional_id: str
    participant: Participant
    producer: Producer
    """The transaction's producer, with the epoch of its data."""
    creation_id: str
    """Of the topic's managed ledger, or of the group."""
    unknown: Unknown = NOTHING_UNKNOWN

    @property
    def key(self) -> str:
        """The key of this record."""
        return registration_key(self.transactional_id, self.participant)

    def to_put(self) -> Put:
        """The record to write, with its index entry. It must not exist."""
        fields: dict[str, object] = {
            "producer": tuple(self.producer),
            "creation_id": self.creation_id,
            **restored(self.unknown),
        }
        index = IndexEntry(BY_PARTICIPANT, _index_key(self.participant))
        return Put(self.key, orjson.dumps(fields), ABSENT, (index,), quoted(self.transactional_id))

    @classmethod
    def from_record(cls, record: Record) -> "Registration":
        """The registration that `to_put` wrote.

        Raises:
            RecordUnreadable: it is damaged.
        """
        try:
            transactional_id, kind, name = record.key.removeprefix(KEY_PREFIX).split("/")
            fields = orjson.loads(record.value)
            producer = producer_from(fields["producer"])
            if producer.epoch > EPOCH_LAST:
                raise ValueError(f"no transaction has the epoch {producer.epoch}")
            creation_id = fields["creation_id"]
            if not isinstance(creation_id, str):
                raise TypeError(f"{creation_id!r} is no creation id")
            return cls(
                unquote(transactional_id),
                Participant(Kind(kind), unquote(name)),
                producer,
                creation_id,
                unknown_in(fields, _FIELDS),
            )
        except UNREADABLE as damaged:
            raise RecordUnreadable(f"a registration in a transaction cannot be read: {damaged!r}") from damaged


def ops_to_join(
    transactional_id: str, version: int, begin: KafkaTransaction | None, joining: Sequence[Registration]
) -> list[Op]:
    """The change set that registers participants, on the condition that the transaction is still the same.

    `version` is that of the record that was read, and `begin` what `begun` says to write. An owner adds the check of
    its claim. Large transactions join in several change sets (M25): the first begins the transaction.

    A store without conditions on several keys begins, puts the registrations, and reads the record again. If the
    transaction has ended meanwhile, the owner removes its registration and takes nothing.
    """
    record: Op = Check(transaction_key(transactional_id), version)
    if begin is not None:
        record = begin.to_put(transactional_id, version)
    return [record, *(registration.to_put() for registration in joining)]


def registration_key(transactional_id: str, participant: Participant) -> str:
    """The key of a participant's registration."""
    return f"{KEY_PREFIX}{quoted(transactional_id)}/{participant.kind}/{quoted(participant.name)}"


def registrations_of(transactional_id: str) -> tuple[str, str]:
    """The key range of a transaction's registrations. If it is empty after the decision, the transaction is over."""
    return starting_with(f"{KEY_PREFIX}{quoted(transactional_id)}/")


def registrations_at(participant: Participant) -> tuple[str, str]:
    """The part of `kafka-txn-op-by-participant` for one participant."""
    return exactly(_index_key(participant))


def _index_key(participant: Participant) -> str:
    # Percent-encoded names hold no colon.
    return f"{participant.kind}:{quoted(participant.name)}"


def required_registration(record: Record) -> Registration:
    """What a registration's record says.

    Raises:
        TransactionalIdDamaged: it cannot be read.
    """
    try:
        return Registration.from_record(record)
    except RecordUnreadable as damaged:
        raise TransactionalIdDamaged(record.key, str(damaged)) from damaged
