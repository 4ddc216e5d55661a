"""The durable subscriptions of one topic: where cursors, dispatch and pending acknowledgements meet.

Each is a task tree of its own in the topic's nursery. On a segment a subscription has `PendingAcks` beside it, which
hold what open transactions acknowledged; dispatch asks them what it may send, they tell it what was decided, and
neither knows the other (docs/design.md#layers). What earlier owners left pending is taken over before anything is sent.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from urllib.parse import unquote

import structlog
import trio

from broker.errors import SubscriptionNotFound
from broker.topic_services import TopicServices
from dispatch.source import Source
from dispatch.subscription import AcknowledgementRefused, Subscription
from storage.cursor import Cursor, CursorError, cursor_key
from storage.entry import TxnId
from storage.managed_ledger import ManagedLedger
from storage.metadata.store import Check, Conflict, DeleteRange, exactly, starting_with
from storage.position import Position
from storage.ranges import EntryAck
from storage.signal import Signal
from txn.errors import OwnershipLost
from txn.op_removal import remove_strange_acks
from txn.pending_acks import PendingAcks
from txn.pending_transaction import CommandId

Running = Callable[[], trio.Nursery]
"""The topic's nursery; raises when the topic is going away."""

log = structlog.get_logger(__name__)


class DurableSubscriptions:
    """See the module's docstring. One is opened or deleted at a time."""

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
        """Those that are open."""
        return self._subscriptions

    @asynccontextmanager
    async def held(self) -> AsyncIterator[Mapping[str, Subscription]]:
        """Those that are open; none is opened or deleted meanwhile, but by the block itself."""
        async with self._changing:
            yield self._subscriptions

    async def load(self, nursery: trio.Nursery) -> None:
        """Open every one that has a cursor."""
        metadata = self._services.metadata
        prefix = cursor_key(self._ledger.name, "")
        for record in await metadata.scan(*starting_with(prefix)):
            await self.open(unquote(record.key.removeprefix(prefix)), self._source.readable.value, lambda: nursery)
        if self._takes_transactions:
            await remove_strange_acks(
                self._ledger.name, besides=self._subscriptions, metadata=metadata, claim=self._claim
            )

    async def open(self, name: str, start: Position | None, running: Running) -> Subscription:
        """The subscription; a new one starts at `start` and is durable on return.

        Raises:
            SubscriptionNotFound: there is none, and `start` is None.
        """
        async with self._changing:
            nursery = running()
            subscription = self._subscriptions.get(name)
            if subscription is not None:
                return subscription
            if start is None:
                raise SubscriptionNotFound(f"{self._ledger.name} has no subscription {name}")
            cursor = await Cursor.open(
                name, ledger=self._ledger, metadata=self._services.metadata, claim=self._claim, start=start
            )
            pending = self._pending_acks(cursor) if self._takes_transactions else None
            subscription = Subscription(name, source=self._source, cursor=cursor, withheld=pending)
            if pending is not None:
                await pending.recover(subscription)
            self._subscriptions[name] = subscription
            self._cursors[name] = cursor
            self._tell()
            await nursery.start(self._run, subscription, pending)
            return subscription

    async def delete(self, name: str, running: Running) -> None:
        """Delete one with its cursor, if there is one; durable on return. Its consumers are disconnected."""
        async with self._changing:
            running()
            subscription = self._subscriptions.get(name)
            if subscription is None:
                await self._remove_cursors(*exactly(cursor_key(self._ledger.name, name)))
                return
            await subscription.unsubscribe(force=True)
            if self._subscriptions.get(name) is subscription:
                # Its task takes a moment more to end, and whoever asks next is to get a new one.
                del self._subscriptions[name]
            self._tell()

    async def delete_all(self) -> None:
        """Delete every one, of a topic that is going away; durable on return."""
        async with self._changing:
            # Whoever was creating a cursor has done so by now, and nobody begins to any more.
            for subscription in tuple(self._subscriptions.values()):
                await subscription.unsubscribe(force=True)
            await self._remove_cursors(*starting_with(cursor_key(self._ledger.name, "")))

    async def close(self) -> None:
        """Write what the cursors still hold, of a topic that is going away; all at once, to share the store's syncs."""
        async with trio.open_nursery() as nursery:
            for subscription in self._subscriptions.values():
                nursery.start_soon(self._close, subscription)

    async def _close(self, subscription: Subscription) -> None:
        try:
            await subscription.close()
        except CursorError as error:
            # Only its own last acknowledgements are not written; they are delivered again.
            log.warning("a cursor was not written", topic=self._ledger.name, reason=str(error))

    async def acknowledge(
        self,
        subscription: Subscription,
        txn: TxnId,
        acks: Sequence[EntryAck],
        *,
        cumulative: bool,
        identity: CommandId | None = None,
    ) -> None:
        """Acknowledge when `txn` is committed; durable on return. A command of the same identity is taken once.

        Raises:
            AcknowledgementRefused: the subscription is not one of these.
            Exception: see `PendingAcks.acknowledge`.
        """
        pending = self._pending.get(subscription)
        if pending is None:
            raise AcknowledgementRefused(f"{subscription.name} remembers nothing, so it acknowledges in no transaction")
        await pending.acknowledge(txn, acks, cumulative=cumulative, identity=identity)

    async def caught_up(self, subscription: Subscription) -> None:
        """Return once its cursor has what was acknowledged in transactions that were decided before the call."""
        pending = self._pending.get(subscription)
        if pending is not None:
            await pending.caught_up()

    @property
    def cursors(self) -> list[Cursor]:
        """Those of all subscriptions that were not deleted, closed ones too: what they lack must be kept."""
        return [cursor for cursor in self._cursors.values() if not cursor.is_deleted]

    def attach(self, signal: Signal) -> None:
        """Set `signal` whenever a subscription came, went or was moved, until `detach`."""
        self._followers.append(signal)

    def detach(self, signal: Signal) -> None:
        """Undo one `attach`."""
        self._followers.remove(signal)

    def _tell(self) -> None:
        for signal in self._followers:
            signal.set()

    async def _remove_cursors(self, start: str, end: str) -> None:
        """Remove those that are not open: whoever created them gave up before they were."""
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
                    # Whoever asked for the deletion may have given up before it was done.
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
