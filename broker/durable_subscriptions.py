"""The durable subscriptions of one topic: where cursors, dispatch and pending acknowledgements meet.

Each subscription has its own task tree in the topic's nursery. On a segment, `PendingAcks` hold what open transactions
have acknowledged. Dispatch asks them what it may send, and they tell dispatch each outcome. This module connects the
two, so neither knows the other (docs/design.md#layers). Acknowledgements that an earlier owner left pending are
recovered before the first message is sent.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from urllib.parse import unquote

import structlog
import trio

from broker.errors import SubscriptionNotFound
from broker.topic_services import TopicServices
from dispatch.errors import AcknowledgementRefused, SubscriptionClosed
from dispatch.source import Source
from dispatch.subscription import Subscription
from storage.cursor import Cursor, CursorError, cursor_key
from storage.entry import TxnId
from storage.managed_ledger import ManagedLedger
from storage.metadata.paging import each_record
from storage.metadata.store import Check, Conflict, DeleteRange, exactly, starting_with
from storage.position import EARLIEST, Position
from storage.ranges import EntryAck
from storage.signal import Signal
from txn.errors import OwnershipLost
from txn.op_removal import remove_strange_acks
from txn.pending_acks import PendingAcks
from txn.pending_transaction import CommandId

Running = Callable[[], trio.Nursery]
"""Returns the topic's nursery; raises when the topic is closing."""

log = structlog.get_logger(__name__)


class DurableSubscriptions:
    """See the module's docstring. Only one subscription is opened or deleted at a time."""

    def __init__(
        self,
        source: Source,
        ledger: ManagedLedger,
        services: TopicServices,
        claim: Check,
        *,
        takes_transactions: bool,
    ) -> None:
        self._source = source
        self._ledger = ledger
        self._services = services
        self._claim = claim
        self._takes_transactions = takes_transactions
        self._subscriptions: dict[str, Subscription] = {}
        self._pending: dict[Subscription, PendingAcks] = {}
        self._changing = trio.Lock()
        self._cursors: dict[str, Cursor] = {}
        self._followers: list[Signal] = []

    @property
    def by_name(self) -> Mapping[str, Subscription]:
        """The open subscriptions."""
        return self._subscriptions

    @asynccontextmanager
    async def held(self) -> AsyncIterator[Mapping[str, Subscription]]:
        """Yield the open subscriptions. During the block, only the block itself may open or delete one."""
        async with self._changing:
            yield self._subscriptions

    async def load(self, nursery: trio.Nursery) -> None:
        """Open every subscription that has a cursor."""
        metadata = self._services.metadata
        prefix = cursor_key(self._ledger.name, "")
        cursors = each_record(metadata.scan, *starting_with(prefix))
        names = [unquote(record.key.removeprefix(prefix)) async for record in cursors]
        for name in names:
            await self.open(name, self._source.readable.value, lambda: nursery)
        if self._takes_transactions:
            # All that have a cursor. One that fails meanwhile is no longer open, but its records count.
            await remove_strange_acks(self._ledger.name, besides=names, metadata=metadata, claim=self._claim)

    async def open(
        self, name: str, start: Position | None, running: Running, conditions: Sequence[Check] = ()
    ) -> Subscription:
        """Return the subscription. If it does not exist, create it at `start`; it is durable on return.

        It also exists if the answer to its creation was lost.

        Raises:
            SubscriptionNotFound: it does not exist, and `start` is None.
            Conflict: it does not exist, and one of the `conditions` of its creation does not hold.
        """
        async with self._changing:
            running()
            subscription = self._subscriptions.get(name)
            if subscription is not None:
                return subscription
            metadata = self._services.metadata
            if start is None and await metadata.get(cursor_key(self._ledger.name, name)) is None:
                raise SubscriptionNotFound(f"{self._ledger.name} has no subscription {name}.")
            cursor = await Cursor.open(
                name,
                ledger=self._ledger,
                metadata=metadata,
                claim=self._claim,
                # An existing cursor ignores it.
                start=EARLIEST if start is None else start,
                conditions=conditions,
                changes=self._services.changes,
            )
            pending = self._pending_acks(cursor) if self._takes_transactions else None
            subscription = Subscription(name, source=self._source, cursor=cursor, withheld=pending)
            if pending is not None:
                await pending.recover(subscription)
            # The topic may have begun to close meanwhile, and its nursery with it.
            nursery = running()
            self._subscriptions[name] = subscription
            self._cursors[name] = cursor
            self._tell()
            await nursery.start(self._run, subscription, pending)
            return subscription

    async def delete(self, name: str, running: Running) -> None:
        """Delete a subscription and its cursor, if they exist; durable on return. Its consumers are disconnected."""
        async with self._changing:
            running()
            subscription = self._subscriptions.get(name)
            if subscription is None:
                await self._remove_cursors(*exactly(cursor_key(self._ledger.name, name)))
                return
            await subscription.unsubscribe(force=True)
            if self._subscriptions.get(name) is subscription:
                # Its task may not have ended yet, but the next `open` must create a new subscription.
                del self._subscriptions[name]
            self._tell()

    async def delete_all(self) -> None:
        """Delete all subscriptions of a topic that is being deleted; durable on return."""
        async with self._changing:
            # With the lock held, every cursor that was being created exists, and no other one is begun.
            for subscription in tuple(self._subscriptions.values()):
                await subscription.unsubscribe(force=True)
            await self._remove_cursors(*starting_with(cursor_key(self._ledger.name, "")))

    async def close(self) -> None:
        """Write all cursors of a topic that is closing. They are written concurrently, to share the store's syncs."""
        async with trio.open_nursery() as nursery:
            for subscription in self._subscriptions.values():
                nursery.start_soon(self._close, subscription)

    async def _close(self, subscription: Subscription) -> None:
        try:
            await subscription.close()
        except CursorError as error:
            # Only this cursor's last acknowledgements are lost. Their messages are redelivered.
            log.warning("a cursor was not written", topic=self._ledger.name, reason=str(error))

    def release(self) -> None:
        """The topic has ended, so no subscription is opened any more. The topic is then freed at once."""
        del self._source

    async def acknowledge(
        self,
        subscription: Subscription,
        txn: TxnId,
        acks: Sequence[EntryAck],
        *,
        cumulative: bool,
        identity: CommandId | None = None,
    ) -> None:
        """Acknowledge entries in `txn`: it takes effect at the commit. A repeated command has no further effect.

        The pending acknowledgement is durable on return.

        Raises:
            AcknowledgementRefused: the subscription is not durable.
            SubscriptionClosed: it has ended.
            Exception: see `PendingAcks.acknowledge`.
        """
        pending = self._pending.get(subscription)
        if pending is None and subscription.cursor.is_durable:
            # Its topic ends here, and its consumers are not told yet.
            raise _closed(subscription)
        if pending is None:
            raise AcknowledgementRefused(
                f"Subscription {subscription.name} is not durable, so it cannot acknowledge in a transaction. "
                "Use a durable subscription, or acknowledge outside of the transaction."
            )
        await pending.acknowledge(txn, acks, cumulative=cumulative, identity=identity)

    async def caught_up(self, subscription: Subscription) -> None:
        """Wait until the cursor has the acknowledgements of all transactions decided before the call.

        Raises:
            SubscriptionClosed: it has ended, so its next owner applies them.
            OwnershipLost, OutcomeUnknown: this broker no longer owns the segment.
        """
        pending = self._pending.get(subscription)
        if pending is not None:
            await pending.caught_up()
        elif self._takes_transactions and subscription.cursor.is_durable:
            raise _closed(subscription)

    @property
    def cursors(self) -> list[Cursor]:
        """The cursors of all subscriptions that were not deleted, closed ones too. Trimming keeps what they need."""
        return [cursor for cursor in self._cursors.values() if not cursor.is_deleted]

    def attach(self, signal: Signal) -> None:
        """Set `signal` whenever a subscription is created, deleted or moved, until `detach`."""
        self._followers.append(signal)

    def detach(self, signal: Signal) -> None:
        """Undo one `attach`."""
        self._followers.remove(signal)

    def _tell(self) -> None:
        for signal in self._followers:
            signal.set()
        self._services.changes.set()

    async def _remove_cursors(self, start: str, end: str) -> None:
        """Remove cursors whose subscriptions are not open: their creation was cancelled halfway."""
        if await self._services.metadata.scan(start, end, limit=1):
            try:
                await self._services.metadata.commit([self._claim, DeleteRange(start, end)])
            except Conflict as conflict:
                raise OwnershipLost(self._ledger.name) from conflict

    def _pending_acks(self, cursor: Cursor) -> PendingAcks:
        return PendingAcks(
            self._ledger.name,
            cursor,
            metadata=self._services.metadata,
            headers=self._services.headers,
            claim=self._claim,
            counters=self._services.counters,
        )

    async def _run(
        self,
        subscription: Subscription,
        pending: PendingAcks | None,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        try:
            async with trio.open_nursery() as nursery:
                if pending is not None:
                    self._pending[subscription] = pending
                    nursery.start_soon(pending.run)
                    nursery.start_soon(pending.apply)
                await subscription.run(task_status=task_status)
                if pending is not None and subscription.cursor.is_deleted:
                    # The caller of the deletion may have been cancelled before it was done.
                    await pending.clear()
                nursery.cancel_scope.cancel()
        finally:
            self._pending.pop(subscription, None)
            if self._subscriptions.get(subscription.name) is subscription:
                del self._subscriptions[subscription.name]
            if subscription.cursor.is_deleted and self._cursors.get(subscription.name) is subscription.cursor:
                del self._cursors[subscription.name]
            self._tell()
            subscription.let_go()


def _closed(subscription: Subscription) -> SubscriptionClosed:
    return SubscriptionClosed(f"Subscription {subscription.name} is closed. Subscribe again.")
