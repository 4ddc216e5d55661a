"""Measures how long each step of the event loop takes, and names the tasks with the longest steps.

One event loop serves all clients, so a step that computes for long delays all of them. The monitor reads the thread's
CPU clock, because wall time also grows when the machine is busy. It records wall time too, because a step that waits
for the disk uses no CPU but still blocks the loop.

Reading the CPU clock is a system call, so short steps share a reading. The clock is read after a step that ends at
least a millisecond after the last reading. So a long step may count as up to a millisecond too long. The scheduler's
own work counts with the step that follows it.

The monitor is always on and adds 1.1 µs to each step. It holds a few counters and `WORST_MAX` steps.
"""

import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

import structlog
import trio

BOUNDS_SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
"""Upper bounds of the histogram's buckets. One more bucket holds longer steps."""

READ_SECONDS: Final = BOUNDS_SECONDS[0]
"""The CPU clock is read at most once in this much work."""

WARN_CPU_SECONDS: Final = 0.02
"""A step that uses more CPU time is logged. No legal input should cause one."""

WARN_INTERVAL_SECONDS: Final = 10.0
"""At most one line is logged in this time. The next line says how many steps were not logged."""

WORST_MAX: Final = 10
"""How many of the longest steps are remembered, one for each task name."""

log = structlog.get_logger(__name__)


class LongStep(NamedTuple):
    """One step of the event loop, from one pause of a task to its next."""

    cpu_seconds: float
    wall_seconds: float
    task: str
    """The task's name; by default the qualified name of its function."""
    paused_at: str
    """Where the step ended: the function, file and line at which the task waits; "its end" if the task has ended."""


@dataclass(frozen=True, slots=True)
class LoopStatistics:
    """A snapshot of what the monitor counted since it started."""

    bucket_counts: tuple[int, ...] = (0,) * (len(BOUNDS_SECONDS) + 1)
    """Steps per bucket of CPU time, not cumulative; see `BOUNDS_SECONDS`."""
    cpu_seconds: float = 0.0
    """The CPU time of all steps, except the last short ones."""
    worst: tuple[LongStep, ...] = ()
    """The steps with the most CPU time, longest first: one for each task name, none below the first bound."""
    wall_seconds_max: float = 0.0
    """The longest wall time of a step; zero until one takes a millisecond."""


class LoopMonitor(trio.abc.Instrument):
    """Watches the event loop of the thread that runs it.

    monitor = LoopMonitor()
    with monitor.watching():
        ...
    """

    def __init__(self) -> None:
        self._buckets = [0] * (len(BOUNDS_SECONDS) + 1)
        self._cpu_total = 0.0
        self._wall_max = 0.0
        self._worst: dict[str, LongStep] = {}
        self._short = 0
        """Short steps that were not measured separately; all are below the first bound."""
        self._cpu = 0.0
        """The CPU clock at its last reading."""
        self._read_at = 0.0
        """The wall clock at that reading, plus the time spent waiting since."""
        self._wall = 0.0
        """The wall clock at the end of the last step or wait."""
        self._warned_at = -WARN_INTERVAL_SECONDS
        self._unlogged = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch while the context is open."""
        self._cpu = time.thread_time()
        self._wall = self._read_at = time.perf_counter()
        trio.lowlevel.add_instrument(self)
        try:
            yield
        finally:
            trio.lowlevel.remove_instrument(self)

    @property
    def cpu_seconds(self) -> float:
        """The CPU time of all steps so far."""
        return self._cpu_total

    def statistics(self) -> LoopStatistics:
        """Return what was counted so far."""
        worst = sorted(self._worst.values(), reverse=True)
        first, *others = self._buckets
        return LoopStatistics((first + self._short, *others), self._cpu_total, tuple(worst), self._wall_max)

    def clear(self) -> None:
        """Reset all counters."""
        self._buckets = [0] * len(self._buckets)
        self._short = 0
        self._cpu_total = self._wall_max = 0.0
        self._worst.clear()

    def after_io_wait(self, timeout: float) -> None:
        """Called by Trio after a wait, before the next steps. Waiting is not a step."""
        wall = time.perf_counter()
        self._read_at += wall - self._wall
        self._wall = wall

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Called by Trio: the task has paused or ended."""
        wall = time.perf_counter()
        if wall - self._read_at < READ_SECONDS:
            self._wall = wall
            self._short += 1
            return
        self._note(wall - self._wall, task)
        self._wall = self._read_at = wall

    def _note(self, wall_seconds: float, task: trio.lowlevel.Task) -> None:
        cpu = time.thread_time()
        # Earlier short steps used part of the CPU time since the last reading.
        cpu_seconds = min(cpu - self._cpu, wall_seconds)
        self._cpu_total += cpu - self._cpu
        self._cpu = cpu
        self._wall_max = max(self._wall_max, wall_seconds)
        self._buckets[bisect_left(BOUNDS_SECONDS, cpu_seconds)] += 1
        if cpu_seconds <= BOUNDS_SECONDS[0]:
            return
        step = LongStep(cpu_seconds, wall_seconds, task.name, _pause_of(task))
        known = self._worst.get(step.task)
        if known is None or step > known:
            self._worst[step.task] = step
            if len(self._worst) > WORST_MAX:
                del self._worst[min(self._worst.values()).task]
        if cpu_seconds > WARN_CPU_SECONDS:
            self._warn(step)

    def _warn(self, step: LongStep) -> None:
        now = time.perf_counter()
        if now - self._warned_at < WARN_INTERVAL_SECONDS:
            self._unlogged += 1
            return
        log.warning(
            "one step blocked the event loop",
            task=step.task,
            cpu_ms=round(step.cpu_seconds * 1000),
            wall_ms=round(step.wall_seconds * 1000),
            paused_at=step.paused_at,
            not_logged_before=self._unlogged,
        )
        self._warned_at = now
        self._unlogged = 0


def _pause_of(task: trio.lowlevel.Task) -> str:
    """Return where the task waits, in the project's own code if possible."""
    place = "its end"
    for frame, line in task.iter_await_frames():
        code = frame.f_code
        if "/trio/" in code.co_filename or "/contextlib" in code.co_filename:
            continue
        place = f"{code.co_qualname} ({code.co_filename.rpartition('/')[2]}:{line})"
    return place
