"""What a change set promises to readers, and what happens to an interrupted write, on every store."""

import contextlib

import pytest
import trio

from storage.metadata import records
from storage.metadata.store import (
    ChangeSetTooLarge,
    Check,
    Conflict,
    Delete,
    DeleteRange,
    IndexEntry,
    MetadataStore,
    Put,
)
from tests.support.metadata import keys


async def test_a_range_is_deleted_in_one_step(store: MetadataStore) -> None:
    """M24: a reader sees all of it or none of it."""
    names = [f"/r/{number:03}" for number in range(200)]
    for start in range(0, len(names), 100):
        await store.commit([Put(key, b"", indexes=(IndexEntry("i", key),)) for key in names[start : start + 100]])
    await store.commit([Put("/q", b""), Put("/s", b"")])
    sizes: set[int] = set()

    async def read(task_status: trio.TaskStatus[None]) -> None:
        sizes.add(len(await store.scan("/r/", "/r0")))
        task_status.started()
        while 0 not in sizes:
            sizes.add(len(await store.scan("/r/", "/r0")))

    async with trio.open_nursery() as nursery:
        await nursery.start(read)
        await store.commit([DeleteRange("/r/", "/r0"), Delete("/r/000"), Put("/t", b"")])
    assert sizes == {0, 200}
    assert await store.query("i", "", "~") == []
    assert await keys(store) == ["/q", "/s", "/t"]


async def test_a_range_deletion_covers_what_was_just_decided(store: MetadataStore) -> None:
    """M24: the order decides whether simultaneous writes are included, not their durability."""
    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(store.put, f"/r/{number}", b"")
    results: list[list[str]] = []

    async def delete() -> None:
        revision = (await store.commit([DeleteRange("/r/", "/r0")])).revision
        results.append([record.key for record in await store.scan("/r/", "/r0") if record.version < revision])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.put, "/r/6", b"")
        nursery.start_soon(delete)
        nursery.start_soon(store.put, "/r/7", b"")
    assert results == [[]]


async def test_a_record_above_the_limit_is_refused(store: MetadataStore) -> None:
    """M25: it is refused in advance with its whole change set; the largest allowed record is stored."""
    before = await store.barrier()
    with pytest.raises(ChangeSetTooLarge):
        await store.commit([Put("/a", b""), Put("/b", bytes(records.RECORD_BYTES_MAX))])
    assert await store.barrier() == before
    largest = bytes(records.RECORD_BYTES_MAX - 1024)
    await store.put("/b", largest)
    record = await store.get("/b")
    assert record is not None
    assert record.value == largest


async def test_a_write_guarded_by_another_record(store: MetadataStore) -> None:
    """M26: a put is made only if another key has the expected version."""
    claim = await store.put("/claim", b"me")
    await store.commit([Put("/a", b"1"), Check("/claim", claim)])
    await store.put("/claim", b"somebody else")
    with pytest.raises(Conflict):
        await store.commit([Put("/a", b"2"), Check("/claim", claim)])
    record = await store.get("/a")
    assert record is not None
    assert record.value == b"1"


async def test_a_cancelled_write_is_made_or_not(store: MetadataStore) -> None:
    """M22: its outcome is unknown; a retry with the version read before is safe."""
    version = await store.put("/a", b"0")
    with trio.move_on_after(0):
        await store.put("/a", b"1", expected=version)
    with contextlib.suppress(Conflict):
        await store.put("/a", b"1", expected=version)
    record = await store.get("/a")
    assert record is not None
    assert (record.value, record.version > version) == (b"1", True)


async def test_what_was_answered_is_read(store: MetadataStore) -> None:
    """M1: a read that begins after a write was answered shows it, whatever the kind of read."""
    for number in range(5):
        version = await store.put("/a", b"%d" % number, indexes=(IndexEntry("i", "k"),))
        assert await store.barrier() >= version
        assert [record.version for record in await store.scan("/a", "/b")] == [version]
        assert [hit.record.version for hit in await store.query("i", "k", "l")] == [version]
    assert store.statistics().records == 1
    assert store.statistics().revision == version


async def test_a_change_set_that_may_be_held_back_promises_the_same(store: MetadataStore) -> None:
    """M1, M4: it is durable and visible on return, all or nothing."""
    version = await store.put("/a", b"1")
    committed = await store.commit_along([Delete("/a", version), Put("/b", b"2")])
    assert committed.revision > version
    assert await store.get("/a") is None
    with pytest.raises(Conflict):
        await store.commit_along([Put("/b", b"3", committed.revision + 1), Put("/c", b"")])
    record = await store.get("/b")
    assert record is not None
    assert (record.value, record.version) == (b"2", committed.revision)
    assert await store.get("/c") is None
