"""The records of committed offsets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.kafka.groups.group_record import StoredGroup, to_put
from broker.kafka.groups.offsets import (
    CHANGE_SET_BYTES_MAX,
    KEY_PREFIX,
    RECORDS_AT_ONCE,
    FetchedOffset,
    Offset,
    Offsets,
    OffsetStore,
    TopicPartition,
    all_of,
    offset_key,
    slices,
)
from broker.kafka.groups.values import GroupError, GroupRecord
from storage.metadata.memory import MemoryStore
from storage.metadata.store import ABSENT, Check, Conflict
from tests.support.metadata import damage_records, keys

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9)


async def commit(store: MemoryStore, group: str, offsets: Offsets, *conditions: Check) -> None:
    for slice_ in slices(group, offsets):
        await OffsetStore(store).write(list(slice_.values()), conditions)


async def fetched(store: MemoryStore, group: str) -> dict[TopicPartition, Offset | None]:
    return {partition: each.offset for partition, each in (await OffsetStore(store).fetch(group)).items()}


async def test_offsets_are_read_as_they_were_committed() -> None:
    """K36: they go backwards, and keep their text. What was never committed is not there."""
    store = MemoryStore()
    first, then = Offset(7, 3, "text \0 \U0001f600", 5, 9), Offset(2, -1, "", 6)
    await commit(store, "g", {T0: first, T1: first})
    await commit(store, "g", {T0: then})
    assert await OffsetStore(store).fetch("g", [T0, T1, TopicPartition("t", 2)]) == {
        T0: FetchedOffset(then),
        T1: FetchedOffset(first),
        TopicPartition("t", 2): FetchedOffset(None),
    }
    assert await fetched(store, "g") == {T0: then, T1: first}
    assert await fetched(store, "other") == {}


@given(
    st.dictionaries(
        st.tuples(NAMES, st.builds(TopicPartition, NAMES, st.integers(0, 2**31 - 1))),
        st.integers(0, 2**63 - 1),
        max_size=6,
    )
)
async def test_names_of_groups_and_topics_never_meet(committed: dict[tuple[str, TopicPartition], int]) -> None:
    """K43: slashes, dots, percent signs and prefixes of each other."""
    store = MemoryStore()
    for (group, partition), offset in committed.items():
        await commit(store, group, {partition: Offset(offset)})
    for wanted in {group for group, _ in committed}:
        found = {each: offset for (group, each), offset in committed.items() if group == wanted}
        assert {each: offset.offset for each, offset in (await fetched(store, wanted)).items() if offset} == found


async def test_partitions_are_in_order() -> None:
    store = MemoryStore()
    await commit(store, "g", {TopicPartition("t", number): Offset(number) for number in (11, 100, 2)})
    assert [partition.partition for partition in await fetched(store, "g")] == [2, 11, 100]


async def test_a_stale_coordinator_commits_nothing() -> None:
    """D4, K34: its conditions do not hold."""
    store = MemoryStore()
    version = await store.put("/claim", b"")
    await commit(store, "g", {T0: Offset(1)}, Check("/claim", version))
    with pytest.raises(Conflict):
        await commit(store, "g", {T0: Offset(2)}, Check("/claim", version - 1))
    with pytest.raises(Conflict):
        await OffsetStore(store).delete(await OffsetStore(store).scan("g"), [Check("/claim", ABSENT)])
    with pytest.raises(Conflict):
        await OffsetStore(store).delete_partitions("g", [T0], [Check("/claim", ABSENT)])
    assert await fetched(store, "g") == {T0: Offset(1)}


@pytest.mark.parametrize(
    ("count", "text", "sizes"),
    [(0, "", []), (250, "", [100, 100, 50]), (60, "\0" * 4_096, [21, 21, 18])],
)
def test_a_large_commit_fits_every_store(count: int, text: str, sizes: list[int]) -> None:
    """E7: etcd takes 124 operations and 1.5 MiB. Control characters take six bytes each."""
    offsets = {TopicPartition("t", number): Offset(number, metadata=text) for number in range(count)}
    made = list(slices("g", offsets))
    assert [len(slice_) for slice_ in made] == sizes
    assert {partition for slice_ in made for partition in slice_} == offsets.keys()
    assert all(sum(len(put.value) for put in slice_.values()) <= CHANGE_SET_BYTES_MAX for slice_ in made)


async def test_many_offsets_are_read_and_deleted_by_pages() -> None:
    store = MemoryStore()
    offsets = {TopicPartition("t", number): Offset(number) for number in range(2 * RECORDS_AT_ONCE)}
    await commit(store, "g", offsets)
    assert await fetched(store, "g") == offsets
    assert len(await OffsetStore(store).fetch("g", offsets)) == len(offsets)
    found = await OffsetStore(store).scan("g")
    await OffsetStore(store).delete(found[:150], ())
    await OffsetStore(store).delete_partitions("g", [each.partition for each in found[:199]], ())
    assert list(await fetched(store, "g")) == [TopicPartition("t", 199)]


async def test_what_was_committed_again_is_not_deleted() -> None:
    """K36: a removal names the version that was seen."""
    store = MemoryStore()
    await commit(store, "g", {T0: Offset(1)})
    found = await OffsetStore(store).scan("g")
    await commit(store, "g", {T0: Offset(2)})
    with pytest.raises(Conflict):
        await OffsetStore(store).delete(found, ())
    assert await fetched(store, "g") == {T0: Offset(2)}


async def test_a_topic_that_is_gone_has_no_offsets() -> None:
    """Of no group; a topic whose name begins like it keeps its own."""
    store = MemoryStore()
    groups = [f"g{number}" for number in range(40)]
    for group in groups:
        await store.commit([to_put(group, StoredGroup(GroupRecord(), 0), ABSENT)])
        await commit(
            store, group, {T0: Offset(1), TopicPartition("t/0", 0): Offset(1), TopicPartition("tt", 0): Offset(1)}
        )
    await OffsetStore(store).delete_topic("t")
    await OffsetStore(store).delete_topic("t")
    assert {len(await fetched(store, group)) for group in groups} == {2}
    assert not [key for key in await keys(store, KEY_PREFIX) if "/t/" in key]


async def test_a_group_that_is_gone_has_no_offsets() -> None:
    store = MemoryStore()
    for group in ("g", "g/", "gg"):
        await commit(store, group, {T0: Offset(1), T1: Offset(1)})
    await store.commit([all_of("g")])
    assert [len(await fetched(store, group)) for group in ("g", "g/", "gg")] == [0, 2, 2]


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"offset":"x","epoch":1,"committed_ms":1}'])
async def test_a_damaged_offset_is_no_missing_one(value: bytes) -> None:
    """E11: a consumer that was told that there is none would begin elsewhere. A commit repairs it."""
    store = MemoryStore()
    await commit(store, "g", {T0: Offset(1), T1: Offset(1)})
    await damage_records(store, offset_key("g", T0), value)
    for partitions in (None, [T0, T1]):
        found = await OffsetStore(store).fetch("g", partitions)
        assert found == {T0: FetchedOffset(None, GroupError.UNKNOWN_SERVER_ERROR), T1: FetchedOffset(Offset(1))}
    await commit(store, "g", {T0: Offset(2)})
    assert (await fetched(store, "g"))[T0] == Offset(2)
