"""The two sweeps: transactions past their deadline are aborted, finished ones are forgotten after their retention.

Both sleep until the next moment at which there is something to do and both only propose: the abort is the same
compare-and-set as a client's, and a header goes only when none of its op records is left (DESIGN section 7). Several
brokers may sweep at once.
"""

from collections.abc import Awaitable, Callable, Sequence

import structlog
import trio

from storage.clock import WallClock
from storage.entry import TxnId
from storage.metadata.store import Conflict, Delete, MetadataStore, Record, StoreUnavailable, starting_with
from txn.alarm import Alarm
from txn.buffer import BufferCounters
from txn.coordinator import Coordinator
from txn.errors import InvalidTxnStatus, TransactionNotFound
from txn.headers import (
    BY_DEADLINE,
    BY_FINAL_STATE,
    Header,
    deadline_range,
    final_state_range,
    final_state_until,
    finalized_ms_of,
    txn_of_key,
)
from txn.op_removal import remove_ops
from txn.ops import ops_of, segment_of
from txn.states import EndAction, TxnState

log = structlog.get_logger(__name__)

SWEEP_BATCH = 100
"""Headers handled between two queries; bounds memory, not how many are swept, and stays below etcd's 128 operations."""

UNANSWERED_MS = 1_000
"""When the sweep of deadlines goes on after the metadata store gave no answer."""

LEFTOVER_OPS_SHOWN = 1000
"""Op records of one finished transaction that one sweep re-drives; the next sweep takes the rest."""


class TimeoutSweep:
    """Aborts open transactions whose deadline has come (T9)."""

    def __init__(
        self,
        metadata: MetadataStore,
        coordinator: Coordinator,
        *,
        now_ms: WallClock,
        alarm: Alarm,
        counters: BufferCounters | None = None,
    ) -> None:
        self._metadata = metadata
        self._counters = BufferCounters() if counters is None else counters
        self._coordinator = coordinator
        self._now_ms = now_ms
        self._alarm = alarm

    async def run(self) -> None:
        """Sweep until cancelled: once at the start, then at each deadline."""
        while True:
            try:
                await self._abort_due()
                upcoming = await self._counters.query(self._metadata, BY_DEADLINE, *starting_with(""), limit=1)
                if upcoming:
                    self._alarm.at_latest(int(upcoming[0].index_key))
            except* StoreUnavailable as unanswered:
                # What it was asked was done or was not; whatever is still open is asked for again.
                log.warning("a sweep of deadlines had no answer", reason=str(unanswered.exceptions[0]))
                self._alarm.at_latest(self._now_ms() + UNANSWERED_MS)
            await self._alarm.wait()

    async def _abort_due(self) -> None:
        while True:
            now = self._now_ms()
            due = await self._counters.query(self._metadata, BY_DEADLINE, *deadline_range(now), limit=SWEEP_BATCH)
            groups = {hit.record.key: Header.from_value(hit.record.value).group for hit in due}
            # At once, so that they share the store's syncs.
            async with trio.open_nursery() as nursery:
                for key, group in groups.items():
                    if group is None:
                        nursery.start_soon(self._abort, txn_of_key(key))
                for application in {group.application for group in groups.values() if group is not None}:
                    nursery.start_soon(self._coordinator.groups.abort_due, application, now)
            if len(due) < SWEEP_BATCH:
                return

    async def _abort(self, txn: TxnId) -> None:
        try:
            await self._coordinator.end(txn, EndAction.ABORT)
        except (InvalidTxnStatus, TransactionNotFound):
            # Its client ended it first; the deadline no longer matters.
            return


class HeaderSweep:
    """Deletes the headers of finished transactions once their retention is over and no op record is left (T28)."""

    def __init__(
        self,
        metadata: MetadataStore,
        *,
        retention_ms: int,
        now_ms: WallClock,
        alarm: Alarm,
        redrive: Callable[[str], Awaitable[bool]],
        counters: BufferCounters | None = None,
    ) -> None:
        """Set up.

        Args:
            metadata: where the headers stand.
            retention_ms: how long after its end a transaction stays known to clients.
            now_ms: the wall clock.
            alarm: rings `retention_ms` after each moment it is asked for.
            redrive: makes the owner of a segment apply what was decided; called for op records left behind. False if
                the segment is gone, so that nobody ever will.
            counters: where the queries are counted, if anybody asks.
        """
        self._metadata = metadata
        self._counters = BufferCounters() if counters is None else counters
        self._retention_ms = retention_ms
        self._now_ms = now_ms
        self._alarm = alarm
        self._redrive = redrive
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
                self._alarm.at_latest(self._now_ms())
            await self._alarm.wait()

    async def _sweep(self, state: TxnState) -> None:
        due_start, due_end = final_state_until(state, self._now_ms() - self._retention_ms)
        kept: set[str] = set()
        # Many transactions may have been on one segment, and loading it may fail each time.
        redriven: dict[str, bool] = {}
        while True:
            hits = await self._counters.query(
                self._metadata, BY_FINAL_STATE, due_start, due_end, limit=SWEEP_BATCH + len(kept)
            )
            due = [hit.record for hit in hits if hit.record.key not in kept]
            if not due:
                break
            settled = []
            for record, leftovers in await self._leftovers(due[:SWEEP_BATCH]):
                if leftovers:
                    await self._see_to(leftovers, redriven)
                    kept.add(record.key)
                else:
                    settled.append(record)
            if settled:
                await self._forget(settled)
        if kept:
            # Their participants are applying them; they are looked at again a retention from now.
            self._alarm.at_latest(self._now_ms())
        _, all_end = final_state_range(state)
        upcoming = await self._counters.query(self._metadata, BY_FINAL_STATE, due_end, all_end, limit=1)
        if upcoming:
            self._alarm.at_latest(finalized_ms_of(upcoming[0].index_key))

    async def _leftovers(self, headers: Sequence[Record]) -> list[tuple[Record, list[Record]]]:
        """The op records left of each decided transaction. None can follow: they are put on an open header."""
        found: list[tuple[Record, list[Record]]] = []

        async def look(header: Record) -> None:
            ops = await self._metadata.scan(*ops_of(txn_of_key(header.key)), limit=LEFTOVER_OPS_SHOWN)
            found.append((header, ops))

        # At once, so that they share a question to the store.
        async with trio.open_nursery() as nursery:
            for header in headers:
                nursery.start_soon(look, header)
        return found

    async def _see_to(self, leftovers: Sequence[Record], redriven: dict[str, bool]) -> None:
        """Have a decided transaction's op records applied, and remove those that nobody can apply."""
        # Whoever is slow or cut off still has to apply them: only what nobody ever will is removed here (T29).
        for segment in {segment_of(op) for op in leftovers}:
            if segment not in redriven:
                redriven[segment] = await self._redrive(segment)
            if not redriven[segment]:
                gone = [op.key for op in leftovers if segment_of(op) == segment]
                await remove_ops(gone, metadata=self._metadata)

    async def _forget(self, headers: Sequence[Record]) -> None:
        try:
            await self._metadata.commit([Delete(record.key, record.version) for record in headers])
        except Conflict:
            # Another broker's sweep was first: with this one, or with some of several.
            if len(headers) > 1:
                for record in headers:
                    await self._forget([record])
            return
        self.deleted += len(headers)
