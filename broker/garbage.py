"""Python's cyclic garbage collector, kept from holding the event loop.

A full collection visits every object of the process: half a second where clients hold a few million, at a moment that
nobody chose (measured with 10,000 producers: 490 ms). So the collector's own full collections are off. In their place
a task collects what has come since the last time, some ten thousand objects, and then sets the survivors aside
(`gc.freeze`), where no collection visits them. That takes a few milliseconds, whatever the process holds.

What is set aside and becomes a cycle of garbage later stays, until everything is looked at once: when as many objects
are set aside as make twice those that were alive at the last such look. So memory is bounded by what is live, and the
looks, which do take long, become as rare as the process is large.

This touches what is global to the process, so only the process that is a broker's and nothing else's runs it.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from storage.signal import Signal

YOUNG_MAX: Final = 2_000
"""Objects that come, less those that go, before the collector looks at the newest ones."""

YOUNG_LOOKS: Final = 5
"""So many such looks before it visits what survived them: 10,000 objects at the most, 1 to 4 ms."""

NEVER: Final = 2**30
"""So many visits before a full collection: the collector's own never comes."""

LOOK_AT_ALL_MIN: Final = 1_000_000
"""Below so many objects set aside since the last look at everything, there is none."""


class GarbageDuty:
    """Collects in small portions. One per process."""

    def __init__(self) -> None:
        self._wake = Signal()
        self._portions = 0
        self._alive = 0
        """Objects that survived the last look at everything."""

    @contextmanager
    def _set_up(self) -> Iterator[None]:
        before = gc.get_threshold()
        gc.set_threshold(YOUNG_MAX, YOUNG_LOOKS, NEVER)
        gc.callbacks.append(self._collected)
        try:
            yield
        finally:
            gc.callbacks.remove(self._collected)
            gc.set_threshold(*before)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        """Called by Python. Survivors of the middle generation have become old: a portion is there."""
        if phase == "stop" and info["generation"] == 1:
            self._wake.set()

    async def run(self) -> None:
        """Collect until cancelled, after a first look at everything by the caller."""
        with self._set_up():
            while True:
                await self._wake.wait()
                self.take_portion()

    def take_portion(self) -> None:
        """Collect what came since the last portion, and set what is left aside; look at everything when it is time."""
        gc.collect()
        gc.freeze()
        self._portions += 1
        # A portion has at most so many objects, so counting them, which visits all, is not needed before.
        if self._portions * YOUNG_MAX * YOUNG_LOOKS >= max(self._alive, LOOK_AT_ALL_MIN):
            if gc.get_freeze_count() - self._alive >= max(self._alive, LOOK_AT_ALL_MIN):
                self.look_at_all()
            self._portions = 0

    def look_at_all(self) -> None:
        """Collect everything there is, and set it aside. Takes long."""
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._alive = gc.get_freeze_count()
        self._portions = 0
