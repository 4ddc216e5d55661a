"""How tasks wake one another: a signal that stays set, a change that all may wait for, and bounded room.

anyio's `Event` is one-shot. Each class here makes one only when a task actually waits, because messages pass far more
often than a task has to wait.
"""

from collections import deque
from typing import Final

import anyio
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled


class Signal:
    """Level-triggered: many tasks call `set`, one waits. No call is lost, and several calls wake it once."""

    __slots__ = ("_is_set", "_waiter")

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: anyio.Event | None = None

    def set(self) -> None:
        """Wake the waiting task, or let its next `wait` return at once."""
        if not self._is_set:
            self._is_set = True
            if self._waiter is not None:
                self._waiter.set()

    async def wait(self) -> None:
        """Return once it was set since the last return. A cancelled wait consumes nothing."""
        assert self._waiter is None, "a signal wakes one task"
        if self._is_set:
            await checkpoint()
        else:
            self._waiter = anyio.Event()
            try:
                await self._waiter.wait()
            finally:
                self._waiter = None
        self._is_set = False


class Changes:
    """Edge-triggered: `notify` wakes all tasks that wait at that moment.

    Check the state, `wait` if it is not what you need, check again. Do not await anything between check and wait.
    """

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    def notify(self) -> None:
        """Wake all who wait now."""
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self) -> None:
        """Return at the next `notify`."""
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()


class Fairness:
    """Makes a call that rarely has to wait a cheap checkpoint.

    Each call notices cancellation. Every `EVERY`th call lets other tasks run, so that a loop over a full queue, or one
    that fills an empty queue, starves no task.
    """

    EVERY: Final = 64

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls = 0

    async def checkpoint(self) -> None:
        """Notice cancellation; every `EVERY`th time let others run."""
        self._calls += 1
        if self._calls % self.EVERY:
            await checkpoint_if_cancelled()
        else:
            await checkpoint()


class _Waiter:
    __slots__ = ("event", "granted", "size")

    def __init__(self, size: int) -> None:
        self.event = anyio.Event()
        self.granted = False
        self.size = size


class Room:
    """A bound on outstanding messages and bytes. Further messages wait their turn, first come, first served.

    A message larger than the whole room gets in when the room is empty, so it does not wait indefinitely.
    """

    __slots__ = ("_bytes", "_bytes_max", "_fairness", "_messages", "_messages_max", "_waiters")

    def __init__(self, *, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._messages = 0
        self._bytes = 0
        self._waiters: deque[_Waiter] = deque()
        self._fairness = Fairness()

    @property
    def messages(self) -> int:
        """Outstanding messages."""
        return self._messages

    @property
    def bytes(self) -> int:
        """Outstanding bytes."""
        return self._bytes

    def _fits(self, size: int) -> bool:
        return self._messages == 0 or (self._messages < self._messages_max and self._bytes + size <= self._bytes_max)

    async def take(self, size: int) -> None:
        """Return when a message of `size` bytes has got room. A cancelled call takes no room."""
        if not self._waiters and self._fits(size):
            await self._fairness.checkpoint()
            # Other tasks may have taken the room during the checkpoint.
            if not self._waiters and self._fits(size):
                self._messages += 1
                self._bytes += size
                return
        waiter = _Waiter(size)
        self._waiters.append(waiter)
        try:
            await waiter.event.wait()
        except BaseException:
            if waiter.granted:
                self.give_back(1, size)
            else:
                self._waiters.remove(waiter)
                self._grant()
            raise

    def give_back(self, messages: int, size: int) -> None:
        """Give back the room of that many messages of `size` bytes together."""
        self._messages -= messages
        self._bytes -= size
        assert self._messages >= 0, "more left than came in"
        assert self._bytes >= 0, "more left than came in"
        if self._waiters:
            self._grant()

    def _grant(self) -> None:
        while self._waiters and self._fits(self._waiters[0].size):
            waiter = self._waiters.popleft()
            waiter.granted = True
            self._messages += 1
            self._bytes += waiter.size
            waiter.event.set()
