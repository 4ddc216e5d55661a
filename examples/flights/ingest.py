"""Sends the flights in transactions, while the topic splits and merges.

With `run_transaction`, a producer neither loses nor duplicates anything. If the broker restarts or the topic changes in
the middle, it aborts the transaction and runs the work again. When it returns, the commit is durable.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import anyio
import anyio.to_thread

import tidewire

from .flights import AircraftDay, FlightEvent

OPEN_MAX = 64
"""Most transactions that are open at a time."""


@dataclass
class Ingested:
    """What was sent so far."""

    transactions: int = 0
    events: int = 0
    aborted: int = 0
    """Transactions that were aborted on purpose after their sends, and then sent again."""


class Ingest:
    """Sends to one topic of one broker."""

    def __init__(self, service_url: str, topic: str) -> None:
        """Set up; nothing is sent yet."""
        self.done = Ingested()
        self._service_url = service_url
        self._topic = topic

    async def send(self, transactions: Sequence[AircraftDay], change_topic: Callable[[], None]) -> None:
        """Commit all transactions. Halfway, call `change_topic` in a thread while the transactions continue."""
        async with (
            tidewire.connect(self._service_url) as client,
            client.producer(self._topic, schema=tidewire.Schema.json(FlightEvent)) as producer,
            anyio.create_task_group() as tasks,
        ):
            # The workers share the iterator. Each takes the next transaction when it has finished one.
            left = iter(transactions)
            half = self.done.transactions + len(transactions) // 2
            for _ in range(OPEN_MAX):
                tasks.start_soon(self._work, client, producer, left, half, change_topic)

    async def tick(self, time_ms: int) -> None:
        """Send an event that only moves the watermark to `time_ms`, so that the last windows close."""
        async with (
            tidewire.connect(self._service_url) as client,
            client.producer(self._topic, schema=tidewire.Schema.json(FlightEvent)) as producer,
        ):
            await producer.send(FlightEvent("tick", "-", "-", "-", "-"), key="-", event_time_ms=time_ms)

    async def _work(
        self,
        client: tidewire.Client,
        producer: tidewire.Producer[FlightEvent],
        left: Iterator[AircraftDay],
        half: int,
        change_topic: Callable[[], None],
    ) -> None:
        for day in left:
            if day.is_aborted_first:
                transaction = await client.new_transaction()
                await _send(producer, day, transaction)
                await transaction.abort()
                self.done.aborted += 1
            await client.run_transaction(partial(_send, producer, day))
            self.done.transactions += 1
            self.done.events += len(day.events)
            if self.done.transactions == half:
                await anyio.to_thread.run_sync(change_topic)


async def _send(producer: tidewire.Producer[FlightEvent], day: AircraftDay, transaction: tidewire.Transaction) -> None:
    # The key is the aircraft. So its events stay in order, also when the topic splits or merges.
    receipts = [
        await producer.enqueue(event, key=day.tailnum, event_time_ms=time_ms, txn=transaction)
        for time_ms, event in day.events
    ]
    # A commit waits for the receipts by itself. An abort does not, and sends in flight would be left out.
    for receipt in receipts:
        await receipt
