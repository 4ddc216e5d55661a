"""A wake-up call that remembers: setting it wakes the one waiting task, now or at its next wait.

Trio's `Event` works once, and its `ParkingLot` forgets a wake-up that comes while no task waits. A task may have to
react to several things: a watermark, permits, a leaving consumer. It gives each of them the same `Signal`, and looks at
all of its state after every wake-up. So no call is lost, and ten calls cost one wake-up.

A `Bell` is for something that any number of tasks follow: each attaches its own `Signal`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import trio


class Signal:
    """Level-triggered. Any number of tasks call `set`, and one task waits."""

    __slots__ = ("_is_set", "_waiter")

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: trio.lowlevel.Task | None = None

    def set(self) -> None:
        """Wake the waiting task, or let its next `wait` return at once. Never blocks; safe to call from any task."""
        if self._waiter is not None:
            trio.lowlevel.reschedule(self._waiter)
            self._waiter = None
        else:
            self._is_set = True

    async def wait(self) -> None:
        """Return once the signal was set since the last return. A cancelled wait consumes nothing."""
        if self._waiter is not None:
            raise trio.BusyResourceError("another task waits on this signal")
        if self._is_set:
            # A checkpoint keeps the scheduler fair. The flag is cleared only after it, so a cancellation loses no call.
            await trio.lowlevel.checkpoint()
            self._is_set = False
            return
        self._waiter = trio.lowlevel.current_task()
        # A method, not a closure: thousands of tasks wait here, and each would keep its closure in memory.
        await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._waiter = None
        return trio.lowlevel.Abort.SUCCEEDED


class Bell:
    """Sets every attached signal. With none attached, a ring costs about as much as a call."""

    __slots__ = ("_attached",)

    def __init__(self) -> None:
        self._attached: tuple[Signal, ...] = ()

    def set(self) -> None:
        """Set every attached signal. Never blocks."""
        for signal in self._attached:
            signal.set()

    @property
    def is_quiet(self) -> bool:
        """Whether no signal is attached."""
        return not self._attached

    @contextmanager
    def attached(self, signal: Signal) -> Iterator[None]:
        """Set `signal` at every ring while the context is open."""
        self._attached = (*self._attached, signal)
        try:
            yield
        finally:
            self._attached = tuple(each for each in self._attached if each is not signal)
