"""Deletes the records of groups that nobody needs: those of batch jobs that ran once.

A continuing application, such as a streaming query or a named job, keeps its record forever. One of its batches may be
retried after any pause (docs/design.md#groups).
"""

from contextlib import aclosing

import structlog

from storage.clock import WallClock
from storage.metadata.store import Conflict, Delete, MetadataStore, Record, StoreUnavailable
from txn.counters import OpCounters
from txn.due_records import DueRecords, Kind
from txn.duty import EVERYTHING, Duty
from txn.group_record import ONCE_BY_TIME, application_of
from txn.headers import BY_GROUP, group_members, moment_of
from txn.wall_clock_timer import WallClockTimer

log = structlog.get_logger(__name__)


class GroupSweep:
    """Removes the records of applications that run only once, a while after their end."""

    def __init__(
        self,
        metadata: MetadataStore,
        *,
        age_ms: int,
        now_ms: WallClock,
        timer: WallClockTimer,
        counters: OpCounters,
        duty: Duty = EVERYTHING,
    ) -> None:
        """Set up.

        Args:
            metadata: holds the records.
            age_ms: the age since a batch began or ended; at least the longest time that a transaction may stay open.
            now_ms: the wall clock.
            timer: fires `age_ms` after each requested moment.
            counters: counts queries.
            duty: this broker's part.
        """
        self._metadata = metadata
        self._now_ms = now_ms
        self._timer = timer
        self._counters = counters
        kind = Kind(
            ONCE_BY_TIME,
            ("",),
            moment_of,
            age_ms,
            lambda _record: age_ms,
            lambda key: key,
            lambda record: record,
            leaves_index=False,
        )
        self.due = DueRecords(kind, metadata, duty=duty, now_ms=now_ms, timer=timer, counters=counters)

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
        async with aclosing(self.due.pages()) as pages:
            async for due in pages:
                for record in due:
                    await self._forget(record)
        await self.due.ring_next()

    async def _forget(self, record: Record) -> None:
        members = group_members(application_of(record.key))
        if await self._counters.query(self._metadata, BY_GROUP, *members, limit=1):
            # A long job. Check it again after another `age_ms`.
            self._timer.at_latest(self._now_ms())
            return
        try:
            await self._metadata.commit([Delete(record.key, record.version)])
        except Conflict:
            # Begun again, or removed by another broker.
            return
