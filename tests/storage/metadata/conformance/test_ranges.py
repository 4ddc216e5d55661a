"""The order of keys, ranges, and secondary indexes, on every store."""

from storage.metadata.store import DeleteRange, IndexEntry, MetadataStore, exactly, starting_with
from tests.support.metadata import hits, keys

ODD_KEYS = [
    "/",
    "/a",
    "/a\0",
    "/a\x01",
    "/a\x01b",
    "/a/b",
    "/ab",
    "/é",
    "/\uffff",
    "/\U00010000",
    "a/b/c",
    "\x7f",
    "\x80",
]


async def test_keys_are_ordered_by_their_bytes(store: MetadataStore) -> None:
    """M11: this includes slashes, control characters, and code points above sixteen bits."""
    for key in reversed(ODD_KEYS):
        await store.put(key, b"", indexes=(IndexEntry("odd", key),))
    in_order = sorted(ODD_KEYS, key=str.encode)
    assert await keys(store) == in_order
    assert await hits(store, "odd") == [(key, key) for key in in_order]
    for key in ODD_KEYS:
        assert await keys(store, *exactly(key)) == [key]
        assert await hits(store, "odd", *exactly(key)) == [(key, key)]
        assert await keys(store, *starting_with(key)) == [other for other in in_order if other.startswith(key)]


async def test_a_range_includes_its_start_and_excludes_its_end(store: MetadataStore) -> None:
    """M9: [start, end), at most `limit`; an empty or reversed range has no keys."""
    for key in "abcd":
        await store.put(key, b"")
    assert await keys(store, "b", "d") == ["b", "c"]
    assert await keys(store, "b", "b") == await keys(store, "d", "b") == []
    assert [record.key for record in await store.scan("a", "z", limit=2)] == ["a", "b"]
    assert await store.scan("a", "z", limit=0) == []


async def test_an_index_is_queried_by_key_and_range(store: MetadataStore) -> None:
    """M9: exact, range and prefix queries, in order of index key and primary key, with a limit."""
    for key, index_keys in {"/3": ("b", "a"), "/1": ("b",), "/2": ("ba", "c")}.items():
        await store.put(key, key.encode(), indexes=tuple(IndexEntry("i", index_key) for index_key in index_keys))
    assert await hits(store, "i") == [("a", "/3"), ("b", "/1"), ("b", "/3"), ("ba", "/2"), ("c", "/2")]
    assert await hits(store, "i", *exactly("b")) == [("b", "/1"), ("b", "/3")]
    assert await hits(store, "i", *starting_with("b")) == [("b", "/1"), ("b", "/3"), ("ba", "/2")]
    assert await hits(store, "i", "b", "ba") == [("b", "/1"), ("b", "/3")]
    assert await hits(store, "other") == []
    first, second = await store.query("i", "b", "z", limit=2)
    assert first.record == await store.get("/1")
    assert second.record == await store.get("/3")


async def test_a_page_of_an_index_begins_behind_the_last_one(store: MetadataStore) -> None:
    """M9: also in the middle of an index key, and behind an entry that is gone."""
    for key in ("/1", "/2", "/3"):
        await store.put(key, b"", indexes=(IndexEntry("i", "b"), IndexEntry("i", "c")))

    async def behind(index_key: str, key: str, limit: int | None = None) -> list[tuple[str, str]]:
        found = await store.query("i", index_key, "z", limit=limit, after=key)
        return [(hit.index_key, hit.record.key) for hit in found]

    everything = [("b", "/1"), ("b", "/2"), ("b", "/3"), ("c", "/1"), ("c", "/2"), ("c", "/3")]
    assert await behind("b", "") == await behind("a", "/2") == everything
    assert await behind("b", "/2") == everything[2:]
    assert await behind("b", "/2", limit=2) == everything[2:4]
    assert await behind("b", "/3") == await behind("b", "/4") == everything[3:]
    assert await behind("c", "/3") == []
    await store.delete("/2")
    assert await behind("b", "/2") == [("b", "/3"), ("c", "/1"), ("c", "/3")]
    assert await behind("b", "/1x") == [("b", "/3"), ("c", "/1"), ("c", "/3")]


async def test_index_entries_follow_their_record(store: MetadataStore) -> None:
    """M8: they change together with the record; M10: an omitted entry is gone."""
    entry = (IndexEntry("i", "k"),)
    session = await store.open_session(5)
    for key in ("/replaced", "/bare", "/deleted", "/in/range"):
        await store.put(key, b"", indexes=entry)
    await store.put("/ephemeral", b"", indexes=entry, session=session)
    await store.put("/replaced", b"", indexes=(IndexEntry("i", "new"), IndexEntry("j", "k")))
    await store.put("/bare", b"")
    await store.delete("/deleted")
    await store.commit([DeleteRange("/in", "/in0")])
    await session.close()
    assert await hits(store, "i") == [("new", "/replaced")]
    assert await hits(store, "j") == [("k", "/replaced")]


async def test_an_entry_named_twice_counts_once(store: MetadataStore) -> None:
    """M8: a record is found once under one index key."""
    entry = IndexEntry("i", "k")
    await store.put("/a", b"", indexes=(entry, entry))
    assert await hits(store, "i") == [("k", "/a")]
    await store.delete("/a")
    assert await hits(store, "i") == []


async def test_numbers_of_fixed_width_are_in_order(store: MetadataStore) -> None:
    """M12: 9 < 10 < 10^19 as twenty digits."""
    for number in (10, 10**19, 9):
        await store.put(f"/{number}", b"", indexes=(IndexEntry("n", f"{number:020}"),))
    assert [key for _, key in await hits(store, "n")] == ["/9", "/10", f"/{10**19}"]


async def test_an_index_of_some_records_holds_those_alone(store: MetadataStore) -> None:
    """M10: a record that omits its entry, now or at its next write, is not found by the index."""
    due = (IndexEntry("open-by-deadline", "7"),)
    for key in ("/1", "/2", "/3"):
        await store.put(key, b"OPEN", indexes=due)
    await store.put("/4", b"COMMITTED")
    await store.put("/2", b"COMMITTED")
    assert await hits(store, "open-by-deadline") == [("7", "/1"), ("7", "/3")]
    await store.put("/2", b"OPEN", indexes=due)
    assert await hits(store, "open-by-deadline") == [("7", "/1"), ("7", "/2"), ("7", "/3")]
