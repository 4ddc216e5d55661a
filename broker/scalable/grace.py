"""Grace periods for absent consumers: one timer for all of them, and none while nobody is absent."""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import trio

Key = TypeVar("Key", bound=Hashable)


class GracePeriods(Generic[Key]):
    """Periods of one length, each for one absent key."""

    def __init__(self, seconds: float, expired: Callable[[Key], None], nursery: trio.Nursery) -> None:
        """Set up.

        Args:
            seconds: the length of each period.
            expired: called with a key whose period has expired. It must not block.
            nursery: runs the timer.
        """
        self.seconds = seconds
        self._expired = expired
        self._nursery = nursery
        # All periods have the same length, so the oldest one expires first.
        self._until: dict[Key, float] = {}
        self._timer: trio.CancelScope | None = None

    def __len__(self) -> int:
        """Return the number of running periods."""
        return len(self._until)

    def begin(self, key: Key) -> None:
        """Begin a period for the key. Restart it if one is running."""
        self.end(key)
        self._until[key] = trio.current_time() + self.seconds
        if self._timer is None:
            self._timer = trio.CancelScope()
            self._nursery.start_soon(self._run, self._timer)

    def end(self, key: Key) -> None:
        """End the key's period, because it is back or no longer needed. Does nothing if none is running."""
        self._until.pop(key, None)
        if not self._until and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _run(self, timer: trio.CancelScope) -> None:
        with timer:
            while self._timer is timer:
                await trio.sleep_until(next(iter(self._until.values())))
                now = trio.current_time()
                for key, until in list(self._until.items()):
                    if until <= now and key in self._until:
                        self.end(key)
                        self._expired(key)
