"""One suite for every metadata store: which one is chosen changes only speed (M20, M21)."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from storage.metadata import records, watches
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.memory import MemoryStore
from storage.metadata.store import (
    ABSENT,
    Change,
    ChangeSetTooLarge,
    Check,
    Conflict,
    Delete,
    DeleteRange,
    IndexEntry,
    InvalidOperation,
    MetadataStore,
    Op,
    Put,
    PutSequential,
    SessionLost,
    exactly,
    starting_with,
)
from tests.support.disk import SimulatedFiles


@pytest.fixture(params=["memory", "embedded"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[MetadataStore]:
    if request.param == "memory":
        yield MemoryStore()
    else:
        async with EmbeddedStore.open(SimulatedFiles(), Path("/data")) as embedded:
            yield embedded


async def keys(store: MetadataStore, start: str = "", end: str = "\U0010ffff") -> list[str]:
    return [record.key for record in await store.scan(start, end)]


async def hits(store: MetadataStore, index: str, start: str = "", end: str = "\U0010ffff") -> list[tuple[str, str]]:
    return [(hit.index_key, hit.record.key) for hit in await store.query(index, start, end)]


# -- records and versions


async def test_a_record_is_read_with_its_version(store: MetadataStore) -> None:
    """M1: get returns value and version, or absent; what does not exist is named by ABSENT."""
    assert await store.get("/a") is None
    version = await store.put("/a", b"1", expected=ABSENT, partition_key="p")
    record = await store.get("/a")
    assert record is not None
    assert (record.key, record.value, record.version, record.partition_key) == ("/a", b"1", version, "p")
    assert store.peek("/a") == record
    with pytest.raises(Conflict) as caught:
        await store.put("/a", b"2", expected=ABSENT)
    assert (caught.value.key, caught.value.expected, caught.value.actual) == ("/a", ABSENT, version)
    assert await store.get("/a") == record


@pytest.mark.parametrize("wrong", [Put("/a", b"2", 77), Delete("/a", 77), Delete("/no", 77), Check("/a", ABSENT)])
async def test_an_expectation_that_does_not_hold_changes_nothing(store: MetadataStore, wrong: Op) -> None:
    """M1: put, delete and check compare the version; a mismatch is a conflict and all or nothing."""
    await store.commit([Put("/a", b"1"), Put("/x", b"")])
    before = await store.scan("", "~")
    with pytest.raises(Conflict):
        await store.commit([Put("/b", b""), wrong, DeleteRange("/x", "/y")])
    assert await store.scan("", "~") == before
    assert await store.barrier() == before[0].version


async def test_conditions_are_judged_before_the_change_set(store: MetadataStore) -> None:
    """M1: a change set's own writes do not fulfil nor break its conditions."""
    version = await store.put("/a", b"1")
    await store.commit([Put("/b", b"", ABSENT), DeleteRange("/a", "/aa"), Check("/a", version)])
    assert await keys(store) == ["/b"]


async def test_of_many_writers_from_one_version_one_wins(store: MetadataStore) -> None:
    """M2: concurrent writes expecting the same version: exactly one is made."""
    version = await store.put("/a", b"")
    won: list[int] = []
    lost: list[int] = []

    async def write(writer: int) -> None:
        try:
            await store.put("/a", b"%d" % writer, expected=version)
            won.append(writer)
        except Conflict:
            lost.append(writer)

    async with trio.open_nursery() as nursery:
        for writer in range(20):
            nursery.start_soon(write, writer)
    assert len(won) == 1
    assert len(lost) == 19
    record = await store.get("/a")
    assert record is not None
    assert record.value == b"%d" % won[0]


async def test_versions_rise_over_deletion(store: MetadataStore) -> None:
    """M3: a record that was deleted and made again never shows an old version."""
    versions = []
    for _ in range(3):
        versions.append(await store.put("/a", b"same"))
        versions.append(await store.put("/a", b"same"))
        await store.delete("/a")
    assert versions == sorted(set(versions))


async def test_a_change_set_is_one_revision(store: MetadataStore) -> None:
    """M3: all that a change set writes has its revision; one that changes nothing takes none."""
    await store.put("/x", b"")
    done = await store.commit([Put("/a", b""), Put("/b", b""), Delete("/x"), Delete("/never"), Check("/y", ABSENT)])
    assert done.keys == ("/a", "/b", None, None, None)
    assert [record.version for record in await store.scan("", "~")] == [done.revision] * 2
    nothing = await store.commit([Delete("/never"), DeleteRange("/m", "/z"), Check("/a", done.revision)])
    assert nothing.revision == done.revision
    assert (await store.commit([])).revision == done.revision


async def test_the_caller_may_change_its_list_afterwards(store: MetadataStore) -> None:
    """M1: a change set is what it was when it was handed over."""
    for _ in range(10):
        ops: list[Op] = [Put("/a", b"")]
        with trio.move_on_after(0):
            await store.commit(ops)
        ops.append(Put("/b", b""))
        await store.commit([])
    assert "/b" not in await keys(store)


@pytest.mark.parametrize(
    "ops",
    [
        [Put("", b"")],
        [Put("\ud800", b"")],
        [Put("/" + "k" * records.KEY_BYTES_MAX, b"")],
        [Put("/a", b"", indexes=(IndexEntry("", "k"),))],
        [Put("/a", b"", partition_key="")],
        [PutSequential("", b"", "p")],
        [Put("/a", b""), Delete("/a")],
        [Check("/a", ABSENT), Put("/a", b"")],
        [Put("/a", b""), DeleteRange("/a", "/b")],
        [DeleteRange("/a", "/b"), PutSequential("/a/1", b"", "p")],
    ],
)
async def test_a_call_that_breaks_the_contract_is_refused(store: MetadataStore, ops: list[Op]) -> None:
    """M1, M11: keys are texts of bounded length, and each stands in a change set once."""
    with pytest.raises(InvalidOperation):
        await store.commit([Put("/good", b""), *ops])
    assert await store.barrier() == 0


# -- sequential puts


async def test_sequential_puts_rise(store: MetadataStore) -> None:
    """M5: the store assigns the suffix; concurrent puts get distinct keys, and a later put a higher one."""
    assigned: list[str | None] = []

    async def put(value: bytes) -> None:
        done = await store.commit([PutSequential("/op/1", value, "1"), PutSequential("/op/1", value, "1")])
        assigned.extend(done.keys)

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(put, b"x")
    assert len(set(assigned)) == 20
    assert await keys(store) == sorted(key for key in assigned if key)
    done = await store.commit([PutSequential("/op/1", b"", "1")])
    (last,) = done.keys
    assert last is not None
    assert last > max(key for key in assigned if key)
    prefix, digits = last.split("-")
    assert (prefix, len(digits), digits.isdecimal()) == ("/op/1", 20, True)


async def test_a_sequential_suffix_is_never_used_again(store: MetadataStore) -> None:
    """M7: the counter does not go back when everything under the prefix is deleted."""
    first = (await store.commit([PutSequential("/op/1", b"", "1")])).keys[0]
    await store.commit([DeleteRange(*starting_with("/op/1"))])
    second = (await store.commit([PutSequential("/op/1", b"", "1")])).keys[0]
    assert first is not None
    assert second is not None
    assert first < second


async def test_a_sequential_put_never_replaces_a_record(store: MetadataStore) -> None:
    """M5: it writes a new record even where somebody has written the next names by hand."""
    done = await store.commit([PutSequential("/op/1", b"", "1")])
    assert done.keys[0] is not None
    number = int(done.keys[0].split("-")[1])
    taken = {f"/op/1-{number + ahead:020}" for ahead in range(1, 4)}
    for key in taken:
        await store.put(key, b"mine")
    (assigned,) = (await store.commit([PutSequential("/op/1", b"theirs", "1")])).keys
    assert assigned not in taken
    for key in taken:
        record = await store.get(key)
        assert record is not None
        assert record.value == b"mine"


async def test_a_sequential_put_needs_a_partition_key(store: MetadataStore) -> None:
    """M6: refused before anything is written."""
    with pytest.raises(InvalidOperation):
        await store.commit([Put("/a", b""), PutSequential("/op/1", b"", "")])
    assert await store.barrier() == 0


async def test_the_records_of_a_partition_go_by_one_range(store: MetadataStore) -> None:
    """M4: what shares a partition key is listed and deleted by its key range."""
    await store.commit([Put("/txn/id/7", b"", partition_key="7"), PutSequential("/txn/op/7", b"", "7")])
    await store.commit([PutSequential("/txn/op/7", b"", "7"), PutSequential("/txn/op/8", b"", "8")])
    start, end = starting_with("/txn/op/7-")
    found = await store.scan(start, end)
    assert [record.partition_key for record in found] == ["7", "7"]
    await store.commit([DeleteRange(start, end)])
    assert [record.partition_key for record in await store.scan("/txn/op/", "/txn/op0")] == ["8"]


# -- order, ranges, indexes

ODD_KEYS = [
    "/",
    "/a",
    "/a\0",
    "/a\x01",
    "/a\x01b",
    "/a/b",
    "/ab",
    "/é",
    "/\uffff",
    "/\U00010000",
    "a/b/c",
    "\x7f",
    "\x80",
]


async def test_keys_are_ordered_by_their_bytes(store: MetadataStore) -> None:
    """M11: also with slashes, control characters, and beyond the sixteen-bit code points."""
    for key in reversed(ODD_KEYS):
        await store.put(key, b"", indexes=(IndexEntry("odd", key),))
    in_order = sorted(ODD_KEYS, key=str.encode)
    assert await keys(store) == in_order
    assert await hits(store, "odd") == [(key, key) for key in in_order]
    for key in ODD_KEYS:
        assert await keys(store, *exactly(key)) == [key]
        assert await hits(store, "odd", *exactly(key)) == [(key, key)]
        assert await keys(store, *starting_with(key)) == [other for other in in_order if other.startswith(key)]


async def test_a_range_includes_its_start_and_excludes_its_end(store: MetadataStore) -> None:
    """M9: [start, end), at most `limit`; an empty or reversed range holds nothing."""
    for key in "abcd":
        await store.put(key, b"")
    assert await keys(store, "b", "d") == ["b", "c"]
    assert await keys(store, "b", "b") == await keys(store, "d", "b") == []
    assert [record.key for record in await store.scan("a", "z", limit=2)] == ["a", "b"]
    assert await store.scan("a", "z", limit=0) == []


async def test_an_index_is_queried_by_key_and_range(store: MetadataStore) -> None:
    """M9: exact, range and prefix, in order of index key and primary key, with a limit."""
    for key, index_keys in {"/3": ("b", "a"), "/1": ("b",), "/2": ("ba", "c")}.items():
        await store.put(key, key.encode(), indexes=tuple(IndexEntry("i", index_key) for index_key in index_keys))
    assert await hits(store, "i") == [("a", "/3"), ("b", "/1"), ("b", "/3"), ("ba", "/2"), ("c", "/2")]
    assert await hits(store, "i", *exactly("b")) == [("b", "/1"), ("b", "/3")]
    assert await hits(store, "i", *starting_with("b")) == [("b", "/1"), ("b", "/3"), ("ba", "/2")]
    assert await hits(store, "i", "b", "ba") == [("b", "/1"), ("b", "/3")]
    assert await hits(store, "other") == []
    first, second = await store.query("i", "b", "z", limit=2)
    assert first.record == await store.get("/1")
    assert second.record == await store.get("/3")


async def test_index_entries_follow_their_record(store: MetadataStore) -> None:
    """M8: they change in the same step as the record, whatever changes it; M10: an entry left out is gone."""
    entry = (IndexEntry("i", "k"),)
    session = await store.open_session(5)
    for key in ("/replaced", "/bare", "/deleted", "/in/range"):
        await store.put(key, b"", indexes=entry)
    await store.put("/ephemeral", b"", indexes=entry, session=session)
    await store.put("/replaced", b"", indexes=(IndexEntry("i", "new"), IndexEntry("j", "k")))
    await store.put("/bare", b"")
    await store.delete("/deleted")
    await store.commit([DeleteRange("/in", "/in0")])
    await session.close()
    assert await hits(store, "i") == [("new", "/replaced")]
    assert await hits(store, "j") == [("k", "/replaced")]


async def test_an_entry_named_twice_counts_once(store: MetadataStore) -> None:
    """M8: a record is found once under one index key."""
    entry = IndexEntry("i", "k")
    await store.put("/a", b"", indexes=(entry, entry))
    assert await hits(store, "i") == [("k", "/a")]
    await store.delete("/a")
    assert await hits(store, "i") == []


async def test_numbers_of_fixed_width_are_in_order(store: MetadataStore) -> None:
    """M12: 9 < 10 < 10^19 as twenty digits."""
    for number in (10, 10**19, 9):
        await store.put(f"/{number}", b"", indexes=(IndexEntry("n", f"{number:020}"),))
    assert [key for _, key in await hits(store, "n")] == ["/9", "/10", f"/{10**19}"]


# -- watches


async def test_a_key_watch_tells_the_newest_state(store: MetadataStore) -> None:
    """M13: it may pass over states in between, but never goes back."""
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
    """M13: deleted and made again with the same value between two readings is another state."""
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
    """M14: first what is there, then each change set in order and whole, none skipped."""
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
    """M14: what a watch tells adds up to exactly what is there, whenever among others' writes it was opened."""

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
    """M14: a change reaches exactly the watches whose range holds the key, however the ranges lie."""
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
    """M17: past its bound a range watch replaces its backlog by the difference, exactly, and blocks nobody."""
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
    """M17: if all that was passed over came and went, the reader goes on waiting."""
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
    """M14, M13: what a cancelled `next` would have returned, the next one returns."""
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


# -- sessions


async def test_ephemeral_records_go_with_their_session(store: MetadataStore) -> None:
    """M18: closing deletes them in one step, tells watches and cleans indexes; other records stay."""
    mine = await store.open_session(5)
    other = await store.open_session(5)
    entry = (IndexEntry("i", "k"),)
    await store.put("/e/1", b"", session=mine, indexes=entry)
    await store.put("/e/2", b"", session=mine)
    await store.put("/e/3", b"", session=other)
    await store.put("/e/4", b"")
    record = await store.get("/e/1")
    assert record is not None
    assert record.session == mine.id
    async with store.watch_range("/e/", "/e0") as watch, store.watch_key("/e/1") as key_watch:
        await watch.next()
        await key_watch.next()
        await mine.close()
        change = await watch.next()
        assert (change.records, change.deleted) == ((), ("/e/1", "/e/2"))
        assert await key_watch.next() is None
    assert await keys(store) == ["/e/3", "/e/4"]
    assert await hits(store, "i") == []
    await mine.wait_lost()
    await mine.close()
    lost: list[int] = []

    async def wait_lost() -> None:
        await other.wait_lost()
        lost.append(other.id)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_lost)
        await wait_all_tasks_blocked()
        assert lost == []
        await other.close()
    assert lost == [other.id]


async def test_a_record_belongs_to_whom_wrote_it_last(store: MetadataStore) -> None:
    """M18: written anew without a session it lasts; with another, it goes with that one."""
    first = await store.open_session(5)
    second = await store.open_session(5)
    for key in ("/lasting", "/moved", "/deleted"):
        await store.put(key, b"", session=first)
    await store.put("/lasting", b"")
    await store.put("/moved", b"", session=second)
    await store.delete("/deleted")
    await store.put("/deleted", b"anew")
    await first.close()
    assert await keys(store) == ["/deleted", "/lasting", "/moved"]
    await second.close()
    assert await keys(store) == ["/deleted", "/lasting"]


async def test_a_write_for_an_ended_session_is_not_made(store: MetadataStore) -> None:
    """M19: it fails as SessionLost, and is never moved to another session."""
    session = await store.open_session(5)
    await session.close()
    again = await store.open_session(5)
    assert again.id > session.id
    with pytest.raises(SessionLost):
        await store.commit([Put("/a", b""), Put("/e", b"", session=session)])
    assert await keys(store) == []


async def test_a_session_of_another_store_is_not_taken_for_ones_own(store: MetadataStore) -> None:
    """M19: even if this store has an open session of the same number."""
    mine = await store.open_session(5)
    theirs = await MemoryStore().open_session(5)
    assert mine.id == theirs.id
    with pytest.raises(SessionLost):
        await store.put("/e", b"", session=theirs)


async def test_a_write_that_races_its_sessions_end(store: MetadataStore) -> None:
    """M19: whichever comes first, no record outlives its session."""
    session = await store.open_session(5)
    refused: list[int] = []

    async def write(number: int) -> None:
        try:
            await store.put(f"/e/{number}", b"", session=session)
        except SessionLost:
            refused.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(write, number)
        nursery.start_soon(session.close)
        for number in range(8, 16):
            nursery.start_soon(write, number)
    assert await keys(store) == []
    with pytest.raises(SessionLost):
        await store.put("/e", b"", session=session)


async def test_a_session_needs_a_timeout(store: MetadataStore) -> None:
    """M18: silence is bounded."""
    with pytest.raises(InvalidOperation):
        await store.open_session(0)


# -- change sets


async def test_a_range_is_deleted_in_one_step(store: MetadataStore) -> None:
    """M24: a reader sees all of it or none of it."""
    names = [f"/r/{number:03}" for number in range(200)]
    await store.commit([Put(key, b"") for key in (*names, "/q", "/s")])
    sizes: set[int] = set()

    async def read(task_status: trio.TaskStatus[None]) -> None:
        sizes.add(len(await store.scan("/r/", "/r0")))
        task_status.started()
        while 0 not in sizes:
            sizes.add(len(await store.scan("/r/", "/r0")))

    async with trio.open_nursery() as nursery:
        await nursery.start(read)
        await store.commit([DeleteRange("/r/", "/r0"), Delete("/r/000"), Put("/t", b"")])
    assert sizes == {0, 200}
    assert await keys(store) == ["/q", "/s", "/t"]


async def test_a_range_deletion_covers_what_was_just_decided(store: MetadataStore) -> None:
    """M24: writes of the same moment are in it or not by their order, never by their durability."""
    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(store.put, f"/r/{number}", b"")
    results: list[list[str]] = []

    async def delete() -> None:
        revision = (await store.commit([DeleteRange("/r/", "/r0")])).revision
        results.append([record.key for record in await store.scan("/r/", "/r0") if record.version < revision])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.put, "/r/6", b"")
        nursery.start_soon(delete)
        nursery.start_soon(store.put, "/r/7", b"")
    assert results == [[]]


async def test_a_record_above_the_limit_is_refused(store: MetadataStore) -> None:
    """M25: up front, and nothing of its change set is done; the largest allowed is stored."""
    with pytest.raises(ChangeSetTooLarge):
        await store.commit([Put("/a", b""), Put("/b", bytes(records.RECORD_BYTES_MAX))])
    assert await store.barrier() == 0
    largest = bytes(records.RECORD_BYTES_MAX - 1024)
    await store.put("/b", largest)
    record = await store.get("/b")
    assert record is not None
    assert record.value == largest


async def test_a_write_guarded_by_another_record(store: MetadataStore) -> None:
    """M26: a put is made only if another key has the version it should."""
    claim = await store.put("/claim", b"me")
    await store.commit([Put("/a", b"1"), Check("/claim", claim)])
    await store.put("/claim", b"somebody else")
    with pytest.raises(Conflict):
        await store.commit([Put("/a", b"2"), Check("/claim", claim)])
    record = await store.get("/a")
    assert record is not None
    assert record.value == b"1"


async def test_a_cancelled_write_is_made_or_not(store: MetadataStore) -> None:
    """M22: its outcome is unknown; repeating it on the version read before is safe."""
    version = await store.put("/a", b"0")
    with trio.move_on_after(0):
        await store.put("/a", b"1", expected=version)
    with contextlib.suppress(Conflict):
        await store.put("/a", b"1", expected=version)
    record = await store.get("/a")
    assert record is not None
    assert (record.value, record.version > version) == (b"1", True)


async def test_what_was_answered_is_read(store: MetadataStore) -> None:
    """M1: a reading begun after a write was answered shows it, by every way of reading."""
    assert store.authoritative
    for number in range(5):
        version = await store.put("/a", b"%d" % number, indexes=(IndexEntry("i", "k"),))
        assert await store.barrier() >= version
        assert [record.version for record in await store.scan("/a", "/b")] == [version]
        assert [hit.record.version for hit in await store.query("i", "k", "l")] == [version]
    assert store.statistics().records == 1
    assert store.statistics().revision == version
