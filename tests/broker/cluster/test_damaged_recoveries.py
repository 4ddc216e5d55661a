"""What damage does to the recovery of dead brokers: only what is damaged stays unrecovered (E11)."""

from errno import EIO
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.cluster import recovery
from storage.journal_records import JOURNALS, RECOVERING
from storage.managed_ledger_opening import record_ends
from storage.managed_ledger_record import left_open_by, record_key, writers_of_open_ledgers
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Check
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import LEDGERS, journal_dir, ledger_store
from tests.support.recoveries import Counting, opened, publish, stored, survivor


async def test_a_damaged_topic_hinders_no_other_of_its_broker(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E10, C11: the dead broker's other topics get their ends, also one after another."""
    monkeypatch.setattr(recovery, "AT_ONCE_MAX", 1)
    files, metadata = SimulatedFiles(), MemoryStore()
    async with ledger_store(files.process(), broker_id="one", metadata=metadata) as one:
        for name in ("a", "b", "c"):
            await publish(await opened(name, metadata, one), name.encode())
    (info,) = (await stored("a", metadata)).ledgers
    files.remove(LEDGERS / f"{info.id:020d}.ledger")
    async with survivor(metadata, files.process()) as two, trio.open_nursery() as nursery:
        nursery.start_soon(two.run)
        await wait_all_tasks_blocked()
        assert await left_open_by("one", metadata) == ["a"]
        nursery.cancel_scope.cancel()


async def test_a_broker_that_cannot_be_recovered_hinders_no_other(autojump_clock: MockClock) -> None:
    """E3, C11: the journal of one is gone; the other's topics get their ends, and nothing is tried for ever."""
    files, metadata = SimulatedFiles(), MemoryStore()
    for broker_id in ("four", "one"):
        async with ledger_store(files.process(), broker_id=broker_id, metadata=metadata) as store:
            for name in ("a", "b"):
                await publish(await opened(f"{broker_id}-{name}", metadata, store), b"kept")
    for name in files.names(journal_dir("one")):
        files.remove(journal_dir("one") / name)
    async with survivor(metadata, files.process()) as two, trio.open_nursery() as nursery:
        nursery.start_soon(two.run)
        await wait_all_tasks_blocked()
        assert await left_open_by("four", metadata) == []
        assert await left_open_by("one", metadata) == ["one-a", "one-b"]
        before = metadata.statistics().revision
        await trio.sleep(600)
        assert metadata.statistics().revision == before
        nursery.cancel_scope.cancel()


async def test_a_damaged_list_of_ledgers_hinders_no_other_topic(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E11, C11: the dead broker's other topics get their ends, and nothing is tried for ever."""
    monkeypatch.setattr(recovery, "AT_ONCE_MAX", 1)
    files, metadata = SimulatedFiles(), MemoryStore()
    async with ledger_store(files.process(), broker_id="one", metadata=metadata) as one:
        for name in ("a", "b"):
            await publish(await opened(name, metadata, one), b"kept")
    record = await metadata.get(record_key("a"))
    assert record is not None
    await metadata.put(record.key, b"{}", indexes=record.indexes)
    async with survivor(metadata, files.process()) as two, trio.open_nursery() as nursery:
        nursery.start_soon(two.run)
        await wait_all_tasks_blocked()
        assert await left_open_by("one", metadata) == ["a"]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("key", [JOURNALS + "four", RECOVERING + "four"])
async def test_a_damaged_record_of_a_journal_ends_no_other_recovery(autojump_clock: MockClock, key: str) -> None:
    """E11, C11: another broker's topics get their ends, and nothing is tried for ever."""
    files, metadata = SimulatedFiles(), Counting()
    for broker_id in ("four", "one"):
        async with ledger_store(files.process(), broker_id=broker_id, metadata=metadata) as store:
            await publish(await opened(broker_id, metadata, store), b"kept")
    await metadata.put(key, b"{}")
    async with survivor(metadata, files.process()) as two, trio.open_nursery() as nursery:
        nursery.start_soon(two.run)
        await wait_all_tasks_blocked()
        assert await writers_of_open_ledgers(metadata) == ["four"]
        calls = metadata.calls
        await trio.sleep(600)
        assert metadata.calls == calls
        nursery.cancel_scope.cancel()


async def test_files_that_cannot_be_read_end_no_other_recovery(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E11, C11: the disk has a fault where the journal of one is. The other's topics get their ends."""
    files, metadata = SimulatedFiles(), MemoryStore()
    for broker_id in ("four", "one"):
        async with ledger_store(files.process(), broker_id=broker_id, metadata=metadata) as store:
            await publish(await opened(broker_id, metadata, store), b"kept")

    async def faulty(name: str, **others: Any) -> Check | None:
        if name == "one":
            raise OSError(EIO, "Input/output error")
        await has_failed.wait()
        return await record_ends(name, **others)

    monkeypatch.setattr(recovery, "record_ends", faulty)
    has_failed = trio.Event()
    async with survivor(metadata, files.process()) as two, trio.open_nursery() as nursery:
        nursery.start_soon(two.run)
        await wait_all_tasks_blocked()
        has_failed.set()
        await wait_all_tasks_blocked()
        assert await writers_of_open_ledgers(metadata) == ["one"]
        nursery.cancel_scope.cancel()
