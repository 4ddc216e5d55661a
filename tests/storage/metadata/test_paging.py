"""Queries and scans in pages."""

import pytest

from storage.metadata.memory import MemoryStore
from storage.metadata.paging import AT_ONCE, each_hit, each_record
from storage.metadata.store import IndexEntry, IndexHit, exactly, starting_with


class Counting(MemoryStore):
    """Notes how much each query returned."""

    def __init__(self) -> None:
        super().__init__()
        self.pages: list[int] = []

    async def query(
        self, index: str, start: str, end: str, *, limit: int | None = None, after: str = ""
    ) -> list[IndexHit]:
        found = await super().query(index, start, end, limit=limit, after=after)
        self.pages.append(len(found))
        return found


@pytest.mark.parametrize("index_keys", [1, 3, 1000])
@pytest.mark.parametrize("count", [0, 1, AT_ONCE, AT_ONCE + 1, 3 * AT_ONCE])
async def test_every_entry_comes_once_and_no_page_is_large(count: int, index_keys: int) -> None:
    """E7: however many entries have one index key."""
    store = Counting()
    for number in range(count):
        await store.put(f"/{number:04}", b"", indexes=(IndexEntry("i", f"k{number % index_keys:04}"),))
    everything = await MemoryStore.query(store, "i", *starting_with(""))
    assert [hit async for hit in each_hit(store.query, "i", *starting_with(""))] == everything
    assert len(everything) == count
    assert max(store.pages) <= AT_ONCE


@pytest.mark.parametrize("count", [0, 1, AT_ONCE, AT_ONCE + 1, 3 * AT_ONCE])
async def test_every_record_comes_once(count: int) -> None:
    """E7: and what is removed behind the caller does not make it miss others."""
    store = MemoryStore()
    for number in range(count):
        await store.put(f"/{number:04}", b"")
    everything = await store.scan(*starting_with("/"))
    assert len(everything) == count
    found = []
    async for record in each_record(store.scan, *starting_with("/")):
        found.append(record)
        await store.delete(record.key)
    assert found == everything


async def test_the_caller_may_remove_what_it_got() -> None:
    store = MemoryStore()
    for number in range(3 * AT_ONCE):
        await store.put(f"/{number:04}", b"", indexes=(IndexEntry("i", "k"),))
    found = []
    async for hit in each_hit(store.query, "i", *exactly("k")):
        found.append(hit.record.key)
        await store.delete(hit.record.key)
    assert found == [f"/{number:04}" for number in range(3 * AT_ONCE)]
