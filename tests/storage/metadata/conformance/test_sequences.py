"""Sequential puts and partition keys, on every store."""

import pytest
import trio

from storage.metadata.store import (
    DeleteRange,
    InvalidOperation,
    MetadataStore,
    Put,
    PutSequential,
    starting_with,
)
from tests.support.metadata import keys


async def test_sequential_puts_rise(store: MetadataStore) -> None:
    """M5: the store assigns the suffix; concurrent puts get distinct keys, and a later put a higher one."""
    assigned: list[str | None] = []

    async def put(value: bytes) -> None:
        done = await store.commit([PutSequential("/op/1", value, "1"), PutSequential("/op/1", value, "1")])
        assigned.extend(done.keys)

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(put, b"x")
    assert len(set(assigned)) == 20
    assert await keys(store) == sorted(key for key in assigned if key)
    done = await store.commit([PutSequential("/op/1", b"", "1")])
    (last,) = done.keys
    assert last is not None
    assert last > max(key for key in assigned if key)
    prefix, digits = last.split("-")
    assert (prefix, len(digits), digits.isdecimal()) == ("/op/1", 20, True)


async def test_a_sequential_suffix_is_never_used_again(store: MetadataStore) -> None:
    """M7: the counter does not go back when everything under the prefix is deleted."""
    first = (await store.commit([PutSequential("/op/1", b"", "1")])).keys[0]
    await store.commit([DeleteRange(*starting_with("/op/1"))])
    second = (await store.commit([PutSequential("/op/1", b"", "1")])).keys[0]
    assert first is not None
    assert second is not None
    assert first < second


async def test_a_sequential_put_never_replaces_a_record(store: MetadataStore) -> None:
    """M5: it writes a new record even where somebody has written the next names by hand."""
    done = await store.commit([PutSequential("/op/1", b"", "1")])
    assert done.keys[0] is not None
    number = int(done.keys[0].split("-")[1])
    taken = {f"/op/1-{number + ahead:020}" for ahead in range(1, 4)}
    for key in taken:
        await store.put(key, b"mine")
    (assigned,) = (await store.commit([PutSequential("/op/1", b"theirs", "1")])).keys
    assert assigned not in taken
    for key in taken:
        record = await store.get(key)
        assert record is not None
        assert record.value == b"mine"


async def test_a_sequential_put_needs_a_partition_key(store: MetadataStore) -> None:
    """M6: refused before anything is written."""
    with pytest.raises(InvalidOperation):
        await store.commit([Put("/a", b""), PutSequential("/op/1", b"", "")])
    assert await store.barrier() == 0


async def test_the_records_of_a_partition_go_by_one_range(store: MetadataStore) -> None:
    """M4: what shares a partition key is listed and deleted by its key range."""
    await store.commit([Put("/txn/id/7", b"", partition_key="7"), PutSequential("/txn/op/7", b"", "7")])
    await store.commit([PutSequential("/txn/op/7", b"", "7"), PutSequential("/txn/op/8", b"", "8")])
    start, end = starting_with("/txn/op/7-")
    found = await store.scan(start, end)
    assert [record.partition_key for record in found] == ["7", "7"]
    await store.commit([DeleteRange(start, end)])
    assert [record.partition_key for record in await store.scan("/txn/op/", "/txn/op0")] == ["8"]
