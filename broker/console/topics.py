"""All topics of the cluster: a page of them, found by a search in this process, with their load.

The load is what owners report to the metadata store (`scalable.load_reports`): averages of the last minute. So the list
asks no owner. Only the shown page is decoded, and the order is kept until a topic comes or goes. So a frame about
thousands of topics costs little more than one about ten.
"""

from collections.abc import Callable
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


class Load(NamedTuple):
    """Messages a second."""

    into: float
    out: float

    def shown(self) -> dict[str, float]:
        """Return it as the page reads it."""
        return {"in": self.into, "out": self.out}


NO_LOAD: Final = Load(0.0, 0.0)


class TopicsFeed:
    """See the module's docstring."""

    def __init__(self, store: MetadataStore, wish: Wish) -> None:
        self.changed = Signal()
        self._store = store
        self._wish = wish
        self._layouts: dict[TopicName, bytes] = {}
        self._partitioned: dict[TopicName, bytes] = {}
        self._regular: dict[TopicName, bytes] = {}
        self._segment_loads: dict[TopicName, dict[str, Load]] = {}
        """What owners report of each topic's segments, by key."""
        self._loads: dict[TopicName, Load] = {}
        self._total = 0
        self._found: list[TopicName] | None = None
        """The topics that the search finds, by name. None if a topic came or went since they were searched."""

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
        found = self._search()
        if self._wish.by_load:
            found = sorted(found, key=lambda name: -sum(self._load(name)))
        shown = found[self._wish.first : self._wish.first + PAGE]
        return {
            "total": self._total,
            "matched": len(found),
            "first": self._wish.first,
            "page": PAGE,
            "topics": [{**self._row(name), "load": self._load(name).shown()} for name in shown],
        }

    def _search(self) -> list[TopicName]:
        if self._found is None:
            names = {*self._layouts, *self._partitioned, *self._regular}
            # A migrated topic keeps its first log under the regular name.
            names -= {name.as_regular for name in self._layouts}
            wanted = self._wish.search.lower()
            self._total = len(names)
            self._found = sorted(
                (name for name in names if wanted in str(name).lower()),
                key=lambda name: (name.tenant, name.namespace, name.local, name.domain),
            )
        return self._found

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

    def _load(self, topic: TopicName) -> Load:
        return self._loads.get(topic, NO_LOAD)

    def _hear_layouts(self, change: Change) -> None:
        self._hear_names(change, self._layouts, topic_of)

    def _hear_partitioned(self, change: Change) -> None:
        self._hear_names(
            change, self._partitioned, lambda key: _named(key.removeprefix(PARTITIONED_TOPICS), Domain.PERSISTENT)
        )

    def _hear_regular(self, change: Change) -> None:
        self._hear_names(change, self._regular, _regular_topic)

    def _hear_names(
        self, change: Change, known: dict[TopicName, bytes], name_of: Callable[[str], TopicName | None]
    ) -> None:
        for key in change.deleted:
            if (name := name_of(key)) is not None and known.pop(name, None) is not None:
                self._found = None
        for record in change.records:
            if (name := name_of(record.key)) is not None:
                if name not in known:
                    self._found = None
                known[name] = record.value

    def _hear_loads(self, change: Change) -> None:
        for key in change.deleted:
            if (topic := _loaded_topic(key)) is not None:
                self._segment_loads.get(topic, {}).pop(key, None)
                self._add_up(topic)
        for record in change.records:
            if (topic := _loaded_topic(record.key)) is not None:
                told = orjson.loads(record.value)
                self._segment_loads.setdefault(topic, {})[record.key] = Load(told["msgRateIn"], told["msgRateOut"])
                self._add_up(topic)

    def _add_up(self, topic: TopicName) -> None:
        if segments := self._segment_loads.get(topic):
            self._loads[topic] = Load(*map(sum, zip(*segments.values(), strict=True)))
        else:
            self._segment_loads.pop(topic, None)
            self._loads.pop(topic, None)


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


def _regular_topic(key: str) -> TopicName | None:
    name = _parsed(key.removeprefix(MANAGED_LEDGERS))
    return name if name is not None and name.partition_index is None else None


def _loaded_topic(key: str) -> TopicName | None:
    segment = _parsed(key.removeprefix(LOAD_PREFIX))
    return segment.scalable_topic if segment is not None and segment.domain is Domain.SEGMENT else None
