"""Python's cyclic garbage collector, kept from holding the event loop.

A full collection visits every object of the process: half a second where clients hold a few million, at a moment that
nobody chose (measured with 10,000 producers: 490 ms). So the collector's own full collections are off. In their place
what has survived two looks at the newest objects, some thousand, is set aside (`gc.freeze`), where no collection visits
it. Such a look takes a few milliseconds, whatever the process holds.

What is set aside and becomes a cycle of garbage later (a topic that is unloaded, for example) stays until
everything is looked at once. That comes when as many objects are set aside as make twice those that were alive at the
last such look. So memory is bounded by what is live. The looks do take long, and are as rare as the process is large.

This touches what is global to the process, so only the process that is a broker's and nothing else's runs it.
"""

import gc
from typing import Final

import trio

from storage.signal import Signal

YOUNG_MAX: Final = 500
"""Objects that come, less those that go, before the collector looks at the newest ones. What goes may be old, so the
newest ones are more where clients come and go: up to ten times as many were seen."""

YOUNG_LOOKS: Final = 1
"""So many such looks before the survivors are looked at once more, and set aside."""

NEVER: Final = 2**30
"""So many visits before a full collection: the collector's own never comes."""

LOOK_AT_ALL_MIN: Final = 250_000
"""Below so many objects set aside since the last look at everything, there is none: some 30 MiB of memory."""


class GarbageDuty:
    """Sets aside what survives, and looks at everything when it is time. One per process."""

    def __init__(self) -> None:
        self._due = Signal()
        self._portions = 0
        """Set aside since the last look at everything, or since they were counted."""
        self._alive = 0
        """Objects that survived the last look at everything."""
        self._token: trio.lowlevel.TrioToken | None = None

    async def run(self) -> None:
        """Work until cancelled. The caller has looked at everything once."""
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
        """Called by Python around each collection. Those of the middle generation leave what has survived twice."""
        if phase == "stop" and info["generation"] == 1:
            gc.freeze()
            self._portions += 1
            # Counting visits what is set aside, so it is done only when there may be enough.
            if self._portions * YOUNG_MAX * (YOUNG_LOOKS + 1) >= self._growth_max and self._token is not None:
                # Python collects in any thread, and in the middle of anything, where no task may be woken.
                self._token.run_sync_soon(self._due.set, idempotent=True)

    def look_at_all(self) -> None:
        """Collect everything there is, and set it aside. Takes long."""
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
