from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import storage.journal
from storage.entry import Pieces
from storage.errors import LedgerFailed, LedgerSealed
from storage.journal import FORMED_APART_BYTES, UNCONFIRMED_BYTES_MAX
from storage.journal_block import BlockHeader, encode_block
from storage.position import Position
from storage.watermark import Watermark
from tests.support.disk import PowerLost, SimulatedFiles
from tests.support.ledgers import add, add_all, journal_dir, ledger_store, payloads_of


def is_journal(path: Path) -> bool:
    return path.suffix == ".journal"


def syncs_of_the_journal(files: SimulatedFiles) -> list[str]:
    seen: list[str] = []
    files.before = lambda operation, path: seen.append(operation) if is_journal(path) and operation == "sync" else None
    return seen


async def test_one_sync_confirms_all_ledgers_that_wait() -> None:
    files = SimulatedFiles()
    async with ledger_store(files) as store:
        ledgers = [await store.create(number) for number in range(1, 65)]
        syncs = syncs_of_the_journal(files)
        for ledger in ledgers:
            add(ledger, b"payload")
            add(ledger, b"another")
        assert not any(ledger.confirmed_entry >= 0 for ledger in ledgers)
        for ledger in ledgers:
            await ledger.confirmed.wait_for(Position(ledger.id, 1))
        assert len(syncs) == 1
        assert store.statistics().journal.blocks == 1


@pytest.mark.parametrize("is_large", [True, False])
async def test_a_large_block_is_formed_apart_from_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, *, is_large: bool
) -> None:
    """E7: a worker thread handles checksums and copies of megabytes; a small block is not worth it."""
    files = SimulatedFiles()
    apart: list[bool] = []
    is_apart = False
    run, form = files.run, encode_block

    async def noting(call: Callable[..., object], *args: object) -> object:
        def called() -> object:
            nonlocal is_apart
            is_apart = True
            try:
                return call(*args)
            finally:
                is_apart = False

        return await run(called)

    def noted(*args: Any, **options: Any) -> tuple[BlockHeader, Pieces]:
        apart.append(is_apart)
        return form(*args, **options)

    monkeypatch.setattr(files, "run_urgent", noting)
    monkeypatch.setattr(storage.journal, "encode_block", noted)
    async with ledger_store(files) as store:
        ledger = await store.create(1)
        payload = b"x" * (FORMED_APART_BYTES if is_large else 1000)
        await ledger.confirmed.wait_for(add(ledger, payload))
        assert apart == [is_large]
        assert await payloads_of(store, 1) == [payload]


async def test_what_is_confirmed_was_synced_before() -> None:
    files = SimulatedFiles()
    async with ledger_store(files) as store:
        ledger = await store.create(1)
        syncs = syncs_of_the_journal(files)
        for count in range(1, 4):
            position = add(ledger, b"payload")
            assert len(syncs) == count - 1
            await ledger.confirmed.wait_for(position)
            assert len(syncs) == count


@pytest.mark.parametrize(("operation", "drops"), [("write", False), ("sync", False), ("sync", True)])
async def test_a_failed_write_or_sync_ends_the_writer(operation: str, drops: bool) -> None:
    """Nothing is retried: all waiting and later appends fail."""
    files = SimulatedFiles()
    async with ledger_store(files) as store:
        ledger, other = await store.create(1), await store.create(2)
        await add_all(ledger, [b"good"])
        files.fail(operation, where=is_journal, drops=drops)
        lost = add(ledger, b"lost")
        with pytest.raises(LedgerFailed):
            await ledger.confirmed.wait_for(lost)
        with pytest.raises(LedgerFailed):
            await ledger.confirmed.wait_for(Position(1, 100))
        with pytest.raises(LedgerFailed):
            add(other, b"too late")
        with pytest.raises(LedgerFailed):
            await other.wait_room()
        with pytest.raises(LedgerFailed):
            await store.create(3)
        with pytest.raises(LedgerFailed):
            await store.delete(7)
        with pytest.raises(LedgerFailed):
            await store.seal(ledger)
        assert ledger.confirmed.value == Position(1, 0)
        assert isinstance(store.failure, LedgerFailed)
    async with ledger_store(files.crash()) as restarted:
        assert (await payloads_of(restarted, 1))[:1] == [b"good"]


async def test_what_a_failed_sync_dropped_is_made_durable_or_not_shown() -> None:
    """A restarted process reads the block from the system's memory; a later power loss must not take it."""
    files = SimulatedFiles(seed=4)
    async with ledger_store(files) as store:
        ledger = await store.create(1)
        files.fail("sync", where=is_journal, drops=True)
        add(ledger, b"x" * 20_000)
        with pytest.raises(LedgerFailed):
            await ledger.confirmed.wait_for(Position(1, 0))
    restarted = files.kill()
    async with ledger_store(restarted) as store:
        shown = await payloads_of(store, 1)
        assert shown == [b"x" * 20_000]
    async with ledger_store(restarted.crash(keep=0.0)) as store:
        assert await payloads_of(store, 1) == shown


async def unsynced_block() -> SimulatedFiles:
    """Return the disk of a process that died between the write and the sync of its last block."""
    files = SimulatedFiles(seed=6)
    async with ledger_store(files) as store:
        ledger = await store.create(1)
        await add_all(ledger, [b"confirmed"] * 3)
        files.fail("sync", where=is_journal, drops=True)
        add(ledger, b"x" * 5_000)
        with pytest.raises(LedgerFailed):
            await ledger.confirmed.wait_for(Position(1, 3))
    return files.kill()


async def test_a_recovery_may_lose_power_at_any_operation() -> None:
    """D9: this includes the takeover of a block that only the system's memory had."""
    is_whole = False
    moment = 0
    while not is_whole:
        files = await unsynced_block()
        files.lose_power_after(moment)
        with suppress(PowerLost):
            async with ledger_store(files) as store:
                with suppress(PowerLost):
                    await payloads_of(store, 1)
                    is_whole = True
        moment += 1
        for _ in range(8):
            async with ledger_store(files.crash(keep=0.5)) as restarted:
                found = await payloads_of(restarted, 1)
                assert found == ([b"confirmed"] * 3 + [b"x" * 5_000])[: len(found)]
                assert len(found) >= 3
    assert moment > 15


async def test_a_writer_that_is_cancelled_releases_whoever_waits() -> None:
    files = SimulatedFiles()
    async with trio.open_nursery() as nursery:
        async with ledger_store(files) as store:
            ledger = await store.create(1)
            files.stop()
            position = add(ledger, b"payload")
            outcomes: list[str] = []

            async def wait() -> None:
                try:
                    await ledger.confirmed.wait_for(position)
                except LedgerFailed:
                    outcomes.append("failed")

            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
        assert store.failure is not None
    assert outcomes == ["failed"]


async def test_a_waiter_that_is_cancelled_leaves_the_others_and_the_entry() -> None:
    files = SimulatedFiles()
    async with ledger_store(files) as store:
        ledger = await store.create(1)
        files.stop()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ledger.confirmed.wait_for, add(ledger, b"kept"))
                await wait_all_tasks_blocked()
                scope.cancel()
        files.resume()
        await ledger.confirmed.wait_for(Position(1, 0))
        assert [entry.payload for entry in await ledger.read(0, 9, entries_max=9, bytes_max=99)] == [b"kept"]


async def test_bytes_that_are_not_confirmed_are_bounded() -> None:
    files = SimulatedFiles()
    async with ledger_store(files, journal_file_bytes=1 << 24) as store:
        ledger = await store.create(1)
        files.stop()
        payload = b"x" * (1 << 20)
        appended = 0

        async def publish() -> None:
            nonlocal appended
            for _ in range(10):
                await ledger.wait_room()
                add(ledger, payload)
                appended += 1

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(publish)
            await wait_all_tasks_blocked()
            assert appended == UNCONFIRMED_BYTES_MAX // len(payload)
            assert store.room_bytes <= 0
            files.resume()
        assert appended == 30
        await ledger.confirmed.wait_for(Position(1, 29))
        assert store.room_bytes == UNCONFIRMED_BYTES_MAX


async def test_whoever_waits_for_room_is_told_when_the_writer_ends() -> None:
    files = SimulatedFiles()
    async with ledger_store(files, journal_file_bytes=1 << 24) as store:
        ledger = await store.create(1)
        files.stop()
        add(ledger, b"x" * UNCONFIRMED_BYTES_MAX)
        outcomes: list[str] = []

        async def publish() -> None:
            with pytest.raises(LedgerFailed):
                await ledger.wait_room()
            outcomes.append("failed")

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(publish)
            await wait_all_tasks_blocked()
            files.fail("sync", where=is_journal)
            files.resume()
        assert outcomes == ["failed"] * 3


async def test_confirmations_keep_the_order_of_the_appends_across_ledgers() -> None:
    """A watermark that two successive ledgers share never passes an entry that is not durable."""
    async with ledger_store(SimulatedFiles()) as store:
        confirmed = Watermark(Position(0, -1))
        first = await store.create(1, confirmed=confirmed)
        second = await store.create(2, confirmed=confirmed)
        for _ in range(100):
            add(first, b"x" * 5000)
        add(second, b"y")
        while confirmed.value < Position(2, 0):
            before = confirmed.value
            await confirmed.wait_for(Position(before.ledger, before.entry + 1))
            assert confirmed.value.ledger == 1 or first.confirmed_entry == 99


async def test_full_files_are_freed_after_a_checkpoint() -> None:
    files = SimulatedFiles()
    async with ledger_store(files, journal_file_bytes=8 * 1024) as store:
        ledger = await store.create(1)
        await add_all(ledger, [b"x" * 1000] * 100)
        await wait_all_tasks_blocked()
        assert store.statistics().write_behind.checkpoints >= 2
        kept = [name for name in files.names(journal_dir()) if name.endswith(".journal")]
        assert len(kept) <= 7
    survivor = files.crash(keep=0.0)
    async with ledger_store(survivor) as restarted:
        assert restarted.takeover.replayed_blocks < 50
        assert await payloads_of(restarted, 1) == [b"x" * 1000] * 100


async def test_a_block_larger_than_a_file_is_written_all_the_same() -> None:
    files = SimulatedFiles()
    async with ledger_store(files, journal_file_bytes=4096) as store:
        ledger = await store.create(1)
        await add_all(ledger, [b"x" * 20_000, b"small", b"y" * 9_000])
    async with ledger_store(files.crash(keep=0.0)) as restarted:
        assert await payloads_of(restarted, 1) == [b"x" * 20_000, b"small", b"y" * 9_000]


async def test_a_closed_ledger_takes_nothing_more_and_confirms_what_it_took() -> None:
    async with ledger_store(SimulatedFiles()) as store:
        ledger = await store.create(1)
        add(ledger, b"taken")
        ledger.close()
        with pytest.raises(LedgerSealed):
            add(ledger, b"refused")
        sealed = await store.seal(ledger)
        assert sealed.last_entry == 0
        assert ledger.confirmed_entry == 0


async def test_a_deleted_ledger_is_not_brought_back() -> None:
    files = SimulatedFiles()
    async with ledger_store(files) as store:
        ledger, kept = await store.create(1), await store.create(2)
        await add_all(ledger, [b"gone"] * 3)
        await add_all(kept, [b"kept"])
        await store.delete(1)
        await store.delete(1)
        unwritten = await store.create(3)
        await store.delete(unwritten.id)
        assert await store.missing([1, 2, 3]) == [1, 3]
    survivor = files.crash(keep=0.0)
    async with ledger_store(survivor) as restarted:
        assert await restarted.missing([1, 2, 3]) == [1, 3]
        assert await payloads_of(restarted, 2) == [b"kept"]


async def test_a_failed_ledger_file_ends_the_writer_and_loses_nothing() -> None:
    files = SimulatedFiles()
    async with ledger_store(files) as store:
        ledger = await store.create(1)
        await add_all(ledger, [b"a", b"b"])
        files.fail("write", where=lambda path: path.suffix == ".ledger")
        with pytest.raises(LedgerFailed):
            await store.seal(ledger)
        with pytest.raises(LedgerFailed):
            add(await store.create(2), b"too late")
    async with ledger_store(files.crash()) as restarted:
        assert await payloads_of(restarted, 1) == [b"a", b"b"]


async def test_a_writer_that_waits_for_the_ledger_files_ends_with_them() -> None:
    files = SimulatedFiles()
    async with ledger_store(files, journal_file_bytes=1 << 24) as store:
        ledger = await store.create(1)
        outcomes: list[str] = []

        async def publish() -> None:
            while True:
                await ledger.wait_room()
                await ledger.confirmed.wait_for(add(ledger, b"x" * (4 << 20)))

        async def publish_until_failure() -> None:
            with pytest.raises(LedgerFailed):
                await publish()
            outcomes.append("failed")

        files.fail("write", where=lambda path: path.suffix == ".ledger")
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(publish_until_failure)
        assert outcomes == ["failed"] * 3
        assert isinstance(store.failure, LedgerFailed)
