"""One topic: its layout or partitions, who owns each part, and what the owners count."""

from collections.abc import Callable
from typing import Any

import orjson
import trio

from broker.cluster.ownership import KEY_PREFIX as CLAIMS
from broker.cluster.ownership import ClaimUnreadable, claim_key, claimed_name, owner_in
from broker.console.everywhere import Everywhere
from broker.console.feed import Parts, follow
from broker.errors import LayoutUnreadable
from broker.http.lines import running
from broker.layouts.layout import Layout
from broker.layouts.record import admin_view, from_json
from broker.layouts.store import layout_key
from broker.names import Domain, TopicName
from broker.partitioned_topics import record_key
from storage.managed_ledger_record import record_key as log_key
from storage.metadata.store import Change, MetadataStore
from storage.signal import Signal
from txn.ops import KEY_PREFIX as OPS


class TopicFeed:
    """See the module's docstring."""

    def __init__(self, store: MetadataStore, topic: TopicName, everywhere: Callable[[Signal], Everywhere]) -> None:
        """Set up; `everywhere` makes what tells the counters of the topic's logs, and sets the signal that it gets."""
        self.changed = Signal()
        self._store = store
        self._topic = topic
        self._everywhere = everywhere(self.changed)
        self._layout: Layout | None = None
        self._problem: str | None = None
        self._partitions: int | None = None
        """Of the regular topic, or of the one that it is a partition of."""
        self._is_made = False
        """Whether there is a log of the regular topic's name."""
        self._owners: dict[str, str] = {}
        self._ops: dict[str, str] = {}
        """The log of each op record of this topic."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow all of it until cancelled."""
        topic = self._topic
        heard: list[tuple[str, Callable[[Change], None]]] = [(claim_key(str(topic)), self._hear_claims)]
        if topic.domain is Domain.TOPIC:
            heard += [
                (layout_key(topic), self._hear_layout),
                (claim_key(str(topic).replace("topic://", "segment://") + "/"), self._hear_claims),
                # The first segment of a migrated topic is owned under its regular name.
                (claim_key(str(topic.as_regular)), self._hear_claims),
                (OPS, self._hear_ops),
            ]
        else:
            heard += [
                (record_key(topic.partitioned_topic), self._hear_partitions),
                (log_key(str(topic)), self._hear_log),
            ]
        async with running(self._everywhere):
            await follow(self._store, heard, self.changed, task_status=task_status)

    def parts(self) -> Parts:
        """See `Feed`."""
        told = self._everywhere.by_broker
        logs: dict[str, Any] = {}
        for broker, said in told.items():
            found = said.get("logs")
            if isinstance(found, dict):
                logs.update({name: {**log, "broker": broker} for name, log in found.items()})
        writers: dict[str, int] = {}
        for log in self._ops.values():
            writers[log] = writers.get(log, 0) + 1
        return {
            "topic": str(self._topic),
            "exists": self._exists,
            "layout": None if self._layout is None else _layout_view(self._layout),
            "partitions": None if self._topic.partition_index is not None else self._partitions,
            "problem": self._problem,
            "owners": dict(self._owners),
            "logs": logs,
            "writers": writers,
            "transactions": len({key.rpartition("-")[0] for key in self._ops}),
            "silent": self._everywhere.silent,
        }

    @property
    def _exists(self) -> bool:
        if self._topic.domain is Domain.TOPIC:
            return self._layout is not None or self._problem is not None
        # A partition exists before anybody uses it, and has no log until then.
        return self._is_made or (self._partitions or 0) > (self._topic.partition_index or 0)

    def _hear_layout(self, change: Change) -> None:
        key = layout_key(self._topic)
        if key in change.deleted:
            self._layout = None
        for record in change.records:
            if record.key == key:
                try:
                    self._layout, self._problem = from_json(record.value), None
                except LayoutUnreadable as damaged:
                    self._layout, self._problem = None, str(damaged)

    def _hear_partitions(self, change: Change) -> None:
        key = record_key(self._topic.partitioned_topic)
        if key in change.deleted:
            self._partitions = None
        for record in change.records:
            if record.key == key:
                self._partitions = orjson.loads(record.value).get("partitions")

    def _hear_log(self, change: Change) -> None:
        key = log_key(str(self._topic))
        if key in change.deleted:
            self._is_made = False
        if any(record.key == key for record in change.records):
            self._is_made = True

    def _hear_claims(self, change: Change) -> None:
        for key in change.deleted:
            self._owners.pop(claimed_name(key), None)
        for record in change.records:
            name = claimed_name(record.key)
            assert record.key.startswith(CLAIMS)
            if self._is_mine(name):
                try:
                    self._owners[name] = owner_in(record).broker_id
                except ClaimUnreadable:
                    self._owners.pop(name, None)

    def _is_mine(self, name: str) -> bool:
        found = TopicName.parse(name)
        if found.domain is Domain.PERSISTENT:
            return found.partitioned_topic == self._topic.as_regular
        return found.scalable_topic == self._topic

    def _hear_ops(self, change: Change) -> None:
        for key in change.deleted:
            self._ops.pop(key, None)
        for record in change.records:
            try:
                fields = orjson.loads(record.value)
                log, is_write = str(fields["segment"]), fields["kind"] == "write"
            except (KeyError, TypeError, ValueError):
                continue  # The doctor names damaged records.
            if is_write and self._is_mine(log):
                self._ops[record.key] = log


def _layout_view(layout: Layout) -> dict[str, object]:
    intent = layout.intent
    return {
        **admin_view(layout),
        "subscriptions": {
            name: {"type": one.kind, "created_ms": one.created_at_ms} for name, one in layout.subscriptions.items()
        },
        "intent": None
        if intent is None
        else {
            "parents": list(intent.parents),
            "children": [
                {"id": child.id, "start": child.range.start, "end": child.range.end} for child in intent.children
            ],
            "sealing": intent.sealing,
        },
        "deleting": layout.is_deleting,
    }
