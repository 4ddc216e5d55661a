"""Index queries of any length, in pages: a step of the event loop stays short however many records there are (E7)."""

from collections.abc import AsyncGenerator
from typing import Final, Protocol

import trio

from storage.metadata.store import IndexHit

HITS_AT_ONCE: Final = 128
"""Index entries in a page. Callers decode a record for each, which takes some 10 µs."""


class Query(Protocol):
    """`MetadataStore.query`, or what asks it."""

    async def __call__(self, index: str, start: str, end: str, *, limit: int, after: str) -> list[IndexHit]:
        """See the store."""
        ...


async def each_hit(query: Query, index: str, start: str, end: str) -> AsyncGenerator[IndexHit, None]:
    """Yield what `MetadataStore.query` returns, page by page.

    Each page is from one moment, but the whole is not. An entry that is there all the time comes once. The caller may
    remove what it got. Whoever may stop early, or pauses in between, closes it (`contextlib.aclosing`).
    """
    after = ""
    while hits := await query(index, start, end, limit=HITS_AT_ONCE, after=after):
        for hit in hits:
            yield hit
        if len(hits) < HITS_AT_ONCE:
            return
        start, after = hits[-1].index_key, hits[-1].record.key
        # On a store in memory the query may not yield.
        await trio.lowlevel.checkpoint()
