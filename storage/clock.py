"""Wall-clock time, the one place that reads it.

Deadlines of transactions and the timestamps of entries are absolute (epoch milliseconds) because they are compared
across processes. Everything that only waits uses Trio's clock. Tests pass a function of their own instead.
"""

import time
from collections.abc import Callable

WallClock = Callable[[], int]
"""Returns the current time in milliseconds since the epoch."""


def wall_clock_ms() -> int:
    """Milliseconds since the epoch by the operating system's clock, which may step."""
    return time.time_ns() // 1_000_000
