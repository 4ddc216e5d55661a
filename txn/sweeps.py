"""The two sweeps: abort transactions past their deadline, and forget finished ones after their retention.

Both sleep until the next moment with something to do. Both only propose: the abort is the same compare-and-set as a
client's, and a header is deleted only when it has no op records left (docs/design.md#transactions). So several brokers
may sweep at once. Each does its part (`txn.duty`): the transactions of the coordinators that it owns.

A sweep goes once through what is due (`txn.due_records`), in pages, and handles nothing twice. The next sweep takes up
what this one cannot finish. So its work is proportional to what is due, and nothing blocks what follows.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import aclosing
from typing import Final

import structlog
import trio

from storage.clock import WallClock
from storage.entry import TxnId
from storage.metadata.store import Conflict, Delete, MetadataStore, Record, RecordVersion, StoreUnavailable
from txn.coordinator import Coordinator
from txn.counters import OpCounters
from txn.due_records import AGAIN_MS, DueRecords, Kind
from txn.duty import EVERYTHING, Duty, shard_of
from txn.errors import InvalidTxnStatus, TransactionNotFound
from txn.group_record import group_key
from txn.headers import BY_DEADLINE, BY_FINAL_STATE, Header, finalized_ms_of, moment_of, txn_of_key
from txn.op_removal import remove_ops
from txn.ops import ops_of, segment_of
from txn.states import EndAction, TxnState
from txn.unreadable import Unreadable
from txn.wall_clock_timer import WallClockTimer

log = structlog.get_logger(__name__)

LEFTOVER_OPS_SHOWN: Final = 1000
"""Op records of one finished transaction that are read at once."""

REDRIVES_AT_ONCE: Final = 16
"""Segments that a sweep loads at a time."""

REDRIVE_SECONDS_MAX: Final = 30.0
"""How long a sweep waits for the segments of one page. They go on loading without it."""


def _check_open(record: Record) -> None:
    """Decode a header with its key. Raises RecordUnreadable."""
    txn_of_key(record.key)
    Header.from_value(record.value)


def _open_span(record: Record) -> int:
    header = Header.from_value(record.value)
    return header.timeout_ms - header.created_ms


def _shard_of_key(key: str) -> str:
    return shard_of(txn_of_key(key))


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
        duty: Duty = EVERYTHING,
    ) -> None:
        self._coordinator = coordinator
        self._now_ms = now_ms
        self._timer = timer
        self._unreadable = Unreadable()
        kind = Kind(BY_DEADLINE, ("",), moment_of, 0, _open_span, _shard_of_key, _check_open, leaves_index=True)
        self.due = DueRecords(kind, metadata, duty=duty, now_ms=now_ms, timer=timer, counters=counters)

    async def run(self) -> None:
        """Sweep until cancelled: once at the start, then at each deadline."""
        while True:
            try:
                await self._abort_due()
                await self.due.ring_next()
            except* StoreUnavailable as unanswered:
                # The outcome is unknown. The next sweep handles what is still open.
                log.warning("a sweep of deadlines had no answer", reason=str(unanswered.exceptions[0]))
                self._timer.at_latest(self._now_ms() + AGAIN_MS)
            await self._timer.wait()

    async def _abort_due(self) -> None:
        async with aclosing(self.due.pages()) as pages:
            async for due in pages:
                groups = {txn_of_key(record.key): Header.from_value(record.value).group for record in due}
                # At once, so that they share the store's syncs.
                async with trio.open_nursery() as nursery:
                    for txn, group in groups.items():
                        if group is None:
                            nursery.start_soon(self._abort, txn)
                    for application in {group.application for group in groups.values() if group is not None}:
                        nursery.start_soon(self._abort_members, application)

    async def _abort_members(self, application: str) -> None:
        with self._unreadable.reading(group_key(application)):
            await self._coordinator.groups.abort_due(application, self.due.is_due)

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
        duty: Duty = EVERYTHING,
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
            duty: this broker's part.
        """
        self._metadata = metadata
        self._retention_ms = retention_ms
        self._now_ms = now_ms
        self._timer = timer
        self._redrive = redrive
        self.deleted = 0
        kind = Kind(
            BY_FINAL_STATE,
            [f"{state}:" for state in (TxnState.COMMITTED, TxnState.ABORTED)],
            finalized_ms_of,
            retention_ms,
            lambda _record: retention_ms,
            _shard_of_key,
            lambda record: txn_of_key(record.key),
            leaves_index=False,
        )
        self.due = DueRecords(kind, metadata, duty=duty, now_ms=now_ms, timer=timer, counters=counters)
        self._unreadable = self.due.unreadable

    async def run(self) -> None:
        """Sweep until cancelled: once at the start, then whenever a retention ends."""
        while True:
            try:
                await self._sweep()
            except* StoreUnavailable as unanswered:
                # A retention from now is soon enough.
                log.warning("a sweep of finished transactions had no answer", reason=str(unanswered.exceptions[0]))
                self._timer.at_latest(self._now_ms())
            await self._timer.wait()

    async def _sweep(self) -> None:
        is_kept = False
        # Many transactions may concern one segment, and loading it may fail each time.
        redriven: dict[str, bool] = {}
        async with aclosing(self.due.pages()) as pages:
            async for due in pages:
                headers = {txn_of_key(record.key): record for record in due}
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
        await self.due.ring_next()

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
