"""Publishing on an owned topic: to its transaction buffer, with deduplication, for each protocol.

A publish returns before the entry is durable. Nothing is awaited between the last check of a transaction and the append
(docs/design.md#layers).
"""

from collections.abc import Iterator
from contextlib import contextmanager

from broker.deduplication.deduplication import Deduplication
from broker.deduplication.sequences import Stored
from broker.entry_codecs import SendId
from broker.errors import NotSupported, TransactionsOpen
from broker.names import Domain, TopicName
from broker.topic_services import TopicServices
from broker.topic_source import TopicSource
from broker.traffic import SegmentTraffic
from storage.entry import EntryFormat, TxnId
from storage.managed_ledger import ManagedLedger, Stamp
from storage.metadata.store import Check
from storage.position import Position
from txn.marker_buffer import Appended, MarkerBuffer
from txn.partition_transactions import Sender
from txn.producer_states import Batch, Duplicate


class PublishedTopic(TopicSource):
    """What producers write to a topic, over what subscriptions read of it."""

    def __init__(self, name: TopicName, ledger: ManagedLedger, services: TopicServices, claim: Check) -> None:
        super().__init__(ledger, services.buffers.make(name, ledger, claim), services.codecs, services.for_subscribers)
        self.name = name
        self.traffic = SegmentTraffic()
        self._services = services
        self.deduplication: Deduplication | None = None
        if name.domain is Domain.SEGMENT or services.deduplicates_persistent:
            self.deduplication = Deduplication(
                ledger,
                services.metadata,
                claim,
                buffer=self._buffer,
                headers=services.headers,
                codecs=services.codecs,
            )

    async def publish(
        self, payload: bytes, *, message_count: int, txn: TxnId | None, entry_format: EntryFormat
    ) -> Position:
        """Append an entry and return its position. It is durable once `ledger.confirmed` has reached that position.

        Raises:
            LedgerSealed: the segment was replaced; `replaced` is set when its clients know the successors.
            WrongDomain: v5 transactions, and only they, write to segments (D6).
            TxnError, LedgerFailed: nothing was appended.
            NoSpace: the disk is full; nothing was appended.
        """
        await self._admit(txn)
        return self._append(payload, message_count, txn, entry_format)

    @property
    def has_markers(self) -> bool:
        """Whether transactions end with markers in this log. In segments they leave nothing."""
        return isinstance(self._buffer, MarkerBuffer)

    @property
    def markers(self) -> MarkerBuffer:
        """The buffer of a log with markers, for Kafka's clients.

        Raises:
            NotSupported: transactions of this topic leave no markers.
        """
        if not isinstance(self._buffer, MarkerBuffer):
            raise NotSupported(f"{self.name} is a segment of a scalable topic, and has no markers of transactions.")
        return self._buffer

    @contextmanager
    def without_transactions(self) -> Iterator[None]:
        """Let no transaction that ends with markers write here, during the block and, unless it raises, behind it.

        Raises:
            TransactionsOpen: one is open. Its marker could not be written to a sealed topic.
        """
        buffer = self._buffer
        if not isinstance(buffer, MarkerBuffer):
            yield
            return
        if buffer.open_transactions:
            raise TransactionsOpen(
                f"{buffer.open_transactions} transactions of Kafka's clients are open on {self.name}. Let them end, or "
                "abort them, and migrate the topic then."
            )
        buffer.transactions.is_closed = True
        try:
            yield
        except BaseException:
            buffer.transactions.is_closed = False
            raise

    async def publish_batch(
        self,
        payload: bytes,
        *,
        message_count: int,
        latest_record_ms: int,
        batch: Batch | None,
        sender: Sender | None = None,
        stamp: Stamp | None = None,
    ) -> Appended | Duplicate:
        """Append a batch of Kafka's records. `batch` tells what a numbered producer says of it.

        `sender` tells who writes it in a transaction. No record is later than `latest_record_ms`. With `stamp`, the
        records get the time of their entry.

        It is durable once `ledger.confirmed` has reached its position. A duplicate is durable once everything is that
        was appended before this call returned.

        Raises:
            TxnError: the producer's epoch or sequence is not the next one; nothing was appended.
            Exception: see `publish`.
        """
        markers = self.markers
        await self.ledger.wait_room()
        if batch is not None:
            await markers.admit_producer()
            if sender is not None:
                await markers.transactions.admit(sender)
        if batch is None:
            appended = markers.append_plain(payload, message_count, EntryFormat.KAFKA, latest_record_ms, stamp)
        else:
            result = markers.append_batch(payload, batch, message_count, latest_record_ms, stamp)
            if isinstance(result, Duplicate):
                return result
            appended = result
        self._count(message_count, len(payload))
        return appended

    async def publish_once(
        self,
        producer: str,
        send: SendId,
        payload: bytes,
        *,
        message_count: int,
        txn: TxnId | None,
        entry_format: EntryFormat,
        arrived_at: int | None = None,
    ) -> Position | Stored:
        """Publish, unless the producer of this name has already stored the send here.

        Only one send of a producer may be in this call at a time. If the transaction had already ended when the send
        arrived, nothing is appended. The send arrived at `arrived_at`, or now.

        Raises:
            SendInDoubt: another open transaction holds the send; nothing was appended.
            OpenSendsFull: too many open transactions have sends; nothing was appended.
            Exception: see `publish`.
        """
        deduplication = self.deduplication
        if deduplication is None:
            return await self.publish(payload, message_count=message_count, txn=txn, entry_format=entry_format)
        while True:
            stored = await deduplication.find(producer, send, txn)
            if stored is not None:
                return stored
            await deduplication.wait_room()
            await self._admit(txn, arrived_at)
            # The producer's lost connection may have had the same send in flight, and appended it during these waits.
            if deduplication.is_new(producer, send, txn):
                break
        deduplication.require_room(producer, txn)
        position = self._append(payload, message_count, txn, entry_format)
        deduplication.note(producer, send, position, len(payload), txn)
        return position

    def would_join(self, producer: str, send: SendId, txn: TxnId) -> bool:
        """Return whether `publish_once` of this send would let the transaction join, judged before its turn."""
        if not self._buffer.would_join(txn):
            return False
        return self.deduplication is None or self.deduplication.is_new(producer, send, txn)

    async def join(self, txn: TxnId) -> None:
        """Let a transaction join before one of its sends is published; see the buffer's `join`.

        Raises:
            Exception: see `publish`, which meets the same errors.
        """
        await self.ledger.wait_room()
        await self._buffer.join(txn)

    def moment(self) -> int:
        """Return the current moment, for `publish_once`."""
        return self._buffer.moment()

    async def _admit(self, txn: TxnId | None, arrived_at: int | None = None) -> None:
        await self.ledger.wait_room()
        if txn is not None:
            await self._buffer.admit(txn, arrived_at)
            # Any number of sends waited for the same answer of the store. Each one goes on while there is room.
            await self.ledger.wait_room()

    def _append(self, payload: bytes, message_count: int, txn: TxnId | None, entry_format: EntryFormat) -> Position:
        position = self._buffer.append(payload, message_count, txn, entry_format)
        self._count(message_count, len(payload))
        return position

    def _count(self, message_count: int, payload_bytes: int) -> None:
        self.traffic.messages_in += message_count
        self.traffic.bytes_in += payload_bytes
        self._services.activity.set()
        self._services.changes.set()

    def require_space(self) -> None:
        """Check that the disk has space for messages.

        Raises:
            NoSpace: the disk is full.
        """
        self.ledger.require_space()
