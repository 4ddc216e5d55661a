"""Wakes one task at the earliest requested moment, and not before. Sleeping costs nothing."""

import trio

from storage.clock import WallClock
from storage.signal import Signal


class WallClockTimer:
    """A wall-clock timer of one waiting task. Any number of callers may request a moment."""

    def __init__(self, now_ms: WallClock, *, delay_ms: int = 0) -> None:
        """A timer that fires `delay_ms` after each requested moment."""
        self._now_ms = now_ms
        self._delay_ms = delay_ms
        self._moment_ms: int | None = None
        self._earlier = Signal()

    def at_latest(self, moment_ms: int) -> None:
        """Fire `delay_ms` after `moment_ms`, or earlier if an earlier moment was requested."""
        moment_ms += self._delay_ms
        if self._moment_ms is None or moment_ms < self._moment_ms:
            self._moment_ms = moment_ms
            self._earlier.set()

    async def wait(self) -> None:
        """Return when the earliest requested moment has come. All requests are then forgotten.

        So after each return, the waiting task must look for what is due next, and request it.
        """
        while True:
            if self._moment_ms is None:
                await self._earlier.wait()
                continue
            remaining_ms = self._moment_ms - self._now_ms()
            if remaining_ms <= 0:
                self._moment_ms = None
                return
            with trio.move_on_after(remaining_ms / 1000):
                await self._earlier.wait()
