"""The steps of a copier: it may die or stop in a chosen one, and none may take too long.

A copier says before each call what it is about to do. So a death can hit each step of the protocol, between two calls
or some time after one began.
"""

import faulthandler
import os
import signal
import threading
from collections import Counter
from random import Random
from typing import Final, NamedTuple

STEP_SECONDS_MAX: Final = 120.0
"""After this time a client hangs. Each call has a time-out of less. The broker is away for some seconds at most, or for
longer on a machine that is very busy."""

INIT: Final = "init"
POLL: Final = "poll"
BEGIN: Final = "begin"
SEND: Final = "send"
OFFSETS: Final = "offsets"
COMMIT: Final = "commit"
ABORT: Final = "abort"
REWIND: Final = "rewind"
STEPS: Final = (INIT, POLL, BEGIN, SEND, OFFSETS, COMMIT, ABORT, REWIND)


class Death(NamedTuple):
    """When a copier ends."""

    step: str
    nth: int
    """Of its life; the first is 1."""
    delay_seconds: float
    """From the beginning of the step; 0 means before it."""
    is_pause: bool
    """It stops (SIGSTOP) instead, and may be continued when it has an heir."""

    def __str__(self) -> str:
        what = "stops" if self.is_pause else "dies"
        return f"{what} {self.delay_seconds * 1000:.2f} ms after {self.step} {self.nth} begins"


class Steps:
    """See the module's docstring."""

    def __init__(self, death: Death | None, random: Random) -> None:
        self.random = random
        """Of this life: how many records a transaction takes, and which is aborted."""
        self._death = death
        self._counts: Counter[str] = Counter()

    def begin(self, step: str) -> None:
        """Begin a step. The one before has ended.

        A step that takes too long ends the process with status 1. Its stack is then on standard error.
        """
        faulthandler.dump_traceback_later(STEP_SECONDS_MAX, exit=True)
        self._counts[step] += 1
        death = self._death
        if death is None or (death.step, death.nth) != (step, self._counts[step]):
            return
        number = signal.SIGSTOP if death.is_pause else signal.SIGKILL
        if death.delay_seconds:
            threading.Timer(death.delay_seconds, os.kill, (os.getpid(), number)).start()
        else:
            os.kill(os.getpid(), number)
