"""Deletes the records of groups that nobody needs: those of batch jobs that ran once.

A continuing application, such as a streaming query or a named job, keeps its record forever. One of its batches may be
retried after any pause (docs/design.md#groups).
"""

import structlog

from storage.clock import WallClock
from storage.metadata.store import Conflict, Delete, MetadataStore, StoreUnavailable, starting_with
from txn.counters import OpCounters
from txn.group_record import ONCE_BY_TIME, application_of, unchanged_since
from txn.headers import BY_GROUP, group_members
from txn.wall_clock_timer import WallClockTimer

log = structlog.get_logger(__name__)


class GroupSweep:
    """Removes the records of applications that run only once, a while after their end."""

    def __init__(
        self, metadata: MetadataStore, *, age_ms: int, now_ms: WallClock, timer: WallClockTimer, counters: OpCounters
    ) -> None:
        """Set up.

        Args:
            metadata: holds the records.
            age_ms: the age since a batch began or ended; at least the longest time that a transaction may stay open.
            now_ms: the wall clock.
            timer: fires `age_ms` after each requested moment.
            counters: counts queries.
        """
        self._metadata = metadata
        self._age_ms = age_ms
        self._now_ms = now_ms
        self._timer = timer
        self._counters = counters

    async def run(self) -> None:
        """Sweep until cancelled: once at the start, then whenever a record has reached its age."""
        while True:
            try:
                await self._sweep()
            except StoreUnavailable as unanswered:
                log.warning("a sweep of groups had no answer", reason=str(unanswered))
                self._timer.at_latest(self._now_ms())
            await self._timer.wait()

    async def _sweep(self) -> None:
        due_start, due_end = unchanged_since(self._now_ms() - self._age_ms)
        for hit in await self._counters.query(self._metadata, ONCE_BY_TIME, due_start, due_end):
            application = application_of(hit.record.key)
            if await self._counters.query(self._metadata, BY_GROUP, *group_members(application), limit=1):
                # A long job. Check it again after another `age_ms`.
                self._timer.at_latest(self._now_ms())
                continue
            try:
                await self._metadata.commit([Delete(hit.record.key, hit.record.version)])
            except Conflict:
                # Begun again, or removed by another broker.
                continue
        _, all_end = starting_with("")
        later = await self._counters.query(self._metadata, ONCE_BY_TIME, due_end, all_end, limit=1)
        if later:
            self._timer.at_latest(int(later[0].index_key))
