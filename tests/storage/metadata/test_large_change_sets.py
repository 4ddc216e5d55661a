"""Change sets of any size in the embedded store: written in pieces, visible all at once."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from storage.metadata import log, transactions
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.inspection import Inspection
from storage.metadata.memory import MemoryStore
from storage.metadata.older_releases import NOTICE
from storage.metadata.records import BeginTransaction, EndTransaction, SessionEnd
from storage.metadata.store import ABSENT, Check, Conflict, Op, Put
from tests.support.disk import SimulatedFiles
from tests.support.metadata_log import (
    DATA,
    DIRECTORY,
    EVERYTHING,
    Stepping,
    large,
    markers,
    prepare,
    records_of,
    seen,
    snapshots_in,
)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "PREALLOCATION_BYTES", 64 * 1024)
    monkeypatch.setattr(transactions, "PIECE_BYTES_MAX", 8 * 1024)


@pytest.fixture
def disk() -> SimulatedFiles:
    return SimulatedFiles(seed=1)


async def test_small_change_sets_have_no_markers_and_large_ones_do(disk: SimulatedFiles) -> None:
    """R3, R8: begin, records, end, in as many batches as needed; what fits one batch has no markers."""
    async with EmbeddedStore.open(disk, DATA) as store:
        await store.commit([Put("/a", bytes(3000)), Put("/b", bytes(3000))])
        await store.put("/c", bytes(50_000))
        assert markers(disk) == []
        # Large by what it asks, small by what it does.
        await store.commit([*(Check(f"/none/{number}", ABSENT) for number in range(500)), Put("/d", b"")])
        assert markers(disk) == []
        done = await store.commit(large())
        found = list(records_of(disk))
        begin, end = markers(disk)
        assert begin == BeginTransaction(f"revision 4: {100 + 2 + 1 + 1} records")
        assert end == EndTransaction() == found[-1]
        assert all(record.version == done.revision for record in await store.scan("/large", "/large0"))
        statistics = store.statistics().extra
        assert (statistics["transactions"], statistics["transactions_aborted"]) == (1, 0)


async def test_ten_thousand_records_at_once(disk: SimulatedFiles) -> None:
    """R8, M25: on the embedded store and in memory a change set may have any size, with the same result."""
    memory = MemoryStore()
    ops = large(10_000, b"v" * 100)
    async with EmbeddedStore.open(disk, DATA) as store:
        for each in (store, memory):
            await prepare(each)
        assert await store.commit(ops) == await memory.commit(ops)
        assert await seen(store) == await seen(memory)
        before = await seen(store)
    async with EmbeddedStore.open(disk.crash(keep=0.0), DATA) as store:
        assert await seen(store) == before


async def test_nothing_of_a_transaction_is_seen_before_its_end_is_durable(disk: SimulatedFiles) -> None:
    """R12, R13, R14: at every step get, scan, query, barrier and watches show all of it or nothing, one revision."""
    async with EmbeddedStore.open(disk, DATA) as store, trio.open_nursery() as nursery:
        await prepare(store)
        before = await seen(store)
        told: list[tuple[int, int, int]] = []

        async def follow() -> None:
            async with store.watch_range(*EVERYTHING) as watch:
                await watch.next()
                while True:
                    change = await watch.next()
                    told.append((change.revision, len(change.records), len(change.deleted)))

        async def follow_key() -> None:
            async with store.watch_key("/changed") as watch:
                await watch.next()
                record = await watch.next()
                assert record is not None
                told.append((record.version, -1, -1))

        nursery.start_soon(follow)
        nursery.start_soon(follow_key)
        await wait_all_tasks_blocked()
        looks: list[bool] = []

        async def look(step: int) -> None:
            now = await seen(store)
            looks.append(now == before)
            assert told == [] or now != before
            # What a restart would find, should the power go now: all or nothing, too.
            if step % 3 == 0:
                async with EmbeddedStore.open(disk.crash(), DATA) as restarted:
                    assert await seen(restarted) in (before, now)

        await Stepping(disk, look).run(lambda: store.commit(large()))
        await wait_all_tasks_blocked()
        assert len(looks) > 6
        assert all(looks)
        assert sorted(told) == [(4, -1, -1), (4, 100 + 2 + 1, 1 + 5)]
        nursery.cancel_scope.cancel()


async def test_nobody_writes_between_begin_and_end(disk: SimulatedFiles) -> None:
    """R6, R7: other writers, including a second large one and the end of a session, wait until it has ended."""
    async with EmbeddedStore.open(disk, DATA) as store:
        session = await store.open_session(5)
        await store.put("/e", b"", session=session)
        order: list[str] = []

        async def commit(name: str, ops: list[Op]) -> None:
            await store.commit(ops)
            order.append(name)

        async def close() -> None:
            await session.close()
            order.append("session")

        async with trio.open_nursery() as nursery:
            disk.stop()
            proposals: dict[str, list[Op]] = {
                "small": [Put("/small/1", b"")],
                "large": large(prefix="/large/1"),
                "after": [Put("/small/2", b"")],
                "second": large(prefix="/large/2"),
            }
            for name, ops in proposals.items():
                nursery.start_soon(commit, name, ops)
                await wait_all_tasks_blocked()
            nursery.start_soon(close)
            await wait_all_tasks_blocked()
            disk.resume()
    assert order == ["small", "large", "after", "second", "session"]
    inside: int | None = None
    for record in records_of(disk):
        if isinstance(record, BeginTransaction):
            assert inside is None
            inside = 0
        elif isinstance(record, EndTransaction):
            assert inside == 1
            inside = None
        elif inside is not None:
            revisions = {getattr(record, "version", getattr(record, "revision", None))}
            inside = 1
            assert len(revisions) == 1
            assert not isinstance(record, SessionEnd)
    assert len(markers(disk)) == 4


async def test_what_is_decided_behind_a_transaction_rests_on_it(disk: SimulatedFiles) -> None:
    """R11, M2: a condition is judged with the transaction's effects, and only after its end."""
    async with EmbeddedStore.open(disk, DATA) as store, trio.open_nursery() as nursery:
        await prepare(store)
        outcomes: list[object] = []

        async def create() -> None:
            try:
                await store.put("/large/00005", b"", expected=ABSENT)
            except Conflict as conflict:
                outcomes.append(conflict.actual)

        async def look(_step: int) -> None:
            assert outcomes == []

        async def both() -> None:
            nursery.start_soon(create)
            await store.commit(large())

        # The large one is proposed first, since the other begins at the next turn.
        await Stepping(disk, look).run(both)
        await wait_all_tasks_blocked()
        assert outcomes == [4]


async def test_a_snapshot_is_taken_between_transactions_only(disk: SimulatedFiles) -> None:
    """R22, R13: a snapshot that becomes due during one waits for its end, and contains all of it and no marker."""
    async with EmbeddedStore.open(disk, DATA, snapshot_log_bytes=8 * 1024) as store:
        snapshots_seen: list[int] = []

        async def look(_step: int) -> None:
            snapshots_seen.append(sum("snapshot" in name for name in disk.names(DIRECTORY) if name != NOTICE))

        await Stepping(disk, look).run(lambda: store.commit(large()))
        await wait_all_tasks_blocked()
        assert len(snapshots_seen) > 6
        assert not any(snapshots_seen)
        (name,) = snapshots_in(disk.names(DIRECTORY))
        # A marker in it would be refused.
        Inspection(disk, DIRECTORY).load(DIRECTORY / name)
        before = await seen(store)
    async with EmbeddedStore.open(disk.crash(keep=0.0), DATA) as store:
        assert await seen(store) == before
