"""Measures what transactions cost over several brokers, and what brokers pay that only follow the metadata."""

import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from time import perf_counter
from typing import Final, NamedTuple

import trio

import tidewire
from scripts.bench_commit import keys_by_segment
from scripts.cluster_figures import Figures
from scripts.cluster_stage import Stage, say, stage
from scripts.process_usage import cpu_seconds
from tidewire.client.producer import Producer

TOPIC: Final = "topic://public/default/spread"
PARTICIPANTS: Final = 64
BROKERS: Final = ("one", "two", "three")
WARM_UP_ROUNDS: Final = 5
ROUNDS: Final = 30
"""Transactions of each repeat on each arrangement."""
FLAT: Final = 1.3
"""The most that a commit over three brokers may take, compared with one over one broker."""
MOVES_AT_ONCE: Final = 8

FOLLOWERS: Final = (1, 2, 4, 8)
"""How many brokers the cluster has."""
IN_FLIGHT: Final = 64
"""Transactions at a time while the followers' CPU is measured."""
LOAD_SECONDS: Final = 5
SETTLE_SECONDS: Final = 2


async def commit(store: str, repeats: int, figures: Figures) -> None:
    """Commit transactions with 64 segments, while one, two and three brokers own the segments."""
    async with stage(store, BROKERS) as at, AsyncExitStack() as stack:
        await at.create(TOPIC, PARTICIPANTS)
        client = await stack.enter_async_context(tidewire.connect(at.cluster.url()))
        producer = await stack.enter_async_context(client.producer(TOPIC))
        keys = keys_by_segment(PARTICIPANTS)
        await _transact(client, producer, keys)
        order = random.Random(1)  # noqa: S311 - an order, not a secret
        taken: dict[int, list[float]] = {1: [], 2: [], 3: []}
        for _ in range(repeats):
            for brokers in order.sample(list(taken), len(taken)):
                await _arrange(at, brokers)
                for number in range(WARM_UP_ROUNDS + ROUNDS):
                    milliseconds = await _transact(client, producer, keys)
                    if number >= WARM_UP_ROUNDS:
                        taken[brokers].append(milliseconds)
        for brokers, values in taken.items():
            figures.add(f"{store}: commit, {PARTICIPANTS} segments on {brokers} brokers", "ms", *values)
        p50 = {brokers: sorted(values)[len(values) // 2] for brokers, values in taken.items()}
        figures.add(f"{store}: commit p50, 3 brokers to 1", "times", p50[3] / p50[1], at_most=FLAT)
    say(f"{store}: commits")


async def _transact(client: tidewire.Client, producer: Producer[bytes], keys: list[str]) -> float:
    """Send a message to each segment in one transaction. Return the milliseconds of its commit."""
    transaction = await client.new_transaction()
    for key in keys:
        await producer.enqueue(b"x" * 100, key=key, txn=transaction)
    await producer.flush()
    start = perf_counter()
    await transaction.commit()
    return (perf_counter() - start) * 1e3


async def _arrange(at: Stage, brokers: int) -> None:
    """Let the first brokers own the topic's segments, in turns."""
    limit = trio.CapacityLimiter(MOVES_AT_ONCE)
    claims = await at.cluster.claims()

    async def move(segment: str, broker: str) -> None:
        async with limit:
            await at.move(segment, broker)

    async with trio.open_nursery() as nursery:
        for number, segment in enumerate(await at.segments(TOPIC)):
            broker = BROKERS[number % brokers]
            if claims[segment] != broker:
                nursery.start_soon(move, segment, broker)


async def follow(store: str, repeats: int, figures: Figures) -> None:
    """Run transactions at one broker, while all others are drained and only follow the metadata.

    That broker starts first. So it is also the controller of the embedded metadata.
    """
    for count in FOLLOWERS:
        await _follow(store, count, repeats, figures)
    say(f"{store}: followers")


async def _follow(store: str, count: int, repeats: int, figures: Figures) -> None:
    first, *others = [f"broker-{number + 1}" for number in range(count)]
    async with stage(store, [first, *others]) as at, AsyncExitStack() as stack:
        for broker in others:
            await at.ask(broker, "POST", f"/cluster/brokers/{broker}/drain")
        await at.create(TOPIC)
        client = await stack.enter_async_context(tidewire.connect(at.cluster[first].service_url))
        producer = await stack.enter_async_context(client.producer(TOPIC))
        load = _Load(client, producer)
        nursery = await stack.enter_async_context(trio.open_nursery())
        nursery.start_soon(load.run)
        for _ in range(repeats):
            await trio.sleep(SETTLE_SECONDS)
            before = await _look(at, load, first, others)
            await trio.sleep(LOAD_SECONDS)
            after = await _look(at, load, first, others)
            done = after.done - before.done
            name = f"{store}: {count} brokers"
            figures.add(f"{name}, transactions", "/s", done / LOAD_SECONDS)
            figures.add(f"{name}, revisions of a transaction", "", (after.revision - before.revision) / done)
            if store == "embedded":
                bytes_each = (after.log_bytes - before.log_bytes) / (after.revision - before.revision)
                figures.add(f"{name}, metadata log of a change set", "B", bytes_each)
            name += ", CPU of a transaction at"
            figures.add(f"{name} the broker that runs it", "us", (after.own - before.own) / done * 1e6)
            if others:
                each = (after.others - before.others) / len(others)
                figures.add(f"{name} each other broker", "us", each / done * 1e6)
            if at.etcd_pid is not None:
                figures.add(f"{name} etcd", "us", (after.etcd - before.etcd) / done * 1e6)
        nursery.cancel_scope.cancel()


class _Look(NamedTuple):
    done: int
    revision: float
    own: float
    others: float
    etcd: float
    log_bytes: int


async def _look(at: Stage, load: "_Load", first: str, others: Sequence[str]) -> _Look:
    revision = await at.revision(first)
    etcd = cpu_seconds(at.etcd_pid) if at.etcd_pid is not None else 0.0
    return _Look(load.done, revision, at.cpu(first), at.cpu(*others), etcd, at.log_bytes())


class _Load:
    """Transactions of one message, IN_FLIGHT at a time."""

    def __init__(self, client: tidewire.Client, producer: Producer[bytes]) -> None:
        self._client = client
        self._producer = producer
        self.done = 0

    async def run(self) -> None:
        """Run until cancelled."""
        async with trio.open_nursery() as nursery:
            for _ in range(IN_FLIGHT):
                nursery.start_soon(self._repeat)

    async def _repeat(self) -> None:
        while True:
            await _transact(self._client, self._producer, ["key"])
            self.done += 1
