"""Sequential puts and partition keys, on every store."""

from collections.abc import Callable

import pytest
import trio

from storage.metadata.store import (
    ABSENT,
    Check,
    Delete,
    DeleteRange,
    InvalidOperation,
    MetadataStore,
    Op,
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


NAMES_NEXT: list[Callable[[str], Op]] = [
    lambda key: Put(key, b"named"),
    lambda key: Put(key, b"named", ABSENT),
    Delete,
    lambda key: Delete(key, ABSENT),
    lambda key: Check(key, ABSENT),
]
"""Operations on a key that is not there, which a sequential put could be given."""


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("naming", NAMES_NEXT, ids=["put", "create", "delete", "delete-absent", "check"])
async def test_a_sequential_put_takes_no_key_that_its_change_set_names(
    store: MetadataStore, naming: Callable[[str], Op], is_first: bool
) -> None:
    """M5, E3: whichever stands first, neither replaces nor removes the record of the other."""
    following = [await _next_key(store, ahead) for ahead in range(1, 4)]
    sequential = PutSequential("/op/1", b"sequential", "1")
    others = [naming(key) for key in following]
    done = await store.commit([sequential, *others] if is_first else [*others, sequential])
    assigned = done.keys[0 if is_first else -1]
    assert assigned is not None
    assert assigned not in following
    found = {record.key: record.value for record in await store.scan(*starting_with("/op/1-"))}
    assert found.pop(assigned) == b"sequential"
    written = set(following) if isinstance(others[0], Put) else set()
    assert {key for key in found if found[key] == b"named"} == written


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_sequential_put_takes_no_key_that_its_change_set_deletes(store: MetadataStore, is_first: bool) -> None:
    """M5, E3: a record that was there is deleted, and the sequential put's is there, under another name."""
    following = [await _next_key(store, ahead) for ahead in range(1, 4)]
    for key in following:
        await store.put(key, b"old")
    sequential = PutSequential("/op/1", b"sequential", "1")
    deletes = [Delete(key) for key in following]
    done = await store.commit([sequential, *deletes] if is_first else [*deletes, sequential])
    assigned = done.keys[0 if is_first else -1]
    assert assigned is not None
    assert assigned not in following
    found = await store.scan(*starting_with("/op/1-"))
    assert [record.value for record in found if record.key >= following[0]] == [b"sequential"]


async def test_sequential_puts_of_one_change_set_pass_over_what_it_names(store: MetadataStore) -> None:
    """M5, E3: also the second of two."""
    key = await _next_key(store, 2)
    ops: list[Op] = [PutSequential("/op/1", b"a", "1"), Put(key, b"named"), PutSequential("/op/1", b"b", "1")]
    done = await store.commit(ops)
    assert done.keys[1] == key
    assert len(set(done.keys)) == 3
    assert [(await _value(store, key)) for key in done.keys] == [b"a", b"named", b"b"]


async def _next_key(store: MetadataStore, ahead: int) -> str:
    """The key that the store would give so many sequential puts from now."""
    existing = await store.scan(*starting_with("/op/1-"))
    if not existing:
        await store.commit([PutSequential("/op/1", b"", "1")])
        existing = await store.scan(*starting_with("/op/1-"))
    return f"/op/1-{int(existing[-1].key.split('-')[1]) + ahead:020}"


async def _value(store: MetadataStore, key: str | None) -> bytes:
    assert key is not None
    record = await store.get(key)
    assert record is not None
    return record.value


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
