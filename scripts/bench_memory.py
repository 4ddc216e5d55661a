"""Measures the broker's memory per message, transaction, subscription, topic and client, in bytes.

    .venv/bin/python scripts/bench_memory.py [--only NAME]

For each kind of object it starts a broker as a user would. It first creates some objects, so that the broker's first
allocations do not count. Then it creates many more, and divides the growth of the resident memory by their number. A
transaction's figure includes its one small message, whose own cost comes first in the list.
"""

import argparse
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import trio

import tidewire
from scripts.process_usage import resident_mib
from tests.support.admin import Admin
from tests.support.processes import running_broker

TOPIC: Final = "persistent://public/default/memory"
SCALABLE: Final = "topic://public/default/memory"
BROKER_FLAGS: Final = ("--txn-retention-seconds", "3600", "--auto-scale", "false")
"""With these flags, no transaction is forgotten during the measurement."""
AT_ONCE: Final = 16

Make = Callable[[AsyncExitStack, tidewire.Client, str, range], Awaitable[None]]
"""Creates the objects with these numbers. Objects that must stay open are entered into the stack."""


async def send(stack: AsyncExitStack, client: tidewire.Client, url: str, numbers: range) -> None:
    """Send each message in its own batch, which the broker keeps in memory for readers."""
    async with client.producer(SCALABLE, batching=False) as producer:
        for number in numbers:
            await producer.enqueue(b"%d" % number, key="key")
        await producer.flush()


async def transact(stack: AsyncExitStack, client: tidewire.Client, url: str, numbers: range, *, commit: bool) -> None:
    """Run a transaction with one message, which has ended but is not forgotten yet."""
    limit = trio.CapacityLimiter(AT_ONCE)

    async def one(number: int) -> None:
        async with limit:
            transaction = await client.new_transaction(timeout_seconds=600)
            await producer.send(b"%d" % number, key="key", txn=transaction)
            await (transaction.commit() if commit else transaction.abort())

    async with client.producer(SCALABLE, batching=False) as producer, trio.open_nursery() as nursery:
        for number in numbers:
            nursery.start_soon(one, number)


async def subscribe(stack: AsyncExitStack, client: tidewire.Client, url: str, numbers: range) -> None:
    """Create a durable subscription of one segment, whose consumer has left."""
    for number in numbers:
        async with client.queue_consumer(SCALABLE, f"subscription-{number}"):
            pass


async def consume(stack: AsyncExitStack, client: tidewire.Client, url: str, numbers: range) -> None:
    """Create a durable subscription with a connected consumer; all share a connection."""
    for number in numbers:
        await stack.enter_async_context(client.queue_consumer(SCALABLE, f"subscription-{number}"))


async def use_topics(stack: AsyncExitStack, client: tidewire.Client, url: str, numbers: range) -> None:
    """Load a topic with one message and a producer."""
    for number in numbers:
        producer = await stack.enter_async_context(client.producer(f"{TOPIC}-{number}"))
        await producer.send(b"one")


async def connect(stack: AsyncExitStack, client: tidewire.Client, url: str, numbers: range) -> None:
    """Connect a separate client, with its connections to one broker and a producer."""
    for number in numbers:
        other = await stack.enter_async_context(tidewire.connect(url))
        producer = await stack.enter_async_context(other.producer(SCALABLE, name=f"producer-{number}"))
        await producer.send(b"one", key="key")


class Kind(NamedTuple):
    """A kind of object."""

    make: Make
    number: int
    goal: int
    """The most bytes that one should take, with its message."""


KINDS: Final[dict[str, Kind]] = {
    "message in memory": Kind(send, 20_000, 1_024),
    "committed transaction": Kind(partial(transact, commit=True), 10_000, 2_048),
    "aborted transaction": Kind(partial(transact, commit=False), 10_000, 2_048),
    "subscription": Kind(subscribe, 1_000, 32 * 1024),
    "subscription with a consumer": Kind(consume, 1_000, 48 * 1024),
    "loaded topic with a producer": Kind(use_topics, 500, 96 * 1024),
    "client with a producer": Kind(connect, 400, 96 * 1024),
}


async def measure(kind: Kind, url: str, pid: int) -> float:
    """Return the bytes of resident memory that one object takes."""
    async with tidewire.connect(url) as client, AsyncExitStack() as stack:
        first = kind.number // 4
        await kind.make(stack, client, url, range(first))
        before = resident_mib(pid)
        await kind.make(stack, client, url, range(first, first + kind.number))
        grown = resident_mib(pid) - before
    return grown * 2**20 / kind.number


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure each kind on a new broker."""
    parser = argparse.ArgumentParser(description="The broker's memory per message, topic, client and so on.")
    parser.add_argument("--only", choices=KINDS)
    options = parser.parse_args(arguments)
    for name, kind in KINDS.items():
        if options.only in (None, name):
            with tempfile.TemporaryDirectory() as folder, running_broker(Path(folder), *BROKER_FLAGS) as broker:
                Admin(broker.http_url).create(SCALABLE)
                found = trio.run(measure, kind, broker.service_url, broker.pid)
            print(f"{name:30} {found:9,.0f} bytes (goal: at most {kind.goal:,})", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
