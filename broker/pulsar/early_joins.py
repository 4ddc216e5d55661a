"""Transactions of one producer join its segment before their sends have their turn.

Joining waits for the sync of an op record. A producer publishes in order, so it would wait for one sync after another.
Started together, the joins of all queued transactions share a few. Only the append needs the order.

A join here is a head start and decides nothing. The send's own turn asks for everything again. It finds the transaction
joined, or it meets what stood in the way and tells the client.
"""

from typing import Final

import trio

from broker.pulsar.faults import fault_of
from broker.topic import Topic
from storage.entry import TxnId

JOINS_MAX: Final = 64
"""Joins of one producer that are under way at once; the transactions behind them wait for one to end."""


class EarlyJoins:
    """See the module's docstring."""

    def __init__(self, topic: Topic, nursery: trio.Nursery) -> None:
        """Set up; the nursery is the producer's, so that nothing joins after its end."""
        self._topic = topic
        self._nursery = nursery
        self._waiting: dict[TxnId, None] = {}
        """Transactions that are to join, in the order of their sends, no more than there are sends in the inbox."""
        self._running = 0

    @property
    def running(self) -> int:
        """Joins under way, at most `JOINS_MAX`."""
        return self._running

    def start(self, txn: TxnId) -> None:
        """Let a transaction join as soon as fewer than `JOINS_MAX` do."""
        self._waiting[txn] = None
        if self._running < JOINS_MAX:
            self._running += 1
            self._nursery.start_soon(self._join_waiting)

    def drop(self) -> None:
        """Start no more of those that wait; their sends were dropped."""
        self._waiting.clear()

    async def _join_waiting(self) -> None:
        try:
            while self._waiting:
                txn = next(iter(self._waiting))
                del self._waiting[txn]
                try:
                    await self._topic.join(txn)
                except Exception as error:
                    # Raises what nobody expects. The rest the send meets in its turn, and then its client is told.
                    fault_of(error)
        finally:
            self._running -= 1
