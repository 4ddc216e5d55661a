"""SIGTERM and SIGINT: the first one begins an orderly stop, and later ones do not disturb it.

    signals = StopSignals(seconds, end_now)
    signals.take()                  # from here on, no signal kills the process
    trio.run(...)                   # a task in there: `await signals.wait()`
    signals.ignore()                # the process is about to end by itself

Trio's own receiver is not used, because it raises a signal again that nobody received. So a second SIGTERM would kill
a process that is stopping in good order.
"""

import signal
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from types import FrameType
from typing import Final

import trio

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """The signals that stop this process. Only the main thread may use it."""

    def __init__(self, seconds: float, end: Callable[[], object]) -> None:
        """Nothing happens before `take`.

        Args:
            seconds: how long the event loop may take to notice the first signal.
            end: ends the process. A signal that comes later than that calls it, if the loop still has noticed none.
        """
        self._seconds = seconds
        self._end = end
        self._first: float | None = None
        self._is_noticed = False
        self._wake: Callable[[], None] | None = None

    def take(self) -> None:
        """Receive the signals from now on, until the process ends or `ignore` is called."""
        for each in STOP_SIGNALS:
            signal.signal(each, self._told)

    def ignore(self) -> None:
        """Ignore the signals from now on. Python gives up its handlers some time before the process ends."""
        for each in STOP_SIGNALS:
            signal.signal(each, signal.SIG_IGN)

    async def wait(self) -> None:
        """Wait for the first signal. It returns at once if that has come before."""
        told = trio.Event()
        token = trio.lowlevel.current_trio_token()
        self._wake = lambda: token.run_sync_soon(told.set, idempotent=True)
        if self._first is not None:
            told.set()
        await told.wait()
        self._is_noticed = True

    def _told(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_noticed:
            return
        now = monotonic()
        if self._first is None:
            self._first = now
        elif now - self._first >= self._seconds:
            self._end()
        if self._wake is not None:
            # After the end of the loop nobody waits any more.
            with suppress(trio.RunFinishedError):
                self._wake()
