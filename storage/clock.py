"""The broker's time, in milliseconds since the epoch.

It never steps. Only this module reads the operating system's clock.

Deadlines of transactions, retentions and the timestamps of entries are absolute, because they outlive the process and
are compared across processes. An operator or NTP may step the wall clock by seconds or by days, in either direction. If
deadlines followed such a step, open transactions would abort at once, or stay open for as long as the step. So a broker
reads the wall clock when it starts, and then counts elapsed time. It follows the wall clock by running a little faster
or slower, as `adjtime` does. So every span that it measures is right to `SLEW_MAX`. The broker's time never goes back,
and all timestamps of a process are in the order in which they were taken.

Catching up with a step of one hour takes 20 hours. A restart of the broker takes the new time at once, and a warning
says so. Code that only waits uses Trio's clock. Tests pass their own functions instead.
"""

import time
from collections.abc import Callable
from typing import Final

import structlog

WallClock = Callable[[], int]
"""Returns the current time in milliseconds since the epoch."""

SLEW_MAX: Final = 1 / 20
"""How much faster or slower than elapsed time the broker's clock may run, as a fraction, to follow the wall clock."""

STEP_TOLD_MS: Final = 5_000
"""The difference from the wall clock above which the log reports a step, once for each step. Milliseconds."""

_STEADY: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

log = structlog.get_logger(__name__)


def wall_clock_ms() -> int:
    """Milliseconds since the epoch by the operating system's clock, which may step."""
    return time.time_ns() // 1_000_000


def elapsed_ns() -> int:
    """Nanoseconds since some moment, by a clock that never steps.

    It also counts while the machine is suspended.
    """
    return time.clock_gettime_ns(_STEADY)


class SteadyClock:
    """See the module's docstring. Calling it returns the time, as any `WallClock` does. Call it in Trio's thread."""

    def __init__(self, wall_ms: WallClock = wall_clock_ms, counted_ns: Callable[[], int] = elapsed_ns) -> None:
        """Begin at the wall clock's time. `counted_ns` must never go back."""
        self._wall_ms = wall_ms
        self._counted_ns = counted_ns
        self._counted = counted_ns()
        self._time_ns = wall_ms() * 1_000_000
        self._is_step_told = False

    def __call__(self) -> int:
        """The broker's time in milliseconds since the epoch. It never goes back."""
        counted = self._counted_ns()
        passed = counted - self._counted
        self._counted = counted
        ahead = self._wall_ms() * 1_000_000 - (self._time_ns + passed)
        slewed = int(passed * SLEW_MAX)
        self._time_ns += passed + max(-slewed, min(ahead, slewed))
        is_apart = abs(ahead) >= STEP_TOLD_MS * 1_000_000
        if is_apart is not self._is_step_told:
            self._tell(is_apart, ahead // 1_000_000)
        return self._time_ns // 1_000_000

    def _tell(self, is_apart: bool, ahead_ms: int) -> None:
        if is_apart:
            log.warning(
                "the wall clock was stepped; the broker follows it slowly. Restart it to take the new time at once",
                wall_clock_ahead_seconds=ahead_ms / 1000,
            )
        self._is_step_told = is_apart
