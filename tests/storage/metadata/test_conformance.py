"""One suite for every metadata store."""

import pytest

from storage.metadata.memory import MemoryStore
from storage.metadata.store import ABSENT, Conflict, IndexEntry, MetadataStore, PutSequential


@pytest.fixture
async def store() -> MetadataStore:
    return MemoryStore()


async def test_put_and_get_by_version(store: MetadataStore) -> None:
    """M1: get returns value and version; an expectation that does not hold changes nothing."""
    assert await store.get("/a") is None
    first = await store.put("/a", b"1", expected=ABSENT)
    with pytest.raises(Conflict):
        await store.put("/a", b"2", expected=ABSENT)
    second = await store.put("/a", b"3", expected=first)
    record = await store.get("/a")
    assert record is not None
    assert (record.value, record.version) == (b"3", second)


async def test_smoke(store: MetadataStore) -> None:
    await store.commit([PutSequential("/op/1", b"x", "1", (IndexEntry("by", "k"),))])
    assert [hit.index_key for hit in await store.query("by", "a", "z")] == ["k"]
    session = await store.open_session(5)
    async with store.watch_range("/e", "/f") as watch, store.watch_key("/e1") as one:
        assert (await watch.next()).records == ()
        assert await one.next() is None
        await store.put("/e1", b"", session=session)
        assert [r.key for r in (await watch.next()).records] == ["/e1"]
        assert await one.next() is not None
        await session.close()
        assert (await watch.next()).deleted == ("/e1",)
        assert await one.next() is None
    await session.wait_lost()
