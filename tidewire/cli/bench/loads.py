"""The loads of `tidewire bench`, as any program with this client would make them. They use nothing else of a broker.

A number of tasks work side by side. Each begins its next work when the last one is finished and the pace says so.
"""

import math
import os
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from typing import Final

import anyio

import tidewire
from tidewire.cli.bench.measuring import Measuring
from tidewire.cli.pacing import Pace
from tidewire.client.background import background_tasks
from tidewire.client.producer import Compression
from tidewire.client.waking import Changes

SIZE_MIN: Final = 16
"""A message holds the moment at which it was due, and the number of its run."""

_STAMP: Final = struct.Struct(">dQ")


@dataclass(frozen=True, slots=True)
class Load:
    """What all loads have in common."""

    topic: str
    size: int
    """The bytes of each message's value."""
    rate: float | None
    """Messages or transactions a second; None for as many as the broker answers."""
    in_flight: int
    """At most this many are unanswered."""
    keys: int
    """How many keys the messages have; 0 for none."""
    compression: Compression = "none"

    def key(self, number: int) -> str | None:
        """The key of the message of that number."""
        return f"key-{number % self.keys}" if self.keys else None

    async def work(self, measuring: Measuring, one: Callable[[float, int], Awaitable[None]]) -> None:
        """Call `one(due, number)` side by side for all that is due before the end. Return when all calls have ended.

        At a rate that is too high, this takes longer than the run. What never began would be missing in the latencies.

        Raises:
            TidewireError: as the first call that failed. The others are cancelled.
        """
        pace, numbers = Pace(self.rate, catch_up_seconds_max=math.inf), count()
        failures: list[tidewire.TidewireError] = []

        async def worker() -> None:
            try:
                while (due := pace.take()) < measuring.upto:
                    await anyio.sleep_until(due)
                    await one(due, next(numbers))
            except tidewire.TidewireError as error:
                failures.append(error)
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for _ in range(self.in_flight):
                tasks.start_soon(worker)
        if failures:
            raise failures[0]


async def produce(client: tidewire.Client, load: Load, measuring: Measuring) -> None:
    """Send messages, and measure each until its receipt."""
    value = os.urandom(load.size)
    async with client.producer(load.topic, compression=load.compression) as producer:

        async def one(due: float, number: int) -> None:
            await producer.send(value, key=load.key(number))
            measuring.took("send", due)
            measuring.count(1, load.size)

        await load.work(measuring, one)


async def deliver(client: tidewire.Client, load: Load, measuring: Measuring) -> None:
    """Send messages, and measure each from when it was due until a reader has it."""
    padding = os.urandom(load.size - _STAMP.size)
    (run,) = struct.unpack(">Q", os.urandom(8))
    async with (
        client.reader(load.topic, "latest") as reader,
        client.producer(load.topic, compression=load.compression) as producer,
        background_tasks() as tasks,
    ):
        missing = 0
        has_none_missing = Changes()

        async def read() -> None:
            nonlocal missing
            while True:
                message = await reader.receive()
                # Other programs may write to the topic as well.
                if len(message.value) == load.size and (stamp := _STAMP.unpack_from(message.value))[1] == run:
                    measuring.took("delivery", stamp[0])
                    measuring.count(1, load.size)
                    missing -= 1
                    if not missing:
                        has_none_missing.notify()

        async def one(due: float, number: int) -> None:
            nonlocal missing
            # Counted before it is sent: the reader may have it before the receipt comes.
            missing += 1
            await producer.send(_STAMP.pack(due, run) + padding, key=load.key(number))

        tasks.start_soon(read)
        await load.work(measuring, one)
        while missing:
            await has_none_missing.wait()


async def drain(client: tidewire.Client, load: Load, measuring: Measuring) -> None:
    """Read what the topic holds, from its beginning. There is no latency: the messages are old."""
    async with client.reader(load.topic, "earliest") as reader, background_tasks() as tasks:

        async def read() -> None:
            while True:
                message = await reader.receive()
                measuring.count(1, len(message.data))

        tasks.start_soon(read)
        await measuring.until_over()


async def transact(client: tidewire.Client, load: Load, measuring: Measuring, messages: int) -> None:
    """Run transactions of that many messages. Measure each from begin to commit, and its commit alone."""
    value = os.urandom(load.size)
    async with client.producer(load.topic, compression=load.compression) as producer:

        async def one(due: float, number: int) -> None:
            async with client.transaction() as transaction:
                receipts = [
                    await producer.enqueue(value, key=load.key(number * messages + index), txn=transaction)
                    for index in range(messages)
                ]
                for receipt in receipts:
                    await receipt
                begun = anyio.current_time()
                await transaction.commit()
            measuring.took("commit", due, begun)
            measuring.took("transaction", due)
            measuring.count(1, messages * load.size)

        await load.work(measuring, one)
