"""Sessions and their ephemeral records, on every store."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from storage.metadata.image_store import LocalSession
from storage.metadata.memory import MemoryStore
from storage.metadata.store import IndexEntry, InvalidOperation, MetadataStore, Put, SessionLost
from tests.support.metadata import hits, keys


async def test_ephemeral_records_go_with_their_session(store: MetadataStore) -> None:
    """M18: closing deletes them in one step, with watches and indexes; other records stay."""
    mine = await store.open_session(5)
    other = await store.open_session(5)
    entry = (IndexEntry("i", "k"),)
    await store.put("/e/1", b"", session=mine, indexes=entry)
    await store.put("/e/2", b"", session=mine)
    await store.put("/e/3", b"", session=other)
    await store.put("/e/4", b"")
    record = await store.get("/e/1")
    assert record is not None
    assert record.session == mine.id
    async with store.watch_range("/e/", "/e0") as watch, store.watch_key("/e/1") as key_watch:
        await watch.next()
        await key_watch.next()
        await mine.close()
        change = await watch.next()
        assert (change.records, change.deleted) == ((), ("/e/1", "/e/2"))
        assert await key_watch.next() is None
    assert await keys(store) == ["/e/3", "/e/4"]
    assert await hits(store, "i") == []
    await mine.wait_lost()
    await mine.close()
    lost: list[int] = []

    async def wait_lost() -> None:
        await other.wait_lost()
        lost.append(other.id)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_lost)
        await wait_all_tasks_blocked()
        assert lost == []
        await other.close()
    assert lost == [other.id]


async def test_a_session_can_be_ended_by_its_number(store: MetadataStore) -> None:
    """M18: its records are gone on return. Another session and its records stay, and a second end does nothing."""
    dead = await store.open_session(60)
    other = await store.open_session(60)
    await store.put("/e/1", b"", session=dead)
    await store.put("/e/2", b"", session=other)
    await store.end_session(dead.id)
    assert await keys(store) == ["/e/2"]
    await dead.wait_lost()
    with pytest.raises(SessionLost):
        await store.put("/e/1", b"", session=dead)
    await store.end_session(dead.id)
    assert await keys(store) == ["/e/2"]
    assert not other.has_ended


async def test_a_record_belongs_to_whom_wrote_it_last(store: MetadataStore) -> None:
    """M18: written again without a session, it lasts; with another session, it ends with that one."""
    first = await store.open_session(5)
    second = await store.open_session(5)
    for key in ("/lasting", "/moved", "/deleted"):
        await store.put(key, b"", session=first)
    await store.put("/lasting", b"")
    await store.put("/moved", b"", session=second)
    await store.delete("/deleted")
    await store.put("/deleted", b"anew")
    await first.close()
    assert await keys(store) == ["/deleted", "/lasting", "/moved"]
    await second.close()
    assert await keys(store) == ["/deleted", "/lasting"]


async def test_a_write_for_an_ended_session_is_not_made(store: MetadataStore) -> None:
    """M19: it fails as SessionLost, and is never moved to another session."""
    session = await store.open_session(5)
    await session.close()
    again = await store.open_session(5)
    assert again.id != session.id
    with pytest.raises(SessionLost):
        await store.commit([Put("/a", b""), Put("/e", b"", session=session)])
    assert await keys(store) == []


async def test_a_session_of_another_store_is_not_taken_for_ones_own(store: MetadataStore) -> None:
    """M19: this holds even if this store has an open session of the same number."""
    mine = await store.open_session(5)
    theirs = LocalSession(MemoryStore(), mine.id)
    with pytest.raises(SessionLost):
        await store.put("/e", b"", session=theirs)


async def test_a_write_that_races_its_sessions_end(store: MetadataStore) -> None:
    """M19: in either order, no record outlives its session."""
    session = await store.open_session(5)
    refused: list[int] = []

    async def write(number: int) -> None:
        try:
            await store.put(f"/e/{number}", b"", session=session)
        except SessionLost:
            refused.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(write, number)
        nursery.start_soon(session.close)
        for number in range(8, 16):
            nursery.start_soon(write, number)
    assert await keys(store) == []
    with pytest.raises(SessionLost):
        await store.put("/e", b"", session=session)


async def test_a_session_needs_a_timeout(store: MetadataStore) -> None:
    """M18: a session ends after a bounded silence."""
    with pytest.raises(InvalidOperation):
        await store.open_session(0)
