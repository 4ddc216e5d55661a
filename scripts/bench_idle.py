"""Measures the broker's CPU time while consumers wait and a transaction is open.

    .venv/bin/python scripts/bench_idle.py [--consumers 200] [--seconds 30]

It starts a broker as a user would. Each consumer waits on its own scalable topic, after one delivered message and
before one that an open transaction holds back. Then nothing happens. The CPU time is the kernel's figure for the
broker's process.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final
from urllib.request import Request, urlopen

sys.path.insert(0, str(Path(__file__).parents[1]))

import trio

import tidewire
from scripts.process_usage import cpu_seconds, resident_mib
from tests.support.processes import RunningBroker, running_broker

TOPIC: Final = "topic://public/default/bench-idle"
SETTLE_SECONDS: Final = 65
"""Time for the work that the set-up started to end before the measurement: acknowledgements, connections, and the
samples of the last minute's load."""
TARGET_SECONDS: Final = 0.05


async def park(broker: RunningBroker, consumers: int, seconds: float) -> None:
    """Set up, wait, and print the resources that the broker used meanwhile."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(tidewire.connect(broker.service_url))
        producer = await stack.enter_async_context(client.producer(TOPIC))
        await producer.send(b"first", key="key")
        before_mib = resident_mib(broker.pid)
        for number in range(consumers):
            consumer = await stack.enter_async_context(client.stream_consumer(TOPIC, f"parked-{number}"))
            await consumer.acknowledge_cumulative(await consumer.receive())
        transaction = await client.new_transaction(timeout_seconds=600)
        await producer.send(b"held back", key="key", txn=transaction)
        await trio.sleep(SETTLE_SECONDS)
        after_mib = resident_mib(broker.pid)
        start = cpu_seconds(broker.pid)
        await trio.sleep(seconds)
        used = cpu_seconds(broker.pid) - start
        print(f"{consumers} parked consumers, 1 open transaction, {seconds:.0f} s")
        print(f"broker's CPU time: {used:.3f} s (target: below {TARGET_SECONDS} s)")
        print(f"broker's memory: {after_mib:.0f} MiB, {(after_mib - before_mib) * 1024 / consumers:.0f} KiB a consumer")
        await transaction.abort()


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description="CPU time of a broker that waits.")
    parser.add_argument("--consumers", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30)
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="tidewire-bench-") as folder,
        running_broker(Path(folder) / "data") as broker,
    ):
        url = f"{broker.http_url}/admin/v2/scalable/{TOPIC.removeprefix('topic://')}"
        with urlopen(Request(url, method="PUT")):  # noqa: S310 - the broker just started
            pass
        trio.run(park, broker, options.consumers, options.seconds)


if __name__ == "__main__":
    main(sys.argv[1:])
