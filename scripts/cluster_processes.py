"""Measures one broker with many idle segments, and one process beside two."""

import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Any, Final

import trio

import tidewire
from scripts.cluster_figures import Figures
from scripts.cluster_stage import say, stage
from scripts.measuring_programs import measure
from scripts.need import place
from scripts.process_usage import cpu_seconds, resident_mib
from tests.support.processes import children_of, running_broker
from tidewire.cli.local_etcd import EtcdProcess

SEGMENTS: Final = 250
TOPICS: Final = 40
"""Topics with this many segments each: 10,000 in all."""
IDLE_KIB: Final = 10.0
UNLOAD_SECONDS: Final = 135
"""A broker unloads a segment that nobody has used for two minutes. With this, unloading them all has ended, too."""
IDLE_SECONDS: Final = 20
IDLE_CPU_SECONDS: Final = 0.05
"""The most CPU that idle segments may take in that time, beside the broker's own beats."""

CLIENTS: Final = 4
"""Clients at once, each with its own topic."""
BYTES: Final = 1_024
WARM_UP_SECONDS: Final = 3
SECONDS: Final = 5


async def idle(store: str, repeats: int, figures: Figures) -> None:
    """Measure 10,000 segments in each state. Once, as a broker unloads what is unused only after two minutes."""
    broker = "one"
    topics = [f"topic://public/default/idle-{number}" for number in range(TOPICS)]
    async with stage(store, [broker]) as at:

        async def restart() -> None:
            await at.cluster.stop(broker)
            await at.cluster.start(broker)

        def note(what: str, before_mib: float, at_most: float | None = None) -> None:
            kib = (resident_mib(at.cluster[broker].pid) - before_mib) * 1024 / (SEGMENTS * TOPICS)
            figures.add(f"{store}: memory of a segment, {what}", "KiB", kib, at_most=at_most)

        async def note_cpu(what: str) -> None:
            used = at.cpu(broker)
            await trio.sleep(IDLE_SECONDS)
            figures.add(
                f"{store}: CPU in {IDLE_SECONDS} s, {what}", "s", at.cpu(broker) - used, at_most=IDLE_CPU_SECONDS
            )

        async def load() -> float:
            start = perf_counter()
            async with tidewire.connect(at.cluster.url()) as client:
                for topic in topics:
                    # A reader connects to all segments, so the broker loads them.
                    async with client.reader(topic):
                        pass
            return (perf_counter() - start) * 1e3 / (SEGMENTS * TOPICS)

        await at.create("topic://public/default/first", SEGMENTS)
        await restart()
        empty_mib = resident_mib(at.cluster[broker].pid)
        for topic in topics:
            await at.create(topic, SEGMENTS)
        note("created", empty_mib)
        figures.add(f"{store}: loading a segment", "ms", await load())
        note("loaded, without clients", empty_mib)
        await note_cpu("all loaded, without clients")
        await trio.sleep(UNLOAD_SECONDS)
        note("unloaded; the allocator keeps it for the next ones", empty_mib)
        before_mib = resident_mib(at.cluster[broker].pid)
        await load()
        note("loaded again, more than before", before_mib)
        await restart()
        note("idle since the broker's start", empty_mib, IDLE_KIB)
        await note_cpu("all idle since the broker's start")
    say(f"{store}: idle segments")


async def processes(store: str, repeats: int, figures: Figures) -> None:
    """Send to several topics from several clients, with one process and with two."""
    await trio.to_thread.run_sync(_processes, store, repeats, figures)


def _processes(store: str, repeats: int, figures: Figures) -> None:
    for _ in range(repeats):
        for count in (1, 2):
            for what, batched in (("batches", 1), ("single messages", 0)):
                with ExitStack() as stack:
                    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidewire-bench-")))
                    flags = ["--processes", str(count)]
                    if store == "etcd":
                        etcd = stack.enter_context(EtcdProcess(folder / "etcd", command=str(place("etcd"))))
                        flags += ["--metadata", f"etcd://{etcd.endpoint}"]
                    broker = stack.enter_context(running_broker(folder / "data", *flags))
                    pids = list(children_of(broker).values()) if count > 1 else [broker.pid]
                    rate, cpu = _produce(broker.service_url, pids, batched)
                name = f"{store}: {count} processes, {CLIENTS} clients, {what} of {BYTES:,} B"
                figures.add(f"{name}, rate", "/s", rate)
                figures.add(f"{name}, CPU of one", "us", cpu * 1e6)
    say(f"{store}: processes")


def _produce(url: str, pids: Sequence[int], batched: int) -> tuple[float, float]:
    """Run the clients at once. Return the messages a second, and the brokers' CPU seconds for one."""
    program = ["nice", "-n", "19", sys.executable, str(Path(__file__).with_name("cpp_bench.py")), url]
    guard = Lock()
    moments: dict[str, list[tuple[float, float]]] = {"measuring": [], "measured": []}

    def heard(line: str) -> None:
        if line in moments:
            with guard:
                moments[line].append((perf_counter(), sum(map(cpu_seconds, pids))))

    def one(_number: int) -> Any:  # noqa: ANN401 - the program's result
        return measure(program, "produce", BYTES, batched, WARM_UP_SECONDS, SECONDS, heard=heard)

    with ThreadPoolExecutor(CLIENTS) as pool:
        results = list(pool.map(one, range(CLIENTS)))
    rate = sum(result["done"] / result["seconds"] for result in results)
    # All clients send between the last one's begin and the first one's end.
    (begin, used_before), (end, used_after) = max(moments["measuring"]), min(moments["measured"])
    return rate, (used_after - used_before) / ((end - begin) * rate)
