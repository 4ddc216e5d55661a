"""The cluster: the brokers, what each of them owns, and what moves between them."""

from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Final

import trio

from broker.cluster.overview import Overview
from broker.cluster.ownership import KEY_PREFIX as CLAIMS
from broker.cluster.ownership import ClaimUnreadable, claimed_name, owner_in
from broker.console.everywhere import Everywhere
from broker.console.feed import Parts, follow
from broker.http.lines import running
from storage.clock import WallClock
from storage.metadata.store import Change, MetadataStore
from storage.signal import Signal

OWNED_MAX: Final = 200
"""Most names in a frame that a broker owns."""
MOVES_MAX: Final = 100
"""How many changes of owners are remembered."""


class ClusterFeed:
    """See the module's docstring."""

    def __init__(
        self,
        store: MetadataStore,
        everywhere: Callable[[Signal], Everywhere],
        now_ms: WallClock,
        *,
        broker: str | None,
        search: str,
    ) -> None:
        """Set up. Names that `broker` owns are listed if they contain `search`."""
        self.changed = Signal()
        self._store = store
        self._now_ms = now_ms
        self._broker = broker
        self._search = search.lower()
        self._overview = Overview(store)
        self._everywhere = everywhere(self.changed)
        self._owners: dict[str, str] = {}
        self._left: dict[str, str] = {}
        """Who owned last what nobody owns now. Bounded by MOVES_MAX."""
        self._moves: deque[dict[str, Any]] = deque(maxlen=MOVES_MAX)
        self._is_known = False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow all of it until cancelled."""
        async with AsyncExitStack() as stack:
            nursery = await stack.enter_async_context(trio.open_nursery())
            await stack.enter_async_context(running(self._overview))
            nursery.start_soon(self._relay)
            await stack.enter_async_context(running(self._everywhere))
            await follow(self._store, [(CLAIMS, self._hear_claims)], self.changed, task_status=task_status)

    async def _relay(self) -> None:
        while True:
            await self._overview.changed.wait()
            self.changed.set()

    def parts(self) -> Parts:
        """See `Feed`."""
        view = self._overview.view()
        owned = sorted(
            name for name, broker in self._owners.items() if broker == self._broker and self._search in name.lower()
        )
        return {
            "brokers": [
                {
                    "broker": one.broker,
                    "state": one.state,
                    "service_url": one.service_url,
                    "http_url": one.http_url,
                    "kafka": None if one.kafka is None else str(one.kafka),
                    "claims": dict(one.claims),
                }
                for one in view.brokers
            ],
            "controller": view.metadata_controller,
            "told": {
                broker: {name: said.get(name) for name in ("counters", "stall_ms", "problem")}
                for broker, said in self._everywhere.by_broker.items()
            },
            "silent": self._everywhere.silent,
            "owned": {"broker": self._broker, "total": len(owned), "names": owned[:OWNED_MAX]},
            "moves": list(reversed(self._moves)),
        }

    def _hear_claims(self, change: Change) -> None:
        for key in change.deleted:
            name = claimed_name(key)
            before = self._owners.pop(name, None)
            if before is not None:
                self._left[name] = before
                while len(self._left) > MOVES_MAX:
                    del self._left[next(iter(self._left))]
                self._note(name, before, None)
        for record in change.records:
            name = claimed_name(record.key)
            try:
                owner = owner_in(record).broker_id
            except ClaimUnreadable:
                continue  # The doctor names damaged claims.
            before = self._owners.get(name, self._left.pop(name, None))
            self._owners[name] = owner
            if before != owner:
                self._note(name, before, owner)
        self._is_known = True

    def _note(self, name: str, before: str | None, now: str | None) -> None:
        if self._is_known:
            self._moves.append({"at_ms": self._now_ms(), "name": name, "from": before, "to": now})
