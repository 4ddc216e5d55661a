"""A range watch of many keys: the reports add up to the image, and no single step does all the work."""

from collections.abc import Callable

import pytest
import trio
from hypothesis import strategies as st

from storage.metadata import image_store, watches
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Change, Delete, DeleteRange, Op, Put, RangeWatch, Record
from storage.metadata.table import RecordTable
from storage.metadata.watches import ImageRangeWatch
from tests.support.schedules import every_schedule

AT_ONCE = 4
BACKLOG = 8
RANGE = ("/k/", "/k0")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (image_store, watches):
        monkeypatch.setattr(module, "KEYS_AT_ONCE", AT_ONCE)
    monkeypatch.setattr(watches, "BACKLOG_KEYS_MAX", BACKLOG)


NUMBERS = st.lists(st.integers(0, 29), max_size=20, unique=True)
CHANGE_SETS: st.SearchStrategy[list[Op]] = st.one_of(
    NUMBERS.map(lambda numbers: [Put(f"/k/{number:02}", b"") for number in numbers]),
    NUMBERS.map(lambda numbers: [Delete(f"/k/{number:02}") for number in numbers]),
    NUMBERS.map(lambda numbers: [DeleteRange(f"/k/{number:02}", f"/k/{number + 1:02}") for number in numbers]),
    st.just([DeleteRange(*RANGE)]),
)


def follow(seen: dict[str, Record], change: Change) -> None:
    """Apply the reports to a reader's state."""
    assert [record.key for record in change.records] == sorted(record.key for record in change.records)
    assert list(change.deleted) == sorted(change.deleted)
    for record in change.records:
        seen[record.key] = record
    for key in change.deleted:
        assert key in seen, "only what was there is told to be gone"
        del seen[key]


@every_schedule(change_sets=st.lists(CHANGE_SETS, max_size=8), patience=st.integers(1, 30))
async def test_what_is_told_adds_up(change_sets: list[list[Op]], patience: int) -> None:
    """M13, M14, M17: from the first listing on, with any slow reader and any cancellations."""
    store = MemoryStore()
    await store.commit([Put(f"/k/{number:02}", b"first") for number in range(0, 30, 2)])

    async def write() -> None:
        for ops in change_sets:
            await store.commit(ops)

    async with trio.open_nursery() as nursery, store.watch_range(*RANGE) as watch:
        nursery.start_soon(write)
        seen: dict[str, Record] = {}
        revision = 0
        last = len(change_sets) + 1
        while True:
            change = await told(watch, patience)
            patience += 1
            if change is None:
                if not nursery.child_tasks and seen == {r.key: r for r in await store.scan(*RANGE)}:
                    break
                assert patience < 300
                continue
            assert revision < change.revision <= last
            revision = change.revision
            follow(seen, change)


async def told(watch: RangeWatch, patience: int) -> Change | None:
    """Return what the watch reports within this many turns of the scheduler."""
    change: Change | None = None

    async def read() -> None:
        nonlocal change
        change = await watch.next()
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        for _ in range(patience):
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    return change


async def test_what_is_not_folded_stays_bounded() -> None:
    """M17, E7: a reader that never reads costs what its range holds; no step merges more than twice what it adds."""
    store = MemoryStore()
    size = 20
    async with store.watch_range(*RANGE) as watch:
        assert isinstance(watch, ImageRangeWatch)
        await watch.next()
        for _ in range(50):
            await store.commit([Put(f"/k/{number}", b"") for number in range(size)])
            assert len(watch._unfolded) <= 2 * size + BACKLOG
        assert watch._unfolded


@pytest.mark.parametrize("work", ["listing", "order", "difference"])
async def test_no_step_does_all_of_it(monkeypatch: pytest.MonkeyPatch, work: str) -> None:
    """E7: listing many records, sorting many changes, and merging many change sets."""
    in_this_step = longest = total = 0

    def counted(plain: Callable[..., object], size: Callable[..., int]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            nonlocal in_this_step, longest, total
            in_this_step += size(*arguments)
            total += size(*arguments)
            longest = max(longest, in_this_step)
            return plain(*arguments, **named)

        return call

    class Steps(trio.abc.Instrument):
        def after_task_step(self, task: trio.lowlevel.Task) -> None:
            nonlocal in_this_step
            in_this_step = 0

    store = MemoryStore()
    count = 40
    puts = [Put(f"/k/{number:02}", b"") for number in range(count)]
    if work == "listing":
        await store.commit(puts)
    async with store.watch_range(*RANGE) as watch:
        if work == "listing":
            monkeypatch.setattr(RecordTable, "get", counted(RecordTable.get, lambda *_: 1))
        else:
            await watch.next()
            await store.commit(puts)
            if work == "difference":
                await store.commit(puts[:1])
                fold = ImageRangeWatch.fold
                monkeypatch.setattr(
                    ImageRangeWatch, "fold", counted(fold, lambda reader, most: min(most, len(reader._unfolded)))
                )
            else:
                monkeypatch.setattr(watches, "_split", counted(watches._split, len))
        trio.lowlevel.add_instrument(steps := Steps())
        change = await watch.next()
        trio.lowlevel.remove_instrument(steps)
    assert [record.key for record in change.records] == [put.key for put in puts]
    assert longest == AT_ONCE
    assert total >= count


async def test_a_cancelled_listing_begins_anew() -> None:
    """M14: it has taken nothing, and later changes are reported once."""
    store = MemoryStore()
    await store.commit([Put(f"/k/{number:02}", b"") for number in range(40)])
    async with store.watch_range(*RANGE) as watch:
        assert await told(watch, 3) is None
        assert store.statistics().watches == 0
        await store.put("/k/x", b"")
        listed = await watch.next()
        assert (listed.revision, len(listed.records)) == (2, 41)
        assert await told(watch, 100) is None
