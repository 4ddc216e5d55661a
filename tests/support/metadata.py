"""Short questions to a metadata store, as tests ask them."""

from storage.metadata.store import MetadataStore

LAST = "\U0010ffff"
"""Above every key of a test."""


async def keys(store: MetadataStore, start: str = "", end: str = LAST) -> list[str]:
    """The keys of a range, in the store's order."""
    return [record.key for record in await store.scan(start, end)]


async def hits(store: MetadataStore, index: str, start: str = "", end: str = LAST) -> list[tuple[str, str]]:
    """An index's entries as (index key, primary key), in the store's order."""
    return [(hit.index_key, hit.record.key) for hit in await store.query(index, start, end)]
