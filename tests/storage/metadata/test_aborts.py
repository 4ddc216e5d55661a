"""Large change sets that do not finish: their writer or the next start undoes them without a trace."""

from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from storage.metadata import log, transactions
from storage.metadata.batches import Body
from storage.metadata.corruption import CorruptMetadata
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.opening import open_folder
from storage.metadata.record_codec import encode
from storage.metadata.records import (
    AbortTransaction,
    BeginTransaction,
    EndTransaction,
    FeatureLevel,
    LogRecord,
    SessionEnd,
    TakeOver,
)
from storage.metadata.store import Op, PutSequential, Record, StoreUnavailable
from tests.support.disk import SimulatedFiles
from tests.support.metadata_log import DATA, EVERYTHING, FIRST_LOG, Stepping, large, markers, prepare, records_of, seen


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "PREALLOCATION_BYTES", 64 * 1024)
    monkeypatch.setattr(transactions, "PIECE_BYTES_MAX", 8 * 1024)


@pytest.fixture
def disk() -> SimulatedFiles:
    return SimulatedFiles(seed=1)


async def abort_at(disk: SimulatedFiles, step: int, *, ops: list[Op]) -> tuple[bool, list[object]]:
    """Cancel the writer of a large change set at one step. Return whether it was aborted, and both states.

    Then continue to write, so that remains of the abort would show.
    """
    aborted = False
    async with EmbeddedStore.open(disk, DATA) as store, trio.open_nursery() as nursery:
        await prepare(store)
        session = await store.open_session(5)
        await store.put("/e", b"", session=session)
        before = await seen(store)
        changes: list[int] = []

        async def follow() -> None:
            async with store.watch_range(*EVERYTHING) as watch:
                await watch.next()
                while True:
                    changes.append((await watch.next()).revision)

        nursery.start_soon(follow)
        await wait_all_tasks_blocked()
        scope = trio.CancelScope()

        async def look(now: int) -> None:
            if now == step:
                scope.cancel()

        async def write() -> None:
            with scope:
                await store.commit(ops)

        await Stepping(disk, look).run(write)
        await wait_all_tasks_blocked()
        after = await seen(store)
        aborted = after == before
        assert changes == ([] if aborted else [6])
        (key,) = (await store.commit([PutSequential("/s", b"", "p")])).keys
        await store.put("/e", b"again", session=session)
        await wait_all_tasks_blocked()
        assert changes == ([6, 7] if aborted else [6, 7, 8])
        seen_last = await seen(store)
        nursery.cancel_scope.cancel()
    return aborted, [key, seen_last, before, after]


async def test_an_abandoned_transaction_is_aborted_without_a_trace() -> None:
    """R15: after a cancellation at any point, values, versions, indexes, counters and sessions are unchanged.

    The next change set gets its revision and sequence number, and watches were told nothing.
    """
    plain = SimulatedFiles()
    async with EmbeddedStore.open(plain, DATA) as store:
        await prepare(store)
        session = await store.open_session(5)
        await store.put("/e", b"", session=session)
        (expected_key,) = (await store.commit([PutSequential("/s", b"", "p")])).keys
        await store.put("/e", b"again", session=session)
        expected = await seen(store)
    begun = 0
    for step in range(12):
        disk = SimulatedFiles(seed=step)
        aborted, (key, last, before, after) = await abort_at(disk, step, ops=large())
        if not aborted:
            assert step >= 5
            assert [type(marker) for marker in markers(disk)] == [BeginTransaction, EndTransaction]
            continue
        assert (key, last) == (expected_key, expected)
        assert after == before
        found = markers(disk)
        if found:
            begun += 1
            assert [type(marker) for marker in found] == [BeginTransaction, AbortTransaction]
            assert found[1] == AbortTransaction("its caller was cancelled before its end")
        async with EmbeddedStore.open(disk.crash(keep=0.0), DATA) as store:
            assert await store.scan(*EVERYTHING) == lasting(last)
        assert len(markers(disk)) == len(found)
    assert begun >= 3


def lasting(state: object) -> list[Record]:
    """Return the records in `seen`'s result that belong to no session."""
    assert isinstance(state, tuple)
    return [record for record in state[0] if record.session is None]


async def test_a_transaction_cut_off_by_a_crash_is_aborted_before_anything_else(disk: SimulatedFiles) -> None:
    """R17, R19, R20: with any number of durable pieces and of dying starts, one Abort ends it.

    It precedes the end of the earlier process's session, which an opening writes next.
    """
    async with EmbeddedStore.open(disk, DATA) as store:
        await prepare(store)
        session = await store.open_session(5)
        await store.put("/e", b"", session=session)
        before = await store.scan("", "/d")
        survivors: list[SimulatedFiles] = []

        async def look(_step: int) -> None:
            survivors.append(disk.crash(keep=0.0))

        await Stepping(disk, look).run(lambda: store.commit(large()))
    opens = 0
    for survivor in survivors[1:]:
        assert [type(marker) for marker in markers(survivor)] == [BeginTransaction]
        records_before = len(list(records_of(survivor)))
        for operations in range(1, 120, 2):
            dying = survivor.crash()
            dying.lose_power_after(operations)
            try:
                async with EmbeddedStore.open(dying, DATA) as store:
                    pass
            except (OSError, ExceptionGroup):
                dying = dying.crash()
            else:
                opens += 1
                dying = dying.kill()
            for _ in range(2):
                async with EmbeddedStore.open(dying, DATA) as store:
                    assert await store.scan("", "/d") == before
                    assert await store.get("/e") is None
                    assert await store.barrier() == 6
                found = list(records_of(dying))
                assert [type(marker) for marker in markers(dying)] == [BeginTransaction, AbortTransaction]
                later = [type(record) for record in found[records_before:] if not isinstance(record, TakeOver)]
                assert later == [AbortTransaction, SessionEnd]
    assert opens


async def test_a_disk_that_fails_inside_a_transaction_ends_the_store(disk: SimulatedFiles) -> None:
    """M22, R28: waiting writers get an unknown outcome; for the next start it is completely absent."""
    for operation in ("write", "sync"):
        for piece in range(5):
            files = SimulatedFiles(seed=piece)
            async with EmbeddedStore.open(files, DATA) as store:
                await prepare(store)
                before = await seen(store)
                count = 0

                def fail(name: str, path: Path) -> None:
                    nonlocal count
                    if name == operation and path.suffix == ".log":  # noqa: B023
                        if count == piece:  # noqa: B023 - called within this round only
                            files.fail(name)  # noqa: B023
                        count += 1

                files.before = fail
                with pytest.raises(StoreUnavailable):
                    await store.commit(large())
                with pytest.raises(StoreUnavailable):
                    await store.put("/late", b"")
            files.before = None
            async with EmbeddedStore.open(files.crash(), DATA) as store:
                assert await seen(store) == before


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ((BeginTransaction("a"), BeginTransaction("b")), "begins while transaction 'a' is open"),
        ((EndTransaction(),), "EndTransaction with no transaction open"),
        ((AbortTransaction("r"),), "AbortTransaction with no transaction open"),
        ((BeginTransaction("a"), Record("/x", b"", 99)), "is inside transaction 'a'"),
        ((BeginTransaction("a"), FeatureLevel(0, 2)), "is inside transaction 'a'"),
    ],
)
async def test_a_log_with_markers_out_of_place_does_not_open(
    disk: SimulatedFiles, records: tuple[LogRecord, ...], reason: str
) -> None:
    """R4, R5, R18: the error names the file and the batch's offset; the folder is unchanged."""
    opened = open_folder(disk, DATA / "metadata")
    opened.log.append([Body(encode(Record("/a", b"", 1)), 1)])
    offset = opened.log.tail_bytes
    opened.log.append([Body(b"".join(map(encode, records)), len(records))])
    opened.close()
    content = disk.content(FIRST_LOG)
    for _ in range(2):
        with pytest.raises(CorruptMetadata, match=reason) as caught:
            open_folder(disk, DATA / "metadata")
        assert (caught.value.path, caught.value.offset) == (FIRST_LOG, offset)
    assert disk.content(FIRST_LOG) == content


async def test_many_sessions_end_at_the_next_start(disk: SimulatedFiles) -> None:
    """M18, R8: they are more than fit one batch, and their records are gone before anybody reads."""
    async with EmbeddedStore.open(disk, DATA) as store, trio.open_nursery() as nursery:

        async def open_one(number: int) -> None:
            session = await store.open_session(5)
            await store.put(f"/e/{number}", b"", session=session)

        for number in range(600):
            nursery.start_soon(open_one, number)
    async with EmbeddedStore.open(disk.crash(keep=0.0), DATA) as store:
        assert await store.scan(*EVERYTHING) == []
    assert markers(disk) == []
