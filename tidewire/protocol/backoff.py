"""How long to wait for a peer that is not there before looking again.

A peer that went away tells nobody when it comes back, so clients look again after a while. The delay doubles from
attempt to attempt up to a bound. A random part shortens each one, so that a thousand clients of a broker that restarts
do not all come back in the same instant.
"""

from random import Random
from typing import Final

DELAY_SECONDS_MIN: Final = 0.05
"""The first delay; a broker that is restarted is back within a second or two."""

DELAY_SECONDS_MAX: Final = 2.0
"""The longest delay, unless the client was given another."""

JITTER: Final = 0.5
"""A delay is shortened by up to this part of itself."""


class Backoff:
    """The delays of one series of attempts; `reset` after a success."""

    __slots__ = ("_delay_seconds", "_delay_seconds_max", "_random")

    def __init__(self, random: Random, delay_seconds_max: float = DELAY_SECONDS_MAX) -> None:
        """Delays up to `delay_seconds_max`; 0 makes each of them a mere turn for the other tasks."""
        self._random = random
        self._delay_seconds_max = delay_seconds_max
        self._delay_seconds = 0.0
        self.reset()

    def reset(self) -> None:
        """The next delay is the shortest again."""
        self._delay_seconds = min(DELAY_SECONDS_MIN, self._delay_seconds_max)

    def next_delay_seconds(self) -> float:
        """The next delay; the one after it is longer, up to the bound."""
        delay = self._delay_seconds
        self._delay_seconds = min(2 * delay, self._delay_seconds_max)
        return delay * (1 - JITTER * self._random.random())
