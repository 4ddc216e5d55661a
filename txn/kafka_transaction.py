"""The record of a transactional id, `/kafka/txn/<quoted transactional id>`. Kafka's coordinator is this record.

It changes by compare-and-set only, so any broker may coordinate, and none has a log to replay. While a transaction is
open the record stays as it is. So its version names the transaction, and participants join on that condition without
writing it (`txn.kafka_participants`).

A producer is a pair of id and epoch. A pair is never handed out twice for different purposes: the epoch rises, and
behind EPOCH_LAST a new id begins at 0 (K30). Each record is in one index:

    state        index                  moment
    ONGOING      kafka-txn-by-deadline  when the sweep may abort it
    PREPARE_*    kafka-txn-ending       the decision; a sweep drives participants that have not applied it
    others       kafka-txn-idle         the last change; after 7 days the record is deleted

Pure.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from operator import index as whole
from typing import Final, NamedTuple, SupportsIndex
from urllib.parse import quote, unquote

import orjson

from storage.metadata.store import IndexEntry, Put, Record
from storage.unknown_fields import NOTHING_UNKNOWN, Unknown, restored, unknown_in
from txn.errors import UNREADABLE, RecordUnreadable
from txn.headers import fixed_width
from txn.kafka_errors import InvalidTransactionalId, TransactionalIdDamaged
from txn.kafka_states import KafkaTxnState

KEY_PREFIX: Final = "/kafka/txn/"
BY_DEADLINE: Final = "kafka-txn-by-deadline"
ENDING: Final = "kafka-txn-ending"
BY_IDLE: Final = "kafka-txn-idle"

TRANSACTIONAL_ID_BYTES_MAX: Final = 1024
"""Kafka has no limit of its own. A key of the store has (E8)."""

IDLE_MS: Final = 7 * 24 * 60 * 60 * 1000
"""How long an idle transactional id is kept: Kafka's transactional.id.expiration.ms."""

EPOCH_LAST: Final = 2**15 - 2
"""The highest epoch of a producer. The one above it is left for the marker that ends its last transaction."""

PRODUCER_ID_MAX: Final = 2**63 - 1

RECORDS_REMEMBERED: Final = 1024
"""Records that are kept decoded."""

_SPECIAL: Final = re.compile(r"[^A-Za-z0-9_.~-]")
_ESCAPED: Final = {character: quote(character, safe="") for character in map(chr, range(128))}
"""A look here is faster than `quote`, which takes a text byte by byte. Each transaction quotes about twenty names."""

_FIELDS: Final = frozenset({"producer", "last", "markers", "state", "timeout_ms", "started_ms", "changed_ms"})


class Producer(NamedTuple):
    """Who may act for a transactional id."""

    id: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.id} of epoch {self.epoch}"

    @property
    def bumped(self) -> "Producer":
        """The same id with the next epoch. Above EPOCH_LAST it is only the producer of a marker."""
        return Producer(self.id, self.epoch + 1)


@dataclass(frozen=True, slots=True)
class KafkaTransaction:
    """A transactional id: its producer and its last transaction. All times are milliseconds since the epoch."""

    producer: Producer
    """The one that may act. From the decision on, it is the one that begins the next transaction."""
    state: KafkaTxnState
    timeout_ms: int
    """How long a transaction may stay open."""
    changed_ms: int
    """When the record last changed."""
    started_ms: int | None = None
    """When the open or ending transaction began; None if there is none."""
    last: Producer | None = None
    """The producer that `producer` replaced with its knowledge. It may repeat its request. None once `producer` has
    begun a transaction, and after a producer was fenced."""
    markers: Producer | None = None
    """While the transaction ends: the producer in its markers."""
    unknown: Unknown = NOTHING_UNKNOWN

    @property
    def deadline_ms(self) -> int | None:
        """When the sweep may abort the open transaction."""
        if self.state is not KafkaTxnState.ONGOING or self.started_ms is None:
            return None
        return self.started_ms + self.timeout_ms

    @property
    def needs_producer_id(self) -> bool:
        """Whether the next epoch needs a new producer id."""
        return self.producer.epoch >= EPOCH_LAST

    def to_put(self, transactional_id: str, expected: int) -> Put:
        """The conditional write of this record with its index entry."""
        name = quoted(transactional_id)
        fields: dict[str, object] = {
            "producer": tuple(self.producer),
            "state": self.state,
            "timeout_ms": self.timeout_ms,
            "changed_ms": self.changed_ms,
            **restored(self.unknown),
        }
        if self.started_ms is not None:
            fields["started_ms"] = self.started_ms
        if self.last is not None:
            fields["last"] = tuple(self.last)
        if self.markers is not None:
            fields["markers"] = tuple(self.markers)
        index, moment = BY_IDLE, self.changed_ms
        if self.state.is_ending:
            index = ENDING
        elif self.deadline_ms is not None:
            index, moment = BY_DEADLINE, self.deadline_ms
        entry = IndexEntry(index, f"{fixed_width(moment)}:{name}")
        return Put(KEY_PREFIX + name, orjson.dumps(fields), expected, (entry,), name)

    @classmethod
    def from_value(cls, value: bytes) -> "KafkaTransaction":
        """The record that `to_put` wrote.

        Raises:
            RecordUnreadable: it is damaged.
        """
        return _transaction_of(value)


def transaction_key(transactional_id: str) -> str:
    """The key of a transactional id's record.

    Raises:
        InvalidTransactionalId: no record can have this id.
    """
    size = len(transactional_id.encode())
    if not 0 < size <= TRANSACTIONAL_ID_BYTES_MAX:
        raise InvalidTransactionalId(
            f"A transactional id of {size} bytes is refused. Use 1 to {TRANSACTIONAL_ID_BYTES_MAX} bytes"
        )
    return KEY_PREFIX + quoted(transactional_id)


def required_transaction(record: Record | None) -> KafkaTransaction | None:
    """What a record says; None without a record.

    Raises:
        TransactionalIdDamaged: it cannot be read.
    """
    if record is None:
        return None
    try:
        return KafkaTransaction.from_value(record.value)
    except RecordUnreadable as damaged:
        raise TransactionalIdDamaged(record.key, str(damaged)) from damaged


def transactional_id_of(key: str) -> str:
    """The transactional id of the record at `key`."""
    return unquote(key.removeprefix(KEY_PREFIX))


def quoted(name: str) -> str:
    """A name in keys: percent-encoded, so that no two names collide."""
    return _SPECIAL.sub(_escaped, name)


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    return _ESCAPED.get(character) or quote(character, safe="")


def producer_from(fields: Iterable[SupportsIndex]) -> Producer:
    """A producer as a record has it. Raises one of UNREADABLE if it cannot be one."""
    producer_id, epoch = map(whole, fields)
    if not (0 <= producer_id <= PRODUCER_ID_MAX and 0 <= epoch <= EPOCH_LAST + 1):
        raise ValueError(f"{fields!r} is no producer")
    return Producer(producer_id, epoch)


@lru_cache(maxsize=RECORDS_REMEMBERED)
def _transaction_of(value: bytes) -> KafkaTransaction:
    """Decode a record. Remembered, because each batch of a transaction looks at its record."""
    try:
        fields = orjson.loads(value)
        started_ms, last, markers = (fields.get(name) for name in ("started_ms", "last", "markers"))
        made = KafkaTransaction(
            producer_from(fields["producer"]),
            KafkaTxnState(fields["state"]),
            whole(fields["timeout_ms"]),
            whole(fields["changed_ms"]),
            None if started_ms is None else whole(started_ms),
            None if last is None else producer_from(last),
            None if markers is None else producer_from(markers),
            unknown_in(fields, _FIELDS),
        )
        if made.state.is_idle != (made.started_ms is None) or made.state.is_ending != (made.markers is not None):
            raise ValueError(f"fields of another state than {made.state}")
    except UNREADABLE as damaged:
        raise RecordUnreadable(f"the record of a transactional id cannot be read: {damaged!r}") from damaged
    return made
