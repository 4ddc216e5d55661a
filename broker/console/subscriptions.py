"""All subscriptions of the cluster that a broker serves now, those with the largest backlog first."""

from collections.abc import Callable
from typing import Any, Final

import trio

from broker.console.everywhere import Everywhere
from broker.console.feed import Parts
from storage.signal import Signal

SHOWN_MAX: Final = 200
"""Most subscriptions in a frame."""


class SubscriptionsFeed:
    """See the module's docstring."""

    def __init__(self, everywhere: Callable[[Signal], Everywhere], search: str) -> None:
        """Set up; those are shown whose topic or name contains `search`."""
        self.changed = Signal()
        self._everywhere = everywhere(self.changed)
        self._search = search.lower()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow until cancelled."""
        await self._everywhere.run(task_status=task_status)

    def parts(self) -> Parts:
        """See `Feed`."""
        joined: dict[str, dict[str, Any]] = {}
        for said in self._everywhere.by_broker.values():
            found = said.get("subscriptions")
            if isinstance(found, dict):
                for key, one in found.items():
                    if key in joined:
                        _join(joined[key], one)
                    else:
                        joined[key] = dict(one)
        matched = [one for key, one in joined.items() if self._search in key.lower()]
        matched.sort(key=lambda one: (-one["backlog"], one["topic"], one["name"]))
        return {
            "total": len(joined),
            "matched": len(matched),
            "subscriptions": matched[:SHOWN_MAX],
            "silent": self._everywhere.silent,
        }


def _join(one: dict[str, Any], other: dict[str, Any]) -> None:
    one["backlog"] += other["backlog"]
    one["consumers"] = sorted({*one["consumers"], *other["consumers"]})
