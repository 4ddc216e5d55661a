"""Stores with realistic bugs. The whole harness must reject each of them."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from storage.metadata.memory import MemoryStore
from storage.metadata.store import Committed, Conflict, IndexHit, MetadataStore, Op, Put, Record
from tests.linearizability.harness import run
from tests.linearizability.subjects import MemorySubject, embedded


class StaleStore(MemoryStore):
    """Answers some reads from a cache that is never invalidated."""

    def __init__(self) -> None:
        super().__init__()
        self._cache: dict[str, Record | None] = {}
        self._reads = 0

    async def get(self, key: str) -> Record | None:
        self._reads += 1
        if self._reads % 20 == 0 and key in self._cache:
            await trio.lowlevel.checkpoint()
            return self._cache[key]
        record = self._cache[key] = await super().get(key)
        return record


class RacyStore(MemoryStore):
    """Compares in one step and sets in another."""

    async def commit(self, ops: Sequence[Op]) -> Committed:
        if len(ops) == 1 and isinstance(put := ops[0], Put) and put.expected is not None:
            record = await self.get(put.key)
            actual = 0 if record is None else record.version
            if actual != put.expected:
                raise Conflict(put.key, put.expected, actual)
            await trio.lowlevel.checkpoint()
            return await super().commit([Put(put.key, put.value, None, put.indexes)])
        return await super().commit(ops)


class LaggingIndexStore(MemoryStore):
    """Answers some index queries from an older state."""

    def __init__(self) -> None:
        super().__init__()
        self._before: dict[tuple[object, ...], list[IndexHit]] = {}

    async def query(
        self, index: str, start: str, end: str, *, limit: int | None = None, after: str = ""
    ) -> list[IndexHit]:
        now = await super().query(index, start, end, limit=limit, after=after)
        asked = index, start, end, limit, after
        before, self._before[asked] = self._before.get(asked, now), now
        return before


class ForgetfulWatchStore(MemoryStore):
    """Fires no watch for one change set in fifty."""

    async def commit(self, ops: Sequence[Op]) -> Committed:
        if (self._image.revision + 1) % 50:
            return await super().commit(ops)
        kept, self._watches._ranges._count = self._watches._ranges._count, 0
        try:
            return await super().commit(ops)
        finally:
            self._watches._ranges._count = kept


@pytest.mark.parametrize("broken", [StaleStore, RacyStore, LaggingIndexStore, ForgetfulWatchStore])
async def test_a_broken_store_is_noticed(broken: type[MetadataStore]) -> None:
    """M2, M8, M9, M14: the clients, watches and judges are those of the real stores."""
    # What a watch forgets it never tells, however long one waits.
    report = await run(MemorySubject(broken()), seed=1, calls=1_500, catch_up_seconds_max=0.2)
    assert report.verdict == "illegal"
    assert report.complaints


async def test_a_store_that_answers_before_it_has_written_is_noticed(tmp_path: Path) -> None:
    """M23: kill -9 shows it."""
    with embedded(tmp_path, "tests.linearizability.hasty_store") as subject:
        report = await run(subject, seed=1, kills=5)
    assert report.verdict == "illegal"
    assert report.complaints
