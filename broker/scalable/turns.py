"""Taking turns by key: one task at a time for each key, and nothing is remembered of keys that nobody uses."""

from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import trio

Key = TypeVar("Key", bound=Hashable)


@dataclass(eq=False, slots=True)
class _Turn:
    lock: trio.Lock = field(default_factory=trio.Lock)
    users: int = 0
    """Tasks that hold the lock or wait for it."""


class Turns(Generic[Key]):
    """Locks by key, made for the first who asks and dropped with the last."""

    def __init__(self) -> None:
        self._turns: dict[Key, _Turn] = {}

    def __len__(self) -> int:
        """Keys in use."""
        return len(self._turns)

    @asynccontextmanager
    async def of(self, key: Key) -> AsyncIterator[None]:
        """Wait for the key's turn and hold it in the block; first come, first served."""
        turn = self._turns.setdefault(key, _Turn())
        turn.users += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[key]
