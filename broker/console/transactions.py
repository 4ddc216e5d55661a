"""The cluster's transactions: those that are open, with their participants, and the last ones that were decided.

They are records of the metadata store, so any broker knows all of them.
"""

from collections import deque
from typing import Any, Final
from urllib.parse import unquote

import orjson
import trio

from broker.console.feed import Parts, follow
from storage.metadata.store import Change, MetadataStore, Record
from storage.signal import Signal
from txn.errors import RecordUnreadable
from txn.headers import KEY_PREFIX as HEADERS
from txn.headers import Header, txn_from_name
from txn.kafka_states import KafkaTxnState
from txn.kafka_transaction import KEY_PREFIX as KAFKA
from txn.kafka_transaction import KafkaTransaction
from txn.ops import KEY_PREFIX as OPS
from txn.states import TxnState

SHOWN_MAX: Final = 200
"""Most open transactions in a frame, the oldest first."""
PARTICIPANTS_MAX: Final = 50
"""Most participants of one transaction in a frame."""
DECIDED_MAX: Final = 50
"""How many decided transactions are remembered."""

Shown = dict[str, Any]


class OpenTransactions:
    """Follows the headers of open transactions, and without `with_details` nothing else."""

    def __init__(self, store: MetadataStore, *, with_details: bool) -> None:
        self.changed = Signal()
        self._store = store
        self._with_details = with_details
        self._open: dict[str, Header] = {}
        self._kafka: dict[str, KafkaTransaction] = {}
        self._participants: dict[str, dict[str, Shown]] = {}
        """The op records of each transaction, by key."""
        self._decided: deque[Shown] = deque(maxlen=DECIDED_MAX)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the records until cancelled."""
        heard = [(HEADERS, self._hear_headers), (KAFKA, self._hear_kafka)]
        if self._with_details:
            heard.append((OPS, self._hear_ops))
        await follow(self._store, heard, self.changed, task_status=task_status)

    def summary(self) -> Shown:
        """How many are open, when the oldest began, and which are due soonest."""
        began = [header.created_ms for header in self._open.values()]
        began += [one.started_ms for one in self._kafka.values() if one.started_ms is not None]
        return {"open": len(began), "oldest_ms": min(began, default=None)}

    def parts(self) -> Parts:
        """All of it."""
        pulsar = [
            {
                "id": _id(name),
                "name": name,
                "protocol": "Pulsar",
                "created_ms": header.created_ms,
                "deadline_ms": header.timeout_ms,
                "group": None if header.group is None else header.group.application,
                "participants": list(self._participants.get(name, {}).values())[:PARTICIPANTS_MAX],
                "participants_total": len(self._participants.get(name, {})),
            }
            for name, header in self._open.items()
        ]
        kafka: list[Shown] = [
            {
                "id": name,
                "name": name,
                "protocol": "Kafka",
                "created_ms": one.started_ms,
                "deadline_ms": one.deadline_ms,
                "producer": f"{one.producer.id} epoch {one.producer.epoch}",
                "group": None,
                "participants": [],
                "participants_total": None,
            }
            for name, one in self._kafka.items()
        ]
        every = sorted([*pulsar, *kafka], key=lambda one: one["created_ms"])
        return {
            "total": len(every),
            "open": every[:SHOWN_MAX],
            "decided": sorted(self._decided, key=lambda one: -one["finalized_ms"]),
        }

    def _hear_headers(self, change: Change) -> None:
        for key in change.deleted:
            self._open.pop(key.removeprefix(HEADERS), None)
        for record in change.records:
            name = record.key.removeprefix(HEADERS)
            try:
                shown = _id(name)
                header = Header.from_value(record.value)
            except RecordUnreadable:
                continue  # The doctor names damaged records.
            if header.state is TxnState.OPEN:
                self._open[name] = header
                continue
            self._open.pop(name, None)
            self._decided.append(
                {
                    "id": shown,
                    "state": header.state,
                    "created_ms": header.created_ms,
                    "finalized_ms": header.finalized_ms,
                }
            )

    def _hear_kafka(self, change: Change) -> None:
        for key in change.deleted:
            self._kafka.pop(unquote(key.removeprefix(KAFKA)), None)
        for record in change.records:
            name = unquote(record.key.removeprefix(KAFKA))
            try:
                one = KafkaTransaction.from_value(record.value)
            except RecordUnreadable:
                continue
            if one.state is KafkaTxnState.ONGOING:
                self._kafka[name] = one
            else:
                self._kafka.pop(name, None)

    def _hear_ops(self, change: Change) -> None:
        for key in change.deleted:
            name = _transaction_of(key)
            ops = self._participants.get(name, {})
            ops.pop(key, None)
            if not ops:
                self._participants.pop(name, None)
        for record in change.records:
            self._participants.setdefault(_transaction_of(record.key), {})[record.key] = _participant(record)


def _id(name: str) -> str:
    """The id of the transaction of this name, as clients and `tidewire transactions` have it."""
    return txn_from_name(name).shown


def _transaction_of(key: str) -> str:
    return key.removeprefix(OPS).rpartition("-")[0]


def _participant(record: Record) -> Shown:
    try:
        fields = orjson.loads(record.value)
        shown = {"kind": fields["kind"], "segment": fields["segment"]}
        if fields["kind"] == "ack":
            shown["subscription"] = fields["subscription"]
        elif "ledger" in fields:
            # No message of the transaction is before it.
            shown["from"] = f"{fields['ledger']}:{fields['entry']}"
    except (KeyError, TypeError, ValueError):
        return {"kind": "unreadable", "segment": record.key}
    return shown
