"""Counts op records and index queries of one broker."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import partial

import trio

from storage.metadata.paging import each_hit
from storage.metadata.store import IndexHit, MetadataStore


@dataclass(slots=True)
class OpCounters:
    """Op records and index queries of one broker since it started (T34). The object outlives every topic."""

    op_writes: int = 0
    op_records_outstanding: int = 0
    """Op records of this broker's segments that are not applied yet. The only counter that falls."""
    index_queries: int = 0
    index_query_seconds: float = 0.0

    async def query(
        self, metadata: MetadataStore, index: str, start: str, end: str, *, limit: int | None = None, after: str = ""
    ) -> list[IndexHit]:
        """Query an index of the store, counted and timed. A failed query does not count."""
        asked = trio.current_time()
        hits = await metadata.query(index, start, end, limit=limit, after=after)
        self.index_queries += 1
        self.index_query_seconds += trio.current_time() - asked
        return hits

    def each_hit(self, metadata: MetadataStore, index: str, start: str, end: str) -> AsyncGenerator[IndexHit, None]:
        """Query an index in pages, each counted and timed. See `storage.metadata.paging.each_hit`."""
        return each_hit(partial(self.query, metadata), index, start, end)


class OutstandingOps:
    """The op records of one owner, as its part of the broker's count."""

    def __init__(self, counters: OpCounters) -> None:
        self._counters = counters
        self._own = 0
        self._has_left = False

    def add(self, op_records: int) -> None:
        """So many more are outstanding, or fewer if negative. After `leave`, the next owner counts them."""
        if not self._has_left:
            self._own += op_records
            self._counters.op_records_outstanding += op_records

    def leave(self) -> None:
        """The next owner counts the rest."""
        self.add(-self._own)
        self._has_left = True
