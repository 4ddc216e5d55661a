"""Stores that break one promise each. The suite's own tests must fail for them, so no weak test counts as a promise.

Each is the memory store with one bug. A test of the suite is called with it, and must fail.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest

from storage.metadata.memory import MemoryStore
from storage.metadata.store import Change, Committed, DeleteRange, MetadataStore, Op, Put, PutSequential
from storage.metadata.watches import ImageRangeWatch
from tests.storage.metadata.conformance import test_sequences as sequences
from tests.storage.metadata.conformance import test_watches as watching


class WidensRanges(MemoryStore):
    """A range deletion includes partitions whose keys begin like the given one."""

    async def commit(self, ops: Sequence[Op]) -> Committed:
        return await super().commit(
            [replace(op, end=op.start[:-1] + "~") if isinstance(op, DeleteRange) else op for op in ops]
        )


class LeavesOneOfARange(MemoryStore):
    """It does not delete the first record of a range."""

    async def commit(self, ops: Sequence[Op]) -> Committed:
        shortened: list[Op] = []
        for op in ops:
            found = await self.scan(op.start, op.end) if isinstance(op, DeleteRange) else []
            shortened.append(DeleteRange(found[1].key, found[-1].key + "~") if found else op)
        return await super().commit(shortened)


class ForgetsPartitions(MemoryStore):
    """It puts every record of a sequence in one partition."""

    async def commit(self, ops: Sequence[Op]) -> Committed:
        return await super().commit(
            [replace(op, partition_key="7") if isinstance(op, PutSequential) else op for op in ops]
        )


class KeepsPartitions(MemoryStore):
    """It leaves a record in the partition of its first write."""

    async def commit(self, ops: Sequence[Op]) -> Committed:
        kept: list[Op] = []
        for op in ops:
            if isinstance(op, Put) and (before := self.peek(op.key)) is not None:
                kept.append(replace(op, partition_key=before.partition_key))
            else:
                kept.append(op)
        return await super().commit(kept)


class TakesNoPartition(MemoryStore):
    """It accepts a sequential put without a partition key."""

    async def commit(self, ops: Sequence[Op]) -> Committed:
        return await super().commit(
            [replace(op, partition_key=op.partition_key or "?") if isinstance(op, PutSequential) else op for op in ops]
        )


class WritesBeforeItRefuses(MemoryStore):
    """It detects a refused operation only in the middle of the change set."""

    async def commit(self, ops: Sequence[Op]) -> Committed:
        done = [await super(WritesBeforeItRefuses, self).commit([op]) for op in ops]
        return Committed(done[-1].revision, tuple(key for each in done for key in each.keys))


class CountsBeforeItRefuses(MemoryStore):
    """It uses a number of the sequence for a refused put, and writes nothing else."""

    async def commit(self, ops: Sequence[Op]) -> Committed:
        if any(isinstance(op, PutSequential) and not op.partition_key for op in ops):
            (key,) = (await super().commit([PutSequential("/op/1", b"", "?")])).keys
            assert key is not None
            await super().delete(key)
        return await super().commit(ops)


class _HalfTold(ImageRangeWatch):
    async def next(self) -> Change:
        change = await super().next()
        return replace(change, records=change.records[:-1] if len(change.records) > 1 else change.records)


class CollapsesToLess(MemoryStore):
    """It omits the highest key from a difference."""

    def watch_range(self, start: str, end: str) -> ImageRangeWatch:
        return _HalfTold(self._watches, self._image, start, end)


class _Backwards(ImageRangeWatch):
    async def next(self) -> Change:
        change = await super().next()
        return replace(change, records=change.records[::-1])


class CollapsesBackwards(MemoryStore):
    """It reports the highest key first."""

    def watch_range(self, start: str, end: str) -> ImageRangeWatch:
        return _Backwards(self._watches, self._image, start, end)


class WatchesSiblings(MemoryStore):
    """It also reports other sequences whose prefix begins like the watched one."""

    def watch_range(self, start: str, end: str) -> ImageRangeWatch:
        return ImageRangeWatch(self._watches, self._image, start, start[:-1] + "~")


async def _refused(store: MetadataStore) -> None:
    await sequences.test_a_sequential_put_is_refused_before_anything_is_written(store, sequences.REFUSED[0])


async def _collapses(store: MetadataStore) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        await watching.test_a_watch_of_a_sequence_collapses_to_its_highest_key(store, monkeypatch)


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (WidensRanges, sequences.test_the_records_of_a_partition_go_by_one_range),
        (LeavesOneOfARange, sequences.test_the_records_of_a_partition_go_by_one_range),
        (ForgetsPartitions, sequences.test_the_records_of_a_partition_go_by_one_range),
        (KeepsPartitions, sequences.test_every_reading_tells_the_partition_key),
        (TakesNoPartition, _refused),
        (WritesBeforeItRefuses, _refused),
        (CountsBeforeItRefuses, _refused),
        (CollapsesToLess, _collapses),
        (CollapsesBackwards, _collapses),
        (WatchesSiblings, _collapses),
    ],
)
async def test_a_broken_store_fails_the_suite(
    broken: Callable[[], MetadataStore], test: Callable[[MetadataStore], Awaitable[None]]
) -> None:
    """M4, M6, M16: the test of the broken promise fails, and passes with a correct store."""
    await test(MemoryStore())
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        await test(broken())
