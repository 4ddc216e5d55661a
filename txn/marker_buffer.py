"""The transaction buffer of a log with markers, as Kafka's partitions are: `persistent://` topics.

The log itself says which transactions are open, committed or aborted. A transaction's entries carry the id and epoch of
its producer. A control entry, the marker, ends it. So the buffer takes each entry that it appends into a `MarkedLog`,
and the next owner takes the same entries when it reads the log's tail (`marked_reading.py`).

    readable    below the first transaction that is open or whose marker is not durable yet (K19)
    is_visible  by producer id and range of offsets, because producer ids are used again (K22)

Numbered producers and markers cost a reading of the tail at each takeover. A topic without them is not read: its ledger
is marked, durably, before the first one writes.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from storage.aborted_offsets import AbortedOffsets
from storage.clock import WallClock
from storage.entry import Entry, EntryFormat, TxnId
from storage.errors import LedgerSealed, NoSpace
from storage.ledger_record import UNKNOWN_TIME
from storage.managed_ledger import ManagedLedger, Stamp
from storage.metadata.store import Check, MetadataStore, StoreFull
from storage.position import EARLIEST, Position
from storage.signal import Signal
from storage.watermark import Watermark
from txn.errors import OwnershipLost, WrongDomain
from txn.hidden_log import HiddenLog
from txn.kafka_settler import KafkaSettler
from txn.marked_log import SNAPSHOT_BYTES, SNAPSHOT_SHARE, Ended, MarkedLog
from txn.marked_reading import AbortedRanges, Describe, read_marked_log
from txn.partition_transactions import BuildMarker, PartitionTransactions
from txn.producer_states import PRODUCERS_MAX, Batch, Duplicate, ProducerState
from txn.stable_offset import Place
from txn.states import TxnState

PRODUCER_IDLE_MS_MAX: Final = 24 * 60 * 60 * 1000
"""How long a producer is known that writes nothing, as in Kafka (K26)."""

EXPIRE_AGAIN_MS: Final = 60_000
"""How often a log with as many producers as it may have looks for idle ones. Each time takes about 10 ms."""


class MarkerFormat(NamedTuple):
    """How entries of numbered producers and markers are read and written."""

    describe: Describe
    build: BuildMarker


class Appended(NamedTuple):
    """Where an entry was appended."""

    base_offset: int
    position: Position
    timestamp_ms: int
    """When the broker took it."""


class MarkerBuffer:
    """See `TransactionBuffer`."""

    def __init__(
        self,
        ledger: ManagedLedger,
        metadata: MetadataStore,
        claim: Check,
        markers: MarkerFormat,
        settler: KafkaSettler,
        now_ms: WallClock,
    ) -> None:
        """Set up around an open managed ledger, for the owner with this claim. Call `recover` before anything else."""
        self._ledger = ledger
        self._metadata = metadata
        self._claim = claim
        self._describe = markers.describe
        self._settler = settler
        self._now_ms = now_ms
        self._log = MarkedLog()
        self._aborted = AbortedRanges(ledger, self._log, self._describe)
        self._hidden_due = Signal()
        self._hidden = HiddenLog(ledger, self._aborted, self._hidden_due)
        self.transactions = PartitionTransactions(
            ledger,
            metadata,
            claim,
            now_ms,
            has_open=self._has_open,
            append_marker=self.append_marker,
            build_marker=markers.build,
        )
        """Who may write here in a transaction."""
        self._since_snapshot = 0
        self._snapshot_due = SNAPSHOT_BYTES
        self._expired_ms = 0
        """When idle producers were last looked for."""
        self._is_recovered = False
        self.readable: Watermark = ledger.confirmed.derive(self._readable_at)

    @property
    def takes_transactions(self) -> bool:
        """See `TransactionBuffer`. Pulsar's transactions of this kind (v4) are not served yet."""
        return False

    def require_taking(self, txn: TxnId) -> None:
        """See `TransactionBuffer`."""
        raise WrongDomain(f"{self._ledger.name} is not a segment of a scalable topic, so it accepts no v5 transactions")

    # -- reading

    @property
    def readable_end(self) -> int:
        """See `TransactionBuffer`."""
        self._log.stable.passed(self._ledger.confirmed.value)
        # As in Kafka, never below the first offset: an administrator may delete records of an open transaction (K38).
        return max(self._log.stable.last_stable(self._ledger.confirmed_index), self._ledger.start_index)

    async def aborted_between(self, at: Position, start: int, end: int) -> list[AbortedOffsets]:
        """The aborted transactions with records from `start` to `end`, exclusive (K8). The entry at `at` has `start`.

        Raises:
            ProducersUnreadable: it cannot be found out.
            LedgerNotFound: the ledger was trimmed.
        """
        return await self._aborted.overlapping(at.ledger, start, end)

    @property
    def hidden(self) -> HiddenLog:
        """See `TransactionBuffer`."""
        return self._hidden

    def is_visible(self, entry: Entry) -> bool:
        """See `TransactionBuffer`."""
        if entry.is_control or entry.first_index + entry.message_count <= self._ledger.start_index:
            return False
        return not self._aborted.hides(entry)

    async def prepare(self, entries: Sequence[Entry]) -> None:
        """See `TransactionBuffer`."""
        await self._aborted.prepare(entries)

    def state_of(self, entry: Entry) -> TxnState:
        """See `TransactionBuffer`. The marker decides."""
        if entry.txn is None:
            return TxnState.COMMITTED
        self._log.stable.passed(self._ledger.confirmed.value)
        if self._log.stable.holds(entry.txn.most, entry.first_index):
            return TxnState.OPEN
        return TxnState.ABORTED if self._aborted.hides(entry) else TxnState.COMMITTED

    async def fates(self, places: Sequence[tuple[TxnId | None, Position]]) -> list[TxnState]:
        """See `TransactionBuffer`. It is asked about sends of Pulsar's clients, which are in no transaction here."""
        assert all(txn is None for txn, _position in places), "`require_taking` lets none through"
        return [TxnState.COMMITTED for _ in places]

    @property
    def open_transactions(self) -> int:
        """How many transactions have data here and no marker."""
        return len(self._log.stable.open_transactions)

    def active_producers(self) -> Iterator[tuple[int, ProducerState, int | None]]:
        """Yield each known producer id, its state, and the first offset of its open transaction.

        The caller may pause: producers that come or go meanwhile may be missing.
        """
        for producer_id, state in self._log.producers:
            first = self._log.stable.first_of(producer_id)
            yield producer_id, state, None if first is None else first.offset

    # -- appending

    def would_join(self, txn: TxnId) -> bool:
        """See `TransactionBuffer`."""
        return False

    async def join(self, txn: TxnId) -> None:
        """See `TransactionBuffer`."""
        self.require_taking(txn)

    def moment(self) -> int:
        """See `TransactionBuffer`."""
        return 0

    async def admit(self, txn: TxnId, arrived_at: int | None = None) -> None:
        """See `TransactionBuffer`."""
        self.require_taking(txn)

    def append(self, payload: bytes, message_count: int, txn: TxnId | None, entry_format: EntryFormat) -> Position:
        """See `TransactionBuffer`."""
        assert txn is None, "`admit` lets none through"
        return self.append_plain(payload, message_count, entry_format).position

    def append_plain(
        self,
        payload: bytes,
        message_count: int,
        entry_format: EntryFormat,
        latest_record_ms: int = UNKNOWN_TIME,
        stamp: Stamp | None = None,
    ) -> "Appended":
        """Append an entry without a numbered producer. Raises as `append` does."""
        return self._append(payload, message_count, None, entry_format, latest_record_ms, stamp)

    async def admit_producer(self) -> None:
        """Do what has to wait before the first entry of a numbered producer. Durable on return.

        Raises:
            Fenced: another broker owns the topic.
            NoSpace: there is no space in the metadata store.
        """
        if not self._ledger.is_marked:
            try:
                await self._ledger.mark()
            except StoreFull as full:
                raise NoSpace(f"No producer id can be used on {self._ledger.name} yet: {full}") from full

    def append_batch(
        self,
        payload: bytes,
        batch: Batch,
        message_count: int,
        latest_record_ms: int = UNKNOWN_TIME,
        stamp: Stamp | None = None,
    ) -> Appended | Duplicate:
        """Append a batch of a numbered producer, unless the log has it (K23). Call `admit_producer` before.

        It is durable when the ledger's `confirmed` has reached the position. A duplicate is durable when everything is
        that was appended before this call.

        Raises:
            ProducerEpochStale, OutOfOrderSequence, OutsideOfTransaction, EarlierTransactionOpen, TooManyProducers: it
                was refused.
            LedgerSealed, LedgerFailed, NoSpace: nothing was appended.
        """
        has_open = self._has_open(batch.producer_id)
        if len(self._log.producers) >= PRODUCERS_MAX and self._now_ms() - self._expired_ms >= EXPIRE_AGAIN_MS:
            self._expire_producers()
        duplicate = self._log.producers.check(batch, has_open=has_open)
        if duplicate is not None:
            return duplicate
        txn = TxnId(batch.producer_id, batch.epoch) if batch.is_transactional else None
        appended = self._append(payload, message_count, txn, EntryFormat.KAFKA, latest_record_ms, stamp)
        self._log.take(batch, Place(appended.base_offset, appended.position), appended.timestamp_ms)
        return appended

    def append_marker(self, payload: bytes, ended: Ended) -> Appended:
        """Append the marker that ends a producer's transaction here. Call `admit_producer` before.

        Raises:
            ProducerEpochStale, CoordinatorStale: it was refused.
            LedgerSealed, LedgerFailed, NoSpace: nothing was appended.
        """
        marker = ended.marker
        self._log.producers.check_marker(marker, has_open=self._has_open(marker.producer_id))
        txn = TxnId(marker.producer_id, marker.epoch)
        appended = self._append(payload, 1, txn, EntryFormat.KAFKA, is_control=True)
        self._log.take(ended, Place(appended.base_offset, appended.position), appended.timestamp_ms)
        self._hidden.ended(marker.producer_id, is_abort=not ended.is_commit)
        return appended

    def _append(
        self,
        payload: bytes,
        count: int,
        txn: TxnId | None,
        entry_format: EntryFormat,
        latest_record_ms: int = UNKNOWN_TIME,
        stamp: Stamp | None = None,
        *,
        is_control: bool = False,
    ) -> Appended:
        ledger = self._ledger
        if ledger.is_marked:
            try:
                self._write_due_snapshot()
            except NoSpace:
                # A marker does not wait for a snapshot that another one precedes. Readers wait for the marker (K33).
                if not is_control or ledger.next_position.ledger != self._log.ledger:
                    raise
            self._since_snapshot += len(payload)
        offset = ledger.next_index
        position = ledger.append(
            payload,
            message_count=count,
            txn=txn,
            entry_format=entry_format,
            is_control=is_control,
            latest_record_ms=latest_record_ms,
            stamp=stamp,
        )
        if txn is not None and not is_control:
            self._hidden.took(txn.most, position, count)
        return Appended(offset, position, ledger.last_timestamp_ms)

    # -- snapshots

    def _write_due_snapshot(self) -> None:
        """Append a snapshot if a ledger begins, or if there was none for long."""
        log, ledger = self._log, self._ledger.next_position.ledger
        if ledger != log.ledger:
            if not log.is_empty:
                self._write_snapshot()
            if log.ledger >= 0:
                log.aborts.last_stable = log.stable.stable_at(self._ledger.next_index)
                self._aborted.closed(log.ledger, log.aborts)
            log.enter(ledger)
        elif self._since_snapshot >= self._snapshot_due:
            self._write_snapshot()

    def _expire_producers(self) -> None:
        self._expired_ms = self._now_ms()
        idle_since = self._expired_ms - PRODUCER_IDLE_MS_MAX
        self._log.producers.expire(idle_since, besides=self._log.stable.open_transactions.keys())

    def _write_snapshot(self) -> Position:
        self._expire_producers()
        payload = self._log.snapshot(self._ledger.next_index)
        position = self._ledger.append(payload, message_count=0, entry_format=EntryFormat.PRODUCERS, is_control=True)
        self._since_snapshot = 0
        self._snapshot_due = max(SNAPSHOT_BYTES, SNAPSHOT_SHARE * len(payload))
        return position

    async def write_down(self, upto: Position) -> Position:
        """See `TransactionBuffer`: a snapshot in the ledger that grows, if it has no entry yet."""
        last = self._ledger.last_position
        is_needed = self._ledger.is_marked and not self._log.is_empty and not self._ledger.is_sealed
        if not is_needed or last > upto:
            return upto
        try:
            self._write_due_snapshot()
        except (LedgerSealed, NoSpace):
            return self._ledger.previous(Position(last.ledger, 0))
        await self._ledger.confirmed.wait_for(self._ledger.last_position)
        return upto

    # -- the owner's time

    def sealed(self) -> None:
        """See `TransactionBuffer`."""

    async def caught_up(self) -> None:
        """See `TransactionBuffer`. There are no decisions, but the claim counts (C19)."""
        found = await self._metadata.fresh([self._claim.key])
        if found.version(self._claim.key) != self._claim.expected:
            raise OwnershipLost(self._ledger.name)

    async def recover(self) -> None:
        """See `TransactionBuffer`."""
        if self._ledger.is_marked:
            self._log = await read_marked_log(self._ledger, self._describe)
            self._aborted = AbortedRanges(self._ledger, self._log, self._describe)
            self._hidden = HiddenLog(self._ledger, self._aborted, self._hidden_due)
        await self.transactions.recover()
        self._is_recovered = True
        self.readable.raise_to(self._readable_at(self._ledger.confirmed.value))
        self._settler.own(self._ledger.name, self.transactions)
        try:
            # Asked again: what was decided before this call has found no owner here.
            for transactional_id in await self.transactions.registered():
                self._settler.decided(transactional_id)
        except BaseException:
            self.leave()
            raise

    async def run(self) -> None:
        """See `TransactionBuffer`. The settler ends transactions, for all topics of the broker."""
        due, waits = self._hidden_due, False
        self._ledger.attach_rolls(due)
        try:
            while True:
                await due.wait()
                waited, waits = waits, await self._hidden.work(self.readable.value)
                # Followed only while a ledger waits for it, because it rises with each message.
                if waits and not waited:
                    self.readable.attach(due)
                elif waited and not waits:
                    self.readable.detach(due)
        finally:
            self._ledger.detach_rolls(due)
            if waits:
                self.readable.detach(due)
            self.leave()

    def leave(self) -> None:
        """See `TransactionBuffer`."""
        self._settler.disown(self._ledger.name, self.transactions)
        self._ledger.confirmed.release(self.readable)

    async def discard(self) -> None:
        """See `TransactionBuffer`. All but the registrations in transactions is in the log."""
        await self.transactions.discard()

    def _has_open(self, producer_id: int) -> bool:
        return self._log.stable.first_of(producer_id) is not None

    def _readable_at(self, confirmed: Position) -> Position:
        if not self._is_recovered:
            return EARLIEST
        self._log.stable.passed(confirmed)
        return self._log.stable.readable(confirmed)
