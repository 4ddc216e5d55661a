"""All subscriptions of the cluster, those that need care first, then those with the largest backlog.

What is left to read and who reads it, only the owner of a loaded topic knows. A scalable topic that nobody has loaded
has its subscriptions on record, so one that nobody uses any more is shown, too.
"""

from collections.abc import Callable, Mapping
from heapq import nsmallest
from typing import Final, NamedTuple

import trio

from broker.console.everywhere import Everywhere
from broker.console.feed import Parts, follow
from broker.console.reading import STUCK, Facts, Reading, joined, reading_of, unloaded
from broker.errors import LayoutUnreadable
from broker.http.lines import running
from broker.layouts.record import subscriptions_in
from broker.layouts.store import KEY_PREFIX as LAYOUTS
from broker.layouts.store import topic_of
from storage.metadata.store import Change, MetadataStore
from storage.signal import Signal

SHOWN_MAX: Final = 200
"""Most subscriptions in a frame."""

ONLY: Final[Mapping[str, frozenset[Reading]]] = {
    "all": frozenset(Reading),
    "stuck": STUCK,
    "spark": frozenset({Reading.SPARK, Reading.AWAY}),
}
"""What of the list can be shown alone."""


class Wanted(NamedTuple):
    """What of the list is shown."""

    search: str = ""
    """A part of the topic or name, in any case."""
    only: str = "all"
    """A key of ONLY."""


class SubscriptionsFeed:
    """See the module's docstring."""

    def __init__(self, store: MetadataStore, everywhere: Callable[[Signal], Everywhere], wanted: Wanted) -> None:
        """Set up; `everywhere` makes what tells the subscriptions of all brokers, and sets the signal that it gets."""
        self.changed = Signal()
        self._store = store
        self._everywhere = everywhere(self.changed)
        self._search = wanted.search.lower()
        self._only = ONLY[wanted.only]
        self._recorded: dict[str, dict[str, Facts]] = {}
        """What is known of each topic's subscriptions from its layout, by the layout's key."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow until cancelled."""
        async with running(self._everywhere):
            await follow(self._store, [(LAYOUTS, self._hear_layouts)], self.changed, task_status=task_status)

    def parts(self) -> Parts:
        """See `Feed`."""
        told: dict[str, Facts] = {}
        for said in self._everywhere.by_broker.values():
            found = said.get("subscriptions")
            if isinstance(found, dict):
                for key, facts in found.items():
                    told[key] = joined(told[key], facts) if key in told else facts
        every: dict[str, Facts] = {key: {**facts, "reading": reading_of(facts)} for key, facts in told.items()}
        for recorded in self._recorded.values():
            for key, facts in recorded.items():
                every.setdefault(key, facts)
        matched = [
            one
            for key, one in every.items()
            if one["reading"] in self._only and (not self._search or self._search in key.lower())
        ]
        return {
            "total": len(every),
            "stuck": sum(one["reading"] in STUCK for one in every.values()),
            "matched": len(matched),
            "subscriptions": nsmallest(SHOWN_MAX, matched, key=_order),
            "silent": self._everywhere.silent,
        }

    def _hear_layouts(self, change: Change) -> None:
        for key in change.deleted:
            self._recorded.pop(key, None)
        for record in change.records:
            name = topic_of(record.key)
            try:
                found = subscriptions_in(record.value)
            except LayoutUnreadable:
                continue  # The doctor names damaged records.
            self._recorded[record.key] = {
                f"{name} {each}": {**unloaded(str(name), each, one.kind), "reading": Reading.UNLOADED}
                for each, one in found.items()
                if not one.is_deleting
            }


def _order(one: Facts) -> tuple[bool, int, str, str]:
    return one["reading"] not in STUCK, -(one["backlog"] or 0), one["topic"], one["name"]
