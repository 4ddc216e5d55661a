"""Managed ledgers while the disk is full: a roll that waits for space is in nobody's way who makes some."""

import pytest
import trio
from trio.testing import MockClock

from storage.files import SPACE_RETRY_SECONDS
from storage.managed_ledger import ManagedLedgerConfig
from storage.metadata.memory import MemoryStore
from storage.position import Position
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import LEDGERS, ledger_store
from tests.storage.test_managed_ledger import open_managed, payloads, publish, rolling

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
            assert store.shortage is not None
            with trio.fail_after(60):
                if how == "trim":
                    await ledger.trim(Position(first.id, first.entries - 1))
                else:
                    await ledger.delete()
            await trio.sleep(2 * SPACE_RETRY_SECONDS)
            assert store.shortage is None
            if how == "trim":
                await publish(ledger, [b"after"])
                assert await payloads(ledger) == [PAYLOAD] * 4 + [b"after"]
        assert store.failure is None
    assert [name for name in files.names(LEDGERS) if name == f"{first.id:020d}.ledger"] == []
