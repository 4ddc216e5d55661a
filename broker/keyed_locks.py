"""Locks by key: one task at a time holds a key. An unused key takes no memory."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import trio

Key = TypeVar("Key", bound=Hashable)


@dataclass(eq=False, slots=True)
class _Lock:
    lock: trio.Lock = field(default_factory=trio.Lock)
    users: int = 0
    """Tasks that hold the lock or wait for it."""


class KeyedLocks(Generic[Key]):
    """One lock for each key in use. The first user creates it, and the last one removes it."""

    def __init__(self) -> None:
        self._locks: dict[Key, _Lock] = {}

    def __len__(self) -> int:
        """Return the number of keys in use."""
        return len(self._locks)

    @asynccontextmanager
    async def hold(self, key: Key) -> AsyncIterator[None]:
        """Wait for the key's lock, and hold it during the block. Waiters are served in order."""
        entry = self._locks.setdefault(key, _Lock())
        entry.users += 1
        try:
            async with entry.lock:
                yield
        finally:
            entry.users -= 1
            if not entry.users:
                del self._locks[key]


class InterruptibleLocks(KeyedLocks[Key]):
    """Locks that can be seized: whoever holds one gives up its work, and so does everybody who waits before."""

    def __init__(self, interrupted: Callable[[Key], Exception]) -> None:
        """`interrupted` makes the error of a holder that was interrupted."""
        super().__init__()
        self._interrupted = interrupted
        self._holders: dict[Key, trio.CancelScope] = {}
        self._seizing: Counter[Key] = Counter()
        """Tasks that seize the lock or have seized it."""

    @asynccontextmanager
    async def hold(self, key: Key) -> AsyncIterator[None]:
        """As `KeyedLocks`. If another task seizes the lock, the block is cancelled, or not entered.

        Raises:
            Exception: the error of a holder that was interrupted.
        """
        async with super().hold(key):
            if self._seizing[key]:
                raise self._interrupted(key)
            with trio.CancelScope() as scope:
                self._holders[key] = scope
                try:
                    yield
                finally:
                    del self._holders[key]
        if scope.cancelled_caught:
            raise self._interrupted(key)

    @asynccontextmanager
    async def seize(self, key: Key) -> AsyncIterator[None]:
        """Interrupt the holder, and hold the lock during the block. Nobody interrupts the block."""
        self._seizing[key] += 1
        try:
            if key in self._holders:
                self._holders[key].cancel()
            async with super().hold(key):
                yield
        finally:
            self._seizing[key] -= 1
            if not self._seizing[key]:
                del self._seizing[key]
