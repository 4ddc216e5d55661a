"""A subscription: its consumers, its cursor, its policy, and the requests of its consumers.

Every request of a consumer is synchronous and in memory. If it gives the dispatcher work, it sets the dispatcher's
signal. One table has the differences between types of subscription (`subscription_types.py`). An exclusive subscription
sends in order. It goes back to the mark-delete position for each new consumer and each request to send again, so it
remembers no single entries. A shared one remembers the holder of each entry.

`run` is the one task of a subscription. It runs the dispatcher and, for a durable cursor, the writer.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import trio

from dispatch.consumer import Consumer
from dispatch.dispatcher import Dispatcher
from dispatch.errors import AcknowledgementRefused, ConsumerBusy, SubscriptionClosed, TooManyHoles
from dispatch.source import Source
from dispatch.statistics import ConsumerStatistics, SubscriptionStatistics, backlog_entries, visible_backlog
from dispatch.subscription_types import TYPES, SubscriptionType
from dispatch.withheld import NothingWithheld, Withheld
from storage.cursor import BaseCursor
from storage.position import LATEST, Position
from storage.ranges import EntryAck, bits_from_words, bits_within


class Acknowledgement(NamedTuple):
    """What a consumer acknowledges: an entry, or messages of a batch."""

    position: Position
    ack_set: Sequence[int] = ()
    """For a batch, 64-bit words in which bit i is 0 if message i is acknowledged. Empty: the whole entry."""
    batch_size: int = 0
    """Messages in the batch if the consumer gives the number, else 0."""

    def to_entry_ack(self) -> EntryAck:
        """The form that cursors take."""
        remaining = bits_within(bits_from_words(self.ack_set), self.batch_size)
        return EntryAck(self.position, remaining, self.batch_size)


class Subscription:
    """See the module's docstring. A topic makes it with an open cursor, and the topic's nursery runs `run`."""

    def __init__(
        self,
        name: str,
        *,
        source: Source,
        cursor: BaseCursor,
        kind: SubscriptionType = SubscriptionType.EXCLUSIVE,
        withheld: Withheld | None = None,
    ) -> None:
        """Set up. Entries in `withheld` are not sent until they are given back."""
        self.name = name
        self._source = source
        self._cursor = cursor
        self._kind = kind
        self._withheld: Withheld = NothingWithheld() if withheld is None else withheld
        self._dispatcher = Dispatcher(
            source, cursor, self._withheld, TYPES[kind].policy, tracks_unacked=TYPES[kind].individual
        )
        self._active: Consumer | None = None
        """The consumer that was last told that it gets everything."""
        self._is_closed = False
        self.unread_from = source.readable.value
        """What was readable when the last consumer left, or when it was loaded. Has no meaning while one is there."""
        self.unread_since = trio.current_time()
        """When that was, on trio's clock."""
        self.last_left = ""
        """The name of the consumer that left last; empty since the start of this owner."""

    @property
    def kind(self) -> SubscriptionType:
        """The kind of the connected consumers, or of the last ones."""
        return self._kind

    @property
    def cursor(self) -> BaseCursor:
        """Its progress. Acknowledge through the subscription, so that the holders stay correct."""
        return self._cursor

    @property
    def keeps_order(self) -> bool:
        """Whether sending an entry again also resends everything behind it."""
        return not TYPES[self._kind].individual

    @property
    def consumers(self) -> tuple[Consumer, ...]:
        """The connected consumers, in the order in which they came."""
        return tuple(self._dispatcher.consumers)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send, and write the cursor, until closed or deleted.

        Raises:
            ExceptionGroup: of `CursorLost`, `CursorFailed` or `CursorRefused`, or of an error of the source.
        """
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._cursor.run)
                task_status.started()
                await self._dispatcher.run()
        finally:
            self._is_closed = True
            self._dispatcher.close()

    def add_consumer(self, consumer: Consumer, kind: SubscriptionType | None = None) -> None:
        """Connect a consumer. It gets entries as soon as it grants permits.

        `kind` is the kind that it requests. It becomes the subscription's kind if nobody else is connected.

        Raises:
            ConsumerBusy: the others are of another kind, or the kind allows no more consumers.
            SubscriptionClosed: nobody can join any more.
        """
        consumers = self._dispatcher.consumers
        kind = self._kind if kind is None else kind
        if self._is_closed:
            raise SubscriptionClosed(f"Subscription {self.name} is closed. Subscribe again")
        if consumers and kind is not self._kind:
            raise ConsumerBusy(
                f"Subscription {self.name} has {self._kind.name} consumers. Use that type, or another subscription"
            )
        consumers_max = TYPES[kind].consumers_max
        if consumers_max is not None and len(consumers) >= consumers_max:
            raise ConsumerBusy(
                f"Subscription {self.name} already has its {kind.name} consumer. Use another subscription"
            )
        if kind is not self._kind:
            self._kind = kind
            self._dispatcher.policy, self._dispatcher.tracks_unacked = TYPES[kind].policy, TYPES[kind].individual
            self._dispatcher.rewind()
        consumers.append(consumer)
        consumer.outlet.attach(self._dispatcher.signal)
        self._tell_active()
        self._dispatcher.wake()

    def remove_consumer(self, consumer: Consumer) -> None:
        """Disconnect a consumer. Others get its unacknowledged entries. No effect if it is not connected."""
        if consumer not in self._dispatcher.consumers:
            return
        self._dispatcher.consumers.remove(consumer)
        consumer.outlet.detach(self._dispatcher.signal)
        self.unread_from, self.unread_since = self._source.readable.value, trio.current_time()
        self.last_left = consumer.name
        self._tell_active()
        if TYPES[self._kind].individual:
            self._dispatcher.left(consumer)
        else:
            self._dispatcher.rewind()

    def flow(self, consumer: Consumer, permits: int) -> None:
        """The consumer has room for `permits` more messages."""
        consumer.permits.grant(permits)
        self._dispatcher.wake()

    def acknowledge(self, acknowledgements: Iterable[Acknowledgement], *, cumulative: bool = False) -> None:
        """Take acknowledgements, in memory. `synced` returns when they are durable.

        A cumulative one covers everything at or below its position; within a batch, the messages before the first
        remaining one. Acknowledging again has no effect.

        Raises:
            AcknowledgementRefused: one of them is wrong, and none was taken.
        """
        given = [acknowledgement.to_entry_ack() for acknowledgement in acknowledgements]
        self._require_acknowledgeable(given, cumulative=cumulative)
        self.take(given, cumulative=cumulative)

    def require_acknowledgeable(self, acks: Sequence[EntryAck], *, cumulative: bool) -> None:
        """Return if these may be acknowledged, now or after the decision of the transaction that reserves them.

        Raises:
            AcknowledgementRefused: one of them is wrong.
            SubscriptionClosed: the subscription has ended.
        """
        if self._is_closed:
            raise SubscriptionClosed(f"Subscription {self.name} is closed. Subscribe again")
        self._require_acknowledgeable(acks, cumulative=cumulative)

    def take(self, acks: Sequence[EntryAck], *, cumulative: bool) -> list[EntryAck]:
        """Take checked acknowledgements. Returns those that the cursor has no room to remember.

        Those stay unacknowledged, with their holders.
        """
        left = []
        for ack in acks:
            if not cumulative:
                if not self._acknowledge_one(ack.position, ack.remaining):
                    left.append(ack)
                continue
            self._cursor.acknowledge_cumulative(ack.position.before() if ack.remaining else ack.position)
            if ack.remaining and not self._cursor.acknowledge_batch(ack.position, ack.remaining):
                left.append(ack)
        if self._dispatcher.is_blocked:
            self._dispatcher.wake()
        return left

    def set_aside(self, acks: Sequence[EntryAck], *, cumulative: bool) -> None:
        """These are withheld from now on, so nobody holds them."""
        # A subscription that keeps order remembers no holders, and only such a subscription takes cumulative ones.
        if cumulative or not TYPES[self._kind].individual:
            return
        for ack in acks:
            bits = self._dispatcher.sendable_bits(ack.position)
            if not bits:
                self._dispatcher.redelivery.set_aside(ack.position)
            else:
                self._dispatcher.redelivery.partly_acknowledged(ack.position, bits.bit_count())
        if self._dispatcher.is_blocked:
            self._dispatcher.wake()

    def give_back(self, acks: Sequence[EntryAck], *, cumulative: bool) -> None:
        """These are no longer withheld. Unacknowledged ones are sent again.

        If they were cumulative, they come in order. A later cumulative acknowledgement of a consumer that got more
        would cover them. So that consumer is disconnected and has to subscribe again.
        """
        if cumulative:
            acks = [EntryAck(self._cursor.first_unacknowledged())]
        again = [ack.position for ack in acks if not self._cursor.is_acknowledged(ack.position)]
        if not again:
            return
        if not TYPES[self._kind].individual:
            self._dispatcher.go_back(min(again))
            if cumulative and any(consumer.messages_sent for consumer in self.consumers):
                for consumer in self._disconnect_all():
                    consumer.outlet.disconnected()
        elif cumulative:
            # The acknowledgement came when the subscription was of another kind.
            self._dispatcher.rewind()
        else:
            for position in again:
                self._dispatcher.send_again(position)

    async def synced(self, upto: Position = LATEST) -> None:
        """Return once everything acknowledged before this call, at or below `upto`, is durable. See the cursor's."""
        await self._cursor.synced(upto)

    async def written(self) -> Position:
        """See the cursor's. Everything acknowledged before this call, at or below the returned position, is durable."""
        return await self._cursor.written()

    def too_many_holes(self) -> TooManyHoles:
        """The error for an acknowledgement that could not be remembered."""
        return TooManyHoles(
            f"Subscription {self.name} has too many gaps between acknowledged entries to keep this acknowledgement. "
            f"Acknowledge the entries from {self._cursor.first_unacknowledged()} on, then acknowledge this one again"
        )

    def redeliver(self, consumer: Consumer, positions: Iterable[Position] | None = None) -> None:
        """Send the unacknowledged entries of the consumer again: all of them, or some.

        A subscription that keeps order resends everything that is not acknowledged, because single entries would break
        the order.
        """
        if consumer not in self._dispatcher.consumers:
            return
        if not TYPES[self._kind].individual:
            self._dispatcher.rewind()
        elif positions is None:
            self._dispatcher.send_all_again(consumer)
        else:
            self._dispatcher.redelivery.send_again(consumer, positions)
        self._dispatcher.wake()

    async def seek(self, mark_delete: Position, partly: EntryAck | None = None) -> tuple[Consumer, ...]:
        """Forget all acknowledgements and continue with the entry after `mark_delete`. Durable on return.

        To continue with an entry itself, pass its `before()`. LATEST continues with entries that become readable later.
        As Pulsar does, it disconnects all consumers and returns them. Their sessions tell the clients, which subscribe
        again. Withheld entries are released. `partly` names messages of the next entry, a batch, that are not wanted.
        Everything takes effect at once, even if the caller is cancelled. After a crash, all of it has happened or
        nothing.

        Raises:
            CursorError: the cursor has ended.
        """
        # Everything is sent again, so the entries of leaving consumers need not be sorted.
        self._dispatcher.redelivery.clear()
        disconnected = self._disconnect_all()
        self._cursor.move(self._source.readable.value if mark_delete == LATEST else mark_delete)
        if partly is not None and partly.remaining:
            self._cursor.acknowledge_batch(partly.position, partly.remaining)
        self._withheld.forget()
        self._dispatcher.rewind()
        await self._cursor.synced()
        return disconnected

    async def skip(self, upto: Position) -> None:
        """Acknowledge every entry at or below the position for everybody. Durable on return.

        Consumers stay connected. What they hold of it is not sent again, and what they acknowledge of it has no effect.
        Acknowledgements above the position stay. It takes effect at once, even if the caller is cancelled.

        Raises:
            CursorError: the cursor has ended.
        """
        self._cursor.acknowledge_cumulative(min(upto, self._source.readable.value))
        self._dispatcher.redelivery.skip_upto(upto)
        self._dispatcher.wake()
        await self._cursor.synced()

    async def unsubscribe(self, consumer: Consumer | None = None, *, force: bool = False) -> tuple[Consumer, ...]:
        """Delete the subscription and its cursor. Durable on return. Returns the consumers that it disconnected.

        Raises:
            ConsumerBusy: consumers other than the caller are connected, and `force` is not set.
        """
        if not force and any(other is not consumer for other in self._dispatcher.consumers):
            raise ConsumerBusy(f"Subscription {self.name} has other consumers. Disconnect them, or force the removal")
        self._is_closed = True
        # Once the cursor is deleted, `run` ends and the subscription may release it.
        withheld = self._withheld
        disconnected = self._disconnect_all()
        self._dispatcher.close()
        await self._cursor.delete()
        await withheld.clear()
        return disconnected

    async def close(self) -> tuple[Consumer, ...]:
        """Disconnect all consumers, write the cursor, and let `run` return. Returns the consumers."""
        self._is_closed = True
        disconnected = self._disconnect_all()
        self._dispatcher.close()
        await self._cursor.close()
        return disconnected

    def let_go(self) -> None:
        """Release `withheld`, once `run` has ended.

        The two refer to each other, which would keep both until a collection.
        """
        self._withheld = self._dispatcher.withheld = NothingWithheld()

    @property
    def is_drained(self) -> bool:
        """Whether the source is sealed and everything in it is durably acknowledged."""
        return self._dispatcher.is_drained

    @property
    def handled_upto(self) -> Position:
        """Every entry at or below was sent once, skipped or acknowledged; EARLIEST if all is looked at again."""
        return self._dispatcher.handled_upto

    @property
    def unacked_messages(self) -> int:
        """Messages sent and not acknowledged (shared subscriptions)."""
        return self._dispatcher.redelivery.unacked_total

    @property
    def backlog_entries(self) -> int:
        """Readable entries that are not acknowledged, without those that are known to be hidden."""
        return backlog_entries(self._source, self._cursor)

    async def visible_backlog(self, upto: Position = LATEST) -> int:
        """Readable entries up to this position that consumers get and that are not acknowledged.

        Raises:
            LedgerCorrupt: it cannot be found out.
        """
        return await visible_backlog(self._source, self._cursor, upto)

    def statistics(self) -> SubscriptionStatistics:
        """Counters at this moment."""
        redelivery = self._dispatcher.redelivery
        consumers = tuple(
            ConsumerStatistics(
                consumer.name,
                consumer.permits.available,
                redelivery.unacked(consumer),
                consumer.messages_sent,
                consumer.bytes_sent,
            )
            for consumer in self._dispatcher.consumers
        )
        return SubscriptionStatistics(
            self._kind,
            self.backlog_entries,
            redelivery.unacked_total,
            redelivery.waiting,
            self._cursor.mark_delete,
            consumers,
        )

    def _require_acknowledgeable(self, acks: Sequence[EntryAck], *, cumulative: bool) -> None:
        if cumulative and TYPES[self._kind].individual:
            raise AcknowledgementRefused(
                f"Subscription {self.name} has type {self._kind.name}, so it accepts no cumulative acknowledgement. "
                "Acknowledge each message"
            )
        for ack in acks:
            self._check(ack.position, cumulative=cumulative)

    def _check(self, position: Position, *, cumulative: bool) -> None:
        """Check that the position could have been sent."""
        if position <= self._cursor.mark_delete:
            return
        if position > self._source.readable.value:
            raise AcknowledgementRefused(f"Entry {position} was not sent yet, so it cannot be acknowledged")
        if not cumulative and self._source.next_after(position.before()) != position:
            raise AcknowledgementRefused(f"Entry {position} does not exist, so it cannot be acknowledged")

    def _acknowledge_one(self, position: Position, remaining: int) -> bool:
        """Returns whether it was taken."""
        cursor = self._cursor
        taken = cursor.acknowledge_batch(position, remaining) if remaining else cursor.acknowledge(position)
        # A cursor without room takes nothing, and the entry stays with its holder.
        if self._cursor.is_acknowledged(position):
            self._dispatcher.redelivery.acknowledged(position)
        elif (bits := self._cursor.remaining_bits(position)) is not None:
            self._dispatcher.redelivery.partly_acknowledged(position, bits.bit_count())
        return taken

    def _tell_active(self) -> None:
        """Tell the consumers if another one gets everything from now on."""
        consumers = self._dispatcher.consumers
        active = consumers[0] if consumers and TYPES[self._kind].has_active else None
        if active is self._active:
            return
        before, self._active = self._active, active
        if before in consumers:
            before.outlet.active_changed(is_active=False)
        if active is not None:
            active.outlet.active_changed(is_active=True)

    def _disconnect_all(self) -> tuple[Consumer, ...]:
        disconnected = self.consumers
        for consumer in disconnected:
            self.remove_consumer(consumer)
            consumer.was_disconnected = True
        return disconnected
