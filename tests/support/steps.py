"""Finds the longest steps of the event loop while a story runs. For scripts and debugging, never for an assertion.

with longest_steps() as steps:
    ...
for step in steps.worst():
    print(step.cpu_seconds, step.task, step.paused_at)

Milliseconds depend on the machine. So tests assert what does not depend on it: the number of slices, or how the work
grows with size.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from broker.loop_monitor import LongStep, LoopMonitor


class Steps:
    """The steps that were measured."""

    def __init__(self, monitor: LoopMonitor) -> None:
        self._monitor = monitor

    def worst(self, count: int = 10) -> tuple[LongStep, ...]:
        """Return the longest steps by CPU time, longest first; one for each task."""
        return self._monitor.statistics().worst[:count]

    def clear(self) -> None:
        """Start measuring here."""
        self._monitor.clear()


@contextmanager
def longest_steps() -> Iterator[Steps]:
    """Measure the caller's event loop during the block."""
    monitor = LoopMonitor()
    with monitor.watching():
        yield Steps(monitor)
