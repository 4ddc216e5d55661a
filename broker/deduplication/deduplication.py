"""A topic's durable memory of what its producers have stored: a snapshot in the metadata store, and the log.

Each entry in the log has its producer and sequence ids, so a send needs no other write. After SNAPSHOT_ENTRIES entries
or SNAPSHOT_BYTES, a snapshot of the memory is written (`snapshot.py`). Each of its records is written once all that it
names is durable. So a snapshot never names an entry that a crash may still lose. A new owner reads the snapshot and the
entries after it. So a snapshot is also written before entries are trimmed. If snapshots cannot be written, publishing
waits, so the tail is bounded; reads continue. A record whose write had an unknown outcome is written again.

Before a snapshot, idle producers are forgotten. So that needs no timer, and is no work for a topic that gets nothing.

What a transaction stored counts by its outcome (`sequences.py`). Like the segment's buffer, deduplication follows the
headers of the transactions in which producers sent something. A snapshot lists the sends of open transactions
separately, each transaction with the position of one of its entries. A new owner asks the recovered buffer for each
transaction's outcome at that position. If a damaged or trimmed ledger hides the outcome, the sends count as not stored:
readers do not get those entries either.

For a topic that has no snapshot, the last TAIL_MESSAGES are read.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Final

import structlog
import trio

from broker.deduplication.restoring import restore, start_of_tail
from broker.deduplication.sequences import PRODUCERS_MAX, InDoubt, Sequences, Stored
from broker.deduplication.snapshot import FoundSnapshot
from broker.deduplication.snapshot_writer import SnapshotWriter
from broker.entry_codecs import EntryCodecs, SendId
from broker.errors import OpenSendsFull, ProducersFull, SendInDoubt
from broker.store_retry import RETRY_SECONDS
from storage.entry import Entry, EntryFormat, TxnId
from storage.errors import EntriesUnreadable, LedgerCorrupt, LedgerNotFound
from storage.managed_ledger import ManagedLedger
from storage.metadata.store import Check, MetadataStore, StoreEnded, StoreUnavailable
from storage.position import Position
from storage.signal import Signal
from txn.buffer import TransactionBuffer
from txn.header_watch import HeaderWatch
from txn.states import TxnState

SNAPSHOT_ENTRIES: Final = 5_000
"""Entries after which a snapshot is due."""

SNAPSHOT_BYTES: Final = 32 * 1024 * 1024
"""Bytes of payload after which a snapshot is due."""

BEHIND_MAX: Final = 4
"""Publishing waits when this multiple of either limit was appended since the last snapshot."""

_TXNS_ASKED: Final = 500
"""Transactions whose outcomes are asked for together (E7)."""

_READ_ENTRIES: Final = 500
_READ_BYTES: Final = 4 * 1024 * 1024

log = structlog.get_logger(__name__)


class Deduplication:
    """The deduplication of one topic. Call `recover` first; then `run` writes its snapshots."""

    def __init__(
        self,
        ledger: ManagedLedger,
        metadata: MetadataStore,
        claim: Check,
        *,
        buffer: TransactionBuffer,
        headers: HeaderWatch,
        codecs: EntryCodecs,
    ) -> None:
        """Set up.

        Args:
            ledger: the topic's entries.
            metadata: where snapshots stand.
            claim: the owner's claim, a condition of every snapshot.
            buffer: knows what became of the transactions that wrote here.
            headers: tells when a transaction ends.
            codecs: tell by which send an entry came.
        """
        self._ledger = ledger
        self._metadata = metadata
        self._buffer = buffer
        self._headers = headers
        self._codecs = codecs
        self._sequences = Sequences(ledger.creation_id)
        self._writer = SnapshotWriter(ledger, metadata, claim, self._sequences)
        self._joined: set[TxnId] = set()
        """Transactions of whose end this is told."""
        self._has_left = False
        self._entries = 0
        """Noted since the last snapshot."""
        self._bytes = 0
        self._due = Signal()
        self._writing = trio.Lock()
        self._written = trio.Event()

    async def recover(self) -> None:
        """Recover from the last owner's snapshot and the entries after it. The buffer must have recovered before."""
        try:
            await self._take_over()
            # A transaction's end may have been in delivery when this object joined its followers.
            await self._catch_up()
        except BaseException:
            self._leave()
            raise

    async def _take_over(self) -> None:
        found = await restore(self._ledger, self._metadata, self._sequences)
        self._writer.continue_from(found)
        opened = self._sequences.open_transactions
        for first in range(0, len(opened), _TXNS_ASKED):
            some = opened[first : first + _TXNS_ASKED]
            places = [(txn, self._sequences.place_of(txn)) for txn in some]
            for txn, state in zip(some, await self._fates(places), strict=True):
                self._apply(txn, state)
            await trio.lowlevel.checkpoint()
        start = await start_of_tail(self._ledger, found)
        end = self._ledger.confirmed.value
        while start <= end:
            try:
                entries = await self._ledger.read(start, upto=end, entries_max=_READ_ENTRIES, bytes_max=_READ_BYTES)
            except EntriesUnreadable as damage:
                # No reader can get these sends, so a resend must be stored.
                start = self._ledger.next_after(damage.last)
                continue
            if not entries:
                return
            # Entries of Kafka's transactions are no sends, and the buffer knows them in another way.
            txns = [entry.txn if entry.format is EntryFormat.PULSAR else None for entry in entries]
            fates = await self._fates(list(zip(txns, [entry.position for entry in entries], strict=True)))
            for entry, state in zip(entries, fates, strict=True):
                self._take(entry, state, found)
            start = self._ledger.next_after(entries[-1].position)

    async def run(self) -> None:
        """Write snapshots when they are due, until cancelled.

        Raises:
            OwnershipLost: the claim is lost.
            StoreEnded: this process's store has ended.
        """
        try:
            while True:
                await self._due.wait()
                await self.write_down()
        finally:
            self._leave()

    async def write_down(self) -> None:
        """Write a snapshot of everything appended before the call, with each transaction's outcome; durable on return.

        Call it before ledgers are trimmed, because their entries and outcomes are lost with them.

        Raises:
            OwnershipLost: the claim is lost.
            StoreEnded: this process's store has ended.
        """
        async with self._writing:
            while True:
                try:
                    # The trimmer may already know of a transaction's end that this object does not know yet.
                    await self._catch_up()
                    await self._write_snapshot()
                except StoreEnded:
                    raise
                except StoreUnavailable as unavailable:
                    log.warning("a snapshot of producers is late", topic=self._ledger.name, reason=str(unavailable))
                    await trio.sleep(RETRY_SECONDS)
                else:
                    return

    async def _write_snapshot(self) -> None:
        entries, size = self._entries, self._bytes
        while self._sequences.forget_idle(trio.current_time()):
            await trio.lowlevel.checkpoint()
        if not await self._writer.write():
            return
        self._entries -= entries
        self._bytes -= size
        self._wake_if_due()
        written, self._written = self._written, trio.Event()
        written.set()

    async def wait_room(self) -> None:
        """Wait until the snapshot is not too far behind the log. Does not yield if it is not."""
        while self._entries >= BEHIND_MAX * SNAPSHOT_ENTRIES or self._bytes >= BEHIND_MAX * SNAPSHOT_BYTES:
            await self._written.wait()

    async def find(self, producer: str, send: SendId, txn: TxnId | None) -> Stored | None:
        """Return where the topic already holds a send; None if the send is new. It waits only if the send is in doubt.

        Raises:
            SendInDoubt: another open transaction holds it.
        """
        asked = set()
        while isinstance(found := self._sequences.find(producer, send, txn), InDoubt):
            if found.txn in asked:
                raise SendInDoubt(producer, send.first, *found.txn)
            asked.add(found.txn)
            # The client may know of the transaction's end before this broker does.
            await self._headers.catch_up([found.txn])
        return found

    def is_new(self, producer: str, send: SendId, txn: TxnId | None) -> bool:
        """Return whether the send may be appended now."""
        return self._sequences.find(producer, send, txn) is None

    def require_room(self, producer: str, txn: TxnId | None) -> None:
        """Check that one more send of the producer in this transaction can be remembered. Call it before each append.

        Raises:
            OpenSendsFull: too many open transactions have sends.
        """
        if not self._sequences.takes(producer, txn):
            raise OpenSendsFull(self._ledger.name)

    def note(self, producer: str, send: SendId, position: Position, size: int, txn: TxnId | None) -> None:
        """Note that the send was appended at `position`, in the same step. Its transaction, if any, is open."""
        self._sequences.note(producer, send, position, txn, self._ledger.last_timestamp_ms)
        if txn is not None:
            self._join(txn)
        self._grew(size)

    def decided(self, txn: TxnId, state: TxnState) -> None:
        """See `Participant`: a transaction in which a producer sent something here has ended."""
        self._sequences.decide(txn, is_committed=state is TxnState.COMMITTED)
        self._joined.discard(txn)
        self._headers.leave(txn, self)

    def connected(self, producer: str) -> None:
        """Note that a producer connects. It keeps its place until `disconnected`.

        Raises:
            ProducersFull: there is no place for it.
        """
        if not self._sequences.connect(producer):
            raise ProducersFull(self._ledger.name, PRODUCERS_MAX)

    def disconnected(self, producer: str, *, is_final: bool) -> None:
        """Note that a producer has left. `is_final`: its client said so, and uses no such name again."""
        self._sequences.disconnect(producer, trio.current_time() if is_final else None)

    def knows(self, producer: str) -> bool:
        """Return whether the producer is remembered."""
        return self._sequences.knows(producer)

    def last_id(self, producer: str) -> int:
        """Return the highest sequence id that the producer has stored; -1 if none is remembered."""
        return self._sequences.last_id(producer)

    async def discard(self) -> None:
        """Remove the snapshot of a topic that is being deleted, and write no other; durable on return.

        Raises:
            OwnershipLost: the claim is gone.
        """
        await self._writer.discard()

    def _grew(self, size: int) -> None:
        self._entries += 1
        self._bytes += size
        self._wake_if_due()

    def _wake_if_due(self) -> None:
        if self._entries >= SNAPSHOT_ENTRIES or self._bytes >= SNAPSHOT_BYTES:
            self._due.set()

    async def _catch_up(self) -> None:
        """Return once every decision made before this call is known."""
        joined = tuple(self._joined)
        for first in range(0, len(joined), _TXNS_ASKED):
            await self._headers.catch_up(list(joined[first : first + _TXNS_ASKED]))

    def _join(self, txn: TxnId) -> None:
        if not self._has_left:
            self._joined.add(txn)
            self._headers.join(txn, self)

    def _leave(self) -> None:
        """Stop following transactions, because this broker no longer serves the topic."""
        self._has_left = True
        for txn in self._joined:
            self._headers.leave(txn, self)
        self._joined.clear()

    async def _fates(self, places: Sequence[tuple[TxnId | None, Position]]) -> list[TxnState]:
        """Return the outcomes of entries, by transaction and position. Entries without a transaction are committed."""
        fates: list[TxnState] = []
        for ledger, group in groupby(places, key=lambda place: place[1].ledger):
            some = list(group)
            try:
                fates += await self._buffer.fates(some)
            except (LedgerCorrupt, LedgerNotFound) as unknown:
                reason = str(unknown)
                log.error(
                    "sends with an unknown outcome are not deduplicated",
                    topic=self._ledger.name,
                    ledger=ledger,
                    reason=reason,
                )
                fates += [TxnState.COMMITTED if txn is None else TxnState.ABORTED for txn, _ in some]
        return fates

    def _apply(self, txn: TxnId, state: TxnState) -> None:
        if state is TxnState.OPEN:
            self._join(txn)
        else:
            self._sequences.decide(txn, is_committed=state is TxnState.COMMITTED)

    def _take(self, entry: Entry, state: TxnState, found: FoundSnapshot) -> None:
        self._grew(len(entry.payload))
        send = None if entry.is_control else self._codecs[entry.format].send_of(entry)
        if send is None:
            # No client sent it, or nobody can tell which one did.
            return
        part = found.part_of(self._sequences.digest(send.producer))
        if part is not None and entry.position <= part.upto:
            # The producer's record is newer than the head, and shows it.
            return
        self._sequences.note(send.producer, send.id, entry.position, entry.txn, entry.timestamp_ms)
        if entry.txn is not None:
            self._apply(entry.txn, state)
