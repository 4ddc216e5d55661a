"""Readers of watches that record the reports, over all deaths of the store's process.

A watcher opens its watch, reads it until the process dies, and opens it again; each time a new sitting begins. If the
store's clients outlive the process, there is one sitting.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import trio

from storage.metadata.store import Change, MetadataStore, Record
from tests.linearizability.histories import Seen


class Step(NamedTuple):
    """The result of one `next` of a range watch."""

    revision: int
    records: tuple[Seen, ...] = ()
    deleted: tuple[str, ...] = ()

    @classmethod
    def of(cls, change: Change) -> "Step":
        """Return the judged part of a change."""
        return cls(change.revision, tuple(Seen.of(record) for record in change.records), change.deleted)


@dataclass(slots=True)
class RangeReading:
    """All reports to one reader of a range."""

    start: str
    end: str
    sittings: list[list[Step]] = field(default_factory=list)
    is_slow: bool = False
    """Whether the reader pauses between reports, so that those of a long run may be merged."""


@dataclass(slots=True)
class KeyReading:
    """All reports to one reader of a key."""

    key: str
    sittings: list[list[Seen | None]] = field(default_factory=list)


class RangeWatcher:
    """Follows a range. `pause` is awaited before each step but the first of a sitting, for a slow reader."""

    def __init__(self, start: str, end: str, pause: Callable[[], Awaitable[None]] | None = None) -> None:
        self.reading = RangeReading(start, end, is_slow=pause is not None)
        self.state: dict[str, Seen] = {}
        """What it believes to be there now."""
        self._pause = pause
        self._changed = trio.Event()

    async def follow(self, store: MetadataStore) -> None:
        """Read until the store is unavailable."""
        async with store.watch_range(self.reading.start, self.reading.end) as watch:
            steps: list[Step] = []
            self.reading.sittings.append(steps)
            while True:
                step = Step.of(await watch.next())
                if not steps:
                    self.state = {}
                steps.append(step)
                self.state |= {seen.key: seen for seen in step.records}
                for key in step.deleted:
                    self.state.pop(key, None)
                self._tell()
                if self._pause is not None:
                    await self._pause()

    async def wait_for(self, records: dict[str, Seen]) -> None:
        """Wait until it has seen that exactly these records are there."""
        while self.state != records:
            await self._changed.wait()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


class KeyWatcher:
    """Follows one key."""

    def __init__(self, key: str) -> None:
        self.reading = KeyReading(key)
        self.now: Seen | None = None
        self._changed = trio.Event()

    async def follow(self, store: MetadataStore) -> None:
        """Read until the store is unavailable."""
        async with store.watch_key(self.reading.key) as watch:
            states: list[Seen | None] = []
            self.reading.sittings.append(states)
            while True:
                record: Record | None = await watch.next()
                self.now = None if record is None else Seen.of(record)
                states.append(self.now)
                self._changed.set()
                self._changed = trio.Event()

    async def wait_for(self, seen: Seen | None) -> None:
        """Wait until it has seen this state of the key."""
        while self.now != seen:
            await self._changed.wait()
