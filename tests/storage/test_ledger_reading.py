"""Searches across the ledgers of a managed ledger where one of them is damaged."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from storage.errors import EntriesUnreadable
from storage.managed_ledger import ManagedLedger, ManagedLedgerConfig
from storage.metadata.memory import MemoryStore
from storage.position import Position
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import LEDGERS, ledger_store
from tests.support.rooms import now_ms

ENTRIES = 12


@asynccontextmanager
async def running(files: SimulatedFiles, metadata: MemoryStore) -> AsyncIterator[ManagedLedger]:
    """A managed ledger of small ledgers, none of it in memory."""
    async with ledger_store(files, tail_bytes_max=0) as store, trio.open_nursery() as nursery:
        ledger = await ManagedLedger.open(
            "segment://public/default/orders/0000-ffff-0",
            metadata=metadata,
            ledgers=store,
            claim=None,
            config=ManagedLedgerConfig(ledger_bytes_max=200),
            now_ms=now_ms,
        )
        await nursery.start(ledger.run)
        yield ledger
        nursery.cancel_scope.cancel()


async def test_a_search_that_meets_damage_names_the_entries_that_it_hides() -> None:
    """E10: what is searched for is one of them or behind them, so whoever searched can go on behind the damage."""
    files, metadata = SimulatedFiles(seed=1), MemoryStore()
    async with running(files, metadata) as ledger:
        places: list[Position] = []
        for number in range(ENTRIES):
            places.append(ledger.append(b"%02d" % number * 40))
            await ledger.confirmed.wait_for(places[-1])
        await ledger.seal()
    async with running(files, metadata):
        pass  # The journal is in the ledgers now.
    damaged = places[0].ledger
    files.flip(LEDGERS / f"{damaged:020d}.ledger", 8 * 60)
    async with running(files, metadata) as ledger:
        for search in (ledger.position_of_index, ledger.position_at_time):
            with pytest.raises(EntriesUnreadable, match="is damaged at byte") as raised:
                await search(0)
            assert raised.value.first == places[0]
            assert raised.value.last.ledger == damaged
            behind = ledger.next_after(raised.value.last)
            assert await ledger.position_of_index(places.index(behind)) == behind
