"""The broker's time: milliseconds since the epoch that never step, and the one place that reads the operating system's.

Deadlines of transactions, retentions and the timestamps of entries are absolute, because they outlive the process and
are compared across processes. An operator or NTP may step the wall clock by seconds or by days, either way. A deadline
that moved with it would abort open transactions at once, or hold them for as long as the step. So a broker takes the
wall clock's time when it starts, and from then on counts elapsed time. It follows the wall clock afterwards by running
a little faster or slower, as `adjtime` does. So every span that it measures is right to `SLEW_MAX`, its time never goes
back, and all timestamps of a process stand in the order in which they were taken.

A step of an hour is made up for in 20 hours. Whoever wants the new time at once restarts the broker; a warning says so.
What only waits uses Trio's clock. Tests pass functions of their own instead.
"""

import time
from collections.abc import Callable
from typing import Final

import structlog

WallClock = Callable[[], int]
"""Returns the current time in milliseconds since the epoch."""

SLEW_MAX: Final = 1 / 20
"""By which part of the elapsed time the broker's clock runs faster or slower to follow the wall clock."""

STEP_TOLD_MS: Final = 5_000
"""A difference from the wall clock that the log tells of, once for each step."""

log = structlog.get_logger(__name__)


def wall_clock_ms() -> int:
    """Milliseconds since the epoch by the operating system's clock, which may step."""
    return time.time_ns() // 1_000_000


def elapsed_ns() -> int:
    """Nanoseconds since some moment, by a clock that never steps and also counts while the machine is suspended."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class SteadyClock:
    """See the module. Calling it returns the time, as any `WallClock` does; to be called in Trio's thread."""

    def __init__(self, wall_ms: WallClock = wall_clock_ms, counted_ns: Callable[[], int] = elapsed_ns) -> None:
        """Begin with the wall clock's time; `counted_ns` must never go back."""
        self._wall_ms = wall_ms
        self._counted_ns = counted_ns
        self._counted = counted_ns()
        self._time_ns = wall_ms() * 1_000_000
        self._is_step_told = False

    def __call__(self) -> int:
        """The broker's time in milliseconds since the epoch; never less than before."""
        counted = self._counted_ns()
        passed = counted - self._counted
        self._counted = counted
        ahead = self._wall_ms() * 1_000_000 - (self._time_ns + passed)
        slewed = int(passed * SLEW_MAX)
        self._time_ns += passed + max(-slewed, min(ahead, slewed))
        self._tell(ahead // 1_000_000)
        return self._time_ns // 1_000_000

    def _tell(self, ahead_ms: int) -> None:
        is_apart = abs(ahead_ms) >= STEP_TOLD_MS
        if is_apart and not self._is_step_told:
            log.warning(
                "the wall clock was stepped; the broker follows it slowly, and at once when it is restarted",
                wall_clock_ahead_seconds=ahead_ms / 1000,
            )
        self._is_step_told = is_apart
