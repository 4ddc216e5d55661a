"""Queries and scans of any length, in pages: a step of the event loop stays short however many records there are (E7).

Each page is from one moment, but the whole is not. What is there all the time comes once. The caller may remove what it
got. Whoever may stop early, or pauses in between, closes it (`contextlib.aclosing`).
"""

from collections.abc import AsyncGenerator
from typing import Final, Protocol

import trio

from storage.metadata.store import IndexHit, Record

AT_ONCE: Final = 128
"""Records in a page. Callers decode each of them, which takes some 10 µs."""


class Query(Protocol):
    """`MetadataStore.query`, or what asks it."""

    async def __call__(self, index: str, start: str, end: str, *, limit: int, after: str) -> list[IndexHit]:
        """See the store."""
        ...


class Scan(Protocol):
    """`MetadataStore.scan`, or what asks it."""

    async def __call__(self, start: str, end: str, *, limit: int) -> list[Record]:
        """See the store."""
        ...


async def each_hit(query: Query, index: str, start: str, end: str) -> AsyncGenerator[IndexHit, None]:
    """Yield what `MetadataStore.query` returns, page by page."""
    after = ""
    while hits := await query(index, start, end, limit=AT_ONCE, after=after):
        for hit in hits:
            yield hit
        if len(hits) < AT_ONCE:
            return
        start, after = hits[-1].index_key, hits[-1].record.key
        # On a store in memory the query may not yield.
        await trio.lowlevel.checkpoint()


async def each_record(scan: Scan, start: str, end: str) -> AsyncGenerator[Record, None]:
    """Yield what `MetadataStore.scan` returns, page by page."""
    while records := await scan(start, end, limit=AT_ONCE):
        for record in records:
            yield record
        if len(records) < AT_ONCE:
            return
        start = records[-1].key + "\0"
        await trio.lowlevel.checkpoint()
