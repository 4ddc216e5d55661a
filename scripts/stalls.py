"""Measures how long single steps of the broker's event loop take when clients make the largest legal requests.

    .venv/bin/python scripts/stalls.py [--only NAME ...]

It runs a broker in this process, on a disk folder, and its clients in another process. Each flood of
`tests/support/floods.py` runs alone, and the longest steps are printed. As in E7, they are measured in CPU time of the
broker's thread, so that other load on the machine does not count.
"""

import argparse
import gc
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import structlog
import trio

from broker.addresses import Address
from broker.config import load_settings
from broker.front_ends import Ready
from broker.garbage import GarbageCollector
from broker.loop_monitor import LongStep, LoopMonitor
from broker.main import serve
from tests.support.floods import FLOODS, Stage


def play_clients(pulsar: str, http: str, only: Sequence[str]) -> None:
    """Run the clients' process. It prints when the measurement of a flood begins, and how the flood ended."""
    for flood in FLOODS:
        if only and flood.__name__ not in only:
            continue
        stage = Stage(Address.parse(pulsar), Address.parse(http), lambda: print("begin", flush=True))
        failure = ""
        start = time.perf_counter()
        try:
            trio.run(partial(flood, stage))
        except* (AssertionError, trio.TooSlowError, OSError) as failed:
            failure = f"FAILED {failed.exceptions!r}"[:300].replace("\n", " ")
        print(f"end {flood.__name__} {time.perf_counter() - start:.1f} s {failure}", flush=True)


class Pauses:
    """Measures the longest pause of Python's garbage collector."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._start = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        """Called by Python."""
        if phase == "start":
            self._start = time.thread_time()
        else:
            self.longest = max(self.longest, time.thread_time() - self._start)


async def run(folder: str, only: Sequence[str]) -> list[tuple[str, LongStep]]:
    """The broker, in this process; the longest steps of all floods, with the flood's name."""
    flags = {"data_dir": folder, "pulsar": "127.0.0.1:0", "http": "127.0.0.1:0", "kafka": "none"}
    monitor, pauses = LoopMonitor(), Pauses()
    stop = trio.Event()
    found: list[tuple[str, LongStep]] = []
    async with trio.open_nursery() as nursery:
        ready: Ready = await nursery.start(partial(serve, load_settings(flags, None), "stalls", stop, loop=monitor))
        garbage = GarbageCollector()
        garbage.look_at_all()
        nursery.start_soon(garbage.run)
        gc.callbacks.append(pauses)
        command = [sys.executable, __file__, "--clients", str(ready.pulsar), str(ready.http), "--only", *only]
        with monitor.watching():
            clients = await nursery.start(partial(trio.run_process, command, stdout=subprocess.PIPE))
            async for data in clients.stdout:
                for line in data.decode().splitlines():
                    if line.startswith("end"):
                        found += [(line.split()[1], step) for step in monitor.statistics().worst]
                        tell(line, monitor, pauses)
                    monitor.clear()
                    pauses.longest = 0.0
        stop.set()
        nursery.cancel_scope.deadline = trio.current_time() + 10
    return found


def tell(line: str, monitor: LoopMonitor, pauses: Pauses) -> None:
    """Print what one flood caused."""
    print(line, f"(garbage collector at most {pauses.longest * 1000:.1f} ms)", flush=True)
    for step in monitor.statistics().worst[:4]:
        print(f"    {step.cpu_seconds * 1000:8.1f} ms  {step.task}  paused at {step.paused_at}", flush=True)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="names of floods")
    parser.add_argument("--clients", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    if arguments.clients:
        pulsar, http = arguments.clients
        play_clients(pulsar, http, arguments.only)
        return
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with tempfile.TemporaryDirectory() as folder:
        found = trio.run(run, folder, arguments.only)
    print("\n| CPU ms | flood | task |\n|---|---|---|")
    for name, step in sorted(found, key=lambda pair: -pair[1].cpu_seconds)[:10]:
        print(f"| {step.cpu_seconds * 1000:.0f} | {name} | `{step.task}` |")


if __name__ == "__main__":
    main()
