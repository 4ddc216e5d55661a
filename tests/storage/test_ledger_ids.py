"""Ids of ledgers: reserved in blocks, never reused."""

import pytest
import trio

from storage.errors import LedgerListCorrupt
from storage.ledger_ids import IDS_PER_BLOCK, LEDGER_IDS_KEY, LedgerIds
from storage.metadata.memory import MemoryStore


async def test_ids_are_reserved_in_blocks_and_rise_over_all_owners(metadata: MemoryStore) -> None:
    here, there = LedgerIds(metadata), LedgerIds(metadata)
    taken = [await here.take(above=-1) for _ in range(5)]
    other = await there.take(above=taken[-1])
    assert taken == [1, 2, 3, 4, 5]
    assert other == IDS_PER_BLOCK + 1
    # A ledger that follows one of the other's must not use what is left of this block.
    assert await here.take(above=other) == 2 * IDS_PER_BLOCK + 1
    record = await metadata.get(LEDGER_IDS_KEY)
    assert record is not None
    assert record.value == b"%d" % (3 * IDS_PER_BLOCK + 1)


async def test_ids_taken_at_once_differ(metadata: MemoryStore) -> None:
    taken: list[int] = []

    async def take(ids: LedgerIds) -> None:
        taken.extend([await ids.take(above=-1) for _ in range(3)])

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(take, LedgerIds(metadata))
    assert len(set(taken)) == len(taken) == 30


async def test_an_id_that_was_never_given_out_is_damage(metadata: MemoryStore) -> None:
    """E11: a flipped digit. To count up to it would take for ever, and every other topic would wait."""
    ids = LedgerIds(metadata)
    first = await ids.take(above=-1)
    with pytest.raises(LedgerListCorrupt, match="names ledger 1000000000000000000"):
        await ids.take(above=10**18)
    assert first < await ids.take(above=first) <= 3 * IDS_PER_BLOCK
