"""Lets the transactions of a producer's queued sends join its segment before the sends are published.

A join waits for the sync of an op record. A producer publishes in order, so it would wait for one sync after another.
If the joins of all queued transactions start together, they share a few syncs. Only the append needs the order.

An early join decides nothing. When the send is published, everything is checked again. It either finds the transaction
joined, or gets the same error again and reports it to the client.
"""

from typing import Final

import trio

from broker.pulsar.faults import fault_of
from broker.topic import Topic
from storage.entry import TxnId

JOINS_MAX: Final = 64
"""Most joins of one producer in progress. Further transactions wait until one ends."""


class EarlyJoins:
    """See the module's docstring."""

    def __init__(self, topic: Topic, nursery: trio.Nursery) -> None:
        """Set up. The nursery belongs to the producer, so no join runs after the producer's end."""
        self._topic = topic
        self._nursery = nursery
        self._waiting: dict[TxnId, None] = {}
        """Transactions that wait to join, in the order of their sends; at most one for each send in the inbox."""
        self._running = 0

    @property
    def running(self) -> int:
        """The number of joins in progress, at most `JOINS_MAX`."""
        return self._running

    def start(self, txn: TxnId) -> None:
        """Start a transaction's join as soon as fewer than `JOINS_MAX` are in progress."""
        self._waiting[txn] = None
        if self._running < JOINS_MAX:
            self._running += 1
            self._nursery.start_soon(self._join_waiting)

    def drop(self) -> None:
        """Discard all waiting joins, because their sends were dropped."""
        self._waiting.clear()

    async def _join_waiting(self) -> None:
        try:
            while self._waiting:
                txn = next(iter(self._waiting))
                del self._waiting[txn]
                try:
                    await self._topic.join(txn)
                except Exception as error:
                    # An unexpected error is raised. The send itself meets an expected one again, and reports it.
                    fault_of(error)
        finally:
            self._running -= 1
