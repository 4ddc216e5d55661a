"""A steady rate: what is the moment of the next message? On the event loop's clock, so that tests can turn it.

Each message has its moment, counted from the first one. So a slow message does not make all later ones late, and the
rate is exact over time. After a longer hold-up, such as a broker that was away, the count begins again. Otherwise
everything that was due meanwhile would come at once.
"""

from typing import Final

import anyio

CATCH_UP_SECONDS_MAX: Final = 1.0
"""How far the pace may lag and still catch up."""


class Pace:
    """See the module's docstring."""

    def __init__(self, per_second: float | None, *, catch_up_seconds_max: float = CATCH_UP_SECONDS_MAX) -> None:
        """That many steps a second; None for no limit."""
        self._per_second = per_second
        self._catch_up_seconds_max = catch_up_seconds_max
        self._begun = 0.0
        self._steps = 0

    def take(self) -> float:
        """Take the next step. Return its moment, which the caller waits for. Without a rate, that is now.

        Any number of tasks may take steps in turn.
        """
        now = anyio.current_time()
        if self._per_second is None:
            return now
        due = self._begun + self._steps / self._per_second
        if not self._steps or now - due > self._catch_up_seconds_max:
            self._begun, self._steps, due = now, 0, now
        self._steps += 1
        return due

    async def step(self) -> None:
        """Return at the moment of the next step. Does not yield if that has come."""
        due = self.take()
        if due > anyio.current_time():
            await anyio.sleep_until(due)
