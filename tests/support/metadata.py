"""Short queries of a metadata store for tests."""

from trio.testing import wait_all_tasks_blocked

from storage.metadata.store import MetadataStore, Put, starting_with

LAST = "\U0010ffff"
"""Above every key of a test."""


async def keys(store: MetadataStore, start: str = "", end: str = LAST) -> list[str]:
    """Return the keys of a range, in the store's order."""
    return [record.key for record in await store.scan(start, end)]


async def keys_left(store: MetadataStore, prefix: str) -> list[str]:
    """Return the keys with this prefix, once all tasks wait and no change set is held back to join another one."""
    for _round in range(3):
        await wait_all_tasks_blocked()
        if not await keys(store, *starting_with(prefix)):
            break
        await store.put("/company", b"")
    await wait_all_tasks_blocked()
    return await keys(store, *starting_with(prefix))


async def hits(store: MetadataStore, index: str, start: str = "", end: str = LAST) -> list[tuple[str, str]]:
    """Return an index's entries as (index key, primary key), in the store's order."""
    return [(hit.index_key, hit.record.key) for hit in await store.query(index, start, end)]


async def damage_records(store: MetadataStore, prefix: str, value: bytes) -> list[str]:
    """Give the records with this prefix another value. Their keys and index entries stay. Returns the keys."""
    records = await store.scan(*starting_with(prefix))
    await store.commit([Put(each.key, value, each.version, each.indexes, each.partition_key) for each in records])
    return [record.key for record in records]
