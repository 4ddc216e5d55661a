"""Latencies over time, in a bounded number of slots, however long the run is. Pure.

When the slots are used up, each two become one that lasts twice as long.
"""

from collections.abc import Iterator
from typing import Final

from tidewire.cli.bench.histogram import Histogram

SLOTS_MAX: Final = 60
"""At most this many slots: the width of the plot."""

FIRST_SLOT_SECONDS: Final = 0.1
"""How long a slot lasts at first."""


class Timeline:
    """The histograms of successive slots of time."""

    def __init__(self) -> None:
        """Empty."""
        self.slot_seconds = FIRST_SLOT_SECONDS
        """How long each slot lasts."""
        self._slots: list[Histogram] = []

    def add(self, at_seconds: float, seconds: float) -> None:
        """Count a time that was measured at this moment since the beginning."""
        while at_seconds >= SLOTS_MAX * self.slot_seconds:
            self._halve()
        number = int(at_seconds / self.slot_seconds)
        while len(self._slots) <= number:
            self._slots.append(Histogram())
        self._slots[number].add(seconds)

    def _halve(self) -> None:
        halved = []
        for first, *second in (self._slots[number : number + 2] for number in range(0, len(self._slots), 2)):
            for other in second:
                first.include(other)
            halved.append(first)
        self._slots = halved
        self.slot_seconds *= 2

    def __iter__(self) -> Iterator[Histogram]:
        """The slots in their order. A slot without any times is a stall."""
        return iter(self._slots)

    def whole(self) -> Histogram:
        """All times together."""
        whole = Histogram()
        for slot in self._slots:
            whole.include(slot)
        return whole
