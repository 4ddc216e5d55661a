"""Counts named events. A task can wait for the nth occurrence from now, so a test can act at a chosen moment.

It also knows how long each kind of call took at most.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import trio


class Happenings:
    """Counts of events, and the longest calls, by name."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.longest_seconds: dict[str, float] = {}
        """By the name of a call. Those that were given up count too."""
        self._waiting: dict[str, list[tuple[int, trio.Event]]] = {}

    def note(self, name: str) -> None:
        """Count one more occurrence."""
        self.counts[name] += 1
        waiting = self._waiting.get(name)
        if waiting:
            for count, event in waiting:
                if count <= self.counts[name]:
                    event.set()

    async def nth(self, name: str, more: int) -> None:
        """Wait until the event has happened `more` times since this call."""
        ticket = (self.counts[name] + more, trio.Event())
        waiting = self._waiting.setdefault(name, [])
        waiting.append(ticket)
        try:
            await ticket[1].wait()
        finally:
            waiting.remove(ticket)

    @contextmanager
    def timed(self, call: str) -> Iterator[None]:
        """Note how long the block takes."""
        begun = trio.current_time()
        try:
            yield
        finally:
            took = trio.current_time() - begun
            self.longest_seconds[call] = max(took, self.longest_seconds.get(call, 0.0))
