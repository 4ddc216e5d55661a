"""Keeps Python's cyclic garbage collector from blocking the event loop.

A full collection visits every object of the process. With a few million objects it takes half a second, at an arbitrary
moment (measured with 10,000 producers: 490 ms). So Python's own full collections are switched off. Instead, objects
that have survived two young collections, about a thousand, are frozen (`gc.freeze`). No collection visits a frozen
object. A young collection takes a few milliseconds, however large the process is.

A frozen object may later become cyclic garbage, for example when a topic is unloaded. It stays in memory until the next
full collection. That runs when the process has frozen as many objects as were alive after the last one. So memory is
bounded by the live objects. A full collection takes long, but it becomes rarer as the process grows.

The collector is global to the process. So only a process that a broker has for itself runs this.
"""

import gc
from typing import Final

import trio

from storage.signal import Signal

YOUNG_MAX: Final = 500
"""A young collection runs when allocations exceed deallocations by this number. Deallocated objects may be old ones. So
where clients come and go, a collection can visit more new objects; up to ten times as many were seen."""

YOUNG_LOOKS: Final = 1
"""After this many young collections, one of the middle generation visits the survivors again. Then they are frozen."""

NEVER: Final = 2**30
"""A threshold that is never reached, so Python runs no full collection by itself."""

LOOK_AT_ALL_MIN: Final = 250_000
"""A full collection needs at least this many objects frozen since the last one: about 30 MiB of memory."""


class GarbageCollector:
    """Freezes objects that survive, and runs full collections when they are due. There is one per process."""

    def __init__(self) -> None:
        self._due = Signal()
        self._portions = 0
        """How many times objects were frozen since the last full collection, or since frozen objects were counted."""
        self._alive = 0
        """Objects that survived the last full collection."""
        self._token: trio.lowlevel.TrioToken | None = None

    async def run(self) -> None:
        """Work until cancelled. The caller has run `look_at_all` once before."""
        self._token = trio.lowlevel.current_trio_token()
        before = gc.get_threshold()
        gc.set_threshold(YOUNG_MAX, YOUNG_LOOKS, NEVER)
        gc.callbacks.append(self.collected)
        try:
            while True:
                await self._due.wait()
                self._look_if_grown()
        finally:
            gc.callbacks.remove(self.collected)
            gc.set_threshold(*before)

    def collected(self, phase: str, info: dict[str, int]) -> None:
        """Called by Python around each collection. After one of the middle generation, the survivors are frozen."""
        if phase == "stop" and info["generation"] == 1:
            gc.freeze()
            self._portions += 1
            # Counting visits all frozen objects, so it is done only when there may be enough of them.
            if self._portions * YOUNG_MAX * (YOUNG_LOOKS + 1) >= self._growth_max and self._token is not None:
                # Python collects in any thread and at any moment, when waking a task directly is not safe.
                self._token.run_sync_soon(self._due.set, idempotent=True)

    def look_at_all(self) -> None:
        """Run a full collection, and freeze the survivors. This takes long."""
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._alive = gc.get_freeze_count()
        self._portions = 0

    def _look_if_grown(self) -> None:
        self._portions = 0
        if gc.get_freeze_count() - self._alive >= self._growth_max:
            self.look_at_all()

    @property
    def _growth_max(self) -> int:
        return max(self._alive, LOOK_AT_ALL_MIN)
