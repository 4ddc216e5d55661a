"""Watches of keys and ranges, on every store."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from storage.metadata import watches
from storage.metadata.store import Change, Delete, DeleteRange, MetadataStore, Put, PutSequential, starting_with


async def test_a_reader_that_leaves_its_loop_leaves_nothing_to_the_collector(store: MetadataStore) -> None:
    """A reader that fails at a change is no iterator that nobody finished; the next loop goes on behind that change."""
    async with store.watch_range(*starting_with("/")) as watch:
        async for change in watch:
            assert change.records == ()
            break
        await store.put("/a", b"1")
        async for change in watch:
            assert [record.key for record in change.records] == ["/a"]
            break


async def test_a_key_watch_tells_the_newest_state(store: MetadataStore) -> None:
    """M13: it may skip states in between, but never goes back."""
    async with store.watch_key("/a") as watch:
        assert await watch.next() is None
        await store.put("/a", b"1")
        await store.put("/a", b"2")
        record = await watch.next()
        assert record is not None
        assert record.value == b"2"
        told: list[object] = []

        async def follow() -> None:
            told.append(await watch.next())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            await store.put("/other", b"")
            await wait_all_tasks_blocked()
            assert told == []
            await store.delete("/a")
        assert told == [None]
    assert store.statistics().watches == 0


async def test_a_key_made_anew_is_told(store: MetadataStore) -> None:
    """M13: deleted and created again with the same value between two reads is another state."""
    first = await store.put("/a", b"same")
    async with store.watch_key("/a") as watch:
        record = await watch.next()
        assert record is not None
        assert record.version == first
        await store.delete("/a")
        second = await store.put("/a", b"same")
        record = await watch.next()
        assert record is not None
        assert record.version == second


async def test_a_range_watch_lists_and_then_follows(store: MetadataStore) -> None:
    """M14: first the existing records, then each change set in order and complete."""
    await store.put("/r/1", b"")
    await store.put("/s", b"")
    async with store.watch_range("/r/", "/r0") as watch:
        listing = await watch.next()
        assert [record.key for record in listing.records] == ["/r/1"]
        revisions = [
            (await store.commit([Put("/r/3", b""), Put("/r/2", b""), Put("/t", b""), Delete("/r/1")])).revision,
            await store.put("/r/2", b"again"),
        ]
        await store.put("/s", b"")
        await store.commit([DeleteRange("/r/", "/r0")])
        first, second, third = [await watch.next() for _ in range(3)]
    assert [record.key for record in first.records] == ["/r/2", "/r/3"]
    assert first.deleted == ("/r/1",)
    assert [(record.key, record.value) for record in second.records] == [("/r/2", b"again")]
    assert [first.revision, second.revision] == revisions
    assert (third.records, third.deleted) == ((), ("/r/2", "/r/3"))


async def test_a_range_watch_has_no_gap(store: MetadataStore) -> None:
    """M14: the sum of what a watch reports is the store's state, however it was opened among writes."""

    async def write(writer: int) -> None:
        for count in range(30):
            await store.put(f"/r/{writer}/{count % 5}", b"%d" % count)
            if count % 3 == 0:
                await store.delete(f"/r/{writer}/{count % 4}")

    async def follow(patience: int, seen: dict[str, int]) -> None:
        for _ in range(patience):
            await trio.lowlevel.checkpoint()
        last = -1
        async with store.watch_range("/r/", "/r0") as watch:
            async for change in watch:
                assert change.revision > last
                last = change.revision
                seen.update({record.key: record.version for record in change.records})
                for key in change.deleted:
                    del seen[key]

    views: list[dict[str, int]] = [{} for _ in range(20)]
    async with trio.open_nursery() as followers:
        for number, seen in enumerate(views):
            followers.start_soon(follow, number * 3, seen)
        async with trio.open_nursery() as writers:
            for writer in range(3):
                writers.start_soon(write, writer)
        await wait_all_tasks_blocked()
        there = {record.key: record.version for record in await store.scan("/r/", "/r0")}
        followers.cancel_scope.cancel()
    assert there
    assert views == [there] * 20


async def test_watched_ranges_may_overlap(store: MetadataStore) -> None:
    """M14: a change reaches exactly the watches whose range holds the key."""
    ranges = [("a", "z"), ("c", "f"), ("f", "g"), ("", "d"), ("c", "f"), ("d", "d"), ("x", "b")]
    async with trio.open_nursery() as nursery:
        told: dict[int, list[str]] = {number: [] for number in range(len(ranges))}

        async def follow(number: int, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
            with trio.CancelScope() as scope:
                async with store.watch_range(*ranges[number]) as watch:
                    await watch.next()
                    task_status.started(scope)
                    async for change in watch:
                        told[number] += [record.key for record in change.records]

        scopes = [await nursery.start(follow, number) for number in range(len(ranges))]
        open_ranges = set(range(len(ranges)))
        for closing in (None, 1, 0, 3, 5):
            if closing is not None:
                scopes[closing].cancel()
                open_ranges.discard(closing)
                await wait_all_tasks_blocked()
            for key in ("a", "c", "d", "ee", "f", "y", "z"):
                for reader in told.values():
                    reader.clear()
                await store.put(key, b"")
                await wait_all_tasks_blocked()
                expected = {number for number in open_ranges if ranges[number][0] <= key < ranges[number][1]}
                assert {number for number, read in told.items() if read} == expected
        nursery.cancel_scope.cancel()
    assert store.statistics().watches == 0


async def test_a_slow_reader_gets_the_difference(store: MetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """M17: at its bound a range watch replaces its backlog by the exact difference, and blocks nobody."""
    monkeypatch.setattr(watches, "BACKLOG_KEYS_MAX", 10)
    await store.put("/r/changed", b"old")
    await store.put("/r/gone", b"")
    await store.put("/r/remade", b"")
    async with store.watch_range("/r/", "/r0") as watch, store.watch_range("/r/", "/r0") as fast:
        await watch.next()
        await fast.next()
        await store.delete("/r/gone")
        await store.put("/r/changed", b"new")
        await store.delete("/r/remade")
        for number in range(20):
            await store.put(f"/r/passing/{number}", b"")
            await store.delete(f"/r/passing/{number}")
            await fast.next()
            await fast.next()
        await store.put("/r/remade", b"anew")
        last = await store.put("/r/made", b"")
        change = await watch.next()
        assert change.revision == last
        assert [(record.key, record.value) for record in change.records] == [
            ("/r/changed", b"new"),
            ("/r/made", b""),
            ("/r/remade", b"anew"),
        ]
        assert change.deleted == ("/r/gone",)
        # It follows change set by change set again.
        await store.put("/r/1", b"")
        await store.put("/r/2", b"")
        assert [[record.key for record in (await watch.next()).records] for _ in range(2)] == [["/r/1"], ["/r/2"]]


async def test_a_difference_of_nothing_is_not_told(store: MetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """M17: if all skipped changes cancel out, the reader continues to wait."""
    monkeypatch.setattr(watches, "BACKLOG_KEYS_MAX", 2)
    async with store.watch_range("/r/", "/r0") as watch:
        await watch.next()
        for number in range(5):
            await store.put(f"/r/{number}", b"")
            await store.delete(f"/r/{number}")
        told: list[Change] = []

        async def follow() -> None:
            told.append(await watch.next())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            await wait_all_tasks_blocked()
            assert told == []
            await store.put("/r/last", b"")
        assert [record.key for record in told[0].records] == ["/r/last"]


async def test_a_cancelled_reading_loses_nothing(store: MetadataStore) -> None:
    """M14, M13: the next `next` returns what a cancelled one would have returned."""
    async with store.watch_range("/r/", "/r0") as of_range, store.watch_key("/r/1") as of_key:
        with trio.move_on_after(0):
            await of_range.next()
        with trio.move_on_after(0):
            await of_key.next()
        assert (await of_range.next()).records == ()
        assert await of_key.next() is None
        await store.put("/r/1", b"1")
        with trio.CancelScope() as scope:
            scope.cancel()
            await of_range.next()
        with trio.CancelScope() as scope:
            scope.cancel()
            await of_key.next()
        assert [record.value for record in (await of_range.next()).records] == [b"1"]
        record = await of_key.next()
        assert record is not None
        assert record.value == b"1"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(of_range.next)
            nursery.start_soon(of_key.next)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        await store.put("/r/1", b"2")
        assert [record.value for record in (await of_range.next()).records] == [b"2"]


async def test_a_watch_of_a_sequence_tells_its_highest_key(store: MetadataStore) -> None:
    """M16: the range of a sequence's keys is watched like any other; the last reported key is the highest."""
    async with store.watch_range(*starting_with("/op/1-")) as watch:
        await watch.next()
        assigned = [(await store.commit([PutSequential("/op/1", b"", "1")])).keys[0] for _ in range(5)]
        await store.commit([PutSequential("/op/2", b"", "2"), PutSequential("/op/10", b"", "10")])
        told = [record.key for _ in range(5) for record in (await watch.next()).records]
    assert told == assigned == sorted(told)


async def test_a_watch_of_a_sequence_collapses_to_its_highest_key(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M16: a lagging reader gets the highest key at once, even if concurrent puts assigned it."""
    monkeypatch.setattr(watches, "BACKLOG_KEYS_MAX", 3)
    put = PutSequential("/op/1", b"", "1")
    assigned: list[str] = []

    async def write() -> None:
        assigned.extend(key for key in (await store.commit([put, put])).keys if key)

    async with store.watch_range(*starting_with("/op/1-")) as watch:
        await watch.next()
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(write)
        await store.commit([PutSequential("/op/10", b"", "10")])
        await store.delete(min(assigned))
        last = await store.barrier()
        change = await watch.next()
        assert [record.key for record in change.records] == sorted(assigned)[1:]
        assert change.revision == last
        for _ in range(2):
            (following,) = (await store.commit([put])).keys
            assert [record.key for record in (await watch.next()).records] == [following]
            assert following is not None
            assert following > max(assigned)
