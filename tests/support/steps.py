"""The longest steps of the event loop while a story runs: for scripts and for debugging, never for an assertion.

with longest_steps() as steps:
    ...
for step in steps.worst():
    print(step.cpu_seconds, step.task, step.paused_at)

Milliseconds depend on the machine. So tests assert what does not: counts of slices, or how the work grows with size.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from broker.loop_monitor import LongStep, LoopMonitor


class Steps:
    """What was seen."""

    def __init__(self, monitor: LoopMonitor) -> None:
        self._monitor = monitor

    def worst(self, count: int = 10) -> tuple[LongStep, ...]:
        """The longest by CPU time, longest first; of each task the longest one."""
        return self._monitor.statistics().worst[:count]

    def clear(self) -> None:
        """Look from here."""
        self._monitor.clear()


@contextmanager
def longest_steps() -> Iterator[Steps]:
    """Watch the event loop of the caller while the context is open."""
    monitor = LoopMonitor()
    with monitor.watching():
        yield Steps(monitor)
