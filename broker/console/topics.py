"""All topics of the cluster: a page of them, found by a search in this process, with their load.

The load is what owners report to the metadata store (`scalable.load_reports`): averages of the last minute. So the list
asks no owner. Only the shown page is decoded, so thousands of topics cost little.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import orjson
import trio

from broker.console.feed import Parts, follow
from broker.errors import LayoutUnreadable
from broker.layouts.record import from_json
from broker.layouts.store import KEY_PREFIX as LAYOUTS
from broker.layouts.store import topic_of
from broker.names import Domain, InvalidTopicName, TopicName
from broker.partitioned_topics import PARTITIONED_TOPICS
from broker.traffic import LOAD_PREFIX
from storage.managed_ledger_record import MANAGED_LEDGERS
from storage.metadata.store import Change, MetadataStore
from storage.signal import Signal

PAGE: Final = 50
"""Topics in a frame."""
_REGULAR: Final = MANAGED_LEDGERS + "persistent%3A%2F%2F"


class Wish(NamedTuple):
    """What of the list is shown."""

    search: str = ""
    """A part of the name, in any case."""
    first: int = 0
    """The number of the first topic shown."""
    by_load: bool = False
    """Whether the busiest come first, and not the names in order."""


class TopicsFeed:
    """See the module's docstring."""

    def __init__(self, store: MetadataStore, wish: Wish) -> None:
        self.changed = Signal()
        self._store = store
        self._wish = wish
        self._layouts: dict[TopicName, bytes] = {}
        self._partitioned: dict[TopicName, bytes] = {}
        self._regular: set[TopicName] = set()
        self._loads: dict[str, tuple[TopicName, Mapping[str, float]]] = {}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the records until cancelled."""
        heard = [
            (LAYOUTS, self._hear_layouts),
            (PARTITIONED_TOPICS, self._hear_partitioned),
            (_REGULAR, self._hear_regular),
            (LOAD_PREFIX, self._hear_loads),
        ]
        await follow(self._store, heard, self.changed, task_status=task_status)

    def parts(self) -> Parts:
        """See `Feed`."""
        names = {*self._layouts, *self._partitioned, *self._regular}
        # A migrated topic keeps its first log under the regular name.
        names -= {name.as_regular for name in self._layouts}
        wanted = self._wish.search.lower()
        found = [name for name in names if wanted in str(name).lower()]
        loads = self._load_by_topic()
        nothing = {"in": 0.0, "out": 0.0}
        if self._wish.by_load:
            found.sort(key=lambda name: (-sum(loads.get(name, nothing).values()), str(name)))
        else:
            found.sort(key=lambda name: (name.tenant, name.namespace, name.local, name.domain))
        shown = found[self._wish.first : self._wish.first + PAGE]
        return {
            "total": len(names),
            "matched": len(found),
            "first": self._wish.first,
            "page": PAGE,
            "topics": [{**self._row(name), "load": loads.get(name, nothing)} for name in shown],
        }

    def _row(self, name: TopicName) -> dict[str, Any]:
        row: dict[str, Any] = {"name": str(name), "kind": "regular"}
        if name in self._layouts:
            try:
                layout = from_json(self._layouts[name])
            except LayoutUnreadable as damaged:
                return {**row, "kind": "scalable", "problem": str(damaged)}
            active = len(layout.active())
            row |= {
                "kind": "scalable",
                "active": active,
                "sealed": len(layout.segments) - active,
                "subscriptions": len(layout.living_subscriptions()),
                "changing": layout.intent is not None,
                "deleting": layout.is_deleting,
            }
        elif name in self._partitioned:
            row |= {"kind": "partitioned", "active": orjson.loads(self._partitioned[name]).get("partitions")}
        return row

    def _load_by_topic(self) -> dict[TopicName, dict[str, float]]:
        sums: dict[TopicName, dict[str, float]] = {}
        for topic, load in self._loads.values():
            one = sums.setdefault(topic, {"in": 0.0, "out": 0.0})
            one["in"] += load["msgRateIn"]
            one["out"] += load["msgRateOut"]
        return sums

    def _hear_layouts(self, change: Change) -> None:
        for key in change.deleted:
            if (name := topic_of(key)) is not None:
                self._layouts.pop(name, None)
        for record in change.records:
            if (name := topic_of(record.key)) is not None:
                self._layouts[name] = record.value

    def _hear_partitioned(self, change: Change) -> None:
        for key in change.deleted:
            if (name := _named(key.removeprefix(PARTITIONED_TOPICS), Domain.PERSISTENT)) is not None:
                self._partitioned.pop(name, None)
        for record in change.records:
            if (name := _named(record.key.removeprefix(PARTITIONED_TOPICS), Domain.PERSISTENT)) is not None:
                self._partitioned[name] = record.value

    def _hear_regular(self, change: Change) -> None:
        for key in change.deleted:
            if (name := _parsed(key.removeprefix(MANAGED_LEDGERS))) is not None:
                self._regular.discard(name)
        for record in change.records:
            name = _parsed(record.key.removeprefix(MANAGED_LEDGERS))
            if name is not None and name.partition_index is None:
                self._regular.add(name)

    def _hear_loads(self, change: Change) -> None:
        for key in change.deleted:
            self._loads.pop(key, None)
        for record in change.records:
            segment = _parsed(record.key.removeprefix(LOAD_PREFIX))
            if segment is not None and segment.domain is Domain.SEGMENT:
                self._loads[record.key] = segment.scalable_topic, orjson.loads(record.value)


def _parsed(quoted: str) -> TopicName | None:
    try:
        return TopicName.parse(unquote(quoted))
    except InvalidTopicName:
        return None


def _named(path: str, domain: Domain) -> TopicName | None:
    try:
        tenant, namespace, local = path.split("/")
        return TopicName(domain, tenant, namespace, unquote(local))
    except (ValueError, InvalidTopicName):
        return None
