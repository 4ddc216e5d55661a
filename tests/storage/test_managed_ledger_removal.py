"""Removing managed ledgers: what a crash at any step leaves, and who continues."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from storage.directory_ledger_store import DirectoryLedgerStore
from storage.errors import Fenced, LedgerFailed, LedgerOutOfReach, WriterAlive
from storage.ledger_chain import ManagedLedgerConfig
from storage.managed_ledger import ManagedLedger
from storage.managed_ledger_opening import open_managed_ledger
from storage.managed_ledger_record import MANAGED_LEDGERS, record_key
from storage.managed_ledger_removal import remove_managed_ledger
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Check, StoreUnavailable, starting_with
from storage.position import EARLIEST, LATEST
from storage.writer import Writer
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import LEDGERS, journal_dir, ledger_store
from tests.support.steered_store import SteeredStore, Stopped

NAME = "persistent://public/default/orders"
ROLLING = ManagedLedgerConfig(ledger_bytes_max=100)


async def open_one(
    store: DirectoryLedgerStore, metadata: MemoryStore, *, config: ManagedLedgerConfig = ROLLING
) -> ManagedLedger:
    return await open_managed_ledger(
        NAME, metadata=metadata, ledgers=store, claim=None, config=config, now_ms=lambda: 1_000
    )


@asynccontextmanager
async def filled(store: DirectoryLedgerStore, metadata: MemoryStore) -> AsyncIterator[ManagedLedger]:
    """Make a managed ledger of several ledgers, the last of which is open."""
    ledger = await open_one(store, metadata)
    async with trio.open_nursery() as nursery:
        await nursery.start(ledger.run)
        for number in range(5):
            await ledger.confirmed.wait_for(ledger.append(b"%d" % number * 60))
            await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    yield ledger


async def remove(store: DirectoryLedgerStore, metadata: MemoryStore) -> None:
    claim = Check("/nobody", await metadata.put("/nobody", b""))
    await remove_managed_ledger(NAME, metadata=metadata, ledgers=store, claim=claim)


async def records(metadata: MemoryStore) -> list[str]:
    return [record.key for record in await metadata.scan(*starting_with(MANAGED_LEDGERS))]


@pytest.mark.parametrize("keep", [0.0, 1.0])
@pytest.mark.parametrize("next_is", ["deletion", "owner"])
async def test_a_loss_of_power_at_any_step_leaves_no_file_that_no_record_names(keep: float, next_is: str) -> None:
    """E16, E18: the next deletion of the name continues, and so does its next owner, who starts empty."""
    for operations in range(200):
        disk, metadata = SimulatedFiles(seed=operations), MemoryStore()
        is_cut = False
        async with ledger_store(disk, tail_bytes_max=0, metadata=metadata) as store, filled(store, metadata) as ledger:
            disk.lose_power_after(operations)
            try:
                await ledger.delete()
            except (OSError, LedgerFailed):
                is_cut = True
        survivor = disk.crash(keep=keep)
        async with ledger_store(survivor, metadata=metadata) as store:
            if next_is == "owner":
                again = await open_one(store, metadata)
                is_kept = again.creation_id == ledger.creation_id
                assert await again.read(EARLIEST, upto=LATEST, entries_max=9, bytes_max=9_000) == [] or is_kept
                await again.delete()
            else:
                await remove(store, metadata)
            assert await records(metadata) == []
        # What is removed stays so.
        last = survivor.crash(keep=0.0)
        async with ledger_store(last, metadata=metadata):
            assert last.names(LEDGERS) == []
        if not is_cut:
            assert operations > 10
            return
    pytest.fail("the deletion never ended")


@pytest.mark.parametrize("is_open", [True, False])
async def test_a_store_that_fails_at_any_change_leaves_no_file_that_no_record_names(is_open: bool) -> None:
    """E16, E18: this includes one that nobody had opened."""
    for change in range(1, 20):
        disk, metadata = SimulatedFiles(seed=change), SteeredStore()
        is_cut = False
        async with ledger_store(disk, tail_bytes_max=0, metadata=metadata) as store, filled(store, metadata) as ledger:
            if not is_open:
                await ledger.close()
            await metadata.put("/nobody", b"")
            metadata.fail_at(change)
            try:
                await (ledger.delete() if is_open else remove(store, metadata))
            except Stopped:
                is_cut = True
            metadata.fail_at(None)
        async with ledger_store(disk.kill(), metadata=metadata) as store:
            left = {int(name.split(".")[0]) for name in disk.names(LEDGERS)}
            if left:
                assert await records(metadata) == [record_key(NAME)]
            await remove(store, metadata)
            assert (await records(metadata), disk.names(LEDGERS)) == ([], [])
        if not is_cut:
            assert change > 2
            return
    pytest.fail("the deletion never ended")


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("made", [True, False])
async def test_a_deletion_whose_answer_was_lost_is_repeated(number: int, made: bool) -> None:
    metadata, files = SteeredStore(), SimulatedFiles(seed=3)
    async with ledger_store(files, metadata=metadata) as store, filled(store, metadata) as ledger:
        metadata.leave_unanswered(number, made=made)
        with pytest.raises(StoreUnavailable):
            await ledger.delete()
        await ledger.delete()
        assert (await records(metadata), files.names(LEDGERS)) == ([], [])


async def test_what_was_trimmed_and_not_removed_yet_goes_too() -> None:
    metadata, files = MemoryStore(), SimulatedFiles(seed=4)
    async with ledger_store(files, tail_bytes_max=0, metadata=metadata) as store, filled(store, metadata) as ledger:
        await ledger.close()
        files.fail("remove", where=lambda path: path.parent == LEDGERS)
        with pytest.raises(LedgerFailed):
            await ledger.trim(ledger.last_position)
    async with ledger_store(files.kill(), metadata=metadata) as store:
        assert files.names(LEDGERS) != []
        await remove(store, metadata)
        assert (await records(metadata), files.names(LEDGERS)) == ([], [])


async def test_one_that_another_broker_may_write_to_is_not_removed() -> None:
    """E4: that broker must close it first; another folder cannot remove it, either."""

    async def alive(_writer: Writer) -> bool:
        return True

    metadata, files = MemoryStore(), SimulatedFiles(seed=5)
    async with ledger_store(files, broker_id="one", metadata=metadata) as one, filled(one, metadata) as ledger:
        before = await metadata.get(record_key(NAME))
        async with ledger_store(files.process(), broker_id="two", is_alive=alive, metadata=metadata) as two:
            with pytest.raises(WriterAlive):
                await remove(two, metadata)
            assert await metadata.get(record_key(NAME)) == before
            async with ledger_store(SimulatedFiles(), folder="another", metadata=metadata) as elsewhere:
                with pytest.raises(LedgerOutOfReach):
                    await remove(elsewhere, metadata)
            assert await metadata.get(record_key(NAME)) == before
            await ledger.close()
            await remove(two, metadata)
        assert (await records(metadata), files.names(LEDGERS)) == ([], [])


async def test_a_dead_brokers_journal_brings_nothing_back() -> None:
    """E4: it is fenced and replayed before anything is removed."""

    async def dead(_writer: Writer) -> bool:
        return False

    metadata, files = MemoryStore(), SimulatedFiles(seed=6)
    async with (
        ledger_store(files, broker_id="one", metadata=metadata) as one,
        filled(one, metadata) as zombie,
        ledger_store(files.process(), broker_id="two", is_alive=dead, metadata=metadata) as two,
    ):
        await remove(two, metadata)
        late = zombie.append(b"late")
        with pytest.raises(Fenced):
            await zombie.confirmed.wait_for(late)
    async with ledger_store(files.kill(), broker_id="one", metadata=metadata):
        assert files.names(LEDGERS) == []


async def test_one_whose_writers_journal_is_lost_can_be_removed() -> None:
    """E3, E10: it cannot be opened, so this is the way out."""

    async def dead(_writer: Writer) -> bool:
        return False

    metadata, files = MemoryStore(), SimulatedFiles(seed=7)
    async with ledger_store(files, broker_id="one", metadata=metadata) as one, filled(one, metadata):
        pass
    survivor = files.kill()
    for name in survivor.names(journal_dir("one")):
        survivor.remove(journal_dir("one") / name)
    async with ledger_store(survivor, broker_id="two", is_alive=dead, metadata=metadata) as two:
        await remove(two, metadata)
        assert (await records(metadata), survivor.names(LEDGERS)) == ([], [])


async def test_without_the_claim_nothing_is_removed() -> None:
    """D4: the caller gets an error."""
    metadata, files = MemoryStore(), SimulatedFiles(seed=8)
    async with ledger_store(files, metadata=metadata) as store, filled(store, metadata):
        there = files.names(LEDGERS)
        before = await metadata.get(record_key(NAME))
        with pytest.raises(Fenced):
            await remove_managed_ledger(NAME, metadata=metadata, ledgers=store, claim=Check("/nobody", 12_345))
        assert await metadata.get(record_key(NAME)) == before
        assert files.names(LEDGERS) == there
