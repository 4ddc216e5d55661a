"""A topic that this broker owns: where ledger, transactions and subscriptions meet.

A segment of a scalable topic and a persistent topic are the same thing here. They differ in the transaction buffer,
which decides what is readable (`transaction_buffers.py`). What subscriptions read (`topic_source.py`) is one stream
either way, so dispatch knows nothing of transactions (docs/design.md#layers). What producers write is in
`topic_publishing.py`.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Final, NamedTuple

import structlog
import trio

from broker.durable_subscriptions import DurableSubscriptions
from broker.errors import ProducersFull, TopicClosed
from broker.names import Domain, TopicName
from broker.topic_clients import TopicClients, TopicProducer
from broker.topic_publishing import PublishedTopic
from broker.topic_removal import remove_what_stands_beside
from broker.topic_services import TopicServices
from broker.topic_spans import TopicSpans
from broker.trimming import LedgerTrimmer
from dispatch.source import Source
from dispatch.statistics import SubscriptionStatistics
from dispatch.subscription import Subscription
from storage.cursor import NonDurableCursor
from storage.entry import TxnId
from storage.errors import ExpectedError, LedgerSealed
from storage.managed_ledger import ManagedLedger
from storage.managed_ledger_opening import open_managed_ledger
from storage.metadata.store import Check
from storage.position import LATEST, Position
from storage.ranges import EntryAck
from txn.pending_transaction import CommandId

IDLE_LEDGERS_MAX: Final = 1_000
"""With this many ledgers, an idle topic stays loaded, because each unload leaves one more ledger."""

log = structlog.get_logger(__name__)


class Reading(NamedTuple):
    """How far a subscription is, as plain data: it keeps nothing alive."""

    statistics: SubscriptionStatistics
    handled_upto: Position
    """Everything before this was acknowledged, or sent to its consumers."""
    last_left: str
    """The name of the consumer that left last, if one left here."""


class Topic(PublishedTopic):
    """Publishing, reading and subscribing on one owned topic. Made by `open`; `run` keeps it going."""

    def __init__(self, name: TopicName, ledger: ManagedLedger, services: TopicServices, claim: Check) -> None:
        super().__init__(name, ledger, services, claim)
        self.replaced = trio.Event()
        """Set when every client that follows the layout here knows this sealed segment's successors."""
        self.scalable_topic = name.scalable_topic if name.domain is Domain.SEGMENT else None
        """The `topic://` topic of this segment, or of a regular topic that was migrated."""
        self.spans: TopicSpans | None = None
        """Makes spans of traced messages; None if the broker does not trace."""
        if services.tracing is not None:
            self.spans = TopicSpans(services.tracing, name, self.scalable_topic, services.codecs)
        self._metadata = services.metadata
        self._claim = claim
        self.clients = TopicClients(str(name), is_retired=ledger.is_sealed, changes=services.changes)
        self.readable.attach(services.changes)
        self._durable = DurableSubscriptions(
            self, ledger, services, claim, takes_transactions=self._buffer.takes_transactions
        )
        self._trimmer = LedgerTrimmer(name, ledger, self._buffer, self._durable, services, self.deduplication)
        self._is_closed = False
        self.closed_with: dict[str, Reading] = {}
        """How far the durable subscriptions were when `close` was called. Their consumers were sent away."""
        self._nursery: trio.Nursery | None = None
        if ledger.is_sealed:
            # An earlier owner sealed it. Splits that it left open are finished before clients are served.
            self.replaced.set()

    @classmethod
    async def open(cls, name: TopicName, services: TopicServices, claim: Check) -> "Topic":
        """Take over a claimed topic: fence and recover its ledger, then its transactions (docs/design.md#topics)."""
        ledger = await open_managed_ledger(
            str(name),
            metadata=services.metadata,
            ledgers=services.ledgers,
            ids=services.ledger_ids,
            claim=claim,
            config=services.ledger_config,
            now_ms=services.now_ms,
        )
        topic = cls(name, ledger, services, claim)
        # Both learn of transactions' ends once they have recovered, until `run` ends.
        await topic._buffer.recover()
        if topic.deduplication is not None:
            try:
                await topic.deduplication.recover()
            except BaseException:
                topic._buffer.leave()
                raise
        return topic

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled. It reports as started once every durable subscription is open.

        Raises:
            ExpectedError: this broker no longer serves the topic, for example because another broker has taken it over
                (in an exception group).
        """
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self.hidden.heard = self._services.changes
                try:
                    nursery.start_soon(self._buffer.run)
                    if self.deduplication is not None:
                        nursery.start_soon(self.deduplication.run)
                    await nursery.start(self.ledger.run)
                    await self._durable.load(nursery)
                    # After the subscriptions, because trimming keeps what any of them has not acknowledged.
                    nursery.start_soon(self._trimmer.run)
                    task_status.started()
                    await trio.sleep_forever()
                finally:
                    # Here the nursery still takes tasks. It closes some steps before its block ends.
                    self._nursery = None
        finally:
            self.clients.send_away()
            self._durable.release()
            self._end()

    async def close(self, assigned_url: str | None = None) -> None:
        """Disconnect every client, write the cursors, and record where the ledger ends.

        Clients are told to go to the broker at `assigned_url`, if it is given. The caller must then cancel `run`.
        What cannot be written is recovered when the topic is loaded next.
        """
        self._is_closed = True
        self.clients.send_away(assigned_url)
        self.closed_with = {
            name: Reading(replace(one.statistics, consumers=()), one.handled_upto, one.last_left)
            for name, one in self.readings.items()
        }
        await self._durable.close()
        try:
            await self.ledger.close()
            # The next owner then need not read the last ledger for a backlog.
            await self.hidden.work(self.readable.value)
        except ExpectedError as error:
            log.warning("a ledger's end was not recorded", topic=str(self.name), reason=str(error))

    async def delete(self) -> None:
        """Disconnect every client, and remove cursors, transactions' records and data; durable on return."""
        self._is_closed = True
        self.clients.send_away()
        await self._durable.delete_all()
        await self._buffer.discard()
        if self.deduplication is not None:
            await self.deduplication.discard()
        await self.ledger.delete()
        await remove_what_stands_beside(self.name, self._metadata)

    async def delete_below(self, index: int) -> None:
        """Delete the messages below this index, at most the index behind the last durable one. Durable on return.

        No reader gets them any more. Ledgers of which everything was deleted are removed soon.
        """
        await self.ledger.delete_below(index)
        self._trimmer.look_again()

    def delivered(self, message_count: int, payload_bytes: int) -> None:
        """Count an entry that was handed to a consumer's connection."""
        self.traffic.messages_out += message_count
        self.traffic.bytes_out += payload_bytes
        self._services.activity.set()
        self._services.changes.set()

    def add_producer(self, producer: TopicProducer, *, returning: bool = False) -> None:
        """Register a producer under its name.

        A producer that is `returning` after it lost its connection may register on a replaced segment, if it has stored
        something there. It resends unanswered sends, and gets receipts for those that are stored.

        Raises:
            TopicClosed: the topic is closing.
            LedgerSealed: the segment was replaced.
            ProducerNameTaken: another producer has the name.
            ProducersFull: the topic cannot deduplicate its sends.
        """
        self._require_running()
        is_known = returning and self.deduplication is not None and self.deduplication.knows(producer.name)
        if self.clients.is_retired and not is_known:
            raise LedgerSealed(
                f"{self.name} was split, merged or migrated, and accepts no more producers. Look up the topic's layout "
                "again, and produce to its active segments."
            )
        self.clients.add_producer(producer)
        if self.deduplication is not None:
            try:
                self.deduplication.connected(producer.name)
            except ProducersFull:
                self.clients.remove_producer(producer)
                raise

    def remove_producer(self, producer: TopicProducer, *, is_final: bool = False) -> None:
        """Release a producer's name. Does nothing if it was not registered.

        `is_final`: its client closed it, and nobody uses its name again.
        """
        if self.clients.remove_producer(producer) and self.deduplication is not None:
            self.deduplication.disconnected(producer.name, is_final=is_final)

    async def seal(self) -> None:
        """Seal the ledger, so that nothing can be appended; durable on return. It may be repeated."""
        self.clients.is_retired = True
        await self.ledger.seal()
        self._set_sealed()
        self._buffer.sealed()

    def mark_replaced(self) -> None:
        """Note that all clients which follow the layout here know the segment's successors (docs/design.md#topics)."""
        self.replaced.set()
        for producer in self.clients.producers:
            producer.topic_replaced()

    # Subscribing

    @property
    def subscriptions(self) -> Mapping[str, Subscription]:
        """The durable subscriptions by name."""
        return self._durable.by_name

    @property
    def readings(self) -> Mapping[str, Reading]:
        """How far each durable subscription is."""
        return {
            name: Reading(one.statistics(), one.handled_upto, one.last_left) for name, one in self.subscriptions.items()
        }

    async def subscribe(self, name: str, start: Position | None, conditions: Sequence[Check] = ()) -> Subscription:
        """Return the durable subscription. If it does not exist, create it; it is durable on return.

        `start` is the mark-delete position of a new subscription: EARLIEST, a position or LATEST. With LATEST it gets
        what becomes readable from now on, including entries of currently open transactions. With None, none is created.

        Raises:
            TopicClosed: the topic is closing.
            SubscriptionNotFound: it does not exist, and `start` is None.
            Conflict: it does not exist, and one of the `conditions` of its creation does not hold.
        """
        place = None if start is None else self._placed(start)
        return await self._durable.open(name, place, self._require_running, conditions)

    def subscriptions_held(self) -> AbstractAsyncContextManager[Mapping[str, Subscription]]:
        """Yield the durable subscriptions by name. During the block, only the block itself may open or delete one."""
        return self._durable.held()

    async def unsubscribe(self, name: str) -> None:
        """Delete a durable subscription and its cursor, if they exist; durable on return.

        Raises:
            TopicClosed: the topic is closing.
        """
        try:
            await self._durable.delete(name, self._require_running)
        finally:
            self.clients.tell_disconnected()

    async def seek(self, subscription: Subscription, mark_delete: Position, partly: EntryAck | None = None) -> None:
        """Move a subscription as its own `seek` does, and tell its consumers to resubscribe."""
        try:
            await subscription.seek(mark_delete, partly)
        finally:
            self.clients.tell_disconnected()

    def subscribe_reader(self, name: str, start: Position, source: Source | None = None) -> Subscription:
        """Make a non-durable subscription for one reader. The caller must close it.

        It reads the topic, or `source` if one is given.

        Raises:
            TopicClosed: the topic is closing.
        """
        nursery = self._require_running()
        cursor = NonDurableCursor(name, ledger=self.ledger, start=self._placed(start))
        subscription = Subscription(name, source=source or self, cursor=cursor)
        nursery.start_soon(subscription.run)
        return subscription

    def end_reader(self, subscription: Subscription) -> None:
        """Close a reader's subscription. Does nothing if the topic is closing."""
        if self._nursery is not None:
            self._nursery.start_soon(subscription.close)

    async def acknowledge_in_transaction(
        self,
        subscription: Subscription,
        txn: TxnId,
        acks: Sequence[EntryAck],
        *,
        cumulative: bool = False,
        identity: CommandId | None = None,
    ) -> None:
        """Acknowledge entries in `txn`: it takes effect at the commit, and until then no consumer gets the entries.

        The pending acknowledgement is durable on return. A repeated command has no further effect.

        Raises:
            WrongDomain: v5 transactions, and only they, acknowledge on segments (D6).
            AcknowledgementRefused, SubscriptionClosed: nothing was acknowledged.
            TxnError, CursorError: see `PendingAcks.acknowledge`.
        """
        self._buffer.require_taking(txn)
        await self._durable.acknowledge(subscription, txn, acks, cumulative=cumulative, identity=identity)

    async def acknowledged(self, subscription: Subscription) -> Position:
        """Return the mark-delete position, with the acknowledgements of all transactions decided before the call."""
        await self._durable.caught_up(subscription)
        return subscription.cursor.mark_delete

    @property
    def is_untouched(self) -> bool:
        """Whether nothing was produced here, and only consumers that take any schema are connected."""
        has_data = self.ledger.next_index > 0 or self.ledger.is_sealed
        return not (has_data or self.clients.is_demanding)

    @property
    def claim(self) -> Check:
        """The condition under which this broker may write for the topic."""
        return self._claim

    async def wait_idle(self, seconds: float) -> None:
        """Wait until the topic was unused for `seconds`, and unloading it has no lasting cost."""
        while True:
            await self.clients.wait_unused(seconds)
            if self._can_be_left:
                return

    @property
    def _can_be_left(self) -> bool:
        """Return False on a full disk: recording the ledger's end would wait for space, and clients with it."""
        is_growing = self.ledger.open_bytes > 0 and len(self.ledger.closed) >= IDLE_LEDGERS_MAX
        return self._services.ledgers.shortage is None and not is_growing

    def _placed(self, start: Position) -> Position:
        return self.readable.value if start == LATEST else start

    def _require_running(self) -> trio.Nursery:
        if self._nursery is None or self._is_closed:
            raise TopicClosed(f"This broker is closing {self.name}. Look the topic up again.")
        return self._nursery
