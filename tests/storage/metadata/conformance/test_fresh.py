"""Reads of some keys that are as new as every earlier answer, on every store and on one with an old image."""

import trio
from trio.testing import wait_all_tasks_blocked

from storage.metadata.store import ABSENT, Delete, MetadataStore, Put
from tests.support.steered_store import LaggingStore


async def test_every_asked_key_is_answered(any_store: MetadataStore) -> None:
    """C20: with its record or with None; keys may be named twice, and none at all is a barrier."""
    version = await any_store.put("/a", b"1")
    found = await any_store.fresh(["/a", "/b", "/a"])
    assert found.records == {"/a": await any_store.get("/a"), "/b": None}
    assert (found.version("/a"), found.version("/b")) == (version, ABSENT)
    assert found.revision == version
    last = await any_store.put("/b", b"2")
    nothing = await any_store.fresh([])
    assert (nothing.revision, nothing.records) == (last, {})


async def test_what_was_answered_before_is_seen(any_store: MetadataStore) -> None:
    """C20, M2: writes, replacements and removals, although nothing looked at the image in between."""
    for number in range(10):
        version = await any_store.put("/a", b"%d" % number)
        found = await any_store.fresh(["/a"])
        assert found.version("/a") == version <= found.revision
        await any_store.delete("/a")
        assert (await any_store.fresh(["/a"])).records == {"/a": None}


async def test_all_keys_are_of_one_revision(any_store: MetadataStore) -> None:
    """C20: a writer changes two records together. No answer mixes two states, and answers never go back."""
    seen: list[int] = []

    async def write() -> None:
        for number in range(100):
            if number % 10 == 9:
                await any_store.commit([Delete("/a"), Delete("/z")])
            else:
                await any_store.commit([Put("/a", b"%d" % number), Put("/z", b"%d" % number)])

    async def read() -> None:
        while not done:
            found = await any_store.fresh(["/z", "/a"])
            assert found.version("/a") == found.version("/z") <= found.revision
            seen.append(found.revision)

    done = False
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await write()
        done = True
    assert seen == sorted(seen)
    assert len(set(seen)) > 10


async def test_no_part_of_a_large_change_set_is_seen(store: MetadataStore) -> None:
    """C20, R14: it is shown in many steps, and an answer waits for the last one."""
    count = 100 if "Etcd" in type(store).__name__ else 5_000
    keys = [f"/{number:04}" for number in range(count)]
    answers: list[set[int]] = []

    async def read() -> None:
        while True:
            found = await store.fresh([keys[0], keys[-1]])
            answers.append({found.version(key) for key in found.records})
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await store.commit([Put(key, b"") for key in keys])
        await store.fresh([])
        nursery.cancel_scope.cancel()
    assert all(len(versions) == 1 for versions in answers)


async def test_an_old_image_shows_the_difference() -> None:
    """C20, D5: a peek may show what was; `fresh` brings the image up to date as well."""
    lagging = LaggingStore()
    await lagging.put("/a", b"old")
    await lagging.fresh(["/a"])
    await lagging.put("/a", b"new")
    stale = lagging.peek("/a")
    assert stale is not None
    assert stale.value == b"old"
    found = (await lagging.fresh(["/a"])).records["/a"]
    assert found is not None
    assert found.value == b"new"
    assert lagging.peek("/a") == found


async def test_a_cancelled_question_leaves_nothing_behind(any_store: MetadataStore) -> None:
    """C20: the next one is answered as if the first had not been asked."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(any_store.fresh, ["/a"])
        nursery.cancel_scope.cancel()
    version = await any_store.put("/a", b"1")
    assert (await any_store.fresh(["/a"])).version("/a") == version
    await wait_all_tasks_blocked()
