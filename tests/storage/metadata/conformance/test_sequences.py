"""Sequential puts and partition keys, on every store."""

from collections.abc import Callable

import pytest
import trio

from storage.metadata import records
from storage.metadata.store import (
    ABSENT,
    Check,
    Delete,
    DeleteRange,
    IndexEntry,
    InvalidOperation,
    MetadataStore,
    Op,
    Put,
    PutSequential,
    starting_with,
)
from tests.support.metadata import LAST, keys


async def test_sequential_puts_rise(store: MetadataStore) -> None:
    """M5: the store assigns the suffix; concurrent puts get distinct keys, and later puts higher ones."""
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
    """M5: it writes a new record even if the next names were written by hand."""
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
    """M5, E3: in either order, neither operation replaces or removes the other's record."""
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
    """M5, E3: the existing record is deleted, and the sequential put's record has another name."""
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
    """M5, E3: this includes the second of two."""
    key = await _next_key(store, 2)
    ops: list[Op] = [PutSequential("/op/1", b"a", "1"), Put(key, b"named"), PutSequential("/op/1", b"b", "1")]
    done = await store.commit(ops)
    assert done.keys[1] == key
    assert len(set(done.keys)) == 3
    assert [(await _value(store, key)) for key in done.keys] == [b"a", b"named", b"b"]


async def _next_key(store: MetadataStore, ahead: int) -> str:
    """Return the key that the store would assign after this many more sequential puts."""
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


REFUSED: list[PutSequential] = [
    PutSequential("/op/1", b"", ""),
    PutSequential("/op/1", b"", "\ud800"),
    PutSequential("/op/1", b"", "p" * (records.KEY_BYTES_MAX + 1)),
    PutSequential("", b"", "1"),
    PutSequential("/op/1\ud800", b"", "1"),
    PutSequential("/op/1" + "k" * records.KEY_BYTES_MAX, b"", "1"),
]
"""Sequential puts that break the contract."""


@pytest.mark.parametrize(
    "refused", REFUSED, ids=["no-partition", "no-text", "long-partition", "no-prefix", "no-text-prefix", "long-prefix"]
)
async def test_a_sequential_put_is_refused_before_anything_is_written(
    store: MetadataStore, refused: PutSequential
) -> None:
    """M6: none of its change set's operations is done, the log does not grow, and no number is used."""
    following = await _next_key(store, 1)
    good = PutSequential("/op/1", b"", "1")
    before = store.statistics()
    put = Put("/a", b"")
    change_sets: list[list[Op]] = [[refused], [put, refused], [good, refused], [refused, good, put]]
    for ops in change_sets:
        with pytest.raises(InvalidOperation):
            await store.commit(ops)
    assert store.statistics() == before
    assert await store.barrier() == before.revision
    assert (await store.commit([good])).keys == (following,)


async def test_the_records_of_a_partition_go_by_one_range(store: MetadataStore) -> None:
    """M4: its key range lists and deletes the records of one partition key, and no others."""
    # "70" begins as "7" does, and is another partition.
    for txn in ("7", "70", "8"):
        header = Put(f"/txn/id/{txn}", b"", indexes=(IndexEntry("all", txn),), partition_key=txn)
        op = PutSequential(f"/txn/op/{txn}", b"", txn, (IndexEntry("all", txn),))
        await store.commit([header, op])
        await store.commit([op])
    start, end = starting_with("/txn/op/7-")
    others = [*await store.scan("", start), *await store.scan(end, LAST)]
    found = await store.scan(start, end)
    assert [record.partition_key for record in found] == ["7", "7"]
    assert [record.partition_key for record in others] == ["7", "70", "8", "70", "70", "8", "8"]
    async with store.watch_range("", LAST) as watch:
        await watch.next()
        await store.commit([DeleteRange(start, end)])
        change = await watch.next()
    assert (change.records, change.deleted) == ((), tuple(record.key for record in found))
    assert await store.scan("", LAST) == others
    assert [hit.record.partition_key for hit in await store.query("all", "", LAST)] == [*"7", *["70"] * 3, *["8"] * 3]


async def test_every_reading_tells_the_partition_key(store: MetadataStore) -> None:
    """M4: it is that of the last write; a record written without one has none."""
    for partition_key in ("7", "8", None):
        put = Put("/a", b"", indexes=(IndexEntry("i", "k"),), partition_key=partition_key)
        async with store.watch_range("/a", "/b") as of_range, store.watch_key("/a") as of_key:
            await of_range.next()
            await of_key.next()
            await store.commit([put])
            told = [*(await of_range.next()).records, await of_key.next()]
        read = [await store.get("/a"), store.peek("/a"), *await store.scan("/a", "/b")]
        hit = await store.query("i", "k", "l")
        assert [record and record.partition_key for record in [*told, *read, hit[0].record]] == [partition_key] * 6
