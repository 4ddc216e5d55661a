"""Measures how long a commit takes, by the number of segments in the transaction, until a waiting consumer has it.

    .venv/bin/python scripts/bench_commit.py [--rounds 300] [--plot docs/performance/commit.png]

It starts a broker as a user would, and drives it with the Python client over the socket. Beside it, it measures the raw
disk (append 200 bytes, fdatasync). The sizes take turns, so that other load on the machine affects all of them alike.
It prints figures and ratios with their targets, but does not judge them.
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Final
from urllib.request import Request, urlopen

sys.path.insert(0, str(Path(__file__).parents[1]))

import trio
import trio.testing

import tidewire
from tests.support.processes import RunningBroker, running_broker
from tidewire.wire.pulsar.hashing import HASH_SPACE_SIZE, key_hash

SIZES: Final = (1, 4, 16, 64)
TOPIC: Final = "topic://public/default/bench-commit"
WARM_UP_ROUNDS: Final = 20
RAW_BYTES: Final = 200


class Samples:
    """Measured times of one kind, in seconds."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def p(self, percent: int) -> float:
        """Return a percentile in milliseconds."""
        return statistics.quantiles(self.seconds, n=100)[percent - 1] * 1000

    def __str__(self) -> str:
        return f"{self.p(50):7.2f} {self.p(99):7.2f}"


def keys_by_segment(segments: int) -> list[str]:
    """Return one key for each of the topic's segments, which divide the hash space evenly."""
    width = HASH_SPACE_SIZE // segments
    found: dict[int, str] = {}
    number = 0
    while len(found) < segments:
        key = f"key-{number}"
        found.setdefault(key_hash(key) // width, key)
        number += 1
    return [found[segment] for segment in range(segments)]


def raw_sync(folder: Path) -> Callable[[], float]:
    """Return a function that measures one small durable append."""
    descriptor = os.open(folder / "raw", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    data = b"x" * RAW_BYTES

    def measure() -> float:
        start = perf_counter()
        os.write(descriptor, data)
        os.fdatasync(descriptor)
        return perf_counter() - start

    return measure


async def measure(
    broker: RunningBroker, folder: Path, rounds: int
) -> tuple[dict[int, Samples], dict[int, Samples], Samples]:
    """Measure commit and delivery by size, and the raw append."""
    keys = keys_by_segment(max(SIZES))
    commits = {size: Samples() for size in SIZES}
    deliveries = {size: Samples() for size in SIZES}
    raw, raw_once = Samples(), raw_sync(folder)
    async with (
        tidewire.connect(broker.service_url) as client,
        client.producer(TOPIC) as producer,
        client.stream_consumer(TOPIC, "parked") as consumer,
    ):
        order = random.Random(1)  # noqa: S311 - an order, not a secret
        for number in range(WARM_UP_ROUNDS + rounds):
            # Shuffled, so that no size always follows one whose records are still being removed.
            for size in order.sample(SIZES, len(SIZES)):
                transaction = await client.new_transaction()
                for key in keys[:size]:
                    await producer.enqueue(b"x" * 100, key=key, txn=transaction)
                await producer.flush()
                arrived: list[float] = []

                async def receive(size: int = size, arrived: list[float] = arrived) -> None:
                    for _ in range(size):
                        message = await consumer.receive()
                    arrived.append(perf_counter())
                    await consumer.acknowledge_cumulative(message)

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(receive)
                    await trio.testing.wait_all_tasks_blocked()
                    start = perf_counter()
                    await transaction.commit()
                    committed = perf_counter()
                raw_seconds = raw_once()
                if number >= WARM_UP_ROUNDS:
                    commits[size].seconds.append(committed - start)
                    deliveries[size].seconds.append(arrived[0] - start)
                    raw.seconds.append(raw_seconds)
    return commits, deliveries, raw


def plot(path: Path, commits: dict[int, Samples], deliveries: dict[int, Samples], raw: Samples) -> None:
    """Plot both curves over the size, with the raw append as a line."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    for label, measured in (("commit", commits), ("whole transaction delivered", deliveries)):
        axes.plot(SIZES, [measured[size].p(50) for size in SIZES], marker="o", label=f"{label}, p50")
        axes.plot(SIZES, [measured[size].p(99) for size in SIZES], marker=".", linestyle=":", label=f"{label}, p99")
    axes.axhline(raw.p(50), color="grey", linewidth=1, label="raw append and fdatasync, p50")
    axes.set_xscale("log", base=2)
    axes.set_xticks(SIZES, [str(size) for size in SIZES])
    axes.set_xlabel("segments in the transaction")
    axes.set_ylabel("milliseconds from the commit call")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def report(commits: dict[int, Samples], deliveries: dict[int, Samples], raw: Samples) -> None:
    """Print the figures beside their targets."""
    print(f"{len(commits[1].seconds)} rounds of each size; milliseconds p50 and p99")
    print("segments      commit          delivered")
    for size in SIZES:
        print(f"{size:8d} {commits[size]} {deliveries[size]}")
    print(f"raw append of {RAW_BYTES} bytes and fdatasync: {raw}")
    print(f"commit p50, 64 segments to 1:   {commits[64].p(50) / commits[1].p(50):.2f}   (target: at most 1.3)")
    print(f"commit p50, 1 segment, to raw:  {commits[1].p(50) / raw.p(50):.1f}")
    print(f"delivery p50, 1 segment:        {deliveries[1].p(50):.2f} ms (target: under 2)")


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description="Commit and delivery by transaction size.")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="tidewire-bench-") as name:
        folder = Path(name)
        with running_broker(folder / "data") as broker:
            name = TOPIC.removeprefix("topic://")
            url = f"{broker.http_url}/admin/v2/scalable/{name}?numInitialSegments={max(SIZES)}"
            with urlopen(Request(url, method="PUT")):  # noqa: S310 - the broker just started
                pass
            measured = trio.run(measure, broker, folder, options.rounds)
    report(*measured)
    if options.plot is not None:
        plot(options.plot, *measured)


if __name__ == "__main__":
    main(sys.argv[1:])
