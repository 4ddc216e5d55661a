"""Trims a topic's ledgers as its retention policy allows; see `retention` and `retention_policies`."""

from collections.abc import Sequence
from math import inf

import structlog
import trio

from broker.deduplication.deduplication import Deduplication
from broker.durable_subscriptions import DurableSubscriptions
from broker.names import TopicName
from broker.retention import INFINITE_RETENTION, removable
from broker.topic_services import TopicServices
from storage.ages import counted_from_ms
from storage.errors import SPACE_RETRY_SECONDS
from storage.ledger_record import LedgerInfo
from storage.managed_ledger import ManagedLedger
from storage.metadata.store import StoreFull
from storage.position import EARLIEST, Position
from storage.signal import Signal
from storage.watermark import Watermark
from txn.buffer import TransactionBuffer

log = structlog.get_logger(__name__)


class LedgerTrimmer:
    """The trimming task of one topic."""

    def __init__(
        self,
        name: TopicName,
        ledger: ManagedLedger,
        buffer: TransactionBuffer,
        subscriptions: DurableSubscriptions,
        services: TopicServices,
        deduplication: Deduplication | None,
    ) -> None:
        self._name = name
        self._ledger = ledger
        self._buffer = buffer
        self._readable: Watermark = buffer.readable
        self._subscriptions = subscriptions
        self._policies = services.retention
        self._now_ms = services.now_ms
        self._is_own_clock = services.is_own_clock
        self._deduplication = deduplication
        self._due = Signal()
        self._seen_ms: dict[int, int] = {}
        """When this owner first saw each closed ledger that another broker wrote."""

    async def run(self) -> None:
        """Trim whenever the policy allows it, until cancelled.

        Raises:
            Fenced, OwnershipLost: this broker has lost the topic.
        """
        signal = self._due
        self._policies.attach(signal)
        self._ledger.attach_rolls(signal)
        self._subscriptions.attach(signal)
        try:
            while True:
                try:
                    await self._step(signal)
                except StoreFull as full:
                    log.warning("a topic could not be trimmed yet", topic=str(self._name), reason=str(full))
                    await trio.sleep(SPACE_RETRY_SECONDS)
        finally:
            self._subscriptions.detach(signal)
            self._ledger.detach_rolls(signal)
            self._policies.detach(signal)

    def look_again(self) -> None:
        """Look now whether there is something to remove."""
        self._due.set()

    async def _step(self, signal: Signal) -> None:
        """Trim once, and wait until there may be more to trim."""
        await self._remove_deleted()
        policy = self._policies.of(self._name)
        if policy == INFINITE_RETENTION:
            await signal.wait()
            return
        holding = self._holding()
        done = min(self._readable.value, holding.value)
        found = removable(self._aged(), self._ledger.open_bytes, done, policy, self._now_ms())
        if found.upto is not None:
            upto = await self._buffer.write_down(found.upto)
            if self._deduplication is not None:
                await self._deduplication.write_down()
            if self._holding().value < upto:
                # A subscription was moved back, or created, during these waits. The next step looks again.
                return
            await self._ledger.trim(upto)
        seconds = inf if found.next_ms is None else max(0.0, (found.next_ms - self._now_ms()) / 1000)
        if not found.waits_for_acknowledgement:
            with trio.move_on_after(seconds):
                await signal.wait()
            return
        # The position may have risen during the trimming.
        if min(self._readable.value, holding.value) > done:
            return
        holding.attach(signal)
        try:
            await signal.wait()
        finally:
            holding.detach(signal)

    async def _remove_deleted(self) -> None:
        """Remove the ledgers of which everything was deleted by request, whoever has not acknowledged it (K38)."""
        upto = EARLIEST
        for info in self._ledger.closed:
            if info.first_index + info.messages > self._ledger.start_index:
                break
            upto = Position(info.id, info.entries - 1)
        if upto > EARLIEST:
            await self._ledger.trim(await self._buffer.write_down(min(upto, self._readable.value)))

    def _holding(self) -> Watermark:
        """Return the position of the slowest subscription.

        Without one it is the readable position. An open transaction holds that back in any case.
        """
        slowest = min(self._subscriptions.cursors, key=lambda cursor: cursor.durable.value, default=None)
        return self._readable if slowest is None else slowest.durable

    def _aged(self) -> Sequence[LedgerInfo]:
        """Return the closed ledgers with the times of their last entries by this broker's clock.

        Another broker's clock has stamped what an earlier owner wrote. The age of such a ledger counts from when this
        owner first saw it, unless it is much older.
        """
        closed = self._ledger.closed
        others = {info.id for info in closed if info.writer is not None and not self._is_own_clock(info.writer.broker)}
        if not others:
            return closed
        now = self._now_ms()
        self._seen_ms = {ledger: self._seen_ms.get(ledger, now) for ledger in others}
        return [
            info._replace(
                last_timestamp_ms=counted_from_ms(info.last_timestamp_ms, self._seen_ms[info.id], is_own=False)
            )
            if info.id in others
            else info
            for info in closed
        ]
