"""A topic's memory of what its producers have stored, over crashes: a snapshot in the metadata store, and the log.

    /producers/<topic>   {creation, upto, producers}: what was stored up to `upto`, all of it durable

The log itself says who sent an entry and under which id, so nothing is written for a send. After SNAPSHOT_ENTRIES
entries, or SNAPSHOT_BYTES, the memory is written down, once all of it is durable: a snapshot never says of an entry
that it is there when a crash may still lose it. A new owner reads the snapshot and the entries behind it. So another
one is written before entries are trimmed. When snapshots cannot be written, publishing waits, so the tail has a bound;
the topic goes on meanwhile, and one that may or may not have been written is written again.

What a transaction stored counts by its fate (`sequences.py`). A segment's deduplication follows the headers of the
transactions in which its producers sent something, as the segment's buffer does. A snapshot names the sends of open
transactions apart, each with the position of an entry. A new owner asks the buffer, which has recovered by then, what
became of each transaction at that position. Where a damaged or trimmed ledger keeps that from being known, the sends
count as not stored: readers do not get those entries either.

A topic from before there were snapshots has its last TAIL_MESSAGES read.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Final
from urllib.parse import quote

import orjson
import structlog
import trio

from broker.deduplication.sequences import InDoubt, Sequences, Stored
from broker.entry_codecs import EntryCodecs, SendId
from broker.errors import SendInDoubt
from broker.store_retry import RETRY_SECONDS
from storage.entry import Entry, TxnId
from storage.errors import EntriesUnreadable, LedgerCorrupt, LedgerNotFound
from storage.managed_ledger import ManagedLedger
from storage.metadata.store import Check, Conflict, Delete, MetadataStore, Op, Put, StoreEnded, StoreUnavailable
from storage.position import Position
from storage.signal import Signal
from txn.buffer import TransactionBuffer
from txn.errors import OwnershipLost
from txn.header_watch import HeaderWatch
from txn.states import TxnState

KEY_PREFIX: Final = "/producers/"

SNAPSHOT_ENTRIES: Final = 5_000
"""Entries after which a snapshot is due."""

SNAPSHOT_BYTES: Final = 32 * 1024 * 1024
"""Bytes of payload after which one is due."""

BEHIND_MAX: Final = 4
"""Publishing waits when so many times what makes a snapshot due was appended since the last one."""

TAIL_MESSAGES: Final = 10_000
"""Messages that are read of a topic without a snapshot."""

_READ_ENTRIES: Final = 500
_READ_BYTES: Final = 4 * 1024 * 1024

log = structlog.get_logger(__name__)


def sequences_key(topic: str) -> str:
    """Where the snapshot of a topic stands."""
    return KEY_PREFIX + quote(topic, safe="")


class Deduplication:
    """One topic's. `recover` it first, then let `run` write its snapshots."""

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
        self._claim = claim
        self._buffer = buffer
        self._headers = headers
        self._codecs = codecs
        self._key = sequences_key(ledger.name)
        self._sequences = Sequences()
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
        """Take over what the last owner's snapshot and the entries behind it say; the buffer has recovered before."""
        try:
            await self._take_over()
            # A decision may have been on its way to those who follow its transaction when this joined them.
            await self._headers.catch_up(list(self._joined))
        except BaseException:
            self._leave()
            raise

    async def _take_over(self) -> None:
        record = await self._metadata.get(self._key)
        content = None if record is None else orjson.loads(record.value)
        if content is not None and content["creation"] == self._ledger.creation_id:
            self._sequences = Sequences.from_json(content["producers"])
            for txn, position in self._sequences.open_transactions.items():
                (state,) = await self._fates([(txn, position)])
                self._apply(txn, state)
            start = self._ledger.next_after(Position(*content["upto"]))
        else:
            # There was none yet, or it is of a topic of this name that was deleted.
            try:
                start = await self._ledger.position_of_index(max(self._ledger.next_index - TAIL_MESSAGES, 0))
            except EntriesUnreadable as damage:
                # What is wanted is there or behind it; the reading below passes over what cannot be read.
                start = damage.first
        end = self._ledger.confirmed.value
        while start <= end:
            try:
                entries = await self._ledger.read(start, upto=end, entries_max=_READ_ENTRIES, bytes_max=_READ_BYTES)
            except EntriesUnreadable as damage:
                # Nobody can read these sends, so one that is repeated is to be stored.
                start = self._ledger.next_after(damage.last)
                continue
            if not entries:
                return
            fates = await self._fates([(entry.txn, entry.position) for entry in entries])
            for entry, state in zip(entries, fates, strict=True):
                self._take(entry, state)
            start = self._ledger.next_after(entries[-1].position)

    async def run(self) -> None:
        """Write snapshots when they are due, until cancelled.

        Raises:
            OwnershipLost: the claim is gone.
            StoreEnded: this process will not write any more of them.
        """
        try:
            while True:
                await self._due.wait()
                await self.write_down()
        finally:
            self._leave()

    async def write_down(self) -> None:
        """Write a snapshot of what was appended before the call, with each transaction's fate; durable on return.

        Comes before ledgers are trimmed: from their entries nobody learns any more what was sent, and what became of
        it.

        Raises:
            OwnershipLost: the claim is gone.
            StoreEnded: this process will not write it any more.
        """
        async with self._writing:
            while True:
                try:
                    # Whoever trims may have been told of a decision that this was not told of yet.
                    await self._headers.catch_up(list(self._joined))
                    await self._write_snapshot()
                except StoreEnded:
                    raise
                except StoreUnavailable as unavailable:
                    log.warning("a snapshot of producers is late", topic=self._ledger.name, reason=str(unavailable))
                    await trio.sleep(RETRY_SECONDS)
                else:
                    return

    async def _write_snapshot(self) -> None:
        # The memory as it is now says all that was appended up to here; entries that follow are not in `value`.
        upto, entries, size = self._ledger.last_position, self._entries, self._bytes
        value = orjson.dumps(
            {"creation": self._ledger.creation_id, "upto": list(upto), "producers": self._sequences.to_json()}
        )
        await self._ledger.confirmed.wait_for(upto)
        await self._commit(Put(self._key, value))
        self._entries -= entries
        self._bytes -= size
        self._wake_if_due()
        written, self._written = self._written, trio.Event()
        written.set()

    async def wait_room(self) -> None:
        """Return when the snapshot is not too far behind the log. Does not yield while it is not."""
        while self._entries >= BEHIND_MAX * SNAPSHOT_ENTRIES or self._bytes >= BEHIND_MAX * SNAPSHOT_BYTES:
            await self._written.wait()

    async def find(self, producer: str, send: SendId, txn: TxnId | None) -> Stored | None:
        """Where a send is that the topic holds already; None for one that is new. Waits only for one in doubt.

        Raises:
            SendInDoubt: another transaction holds it, which has not ended.
        """
        asked = set()
        while isinstance(found := self._sequences.find(producer, send, txn), InDoubt):
            if found.txn in asked:
                raise SendInDoubt(producer, send.first, *found.txn)
            asked.add(found.txn)
            # Its client may have heard of the decision before this broker was told.
            await self._headers.catch_up([found.txn])
        return found

    def is_new(self, producer: str, send: SendId, txn: TxnId | None) -> bool:
        """Whether it may be appended now."""
        return self._sequences.find(producer, send, txn) is None

    def note(self, producer: str, send: SendId, position: Position, size: int, txn: TxnId | None) -> None:
        """The send was appended there, in the same step; a transaction was open."""
        self._sequences.note(producer, send, position, txn)
        if txn is not None:
            self._join(txn)
        self._grew(size)

    def decided(self, txn: TxnId, state: TxnState) -> None:
        """See `Participant`: a transaction in which a producer sent something here has ended."""
        self._sequences.decide(txn, is_committed=state is TxnState.COMMITTED)
        self._joined.discard(txn)
        self._headers.leave(txn, self)

    def knows(self, producer: str) -> bool:
        """Whether the producer is remembered."""
        return self._sequences.knows(producer)

    def last_id(self, producer: str) -> int:
        """The highest sequence id that the producer has stored; -1 when none is remembered."""
        return self._sequences.last_id(producer)

    async def discard(self) -> None:
        """Remove the snapshot of a topic that is being deleted; durable on return.

        Raises:
            OwnershipLost: the claim is gone.
        """
        await self._commit(Delete(self._key))

    async def _commit(self, op: Op) -> None:
        try:
            await self._metadata.commit([self._claim, op])
        except Conflict as conflict:
            raise OwnershipLost(self._ledger.name) from conflict

    def _grew(self, size: int) -> None:
        self._entries += 1
        self._bytes += size
        self._wake_if_due()

    def _wake_if_due(self) -> None:
        if self._entries >= SNAPSHOT_ENTRIES or self._bytes >= SNAPSHOT_BYTES:
            self._due.set()

    def _join(self, txn: TxnId) -> None:
        if not self._has_left:
            self._joined.add(txn)
            self._headers.join(txn, self)

    def _leave(self) -> None:
        """The topic is served here no more."""
        self._has_left = True
        for txn in self._joined:
            self._headers.leave(txn, self)
        self._joined.clear()

    async def _fates(self, places: Sequence[tuple[TxnId | None, Position]]) -> list[TxnState]:
        """What became of entries, by transaction and position; those in no transaction count as committed."""
        fates: list[TxnState] = []
        for ledger, group in groupby(places, key=lambda place: place[1].ledger):
            some = list(group)
            try:
                fates += await self._buffer.fates(some)
            except (LedgerCorrupt, LedgerNotFound) as unknown:
                reason = str(unknown)
                log.error(
                    "sends of unknown fate are not remembered", topic=self._ledger.name, ledger=ledger, reason=reason
                )
                fates += [TxnState.COMMITTED if txn is None else TxnState.ABORTED for txn, _ in some]
        return fates

    def _apply(self, txn: TxnId, state: TxnState) -> None:
        if state is TxnState.OPEN:
            self._join(txn)
        else:
            self._sequences.decide(txn, is_committed=state is TxnState.COMMITTED)

    def _take(self, entry: Entry, state: TxnState) -> None:
        self._grew(len(entry.payload))
        send = None if entry.is_control else self._codecs[entry.format].send_of(entry)
        if send is None:
            # No client sent it, or nobody can tell which one did.
            return
        self._sequences.note(send.producer, send.id, entry.position, entry.txn)
        if entry.txn is not None:
            self._apply(entry.txn, state)
