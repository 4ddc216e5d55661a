"""Records, their versions, and change sets with conditions, on every store."""

import weakref

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from storage.metadata import records
from storage.metadata.store import (
    ABSENT,
    Check,
    Conflict,
    Delete,
    DeleteRange,
    IndexEntry,
    InvalidOperation,
    MetadataStore,
    Op,
    Put,
    PutSequential,
)
from tests.support.metadata import keys
from tests.support.reference_counts import collector_stopped


async def test_a_record_is_read_with_its_version(store: MetadataStore) -> None:
    """M1: get returns value and version, or nothing; ABSENT is the version of a missing record."""
    assert await store.get("/a") is None
    version = await store.put("/a", b"1", expected=ABSENT, partition_key="p")
    record = await store.get("/a")
    assert record is not None
    assert (record.key, record.value, record.version, record.partition_key) == ("/a", b"1", version, "p")
    assert store.peek("/a") == record
    with pytest.raises(Conflict) as caught:
        await store.put("/a", b"2", expected=ABSENT)
    assert (caught.value.key, caught.value.expected, caught.value.actual) == ("/a", ABSENT, version)
    assert await store.get("/a") == record


async def test_a_refused_caller_is_freed_at_once(store: MetadataStore) -> None:
    """E16: the store keeps no refusal, because its traceback would hold the caller's objects."""
    await store.put("/a", b"")

    class Held:
        pass

    async def refused() -> weakref.ref[Held]:
        held = Held()
        with pytest.raises(Conflict):
            await store.put("/a", b"", expected=ABSENT)
        return weakref.ref(held)

    with collector_stopped():
        gone = await refused()
        await wait_all_tasks_blocked()
        assert gone() is None


@pytest.mark.parametrize("wrong", [Put("/a", b"2", 77), Delete("/a", 77), Delete("/no", 77), Check("/a", ABSENT)])
async def test_an_expectation_that_does_not_hold_changes_nothing(store: MetadataStore, wrong: Op) -> None:
    """M1: put, delete and check compare the version; a mismatch is a conflict, and nothing is changed."""
    await store.commit([Put("/a", b"1"), Put("/x", b"")])
    before = await store.scan("", "~")
    with pytest.raises(Conflict):
        await store.commit([Put("/b", b""), wrong, DeleteRange("/x", "/y")])
    assert await store.scan("", "~") == before
    assert await store.barrier() == before[0].version


async def test_conditions_are_judged_before_the_change_set(store: MetadataStore) -> None:
    """M1: a change set's own writes neither meet nor break its conditions."""
    version = await store.put("/a", b"1")
    await store.commit([Put("/b", b"", ABSENT), DeleteRange("/a", "/aa"), Check("/a", version)])
    assert await keys(store) == ["/b"]


async def test_of_many_writers_from_one_version_one_wins(store: MetadataStore) -> None:
    """M2: of concurrent writes that expect the same version, exactly one is made."""
    version = await store.put("/a", b"")
    won: list[int] = []
    lost: list[int] = []

    async def write(writer: int) -> None:
        try:
            await store.put("/a", b"%d" % writer, expected=version)
            won.append(writer)
        except Conflict:
            lost.append(writer)

    async with trio.open_nursery() as nursery:
        for writer in range(20):
            nursery.start_soon(write, writer)
    assert len(won) == 1
    assert len(lost) == 19
    record = await store.get("/a")
    assert record is not None
    assert record.value == b"%d" % won[0]


async def test_versions_rise_over_deletion(store: MetadataStore) -> None:
    """M3: a record that was deleted and created again never has an old version."""
    versions = []
    for _ in range(3):
        versions.append(await store.put("/a", b"same"))
        versions.append(await store.put("/a", b"same"))
        await store.delete("/a")
    assert versions == sorted(set(versions))


async def test_a_change_set_is_one_revision(store: MetadataStore) -> None:
    """M3: all its writes have its revision; a change set that changes nothing takes none."""
    await store.put("/x", b"")
    done = await store.commit([Put("/a", b""), Put("/b", b""), Delete("/x"), Delete("/never"), Check("/y", ABSENT)])
    assert done.keys == ("/a", "/b", None, None, None)
    assert [record.version for record in await store.scan("", "~")] == [done.revision] * 2
    nothing = await store.commit([Delete("/never"), DeleteRange("/m", "/z"), Check("/a", done.revision)])
    assert nothing.revision == done.revision
    assert (await store.commit([])).revision == done.revision


async def test_the_caller_may_change_its_list_afterwards(store: MetadataStore) -> None:
    """M1: later changes of the list do not change the change set."""
    for _ in range(10):
        ops: list[Op] = [Put("/a", b"")]
        with trio.move_on_after(0):
            await store.commit(ops)
        ops.append(Put("/b", b""))
        await store.commit([])
    assert "/b" not in await keys(store)


@pytest.mark.parametrize(
    "ops",
    [
        [Put("", b"")],
        [Put("\ud800", b"")],
        [Put("/" + "k" * records.KEY_BYTES_MAX, b"")],
        [Put("/a", b"", indexes=(IndexEntry("", "k"),))],
        [Put("/a", b"", partition_key="")],
        [PutSequential("", b"", "p")],
        [Put("/a", b""), Delete("/a")],
        [Check("/a", ABSENT), Put("/a", b"")],
        [Put("/a", b""), DeleteRange("/a", "/b")],
        [DeleteRange("/a", "/b"), PutSequential("/a/1", b"", "p")],
    ],
)
async def test_a_call_that_breaks_the_contract_is_refused(store: MetadataStore, ops: list[Op]) -> None:
    """M1, M11: keys are texts of bounded length, and a change set names each at most once."""
    before = await store.barrier()
    with pytest.raises(InvalidOperation):
        await store.commit([Put("/good", b""), *ops])
    assert await store.barrier() == before
