"""Locks by key: one task at a time holds a key. An unused key takes no memory."""

from collections.abc import AsyncIterator, Hashable
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
