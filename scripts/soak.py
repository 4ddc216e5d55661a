"""Runs a broker under constant work for a long time, and checks that its memory, files and metadata do not grow.

    .venv/bin/python scripts/soak.py [--minutes 30] [--seed 1] [--plot docs/performance/soak.png] [--csv FILE]

The broker runs as a user starts it, with small ledgers so that many are created and removed. The work is the same in
every second: transactions, some of them aborted; producers with names that never return; readers that start somewhere
in the past; subscriptions that are created and deleted; and topics that are used once. The *live* data stays the same,
so the broker's memory must stay the same too (requirement E16). Before the measurement, enough is sent and read to fill
the broker's caches, whose bounds are in docs/bounds.md.

It prints a line each minute, and at the end how far the resident memory has moved since minute 5 (goal: within 5 %).
"""

import argparse
import csv
import random
import sys
import tempfile
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote
from urllib.request import Request, urlopen

sys.path.insert(0, str(Path(__file__).parents[1]))

import trio

import tidewire
from scripts.process_usage import resident_mib
from tests.support.processes import RunningBroker, running_broker

TOPIC: Final = "topic://public/default/soak"
SEGMENTS: Final = 4
MESSAGE_BYTES: Final = 4_000
FILL_MESSAGES: Final = 30_000
FILL_PRODUCERS: Final = 3_000
"""Producers that come and go before the work. Deduplication forgets them soon, as those of the work."""
TOPICS_USED_ONCE: Final = 100
"""The number of names for topics that are used once, so that their stored records stop growing."""
WARM_MINUTES: Final = 5
GOAL: Final = 0.05
SAMPLE_SECONDS: Final = 15
BROKER_FLAGS: Final = (
    *("--ledger-bytes-max", "1MiB"),
    *("--ledger-age-seconds-max", "20"),
    *("--txn-retention-seconds", "20"),
    # Merged segments stay, with their deduplication state, so the live data would grow.
    *("--auto-scale", "false"),
)


class Sample(NamedTuple):
    """The broker's resources at one moment."""

    seconds: float
    resident_mib: float
    descriptors: int
    topics: int
    transactions: int


@dataclass(slots=True)
class Work:
    """The work done so far, for the report and for workers that need something to read."""

    random: random.Random
    transactions: int = 0
    aborted: int = 0
    producers: int = 0
    readers: int = 0
    subscriptions: int = 0
    topics: int = 0
    places: deque[Any] = field(default_factory=lambda: deque(maxlen=10_000))
    """Past message ids, for readers to start at."""


async def steadily(per_second: float, step: Callable[[], Awaitable[None]]) -> None:
    """Take a step this many times a second, however long each takes. Steps never overlap."""
    due = trio.current_time()
    while True:
        await step()
        due = max(due + 1 / per_second, trio.current_time() - 1)
        await trio.sleep_until(due)


async def transact(client: tidewire.Client, _broker: RunningBroker, work: Work) -> None:
    """Consume, transform, produce. One transaction in five is aborted."""
    async with (
        client.producer(TOPIC) as producer,
        client.queue_consumer(TOPIC, "worker", queue_messages_max=50) as consumer,
    ):
        await producer.send(b"the first", key="0")

        async def one() -> None:
            transaction = await client.new_transaction(timeout_seconds=60)
            message = await consumer.receive()
            try:
                await consumer.acknowledge(message, transaction=transaction)
            except tidewire.TransactionConflict:
                # After an abort a batch is redelivered, and some of its messages are already in the list.
                await transaction.abort()
                return
            for key in range(3):
                sent = await producer.send(bytes(MESSAGE_BYTES), key=str(work.transactions + key), txn=transaction)
            work.places.append(sent)
            work.transactions += 1
            if work.transactions % 5:
                await transaction.commit()
                # Three messages come for each one that goes, so two are removed again.
                for _ in range(2):
                    await consumer.acknowledge(await consumer.receive())
            else:
                work.aborted += 1
                await transaction.abort()

        await steadily(20, one)


async def come_and_go(client: tidewire.Client, _broker: RunningBroker, work: Work) -> None:
    """Send one message with a producer whose name was never used before."""

    async def one() -> None:
        work.producers += 1
        # The other worker must consume its message again.
        await _visit(client, f"visitor-{work.producers}", str(work.producers))

    await steadily(2, one)


async def _visit(client: tidewire.Client, name: str, key: str) -> None:
    async with client.producer(TOPIC, name=name) as producer:
        await producer.send(bytes(100), key=key)


async def look_back(client: tidewire.Client, _broker: RunningBroker, work: Work) -> None:
    """Read from somewhere in the past."""

    async def one() -> None:
        if not work.places:
            return
        work.readers += 1
        async with client.reader(TOPIC, work.random.choice(work.places), queue_messages_max=10) as reader:
            with trio.move_on_after(1):
                for _ in range(5):
                    await reader.receive()

    await steadily(2, one)


async def subscribe(client: tidewire.Client, broker: RunningBroker, work: Work) -> None:
    """Create, use and delete a subscription."""

    async def one() -> None:
        work.subscriptions += 1
        name = f"passing-{work.subscriptions}"
        async with client.queue_consumer(TOPIC, name, initial="latest") as consumer:
            await consumer.acknowledge(await consumer.receive(), confirmed=True)
        path = f"/admin/v2/scalable/{TOPIC.removeprefix('topic://')}/subscriptions/{quote(name)}?force=true"
        await trio.to_thread.run_sync(_call, "DELETE", broker.http_url + path)

    await steadily(1, one)


async def use_once(client: tidewire.Client, _broker: RunningBroker, work: Work) -> None:
    """Use a regular topic for one message, with a subscription that acknowledges it."""

    async def one() -> None:
        topic = f"persistent://public/default/once-{work.topics % TOPICS_USED_ONCE}"
        work.topics += 1
        async with client.producer(topic) as producer, client.consumer(topic, "once") as consumer:
            await producer.send(bytes(100))
            await consumer.acknowledge(await consumer.receive(), confirmed=True)

    await steadily(2, one)


KINDS: Final[Mapping[str, Callable[[tidewire.Client, RunningBroker, Work], Awaitable[None]]]] = {
    "transactions": transact,
    "producers": come_and_go,
    "readers": look_back,
    "subscriptions": subscribe,
    "topics": use_once,
}


async def fill(client: tidewire.Client) -> None:
    """Send and read back more than the broker's caches hold, so that they are full when the work begins."""
    # Entries have one message each, as in the work. Batches would have less overhead per message.
    async with client.producer(TOPIC, batching=False) as producer:
        for number in range(FILL_MESSAGES):
            await producer.enqueue(bytes(MESSAGE_BYTES), key=str(number))
        await producer.flush()
    for number in range(FILL_PRODUCERS):
        await _visit(client, f"early-{number}", str(number))
    for _ in range(2):
        async with client.reader(TOPIC) as reader:
            for _ in range(FILL_MESSAGES):
                await reader.receive()


async def soak(broker: RunningBroker, minutes: float, seed: int, kinds: Sequence[str]) -> list[Sample]:
    """Work for `minutes`. Return samples of the broker's resources."""
    path = f"/admin/v2/scalable/{TOPIC.removeprefix('topic://')}?numInitialSegments={SEGMENTS}"
    await trio.to_thread.run_sync(_call, "PUT", broker.http_url + path)
    samples: list[Sample] = []
    work = Work(random.Random(seed))  # noqa: S311 - repeatable, not secret
    async with tidewire.connect(broker.service_url) as client, trio.open_nursery() as nursery:
        await fill(client)
        for kind in kinds:
            nursery.start_soon(KINDS[kind], client, broker, work)
        start = trio.current_time()
        while (passed := trio.current_time() - start) < minutes * 60:
            samples.append(await trio.to_thread.run_sync(_sample, broker, passed))
            if len(samples) % (60 // SAMPLE_SECONDS) == 1:
                print(_line(samples[-1], work), flush=True)
            await trio.sleep(SAMPLE_SECONDS)
        samples.append(await trio.to_thread.run_sync(_sample, broker, trio.current_time() - start))
        print(_line(samples[-1], work), flush=True)
        nursery.cancel_scope.cancel()
    return samples


def _line(now: Sample, work: Work) -> str:
    return (
        f"minute {now.seconds / 60:5.1f}: {now.resident_mib:7.1f} MiB, {now.descriptors:4} descriptors, "
        f"{now.topics:4} topics loaded, {now.transactions:5} op records; {work.transactions} transactions "
        f"({work.aborted} aborted), {work.producers} producers, {work.readers} readers, "
        f"{work.subscriptions} subscriptions, {work.topics} topics used"
    )


def _sample(broker: RunningBroker, seconds: float) -> Sample:
    gauges = {}
    for line in _call("GET", broker.http_url + "/metrics?local=true").decode().splitlines():
        name, _, value = line.rpartition(" ")
        if not line.startswith("#"):
            gauges[name] = float(value)
    return Sample(
        seconds,
        resident_mib(broker.pid),
        len(list(Path(f"/proc/{broker.pid}/fd").iterdir())),
        int(gauges["pulsar_broker_topics_count"]),
        int(gauges["pulsar_txn_metadata_store_outstanding_op_records"]),
    )


def _call(method: str, url: str) -> bytes:
    with urlopen(Request(url, method=method), timeout=60) as response:  # noqa: S310 - the broker just started
        answer: bytes = response.read()
        return answer


def report(samples: Sequence[Sample]) -> bool:
    """Print the verdict. Return whether the goal was met."""
    warm = [sample for sample in samples if sample.seconds >= WARM_MINUTES * 60]
    if len(warm) < 2 * 60 // SAMPLE_SECONDS:
        print(f"soak: too short for a verdict, because that compares with minute {WARM_MINUTES}")
        return True
    minute = 60 // SAMPLE_SECONDS
    first = sum(sample.resident_mib for sample in warm[:minute]) / minute
    last = sum(sample.resident_mib for sample in warm[-minute:]) / minute
    moved = last / first - 1
    print(
        f"soak: {first:.1f} MiB in minute {WARM_MINUTES}, {last:.1f} MiB in the last one: {moved:+.1%} "
        f"(goal: within {GOAL:.0%})"
    )
    return abs(moved) <= GOAL


def plot(samples: Sequence[Sample], path: Path) -> None:
    """Plot memory and descriptors over time."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, memory = pyplot.subplots(figsize=(9, 4))
    minutes = [sample.seconds / 60 for sample in samples]
    memory.plot(minutes, [sample.resident_mib for sample in samples], color="tab:blue")
    memory.set_xlabel("minutes of constant work")
    memory.set_ylabel("resident memory, MiB", color="tab:blue")
    memory.set_ylim(bottom=0)
    others = memory.twinx()
    others.plot(minutes, [sample.descriptors for sample in samples], color="tab:orange")
    others.plot(minutes, [sample.topics for sample in samples], color="tab:green")
    others.set_ylabel("descriptors (orange), topics loaded (green)")
    others.set_ylim(bottom=0)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main(arguments: Sequence[str]) -> int:
    """Run it. Return 1 if the goal was missed."""
    parser = argparse.ArgumentParser(description="Run constant work for a long time.")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=KINDS, action="append", help="run only this work, to find which kind grows")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="tidewire-soak-") as folder,
        running_broker(Path(folder) / "data", *BROKER_FLAGS) as broker,
    ):
        samples = trio.run(soak, broker, options.minutes, options.seed, options.only or list(KINDS))
    if options.csv is not None:
        with options.csv.open("w", newline="") as file:
            csv.writer(file).writerows([Sample._fields, *samples])
    if options.plot is not None:
        plot(samples, options.plot)
    return 0 if report(samples) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
