"""Counts named events. A task can wait for the nth occurrence from now, so a test can act at a chosen moment."""

from collections import Counter

import trio


class Happenings:
    """Counts of events, by name."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
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
