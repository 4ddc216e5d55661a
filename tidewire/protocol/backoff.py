"""How long to wait between attempts to reach a peer.

A peer does not announce when it is back, so clients retry. The delay doubles from attempt to attempt, up to a bound.
Each delay is shortened at random, so that the clients of a restarted broker do not all reconnect at once.
"""

from random import Random
from typing import Final

DELAY_SECONDS_MIN: Final = 0.05
"""The first delay. A restarted broker is back within a second or two."""

DELAY_SECONDS_MAX: Final = 2.0
"""The longest delay, unless the client sets another one."""

JITTER: Final = 0.5
"""The largest fraction by which a delay is shortened."""


class Backoff:
    """The delays of one series of attempts. Call `reset` after a success."""

    __slots__ = ("_delay_seconds", "_delay_seconds_max", "_random")

    def __init__(self, random: Random, delay_seconds_max: float = DELAY_SECONDS_MAX) -> None:
        """Delays are at most `delay_seconds_max`. With 0, a wait only lets other tasks run."""
        self._random = random
        self._delay_seconds_max = delay_seconds_max
        self._delay_seconds = 0.0
        self.reset()

    def reset(self) -> None:
        """Start again with the shortest delay."""
        self._delay_seconds = min(DELAY_SECONDS_MIN, self._delay_seconds_max)

    def next_delay_seconds(self) -> float:
        """Return the next delay. The one after it is longer, up to the bound."""
        delay = self._delay_seconds
        self._delay_seconds = min(2 * delay, self._delay_seconds_max)
        return delay * (1 - JITTER * self._random.random())
