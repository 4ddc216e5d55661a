"""Managed ledgers while the disk is full: a roll that waits for space is in nobody's way who makes some."""

from collections.abc import Sequence

import pytest
import trio
from trio.testing import MockClock

from storage.errors import NoSpace
from storage.files import SPACE_RETRY_SECONDS
from storage.ledger_ids import LedgerIds
from storage.managed_ledger import ManagedLedgerConfig
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Committed, Op, StoreFull
from storage.signal import Signal
from tests.storage.test_managed_ledger import open_managed, payloads, publish, rolling, stored
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import LEDGERS, ledger_store

FILE_BYTES = 256 * 1024
PAYLOAD = b"x" * 5_000


@pytest.mark.parametrize("how", ["trim", "delete"])
async def test_space_is_made_while_a_roll_waits_for_it(autojump_clock: MockClock, how: str) -> None:
    """E13, E18: the roll holds a full ledger back; trimming, or deleting the topic, is what the disk needs."""
    files, metadata = SimulatedFiles(seed=1), MemoryStore()
    async with ledger_store(files, journal_file_bytes=FILE_BYTES) as store:
        config = ManagedLedgerConfig(ledger_bytes_max=20_000)
        ledger = await open_managed(store, metadata, config=config)
        async with rolling(ledger):
            await publish(ledger, [PAYLOAD] * 4)
            first = ledger.closed[0]
            await publish(ledger, [PAYLOAD] * 3)
            files.set_capacity(files.used_bytes + 10)
            await ledger.confirmed.wait_for(ledger.append(PAYLOAD))
            await trio.sleep(5 * SPACE_RETRY_SECONDS)
            with pytest.raises(NoSpace):
                await ledger.wait_room()
            with trio.fail_after(60):
                if how == "trim":
                    await ledger.trim(ledger.confirmed.value)
                    known = [(info.closed, info.entries) for info in (await stored(metadata)).ledgers]
                    assert known == [(False, 0), (False, 0)]
                else:
                    await ledger.delete()
                    await ledger.close()
            await trio.sleep(2 * SPACE_RETRY_SECONDS)
            store.require_space()
            if how == "trim":
                await publish(ledger, [b"after"])
                assert await payloads(ledger) == [PAYLOAD] * 4 + [b"after"]
        assert store.failure is None
    assert [name for name in files.names(LEDGERS) if name == f"{first.id:020d}.ledger"] == []


class Filling(MemoryStore):
    """A metadata store whose disk may be full."""

    is_full = False

    async def commit(self, ops: Sequence[Op]) -> Committed:
        if self.is_full:
            raise StoreFull("the disk is full")
        return await super().commit(ops)


async def test_rolls_that_find_no_metadata_space_leave_no_files(autojump_clock: MockClock) -> None:
    """E13, E16: the topic goes on in its ledger; tries come with pauses, whatever is appended, and clean up."""
    files, metadata = SimulatedFiles(seed=2), Filling()
    async with ledger_store(files) as store:
        ids = LedgerIds(metadata)
        ledger = await open_managed(store, metadata, config=ManagedLedgerConfig(ledger_bytes_max=100), ids=ids)
        before = files.names(LEDGERS)
        async with rolling(ledger):
            metadata.is_full = True
            await publish(ledger, [b"a" * 200] * 30)
            assert await ids.take(above=0) - int(before[-1][:20]) < 5
            assert files.names(LEDGERS) == before
            metadata.is_full = False
            await trio.sleep(2 * SPACE_RETRY_SECONDS)
            await publish(ledger, [b"b"])
            assert len(ledger.closed) == 1


async def test_an_end_that_cannot_be_recorded_is_recorded_later(autojump_clock: MockClock) -> None:
    """E13: the metadata log fills between the two writes of a roll, and the topic goes on."""
    files, metadata = SimulatedFiles(seed=3), Filling()
    async with ledger_store(files) as store:
        ledger = await open_managed(store, metadata, config=ManagedLedgerConfig(ledger_bytes_max=100))
        signal = Signal()
        ledger.attach_rolls(signal)

        async def fill() -> None:
            await signal.wait()
            metadata.is_full = True

        async with rolling(ledger), trio.open_nursery() as nursery:
            nursery.start_soon(fill)
            await publish(ledger, [b"a" * 200])
            assert metadata.is_full
            await publish(ledger, [b"b"])
            metadata.is_full = False
            await trio.sleep(2 * SPACE_RETRY_SECONDS)
            assert await payloads(ledger) == [b"a" * 200, b"b"]
            assert [info.closed for info in (await stored(metadata)).ledgers] == [True, False]


async def test_a_ledger_that_waits_for_space_is_deleted(autojump_clock: MockClock) -> None:
    """E13: there is nothing else to delete, and nobody waits for the end of what is gone."""
    files, metadata = SimulatedFiles(seed=4), MemoryStore()
    async with ledger_store(files, journal_file_bytes=FILE_BYTES) as store:
        ledger = await open_managed(store, metadata, config=ManagedLedgerConfig(ledger_bytes_max=20_000))
        async with rolling(ledger):
            await publish(ledger, [PAYLOAD] * 3)
            files.set_capacity(files.used_bytes + 10)
            await ledger.confirmed.wait_for(ledger.append(PAYLOAD))
            await trio.sleep(5 * SPACE_RETRY_SECONDS)
            assert len(ledger.closed) == 1
            with trio.fail_after(60):
                await ledger.delete()
                await ledger.close()
            await trio.sleep(2 * SPACE_RETRY_SECONDS)
            store.require_space()
        assert store.failure is None
    assert files.names(LEDGERS) == []
