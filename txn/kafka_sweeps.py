"""What becomes of transactional ids by time: open transactions are aborted, ending ones are driven, idle ids go.

records     due                            then
open        at the transaction's deadline  it is aborted, and its producer takes another epoch
ending      ENDING_MS after the decision   partitions that nobody owns are loaded, to apply it
idle        IDLE_MS after the last change  the record is deleted, as Kafka does
"""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Final

import structlog
import trio

from storage.clock import WallClock
from storage.metadata.store import Conflict, Delete, MetadataStore, Record, StoreUnavailable
from txn.counters import OpCounters
from txn.due_records import AGAIN_MS, DueRecords, Kind
from txn.duty import Duty
from txn.headers import moment_of
from txn.kafka_coordination import aborted
from txn.kafka_settler import KafkaSettler, Redrive
from txn.kafka_states import KafkaTxnState
from txn.kafka_transaction import BY_DEADLINE, BY_IDLE, ENDING, IDLE_MS, KafkaTransaction, transactional_id_of
from txn.kafka_watch import KafkaTransactionWatch
from txn.producer_ids import ProducerIds
from txn.wall_clock_timer import WallClockTimer

ENDING_MS: Final = 1_000
"""How long the owners of the partitions have to apply a decision before a sweep looks for partitions without owner."""

log = structlog.get_logger(__name__)

Handle = Callable[[Record], Awaitable[None]]


class _Sweep:
    """Handles the due records of one index."""

    def __init__(
        self,
        kind: Kind,
        handle: Handle,
        metadata: MetadataStore,
        watch: KafkaTransactionWatch,
        *,
        duty: Duty,
        now_ms: WallClock,
        counters: OpCounters,
    ) -> None:
        self._what = kind.index
        self._handle = handle
        self._now_ms = now_ms
        self._timer = WallClockTimer(now_ms, delay_ms=kind.delay_ms)
        self._due = DueRecords(kind, metadata, duty=duty, now_ms=now_ms, timer=self._timer, counters=counters)
        watch.attach(self._due)

    async def run(self) -> None:
        """Sweep until cancelled: once at the start, then whenever something is due."""
        while True:
            try:
                async with aclosing(self._due.pages()) as pages:
                    async for due in pages:
                        # At once, so that they share the store's syncs.
                        async with trio.open_nursery() as nursery:
                            for record in due:
                                nursery.start_soon(self._handle, record)
                await self._due.ring_next()
            except* StoreUnavailable as unanswered:
                log.warning("a sweep had no answer", what=self._what, reason=str(unanswered.exceptions[0]))
                self._timer.at_latest(self._now_ms() + AGAIN_MS)
            await self._timer.wait()


class KafkaSweeps:
    """See the module's docstring."""

    def __init__(
        self,
        metadata: MetadataStore,
        watch: KafkaTransactionWatch,
        settler: KafkaSettler,
        ids: ProducerIds,
        redrive: Redrive,
        *,
        duty: Duty,
        now_ms: WallClock,
        counters: OpCounters,
    ) -> None:
        """Set up. `redrive` has a partition loaded that nobody owns; see `KafkaSettler.drive`."""
        self._metadata = metadata
        self._settler = settler
        self._ids = ids
        self._redrive = redrive
        self._now_ms = now_ms

        def sweep(index: str, delay_ms: int, span: Callable[[Record], int], handle: Handle, *, leaves: bool) -> _Sweep:
            kind = Kind(index, ("",), moment_of, delay_ms, span, _duty_of, _transaction, leaves_index=leaves)
            return _Sweep(kind, handle, metadata, watch, duty=duty, now_ms=now_ms, counters=counters)

        self._sweeps = (
            sweep(BY_DEADLINE, 0, lambda record: _transaction(record).timeout_ms, self._abort, leaves=True),
            sweep(ENDING, ENDING_MS, lambda _record: ENDING_MS, self._drive, leaves=False),
            sweep(BY_IDLE, IDLE_MS, lambda _record: IDLE_MS, self._forget, leaves=True),
        )

    async def run(self) -> None:
        """Sweep until cancelled."""
        async with trio.open_nursery() as nursery:
            for sweep in self._sweeps:
                nursery.start_soon(sweep.run)

    async def _abort(self, record: Record) -> None:
        transaction = _transaction(record)
        if transaction.state is not KafkaTxnState.ONGOING:
            return
        new_id = await self._ids.take() if transaction.needs_producer_id else None
        made = aborted(transaction, self._now_ms(), new_id, is_fenced=False)
        try:
            await self._metadata.commit([made.to_put(transactional_id_of(record.key), record.version)])
        except Conflict:
            return  # Its client ended it first.
        log.info("a transaction was aborted at its deadline", id=transactional_id_of(record.key))

    async def _drive(self, record: Record) -> None:
        if _transaction(record).state.is_ending:
            await self._settler.drive(transactional_id_of(record.key), self._redrive)

    async def _forget(self, record: Record) -> None:
        try:
            await self._metadata.commit([Delete(record.key, record.version)])
        except Conflict:
            return  # It is in use again.


def _transaction(record: Record) -> KafkaTransaction:
    return KafkaTransaction.from_value(record.value)


def _duty_of(key: str) -> str:
    return key
