"""Counts what happens, by name, and lets a task wait for the nth time from now: how a test acts at a chosen moment."""

from collections import Counter

import trio


class Happenings:
    """What has happened how often."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._waiting: dict[str, list[tuple[int, trio.Event]]] = {}

    def note(self, name: str) -> None:
        """It has happened once more."""
        self.counts[name] += 1
        waiting = self._waiting.get(name)
        if waiting:
            for count, event in waiting:
                if count <= self.counts[name]:
                    event.set()

    async def nth(self, name: str, more: int) -> None:
        """Return when it has happened `more` times since this call."""
        ticket = (self.counts[name] + more, trio.Event())
        waiting = self._waiting.setdefault(name, [])
        waiting.append(ticket)
        try:
            await ticket[1].wait()
        finally:
            waiting.remove(ticket)
