"""The two sweeps: abort transactions past their deadline, and forget finished ones after their retention.

Both sleep until the next moment with something to do. Both only propose: the abort is the same compare-and-set as a
client's, and a header is deleted only when it has no op records left (docs/design.md#transactions). Several brokers may
sweep at once.

A sweep goes through its index once, in pages, and handles nothing twice. The next sweep takes up what this one cannot
finish. So its work is proportional to what is due, and nothing blocks what follows.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import aclosing
from typing import Final

import structlog
import trio

from storage.clock import WallClock
from storage.entry import TxnId
from storage.metadata.store import (
    Conflict,
    Delete,
    IndexHit,
    MetadataStore,
    Record,
    RecordVersion,
    StoreUnavailable,
    starting_with,
)
from txn.coordinator import Coordinator
from txn.counters import OpCounters
from txn.errors import InvalidTxnStatus, TransactionNotFound
from txn.group_record import group_key
from txn.headers import (
    BY_DEADLINE,
    BY_FINAL_STATE,
    Header,
    TransactionGroup,
    deadline_ms_of,
    deadline_range,
    final_state_range,
    final_state_until,
    finalized_ms_of,
    txn_of_key,
)
from txn.op_removal import remove_ops
from txn.ops import ops_of, segment_of
from txn.states import EndAction, TxnState
from txn.unreadable import Unreadable
from txn.wall_clock_timer import WallClockTimer

log = structlog.get_logger(__name__)

SWEEP_BATCH: Final = 100
"""Headers handled between two queries. It bounds memory, not how many are swept, and stays below etcd's 128 operations.
"""

AGAIN_MS: Final = 1_000
"""The earliest time after which an unfinished sweep continues. The sweep of deadlines continues exactly then."""

LEFTOVER_OPS_SHOWN: Final = 1000
"""Op records of one finished transaction that are read at once."""

REDRIVES_AT_ONCE: Final = 16
"""Segments that a sweep loads at a time."""

REDRIVE_SECONDS_MAX: Final = 30.0
"""How long a sweep waits for the segments of one page. They go on loading without it."""


async def _pages(
    counters: OpCounters, metadata: MetadataStore, index: str, start: str, end: str
) -> AsyncGenerator[list[IndexHit], None]:
    """What an index holds in [start, end), in pages. Entries that the caller leaves there do not appear again."""
    while True:
        page = await counters.query(metadata, index, start, end, limit=SWEEP_BATCH)
        if page:
            # On a store in memory, the caller's work on a page may never yield.
            await trio.lowlevel.checkpoint()
            yield page
        if len(page) < SWEEP_BATCH:
            return
        start = page[-1].index_key + "\0"


class TimeoutSweep:
    """Aborts open transactions whose deadline has passed (T9)."""

    def __init__(
        self,
        metadata: MetadataStore,
        coordinator: Coordinator,
        *,
        now_ms: WallClock,
        timer: WallClockTimer,
        counters: OpCounters,
    ) -> None:
        self._metadata = metadata
        self._counters = counters
        self._coordinator = coordinator
        self._now_ms = now_ms
        self._timer = timer
        self._unreadable = Unreadable()

    async def run(self) -> None:
        """Sweep until cancelled: once at the start, then at each deadline."""
        while True:
            try:
                await self._abort_due()
                await self._ring_next()
            except* StoreUnavailable as unanswered:
                # The outcome is unknown. The next sweep handles what is still open.
                log.warning("a sweep of deadlines had no answer", reason=str(unanswered.exceptions[0]))
                self._timer.at_latest(self._now_ms() + AGAIN_MS)
            await self._timer.wait()

    async def _abort_due(self) -> None:
        now = self._now_ms()
        async with aclosing(_pages(self._counters, self._metadata, BY_DEADLINE, *deadline_range(now))) as pages:
            async for due in pages:
                groups: dict[TxnId, TransactionGroup | None] = {}
                for hit in due:
                    with self._unreadable.reading(hit.record.key):
                        groups[txn_of_key(hit.record.key)] = Header.from_value(hit.record.value).group
                # At once, so that they share the store's syncs.
                async with trio.open_nursery() as nursery:
                    for txn, group in groups.items():
                        if group is None:
                            nursery.start_soon(self._abort, txn)
                    for application in {group.application for group in groups.values() if group is not None}:
                        nursery.start_soon(self._abort_members, application, now)

    async def _ring_next(self) -> None:
        """Set the timer to the next deadline of a transaction with a readable header."""
        limit = len(self._unreadable) + 1
        upcoming = await self._counters.query(self._metadata, BY_DEADLINE, *starting_with(""), limit=limit)
        for hit in upcoming:
            if hit.record.key in self._unreadable:
                continue
            # A transaction past its deadline could not be aborted.
            now = self._now_ms()
            moment_ms = now + AGAIN_MS
            with self._unreadable.reading(hit.record.key):
                deadline_ms = deadline_ms_of(hit.index_key)
                moment_ms = deadline_ms if deadline_ms > now else moment_ms
            self._timer.at_latest(moment_ms)
            return

    async def _abort_members(self, application: str, now_ms: int) -> None:
        with self._unreadable.reading(group_key(application)):
            await self._coordinator.groups.abort_due(application, now_ms)

    async def _abort(self, txn: TxnId) -> None:
        try:
            await self._coordinator.end(txn, EndAction.ABORT)
        except (InvalidTxnStatus, TransactionNotFound):
            # Its client ended it first; the deadline no longer matters.
            return


class HeaderSweep:
    """Deletes the headers of finished transactions after their retention, once no op record is left (T28)."""

    def __init__(
        self,
        metadata: MetadataStore,
        *,
        retention_ms: int,
        now_ms: WallClock,
        timer: WallClockTimer,
        redrive: Callable[[str], Awaitable[bool]],
        counters: OpCounters,
    ) -> None:
        """Set up.

        Args:
            metadata: holds the headers.
            retention_ms: how long after its end a transaction stays known to clients.
            now_ms: the wall clock.
            timer: fires `retention_ms` after each requested moment.
            redrive: makes the owner of a segment apply a decision. Called for op records left behind. Returns False if
                the segment is gone, so that nobody ever will. Raises RecordUnreadable if no segment can have that name.
            counters: counts queries.
        """
        self._metadata = metadata
        self._counters = counters
        self._retention_ms = retention_ms
        self._now_ms = now_ms
        self._timer = timer
        self._redrive = redrive
        self._unreadable = Unreadable()
        self.deleted = 0

    async def run(self) -> None:
        """Sweep until cancelled: once at the start, then whenever a retention ends."""
        while True:
            try:
                for state in (TxnState.COMMITTED, TxnState.ABORTED):
                    await self._sweep(state)
            except* StoreUnavailable as unanswered:
                # A retention from now is soon enough.
                log.warning("a sweep of finished transactions had no answer", reason=str(unanswered.exceptions[0]))
                self._timer.at_latest(self._now_ms())
            await self._timer.wait()

    async def _sweep(self, state: TxnState) -> None:
        due_start, due_end = final_state_until(state, self._now_ms() - self._retention_ms)
        is_kept = False
        # Many transactions may concern one segment, and loading it may fail each time.
        redriven: dict[str, bool] = {}
        async with aclosing(_pages(self._counters, self._metadata, BY_FINAL_STATE, due_start, due_end)) as pages:
            async for due in pages:
                headers: dict[TxnId, Record] = {}
                for hit in due:
                    with self._unreadable.reading(hit.record.key):
                        headers[txn_of_key(hit.record.key)] = hit.record
                unsettled = await self._with_ops(headers)
                settled = [record for txn, record in headers.items() if txn not in unsettled]
                if settled:
                    await self._forget(settled)
                for txn in unsettled:
                    await self._see_to(txn, redriven)
                is_kept = is_kept or bool(unsettled)
        if is_kept:
            # Their participants are applying them. Check again after another retention, or a little later.
            self._timer.at_latest(self._now_ms() + max(AGAIN_MS - self._retention_ms, 0))
        _, all_end = final_state_range(state)
        upcoming = await self._counters.query(self._metadata, BY_FINAL_STATE, due_end, all_end, limit=1)
        if upcoming:
            finalized_ms = self._now_ms()
            with self._unreadable.reading(upcoming[0].record.key):
                finalized_ms = finalized_ms_of(upcoming[0].index_key)
            self._timer.at_latest(finalized_ms)

    async def _with_ops(self, txns: Iterable[TxnId]) -> set[TxnId]:
        """Those of these finished transactions that have op records.

        No new ones follow, because those need an open header.
        """
        found: set[TxnId] = set()

        async def look(txn: TxnId) -> None:
            if await self._metadata.scan(*ops_of(txn), limit=1):
                found.add(txn)

        # At once, so that they share a request to the store.
        async with trio.open_nursery() as nursery:
            for txn in txns:
                nursery.start_soon(look, txn)
        return found

    async def _see_to(self, txn: TxnId, redriven: dict[str, bool]) -> None:
        """Have a decided transaction's op records applied, and remove those that nobody can apply."""
        start, end = ops_of(txn)
        while records := await self._metadata.scan(start, end, limit=LEFTOVER_OPS_SHOWN):
            of_segment: dict[str, list[RecordVersion]] = {}
            for record in records:
                with self._unreadable.reading(record.key):
                    of_segment.setdefault(segment_of(record), []).append(RecordVersion.of(record))
            await self._redrive_all(of_segment.keys() - redriven.keys(), redriven)
            # A slow or disconnected owner still has to apply its records. Remove only what nobody ever will (T29).
            await remove_ops(
                [op for segment, ops in of_segment.items() if not redriven[segment] for op in ops],
                metadata=self._metadata,
            )
            start = records[-1].key + "\0"

    async def _redrive_all(self, segments: Collection[str], redriven: dict[str, bool]) -> None:
        """Redrive several segments side by side, so that one that cannot be loaded does not block the others."""
        places = trio.CapacityLimiter(REDRIVES_AT_ONCE)

        async def redrive(segment: str) -> None:
            async with places:
                with self._unreadable.reading(segment):
                    redriven[segment] = await self._redrive(segment)

        # A segment that takes longer is assumed to exist.
        redriven.update(dict.fromkeys(segments, True))
        with trio.move_on_after(REDRIVE_SECONDS_MAX):
            async with trio.open_nursery() as nursery:
                for segment in sorted(segments):
                    nursery.start_soon(redrive, segment)

    async def _forget(self, headers: Sequence[Record]) -> None:
        try:
            await self._metadata.commit([Delete(record.key, record.version) for record in headers])
        except Conflict:
            # Another broker's sweep was first, with this header or with some of several.
            if len(headers) > 1:
                for record in headers:
                    await self._forget([record])
            return
        self.deleted += len(headers)
